/* What the ranks of one process share: the hub (who is there, was it aborted, which groups live) and its groups (a
 * meeting point with every member's call, and a mailbox a member). threads.c makes them; collectives.c, groups.c and
 * windows.c meet in them, messages.c posts to the mailboxes.
 * A hub and a group are reference-counted; whoever drops the last reference frees. */
#ifndef COMM_THREADS_HUB_H
#define COMM_THREADS_HUB_H
#include <moe/comm.h>
#include <pthread.h>
#include <stdatomic.h>

#include "call.h"

enum { CACHE_LINE = 64, MAX_RANKS = 4096, NAME_BYTES = 48, REASON_BYTES = 400 };

/* What a member brings to a meeting. Only the call must be the same for all. */
typedef struct offer {
    comm_call call;
    const void *in;
    void *out;
    uint32_t color, reserved; /* group_split */
} offer;
/* Posted before its member arrives. Calls of a member are counted from 1. */
typedef struct post {
    _Atomic uint64_t came; /* 2c: came to call c; 2c + 1: done with its own part of it */
    offer o;
} __attribute__((aligned(CACHE_LINE))) post;

/* One message of a p2p call in flight, in an array of its member. A send and its receive become a pair, then one of the
 * two members copies. pair and next are guarded by the lock of the destination's box; so is the step from WAITING, and
 * from MATCHED: a pair that is still MATCHED is alive. */
enum { MESSAGE_WAITING, MESSAGE_MATCHED, MESSAGE_COPIED_NOW, MESSAGE_DONE, MESSAGE_FAILED, MESSAGE_CANCELLED };
typedef struct message {
    void *buf;
    uint64_t bytes;
    uint32_t from, to; /* members */
    int32_t tag, receives;
    _Atomic int32_t state;
    uint32_t reserved;
    struct message *pair, *next;
} message;
/* Of one member: messages to it that wait for the other half. */
typedef struct mailbox {
    pthread_mutex_t lock;
    message *first[2], *last[2]; /* [receives] in the order of posting */
    _Atomic uint32_t news;       /* counts what others did to this member's messages, which sleeps on it */
    _Atomic uint32_t sleeps, left;
} __attribute__((aligned(CACHE_LINE))) mailbox;

struct hub;
/* The meeting point of n ranks. state packs, from the low end: 1 bit broken, 15 bits arrived, 48 bits round. One word,
 * so that "the last member has arrived" and "the group is broken" have an order on which all members agree. */
typedef struct group {
    _Atomic uint64_t state __attribute__((aligned(CACHE_LINE)));
    _Atomic uint32_t sleepers __attribute__((aligned(CACHE_LINE)));
    _Atomic uint32_t bell;       /* what sleepers sleep on: counts the times that they were woken */
    _Atomic uint32_t refs, left; /* left: 1 + the first rank that destroyed its handle */
    _Atomic uint32_t breaks;     /* aborts and leavings so far */
    struct hub *hub;
    struct group *next, *before; /* hub's list */
    uint32_t n, reserved;
    uint32_t *ranks; /* [n] ascending */
    /* Of calls of odd and even numbers, so that a fast member cannot overwrite what a slow one still reads. [n] each;
     * ins and outs of reductions only. */
    post *posts[2];
    const void **ins[2];
    void **outs[2];
    mailbox *boxes; /* [n] */
    char name[NAME_BYTES];
} group;

typedef struct hub {
    _Atomic uint32_t refs, aborted;
    uint32_t world, spins; /* spins: turns of a waiting loop before sleep */
    pthread_mutex_t lock;  /* groups, reason */
    group *groups;
    char reason[REASON_BYTES];
} hub;

/* A hub with one reference for each of `world` ranks; NULL when out of memory. */
hub *hub_create(uint32_t world);
void hub_release(hub *h);
/* [any] The first reason stays. Breaks every group and wakes who sleeps there. */
void hub_abort(hub *h, const char *reason);
/* [any] MOE_OK, or MOE_E_COMM with the reason. */
moe_status hub_poll(hub *h, moe_err *err);

/* A group of n ascending ranks with one reference for each, or NULL. Lives in the hub's list until its end. */
group *group_new(hub *h, const char *name, const uint32_t *ranks, uint32_t n);
/* Member `index` drops its reference; members that wait for it fail. */
void group_leave(group *g, uint32_t index);
/* Arrives and waits until all n members have. MOE_E_COMM when the group broke before the last arrived; then none of the
 * members passes. Writes before it are visible to all members after it. */
moe_status group_meet(group *g, moe_err *err);
/* The same for the end of a call whose members all passed group_meet: does not break, since members still touch each
 * other's buffers, and all are on their way. */
void group_part(group *g);

/* Something has happened that the member with this box waits for. */
void mailbox_ring(mailbox *b);
/* Sleeps while *word == seen; may return early. Linux futex(2): a condition variable would hand each sleeper a lock
 * that the one before it has to let go first. */
void hub_sleep(_Atomic uint32_t *word, uint32_t seen);

/* One turn of a loop that waits for another thread. */
static inline void hub_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

#endif
