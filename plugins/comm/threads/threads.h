/* Inside comm/threads: one rank's instance, its handles of groups, and the collectives (collectives.c) of its table. */
#ifndef COMM_THREADS_H
#define COMM_THREADS_H
#include "hub.h"

typedef struct member {
    group *g;
    uint32_t index, reserved;
    uint64_t calls;      /* made so far: which of the two sets of descriptors is next */
    const void **ins;    /* [n] scratch: the members' in and out in group order */
    void **outs;         /* [n] */
    struct member *next; /* instance's list */
} member;

typedef struct instance {
    hub *h;
    uint32_t rank, reserved;
    member *world;   /* the meeting point of group_split without a parent; in the list too */
    member *members; /* all handles; destroy drops what the host left */
} instance;

/* Posts the call, meets, and compares it with the calls of all members. On difference: aborts the hub with both values
 * and rank numbers. */
moe_status member_join(member *m, const call_desc *call, moe_err *err);
/* The members' calls in group order, from member_join until this member's next one. */
const call_desc *member_calls(const member *m);

moe_status threads_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, int32_t op, moe_err *err);
moe_status threads_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, moe_err *err);
moe_status threads_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                                  int32_t dtype, int32_t op, moe_err *err);
moe_status threads_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                             uint32_t root, moe_err *err);
moe_status threads_barrier(void *self, void *handle, void *stream, moe_err *err);

#endif
