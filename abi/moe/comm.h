/* Kind "comm": ranks, groups and collectives on streams. One instance a rank. Calls of one group are made in the same
 * order by all its ranks (core compares the sequences before step 1). Reductions add in rank order, so the result is
 * the same bits on every rank and in every run. */
#ifndef MOE_COMM_H
#define MOE_COMM_H
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOE_SUM, MOE_MAX, MOE_MIN };
/* Who starts the ranks: the host, as threads of its process, or a launcher, as processes. */
enum { MOE_LAUNCH_THREADS, MOE_LAUNCH_PROCESSES };

typedef struct moe_comm_cfg {
    uint32_t size, rank, world, reserved; /* for MOE_LAUNCH_PROCESSES: what `topology` gave */
    const moe_kv *kv;                     /* [n_kv] */
    uint64_t n_kv;
} moe_comm_cfg;

typedef struct moe_comm_v0 {
    uint32_t size;
    int32_t launch; /* MOE_LAUNCH_* */
    /* [main] before create; NULL with MOE_LAUNCH_THREADS */
    moe_status (*topology)(uint32_t *rank, uint32_t *world, moe_err *err);
    /* [main, collective, blocks] all ranks; exchanges what it needs through service "moe.bootstrap/0" */
    moe_status (*create)(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err);
    void (*destroy)(void *self); /* [main] idle; all ranks, any order */
    /* [main, collective over the world, blocks] ranks: ascending members, the same on each; every rank of the world
     * calls, in the same order; *group is NULL for those outside. name: for messages ("dp"). */
    moe_status (*group_create)(void *self, const char *name, const uint32_t *ranks, uint32_t n, void **group,
                               moe_err *err);
    void (*group_destroy)(void *self, void *group); /* [main] NULL is nothing */

    /* [step, collective, blocks without MOE_ASYNC] counts are elements; zero is allowed and joins. dtype MOE_F32,
     * MOE_F64, MOE_BF16 (sums in FP32, rounded once), MOE_I32, MOE_I64; all_gather and broadcast take any dtype
     * (MOE_F4E2M1X2: count is bytes, each of two values).
     * in == out is allowed for all_reduce and broadcast; all_gather in place: in == out + rank * count. */
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
    moe_status (*barrier)(void *self, void *group, void *stream, moe_err *err);

    /* [any] ends every call in flight and to come, on all ranks, with MOE_E_COMM and this reason; once is enough */
    void (*abort)(void *self, const char *reason);
    /* [any] MOE_OK, or MOE_E_COMM with the reason once aborted; never blocks */
    moe_status (*poll)(void *self, moe_err *err);
    const void *(*extension)(void *self, const char *id); /* [any] NULL = absent */
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
