/* The hub and the groups of comm/threads: references, abort, and the meeting of the members of a group, which spins
 * for some microseconds before it sleeps. See hub.h. */
#include "hub.h"

#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BROKEN = 1, ARRIVED_ONE = 2, ROUND_SHIFT = 16 };
/* Turns of the waiting loop before sleep: some microseconds where every rank has a core, next to none elsewhere. */
enum { SPINS_OWN_CORE = 4000, SPINS_SHARED_CORE = 60 };

hub *hub_create(uint32_t world) {
    hub *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    h->world = world;
    atomic_init(&h->refs, world);
    pthread_mutex_init(&h->lock, NULL);
    return h;
}

void hub_release(hub *h) {
    if (!h || atomic_fetch_sub(&h->refs, 1) != 1) return;
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Nobody who waits, or comes, passes group_meet from now on. */
static void group_break(group *g) {
    atomic_fetch_or(&g->state, BROKEN);
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

void hub_abort(hub *h, const char *reason) {
    pthread_mutex_lock(&h->lock);
    if (!atomic_load(&h->aborted)) {
        snprintf(h->reason, sizeof h->reason, "%s", reason);
        atomic_store(&h->aborted, 1);
        for (group *g = h->groups; g; g = g->next) group_break(g);
    }
    pthread_mutex_unlock(&h->lock);
}

moe_status hub_poll(hub *h, moe_err *err) {
    if (!atomic_load_explicit(&h->aborted, memory_order_acquire)) return MOE_OK;
    return moe_fail(err, MOE_E_COMM, "%s", h->reason); /* written once, before aborted */
}

static void group_free(group *g) {
    if (!g) return;
    free(g->ranks);
    free(g->calls[0]);
    free(g->calls[1]);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void hub_link(hub *h, group *g) {
    pthread_mutex_lock(&h->lock);
    g->next = h->groups;
    if (g->next) g->next->before = g;
    h->groups = g;
    if (atomic_load(&h->aborted)) atomic_fetch_or(&g->state, BROKEN);
    pthread_mutex_unlock(&h->lock);
}

static void hub_unlink(hub *h, group *g) {
    pthread_mutex_lock(&h->lock);
    if (g->before)
        g->before->next = g->next;
    else
        h->groups = g->next;
    if (g->next) g->next->before = g->before;
    pthread_mutex_unlock(&h->lock);
}

group *group_new(hub *h, const char *name, const uint32_t *ranks, uint32_t n) {
    group *g = aligned_alloc(CACHE_LINE, sizeof *g);
    if (!g) return NULL;
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->wake, NULL);
    atomic_init(&g->refs, n);
    g->hub = h;
    g->n = n;
    g->spins = sysconf(_SC_NPROCESSORS_ONLN) >= (long)h->world ? SPINS_OWN_CORE : SPINS_SHARED_CORE;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->ranks = malloc(n * sizeof *g->ranks);
    for (int i = 0; i < 2; i++) g->calls[i] = aligned_alloc(CACHE_LINE, n * sizeof(call_desc));
    if (!g->ranks || !g->calls[0] || !g->calls[1]) {
        group_free(g);
        return NULL;
    }
    memcpy(g->ranks, ranks, n * sizeof *ranks);
    hub_link(h, g);
    return g;
}

void group_leave(group *g, uint32_t rank) {
    uint32_t none = 0;
    atomic_compare_exchange_strong(&g->left, &none, rank + 1);
    group_break(g);
    if (atomic_fetch_sub(&g->refs, 1) != 1) return;
    hub_unlink(g->hub, g);
    group_free(g);
}

static moe_status group_failure(group *g, moe_err *err) {
    if (hub_poll(g->hub, err) != MOE_OK) return MOE_E_COMM;
    return moe_fail(err, MOE_E_COMM, "group %s: rank %u has left", g->name, atomic_load(&g->left) - 1);
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Still the same round, and not broken where that counts? */
static int still_waits(group *g, uint64_t round, int may_break) {
    uint64_t s = atomic_load(&g->state);
    return s >> ROUND_SHIFT == round && !(may_break && s & BROKEN);
}

static void wait_round(group *g, uint64_t round, int may_break) {
    for (uint32_t i = 0; i < g->spins; i++) {
        if (!still_waits(g, round, may_break)) return;
        relax();
    }
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&g->sleepers, 1);
    while (still_waits(g, round, may_break)) pthread_cond_wait(&g->wake, &g->lock);
    atomic_fetch_sub(&g->sleepers, 1);
    pthread_mutex_unlock(&g->lock);
}

/* 1: the round is complete. 0: broken before its last member arrived. */
static int arrive(group *g, int may_break) {
    uint64_t old = atomic_load(&g->state), next, round;
    do {
        if (may_break && old & BROKEN) return 0;
        round = old >> ROUND_SHIFT;
        next = old + ARRIVED_ONE;
        if (((next >> 1) & 0x7fff) == g->n) next = (round + 1) << ROUND_SHIFT | (old & BROKEN);
    } while (!atomic_compare_exchange_weak(&g->state, &old, next));
    if (next >> ROUND_SHIFT == round) {
        wait_round(g, round, may_break);
        return atomic_load(&g->state) >> ROUND_SHIFT != round;
    }
    /* Whoever goes to sleep first counts itself, then looks at state: one of the two sees the other. */
    if (atomic_load(&g->sleepers)) {
        pthread_mutex_lock(&g->lock);
        pthread_cond_broadcast(&g->wake);
        pthread_mutex_unlock(&g->lock);
    }
    return 1;
}

moe_status group_meet(group *g, moe_err *err) {
    return arrive(g, 1) ? MOE_OK : group_failure(g, err);
}

void group_part(group *g) {
    arrive(g, 0);
}
