/* Kind "comm": ranks, groups, collectives, point-to-point and one-sided windows, on streams. One instance a rank.
 *
 * A group is a set of ranks and a channel: two groups of the same members under different names are independent, so
 * that two lanes may communicate at once. Calls of one group are made in the same order by all its members, one at a
 * time (core compares the sequences before step 1); calls of different groups may overlap, from different threads.
 * A reduction gives the same bits on every rank and in every run of one mesh; in which order it adds is the comm's.
 * With MOE_ASYNC a call returns when it is enqueued on the stream, and an error that comes later is told by poll. */
#ifndef MOE_COMM_H
#define MOE_COMM_H
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOE_SUM, MOE_MAX, MOE_MIN };
/* Who starts the ranks: the host, as threads of its process, or a launcher, as processes. */
enum { MOE_LAUNCH_THREADS, MOE_LAUNCH_PROCESSES };
#define MOE_NO_GROUP UINT32_MAX /* a color of group_split */

typedef struct moe_comm_cfg {
    uint32_t size, rank, world, reserved; /* for MOE_LAUNCH_PROCESSES: what `topology` gave */
    const moe_kv *kv;                     /* [n_kv] */
    uint64_t n_kv;
} moe_comm_cfg;

/* all_to_all_v: arrays [n] in host memory, bytes, in group order; borrowed for the call. Zero bytes join. What member i
 * sends to j, in_bytes[j] of i, equals out_bytes[i] of j. Parts of `out` do not overlap; in and out do not either. */
typedef struct moe_a2a_args {
    uint32_t size, reserved;
    const void *in; /* device memory */
    void *out;
    const uint64_t *in_at, *in_bytes;   /* part for member j: in + in_at[j] */
    const uint64_t *out_at, *out_bytes; /* part from member i: out + out_at[i] */
} moe_a2a_args;

/* One message of a p2p call. A send is matched with the receive that its destination posts for this source and tag, in
 * order for equal tags; the bytes must agree. */
typedef struct moe_p2p_op {
    void *buf; /* device memory; not written by a send */
    uint64_t bytes;
    uint32_t peer; /* index in the group; itself is allowed */
    int32_t tag;   /* >= 0 */
    int32_t receive, reserved;
} moe_p2p_op;

/* Memory of every member that the others may write. peers[i]: member i's bytes [0, bytes) as this rank's device
 * addresses them, NULL where it cannot; peers[index of this rank] is its own. Zero-filled when made. Whoever writes
 * into a peer's memory is seen by the peer after the next barrier of the window's group; every member's plain stores
 * before it, non-temporal ones included, are then visible to all. */
typedef struct moe_window {
    uint32_t size, n;
    uint64_t bytes;     /* of each member, the same */
    void *const *peers; /* [n] owned by the comm, until window_destroy */
    void *self;         /* the comm's own */
} moe_window;

typedef struct moe_comm_v0 {
    uint32_t size;
    int32_t launch; /* MOE_LAUNCH_* */
    /* [main] before create, any number of times; NULL with MOE_LAUNCH_THREADS. Starts the launcher's library when
     * needed; not started by a launcher: rank 0 of 1. local: this rank's number among those of its machine. */
    moe_status (*topology)(uint32_t *rank, uint32_t *world, uint32_t *local, moe_err *err);
    /* [main, collective, blocks] all ranks; exchanges what it needs through service "moe.bootstrap/0" (threads), or by
     * its own means (processes) */
    moe_status (*create)(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err);
    void (*destroy)(void *self); /* [main] idle; all ranks, any order */
    /* [main, collective over parent, blocks] parent NULL: the world. Members of equal color make one group, ordered by
     * their place in parent; color MOE_NO_GROUP: none, *group is NULL. name: a channel, for messages too ("dp"); equal
     * on all. One call makes all groups of an axis. */
    moe_status (*group_split)(void *self, void *parent, const char *name, uint32_t color, void **group, moe_err *err);
    void (*group_destroy)(void *self, void *group); /* [main] NULL is nothing */
    /* [any] members, and which of them is this rank */
    moe_status (*group_info)(void *self, void *group, uint32_t *n, uint32_t *index, moe_err *err);

    /* [step, collective, blocks without MOE_ASYNC] counts are elements; zero is allowed and joins. dtype MOE_F32,
     * MOE_F64, MOE_BF16 (a comm in host memory sums in FP32 and rounds once, others may round at every hop), MOE_I32,
     * MOE_I64; all_gather and broadcast take any dtype (MOE_F4E2M1X2: count is bytes, each of two values).
     * in == out is allowed for all_reduce and broadcast; all_gather in place: in == out + rank * count; reduce_scatter
     * in place: out == in + rank * count. */
    moe_status (*all_reduce)(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                             int32_t dtype, int32_t op, moe_err *err);
    /* out [n * count] = the ranks' in [count], in group order */
    moe_status (*all_gather)(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                             int32_t dtype, moe_err *err);
    /* in [n * count]; out [count] = this rank's part of the reduction */
    moe_status (*reduce_scatter)(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                                 int32_t dtype, int32_t op, moe_err *err);
    /* root: index in the group */
    moe_status (*broadcast)(void *self, void *group, void *stream, void *buf, uint64_t count, int32_t dtype,
                            uint32_t root, moe_err *err);
    moe_status (*all_to_all_v)(void *self, void *group, void *stream, const moe_a2a_args *args, moe_err *err);
    moe_status (*barrier)(void *self, void *group, void *stream, moe_err *err);
    /* [step, blocks without MOE_ASYNC] not collective: messages between members. All ops [n] of a call progress
     * together, so that neighbours may exchange without an order. A comm with MOE_ASYNC may match by order alone: the
     * messages from one member to another in the order of the calls, within a call of their tags, then of the ops; both
     * must come to the same order. */
    moe_status (*p2p)(void *self, void *group, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err);

    /* [main, collective, blocks] caller sets size */
    moe_status (*window_create)(void *self, void *group, uint64_t bytes, moe_window *out, moe_err *err);
    void (*window_destroy)(void *self, moe_window *w); /* [main, collective] an empty one is nothing */

    /* [any] ends every call in flight and to come, on all ranks, with MOE_E_COMM and this reason; once is enough */
    void (*abort)(void *self, const char *reason);
    /* [any] MOE_OK, or MOE_E_COMM with the reason once aborted; never blocks */
    moe_status (*poll)(void *self, moe_err *err);
    /* [any] What this rank waits for inside calls of `group` (NULL: of any): "all_reduce of 512 F32 on group dp of
     * ranks 0 2 4 6: ranks 2, 6 have not come", in text [bytes], "" when it waits for nobody. Never blocks. With
     * MOE_ASYNC: the call that the device is inside of, with its number ("call 17"), so that two texts that are equal
     * mean that nothing has moved. */
    void (*waiting)(void *self, void *group, char *text, uint64_t bytes);
    const void *(*extension)(void *self, const char *id); /* [any] NULL = absent. "moe.bootstrap/0" (moe_bootstrap): of
                                                           * a comm with MOE_LAUNCH_PROCESSES, for the host */
} moe_comm_v0;

/* Service "moe.comm/0" */
typedef struct moe_comm_service {
    uint32_t size, reserved;
    const moe_comm_v0 *table;
    void *self;
} moe_comm_service;

#ifdef __cplusplus
}
#endif
#endif
