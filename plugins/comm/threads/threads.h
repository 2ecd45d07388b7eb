/* Inside comm/threads: one rank's instance, its handles of groups and windows, and the functions of its table. What
 * they promise stands in moe/comm.h. */
#ifndef COMM_THREADS_H
#define COMM_THREADS_H
#include "hub.h"

struct instance;
/* A rank's handle of a group. */
typedef struct member {
    group *g;
    struct instance *owner;
    uint32_t index, n_messages; /* messages in flight; guarded by the lock of this member's box, as is the next one */
    message *messages;          /* [room] of the p2p call in flight; grows with the largest call */
    uint32_t room, reserved;
    uint64_t calls; /* made so far */
    /* What `waiting` reads from other threads: inside is 0, or like post.came of the call in flight; doing is its call
     * (waiting.c), written while inside is 0. */
    _Atomic uint64_t inside, doing[2];
    struct member *next; /* instance's list */
} member;

/* A rank's handle of a window. */
typedef struct window {
    struct segment *s; /* of all members (windows.c) */
    struct window *next;
} window;

typedef struct instance {
    hub *h;
    uint32_t rank, latency_us;
    member *world;           /* the meeting point of group_split without a parent; in the list too */
    pthread_mutex_t lock;    /* members, splits */
    member *members;         /* all handles; destroy drops what the host left */
    window *windows;         /* the same */
    char splits[NAME_BYTES]; /* channel of the group_split in flight */
} instance;

/* groups.c: handles. */
member *member_alloc(void);
void member_free(member *m);
/* m becomes the handle of member `index`; takes over the reference of g. */
void member_attach(instance *me, member *m, group *g, uint32_t index);
/* collectives.c: posts the offer, meets, and compares the call with the calls of all members. On difference: aborts the
 * hub with both values and rank numbers. After MOE_OK ends with member_part, or member_done. */
moe_status member_join(member *m, const offer *o, moe_err *err);
/* What the members offered, in group order; valid until this member's next call. */
const post *member_posts(const member *m);
/* Meets again: nobody touches this member's buffers any more. */
void member_part(member *m);
/* Nobody has touched them. */
void member_done(member *m);
/* Sleeps as long as option latency_us says; all members have come. */
void member_lag(const member *m);
/* A fault that only this rank may see: the others would wait for it for ever, so it ends all. m may be NULL. */
moe_status member_refuse(instance *me, const member *m, const char *what, const char *why, moe_err *err);
/* waiting.c: says what m is about to do. */
void member_tell(member *m, const comm_call *c);
/* windows.c: drops what the host left. */
void windows_close(instance *me);

moe_status threads_group_split(void *self, void *parent, const char *name, uint32_t color, void **handle, moe_err *err);
void threads_group_destroy(void *self, void *handle);
moe_status threads_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err);
moe_status threads_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, int32_t op, moe_err *err);
moe_status threads_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, moe_err *err);
moe_status threads_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                                  int32_t dtype, int32_t op, moe_err *err);
moe_status threads_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                             uint32_t root, moe_err *err);
moe_status threads_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err);
moe_status threads_barrier(void *self, void *handle, void *stream, moe_err *err);
moe_status threads_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err);
moe_status threads_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err);
void threads_window_destroy(void *self, moe_window *w);
void threads_waiting(void *self, void *handle, char *text, uint64_t bytes);

#endif
