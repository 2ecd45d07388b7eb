/* What the ranks of one process share: the hub (who is there, was it aborted, which groups live) and its groups (a
 * meeting point with the descriptor of every member's call). threads.c makes them, collectives.c meets in them.
 * A hub and a group are reference-counted; whoever drops the last reference frees. */
#ifndef COMM_THREADS_HUB_H
#define COMM_THREADS_HUB_H
#include <moe/comm.h>
#include <pthread.h>
#include <stdatomic.h>

enum { CACHE_LINE = 64, MAX_RANKS = 4096, NAME_BYTES = 48, REASON_BYTES = 400 };

/* One member's call, posted before it arrives. All but in and out must agree among the members. */
typedef struct call_desc {
    int32_t what, dtype, op; /* CALL_*; MOE_F32 ..; MOE_SUM .. or -1 */
    uint32_t root;           /* broadcast; color of group_split, which may differ */
    uint64_t count;
    const void *in;
    void *out;
    const char *name; /* group_split */
} __attribute__((aligned(CACHE_LINE))) call_desc;
enum { CALL_ALL_REDUCE, CALL_ALL_GATHER, CALL_REDUCE_SCATTER, CALL_BROADCAST, CALL_BARRIER, CALL_GROUP_SPLIT };

struct hub;
/* The meeting point of n ranks. state packs, from the low end: 1 bit broken, 15 bits arrived, 48 bits round. One word,
 * so that "the last member has arrived" and "the group is broken" have an order on which all members agree. */
typedef struct group {
    _Atomic uint64_t state __attribute__((aligned(CACHE_LINE)));
    _Atomic uint32_t sleepers __attribute__((aligned(CACHE_LINE)));
    pthread_mutex_t lock; /* for sleeping only */
    pthread_cond_t wake;
    _Atomic uint32_t refs, left; /* left: 1 + the first rank that destroyed its handle */
    struct hub *hub;
    struct group *next, *before; /* hub's list */
    uint32_t n, spins;
    uint32_t *ranks;     /* [n] ascending */
    call_desc *calls[2]; /* [n] each; calls of odd and even rounds, so that a fast member cannot overwrite what a slow
                            one still reads */
    char name[NAME_BYTES];
} group;

typedef struct hub {
    _Atomic uint32_t refs, aborted;
    uint32_t world, reserved;
    pthread_mutex_t lock; /* groups, reason */
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
/* rank drops its reference; members that wait for it fail. */
void group_leave(group *g, uint32_t rank);
/* Arrives and waits until all n members have. MOE_E_COMM when the group broke before the last arrived; then none of the
 * members passes. Writes before it are visible to all members after it. */
moe_status group_meet(group *g, moe_err *err);
/* The same for the end of a call whose members all passed group_meet: does not break, since members still touch each
 * other's buffers, and all are on their way. */
void group_part(group *g);

#endif
