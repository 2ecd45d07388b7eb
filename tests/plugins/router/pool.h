/* A device for routers that is nothing but "moe.parallel/0": real threads, or one thread that takes the items in a
 * shuffled order and under random worker numbers. */
#ifndef TESTS_ROUTER_POOL_H
#define TESTS_ROUTER_POOL_H
#include <pthread.h>
#include <stdatomic.h>

#include "fixture.h"

typedef struct pool {
    moe_parallel table;
    moe_device_service device;
    test_service services[2];
    int shuffled; /* 1: one thread, items in a shuffled order, workers at random; 0: real threads */
    _Atomic int64_t next;
    int64_t runs, n;
    void (*fn)(void *arg, int64_t i, uint32_t worker);
    void *arg;
} pool;

static inline void run_shuffled(pool *p) {
    int64_t order[1024];
    uint64_t seed = 5;
    ck_assert_int_le(p->n, 1024);
    for (int64_t i = 0; i < p->n; i++) {
        int64_t j = (int64_t)(rig_uniform(&seed) * (double)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t i = 0; i < p->n; i++) p->fn(p->arg, order[i], (uint32_t)(rig_uniform(&seed) * p->table.threads));
}

typedef struct member {
    pool *p;
    uint32_t worker;
} member;

static inline void *run_member(void *arg) {
    member *m = arg;
    for (int64_t i = atomic_fetch_add(&m->p->next, 1); i < m->p->n; i = atomic_fetch_add(&m->p->next, 1))
        m->p->fn(m->p->arg, i, m->worker);
    return NULL;
}

static inline void pool_run(void *self, int64_t n, void (*fn)(void *, int64_t, uint32_t), void *arg) {
    pool *p = self;
    pthread_t threads[8];
    member members[8];
    p->runs++;
    p->n = n;
    p->fn = fn;
    p->arg = arg;
    atomic_store(&p->next, 0);
    if (p->shuffled) {
        run_shuffled(p);
        return;
    }
    for (uint32_t w = 0; w < p->table.threads; w++) {
        members[w] = (member){p, w};
        ck_assert_int_eq(pthread_create(&threads[w], NULL, run_member, &members[w]), 0);
    }
    for (uint32_t w = 0; w < p->table.threads; w++) pthread_join(threads[w], NULL);
}

static inline const void *pool_extension(void *self, const char *id) {
    return strcmp(id, "moe.parallel/0") == 0 ? &((pool *)self)->table : NULL;
}
static const moe_device_v0 pool_device = {.size = sizeof(moe_device_v0), .extension = pool_extension};

/* Services of a host with this pool; they live as long as *p. threads is at most 8. */
static inline const test_service *pool_open(pool *p, uint32_t threads, int shuffled) {
    memset(p, 0, sizeof *p);
    p->table = (moe_parallel){sizeof p->table, threads, pool_run, p};
    p->shuffled = shuffled;
    p->device = (moe_device_service){sizeof p->device, 0, &pool_device, p};
    p->services[0] = (test_service){"moe.device/0", &p->device};
    return p->services;
}

#endif
