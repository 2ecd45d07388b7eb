/* The hub and the groups of comm/threads: references, abort, and the meeting of the members of a group, which spins
 * for some microseconds before it sleeps. See hub.h. */
#include "hub.h"

#include <limits.h>
#include <linux/futex.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BROKEN = 1, ARRIVED_ONE = 2, ROUND_SHIFT = 16 };
/* Turns of the waiting loop before sleep: about 10 microseconds where every rank has a core, next to none elsewhere.
 * Not more: other work may have put two ranks on one core, where every turn only delays the other one. (To yield
 * instead gives the core away for milliseconds on a machine with other work.) */
enum { SPINS_OWN_CORE = 400, SPINS_SHARED_CORE = 60 };

hub *hub_create(uint32_t world) {
    hub *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    h->world = world;
    h->spins = sysconf(_SC_NPROCESSORS_ONLN) >= (long)world ? SPINS_OWN_CORE : SPINS_SHARED_CORE;
    atomic_init(&h->refs, world);
    pthread_mutex_init(&h->lock, NULL);
    return h;
}

void hub_release(hub *h) {
    if (!h || atomic_fetch_sub(&h->refs, 1) != 1) return;
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* ---- sleep ---- */
void hub_sleep(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void ring(group *g) {
    atomic_fetch_add(&g->bell, 1);
    wake_all(&g->bell);
}

void mailbox_ring(mailbox *b) {
    atomic_fetch_add(&b->news, 1);
    if (atomic_load(&b->sleeps)) wake_all(&b->news); /* it says that it sleeps first, then looks at news */
}

/* ---- life ---- */
/* Nobody who waits, or comes, passes group_meet from now on; who sleeps over messages looks around. */
static void group_break(group *g) {
    atomic_fetch_or(&g->state, BROKEN);
    ring(g);
    atomic_fetch_add(&g->breaks, 1);
    for (uint32_t i = 0; i < g->n; i++) mailbox_ring(&g->boxes[i]);
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
    for (uint32_t i = 0; g->boxes && i < g->n; i++) pthread_mutex_destroy(&g->boxes[i].lock);
    free(g->boxes);
    free(g->ranks);
    for (int i = 0; i < 2; i++) {
        free(g->posts[i]);
        free(g->ins[i]);
        free(g->outs[i]);
    }
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

static void *zeroed(size_t n, size_t bytes) {
    void *p = aligned_alloc(CACHE_LINE, n * bytes);
    if (p) memset(p, 0, n * bytes);
    return p;
}

/* 1, or 0 when out of memory. */
static int group_fill(group *g, const uint32_t *ranks, uint32_t n) {
    g->ranks = malloc(n * sizeof *g->ranks);
    int ok = g->ranks != NULL;
    for (int i = 0; i < 2; i++) {
        g->posts[i] = zeroed(n, sizeof(post));
        g->ins[i] = calloc(n, sizeof *g->ins[i]);
        g->outs[i] = calloc(n, sizeof *g->outs[i]);
        ok = ok && g->posts[i] && g->ins[i] && g->outs[i];
    }
    g->boxes = zeroed(n, sizeof(mailbox));
    for (uint32_t i = 0; g->boxes && i < n; i++) pthread_mutex_init(&g->boxes[i].lock, NULL);
    if (!ok || !g->boxes) return 0;
    memcpy(g->ranks, ranks, n * sizeof *ranks);
    return 1;
}

group *group_new(hub *h, const char *name, const uint32_t *ranks, uint32_t n) {
    group *g = zeroed(1, sizeof *g);
    if (!g) return NULL;
    atomic_init(&g->refs, n);
    g->hub = h;
    g->n = n;
    snprintf(g->name, sizeof g->name, "%s", name);
    if (!group_fill(g, ranks, n)) {
        group_free(g);
        return NULL;
    }
    hub_link(h, g);
    return g;
}

void group_leave(group *g, uint32_t index) {
    uint32_t none = 0;
    atomic_compare_exchange_strong(&g->left, &none, g->ranks[index] + 1);
    atomic_store(&g->boxes[index].left, 1);
    group_break(g);
    if (atomic_fetch_sub(&g->refs, 1) != 1) return;
    hub_unlink(g->hub, g);
    group_free(g);
}

static moe_status group_failure(group *g, moe_err *err) {
    if (hub_poll(g->hub, err) != MOE_OK) return MOE_E_COMM;
    return moe_fail(err, MOE_E_COMM, "group %s: rank %u has left", g->name, atomic_load(&g->left) - 1);
}

/* Still the same round, and not broken where that counts? */
static int still_waits(group *g, uint64_t round, int may_break) {
    uint64_t s = atomic_load(&g->state);
    return s >> ROUND_SHIFT == round && !(may_break && s & BROKEN);
}

static void wait_round(group *g, uint64_t round, int may_break) {
    for (uint32_t i = 0; i < g->hub->spins; i++) {
        if (!still_waits(g, round, may_break)) return;
        hub_relax();
    }
    atomic_fetch_add(&g->sleepers, 1);
    for (;;) {
        const uint32_t bell = atomic_load(&g->bell);
        if (!still_waits(g, round, may_break)) break;
        hub_sleep(&g->bell, bell);
    }
    atomic_fetch_sub(&g->sleepers, 1);
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
    if (atomic_load(&g->sleepers)) ring(g);
    return 1;
}

moe_status group_meet(group *g, moe_err *err) {
    return arrive(g, 1) ? MOE_OK : group_failure(g, err);
}

void group_part(group *g) {
    arrive(g, 0);
}
