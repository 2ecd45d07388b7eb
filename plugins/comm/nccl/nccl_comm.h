/* Inside comm/nccl: one rank's instance, its groups, and what the files share. processes.c, threads.c: the two
 * plugins over it. environment.c: who this process is, as its launcher tells it. net.c, meet.c: sockets between
 * processes; hub.c: the same for threads. instance.c: life, errors, abort. group.c: communicators, and the waiting for
 * them. split.c: how groups come to be. call.c: one call from beginning to end, and what waits. collectives.c,
 * exchange.c, window.c (with lsa.cpp): the calls of the table.
 *
 * A communicator is non-blocking, and touched only under its group's lock, so that an abort from another thread may
 * take it away at any time. Nobody keeps that lock while waiting. */
#ifndef COMM_NCCL_H
#define COMM_NCCL_H
#include <cuda_runtime_api.h>
#include <moe/comm.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "call.h"
#include "hub.h"
#include "net.h"

enum { NAME_BYTES = 48, REASON_BYTES = 400, RING_CALLS = 256 };

/* A call that may still be under way. */
typedef struct ring_call {
    comm_call call;
    uint64_t number; /* of the group's calls, from 1 */
    int issued;      /* the event stands behind it */
    cudaEvent_t passed;
} ring_call;

typedef struct instance instance;

/* What a member says in set-up. */
typedef struct said {
    comm_call call; /* its name means nothing elsewhere */
    char name[NAME_BYTES];
    uint32_t rank, color, ok, reserved; /* ok 0: out of memory */
} said;

typedef struct group {
    instance *me;
    uint32_t n, index;
    uint32_t *ranks; /* [n] of the world */
    uint64_t id;     /* the same on all members, another for every group */
    uint32_t n_splits, left_rank;
    int stays; /* under the lock: of a window, which an abort leaves as it is */
    char name[NAME_BYTES], split_name[NAME_BYTES];
    pthread_mutex_t lock;                    /* all below */
    ncclComm_t comm;                         /* NULL: not there yet, or aborted */
    ncclComm_t coming;                       /* where ncclCommSplit puts it */
    uint64_t calls, collectives, left_after; /* left_after: collectives that left_rank has joined; UINT64_MAX: nobody */
    ring_call *ring;                         /* [RING_CALLS] first .. last - 1 are under way, counted without end */
    uint64_t first, last;
    cudaStream_t stream; /* of set-up */
    cudaEvent_t gathered;
    said *space, *staged; /* [1 + n] device and pinned memory of set-up: own, then all; space has a word for barriers */
    struct group *next;
} group;

struct instance {
    uint32_t rank, world;
    hub *hub; /* threads; or */
    net *net; /* processes */
    int has_id;
    ncclUniqueId id;
    pthread_mutex_t lock; /* reason, groups */
    _Atomic int ended;
    int device; /* under lock, from the first group on: of its streams and events */
    char reason[REASON_BYTES];
    group *whole;  /* all ranks, from the first split on; in the list too */
    group *groups; /* list */
    struct window *windows;
    moe_bootstrap bootstrap;
};

/* ---- instance.c ---- */
instance *instance_new(const moe_comm_cfg *cfg, moe_err *err); /* NULL: no memory */
void nccl_destroy(void *self);                                 /* NULL is nothing */
void nccl_abort(void *self, const char *reason);
moe_status nccl_poll(void *self, moe_err *err);
/* [any] Ends every call of this rank, in flight and to come. The first reason stays. */
void instance_end(instance *me, const char *reason);
/* [any] The same on all ranks. Not under a group's lock. */
void instance_abort(instance *me, const char *reason);
/* [any] MOE_OK, or MOE_E_COMM with the reason. */
moe_status instance_poll(const instance *me, moe_err *err);
/* A fault that only this rank may see: ends all, who would wait for it. g may be NULL. Returns MOE_E_ARG. */
moe_status instance_refuse(instance *me, const group *g, const char *what, const char *why, moe_err *err);
/* NCCL or CUDA has failed in `what`: ends all. Not under a lock. */
moe_status nccl_failed(instance *me, const group *g, const char *what, ncclResult_t r, moe_err *err);
moe_status cuda_failed(instance *me, const group *g, const char *what, cudaError_t r, moe_err *err);

