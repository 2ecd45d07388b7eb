/* Inside comm/mpi: one rank's instance, its groups, and what the files share. plugin.c: descriptor, MPI's life,
 * instances. node.c: memory that the ranks of a node share, and abort. group.c: groups and the meeting of their
 * members. flight.c: messages under way. collectives.c, exchange.c, window.c: the calls of the table. */
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include <moe/comm.h>
#include <mpi.h>
#include <pthread.h>

#include "node.h"

enum { TAG_CALL = 1, TAG_DATA = 2 }; /* messages of a group's own communicator */

/* A message under way. */
typedef struct transfer {
    uint64_t bytes;
    uint32_t peer; /* index in the group */
    int32_t tag, receive;
    _Atomic int32_t landed;
} transfer;

/* All messages of one call, in three arrays of one length. */
typedef struct flight {
    MPI_Request *requests; /* [n] of [room] */
    transfer *transfers;
    MPI_Status *statuses;
    int *done;
    uint32_t n, room;
} flight;

typedef struct instance instance;

typedef struct group {
    instance *me;
    MPI_Comm comm, messages; /* calls; p2p, whose tags are the caller's */
    uint32_t n, index;
    uint32_t *ranks;  /* [n] */
    node_slot **slot; /* [n] where a member counts its calls; NULL on another node */
    uint32_t own_slot, reserved;
    uint64_t calls;       /* made so far by this rank */
    node_call *remote;    /* [n] what members on other nodes call */
    _Atomic uint8_t *owe; /* [n] 1: something of this member is still to come */
    flight flight;
    char *scratch;        /* [n * piece] */
    const void **sources; /* [n] of a reduction */
    uint64_t piece;
    pthread_mutex_t lock; /* current, waits, n_ops, shown */
    node_call current;
    int32_t waits; /* WAIT_* */
    char name[NODE_NAME];
    uint32_t n_ops, shown; /* of p2p: messages, and transfers that `waiting` may look at */
    struct group *next;
} group;
enum { WAIT_NOT, WAIT_FOR_CALLS, WAIT_FOR_DATA, WAIT_FOR_MESSAGES };

struct instance {
    node *node;
    MPI_Comm all;
    uint32_t rank, world, nodes;
    int crowded; /* more ranks on this node than processors */
    int tag_most, reserved;
    group *whole;  /* all ranks; in the list too */
    group *groups; /* list */
    struct window *windows;
    pthread_mutex_t lock; /* groups */
    moe_bootstrap bootstrap;
};

/* MPI's own words for a failed call. Returns MOE_E_COMM. */
moe_status mpi_fail(const char *what, int code, moe_err *err);

/* ---- group.c ---- */
/* The group of ranks [n] on comm, which it takes over; slots [n]: the numbers of the members' slots. NULL: no memory.
 */
group *group_new(instance *me, const char *name, MPI_Comm comm, MPI_Comm messages, const uint32_t *ranks,
                 const uint32_t *slots, uint32_t n, uint32_t index);
void group_free(group *g);
/* Waits until all members make this call, and compares. On difference: aborts, naming both calls and ranks. Writes
 * before it, non-temporal ones too, are visible to the members of the node after it. */
moe_status group_join(group *g, const comm_call *call, moe_err *err);
/* Looks at the arguments (common/check.h), then joins. A fault that only this rank may see ends all. */
moe_status group_begin(instance *me, group *g, const comm_call *call, const void *in, const void *out, moe_err *err);
/* Has member i, of this node, entered this rank's call? */
int group_has_come(const group *g, uint32_t i);
/* The messages of a p2p call have been begun, as n transfers of the flight. */
void group_tell_messages(group *g, uint32_t n_ops, uint32_t n);
/* The call is over, however it ended: nobody is waited for. Gives status back. */
moe_status group_leave(group *g, moe_status status);
/* A fault that only this rank may see: ends all, who would wait for it. g may be NULL. Returns MOE_E_ARG. */
moe_status group_refuse(instance *me, const group *g, const char *what, const char *why, moe_err *err);
/* One turn of a waiting loop: pauses a little, longer the longer it lasts. MOE_E_COMM once aborted. */
moe_status group_pause(const instance *me, uint32_t *turn, moe_err *err);

moe_status mpi_group_split(void *self, void *parent, const char *name, uint32_t color, void **out, moe_err *err);
void mpi_group_destroy(void *self, void *handle);
moe_status mpi_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err);
void mpi_waiting(void *self, void *handle, char *text, uint64_t bytes);

/* ---- flight.c ---- */
moe_status flight_reserve(flight *f, uint32_t room, moe_err *err);
void flight_free(flight *f);
/* Begins a message of at most FLIGHT_MAX bytes; MPI's failures end all ranks. */
enum { FLIGHT_MAX = 1 << 30 };
moe_status flight_send(group *g, MPI_Comm comm, const void *from, uint64_t bytes, uint32_t peer, int tag, moe_err *err);
moe_status flight_receive(group *g, MPI_Comm comm, void *to, uint64_t bytes, uint32_t peer, int tag, moe_err *err);
/* Waits for all that were begun, and checks that as much came as was to be received. s: how beginning them went; after
 * a failure what is under way is given up, and s comes back. */
moe_status flight_land(group *g, moe_status s, moe_err *err);

/* ---- the table ---- */
moe_status mpi_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                          int32_t dtype, int32_t op, moe_err *err);
moe_status mpi_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                          int32_t dtype, moe_err *err);
moe_status mpi_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, int32_t op, moe_err *err);
moe_status mpi_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                         uint32_t root, moe_err *err);
moe_status mpi_barrier(void *self, void *handle, void *stream, moe_err *err);
moe_status mpi_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err);
moe_status mpi_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err);
moe_status mpi_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err);
void mpi_window_destroy(void *self, moe_window *w);
void windows_close(instance *me); /* those that the host has left */
/* Every rank's bytes at in to out [n * bytes], within a call that was joined. */
moe_status collect_blobs(group *g, const void *in, uint64_t bytes, void *out, moe_err *err);

#endif