/* ---- group.c ---- */
/* In the list of me, without a communicator. ranks [n] are copied. NULL: no memory. */
group *group_new(instance *me, const char *name, const uint32_t *ranks, uint32_t n, uint32_t index, uint64_t id);
/* Streams, events and memory, which need no other member. */
moe_status group_equip(group *g, moe_err *err);
/* The group of all ranks, made when first asked for. [main, collective] */
moe_status group_whole(instance *me, group **out, moe_err *err);
/* Waits until the communicator may be used. coming: until the one that ncclCommSplit makes is there, too. */
moe_status group_settle(group *g, const char *what, ncclComm_t *coming, moe_err *err);
/* One look at its state, without waiting. 0: it has failed, and why [REASON_BYTES] says how. */
int group_look(group *g, char *why);
/* [main, collective] What all say, all [n]; `waiting` tells it as this call. Calls that differ end all. */
moe_status group_agree(group *g, const comm_call *call, uint32_t color, int ok, said *all, moe_err *err);
/* [any] That member of the group with this id has joined `calls` collectives, and joins no more. 1: this rank is in a
 * later one, and why [REASON_BYTES] says so. */
int group_left(instance *me, uint64_t id, uint32_t rank, uint64_t calls, char *why);
void group_free(group *g); /* out of the list; tells the others */
moe_status nccl_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err);
void nccl_group_destroy(void *self, void *handle);
void nap(void);

/* ---- call.c ---- */
/* Looks at this rank's arguments (common/check.h), then call_open. */
moe_status call_begin(instance *me, group *g, const comm_call *call, const void *in, const void *out, moe_err *err);
/* Notes the call, and locks the group: NCCL may be called now. Unlocked where it fails; g may be NULL, which does. */
moe_status call_open(instance *me, group *g, const comm_call *call, moe_err *err);
/* After NCCL's calls, the first failure of which is r: waits until they are on the stream, and unlocks. */
moe_status call_close(group *g, cudaStream_t stream, ncclResult_t r, moe_err *err);
void nccl_waiting(void *self, void *handle, char *text, uint64_t bytes);

/* ---- the table ---- */
moe_status nccl_group_split(void *self, void *parent, const char *name, uint32_t color, void **out, moe_err *err);
moe_status nccl_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                           int32_t dtype, int32_t op, moe_err *err);
moe_status nccl_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                           int32_t dtype, moe_err *err);
moe_status nccl_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                               int32_t dtype, int32_t op, moe_err *err);
moe_status nccl_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                          uint32_t root, moe_err *err);
moe_status nccl_barrier(void *self, void *handle, void *stream, moe_err *err);
moe_status nccl_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err);
moe_status nccl_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err);
moe_status nccl_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err);
void nccl_window_destroy(void *self, moe_window *w);
void windows_close(instance *me); /* those that the host has left */

#define NCCL_CALLS                                                                                                    \
    .size = sizeof(moe_comm_v0), .destroy = nccl_destroy, .group_split = nccl_group_split,                            \
    .group_destroy = nccl_group_destroy, .group_info = nccl_group_info, .all_reduce = nccl_all_reduce,                \
    .all_gather = nccl_all_gather, .reduce_scatter = nccl_reduce_scatter, .broadcast = nccl_broadcast,                \
    .all_to_all_v = nccl_all_to_all_v, .barrier = nccl_barrier, .p2p = nccl_p2p, .window_create = nccl_window_create, \
    .window_destroy = nccl_window_destroy, .abort = nccl_abort, .poll = nccl_poll, .waiting = nccl_waiting

#endif
