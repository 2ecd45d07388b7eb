/* The compute pool: a loop's pieces are handed out by one counter to the caller and to helpers that come through a
 * gate. The caller opens the gate, works, shuts it when the pieces have run out, and waits only for helpers that are
 * inside: one that wakes late finds the gate shut, so a sleeping helper never delays a loop. */
#include "futex.h"
#include "runtime.h"

enum { GATE_OPEN = 1, GATE_ONE = 2, GATE_INSIDE = 0xffe, GATE_LOOP = 0x1000 }; /* fields of cpu_pool.gate */
enum { HELPER = 1, CALLER = 2 };                                               /* who sleeps on the gate */

cpu_worker *cpu_self(cpu_device *dev) {
    cpu_worker *w = pthread_getspecific(dev->key);
    return w ? w : &dev->outsider;
}

uint32_t cpu_threads(const cpu_device *dev) {
    return dev->settings.threads;
}

static void take_pieces(cpu_pool *p, cpu_worker *w) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->fn(p->arg, i, w);
    }
}

/* ---- caller ---- */
static void open_gate(cpu_pool *p, int64_t n, cpu_piece_fn fn, void *arg) {
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    uint32_t loop = (atomic_load_explicit(&p->gate, memory_order_relaxed) & ~(uint32_t)(GATE_LOOP - 1)) + GATE_LOOP;
    atomic_store(&p->gate, loop | GATE_OPEN);
    if (atomic_load(&p->sleepers)) cpu_futex_wake(&p->gate, (uint32_t)(n - 1 < INT_MAX ? n - 1 : INT_MAX), HELPER);
}

static void shut_gate(cpu_device *dev, cpu_pool *p) {
    cpu_spinner spinner = {.limit_us = dev->settings.spin_us};
    uint32_t g = atomic_fetch_sub(&p->gate, GATE_OPEN) - GATE_OPEN;
    while (g & GATE_INSIDE) {
        if (!cpu_spin(&spinner)) {
            atomic_store(&p->caller_sleeps, 1);
            g = atomic_load(&p->gate);
            if (g & GATE_INSIDE) cpu_futex_wait(&p->gate, g, CALLER);
            atomic_store(&p->caller_sleeps, 0);
        }
        g = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
}

void cpu_run(cpu_device *dev, int64_t n, cpu_piece_fn fn, void *arg) {
    cpu_pool *p = &dev->pool;
    cpu_worker w = *cpu_self(dev);
    w.index = 0;
    uint32_t idle = 0;
    if (n <= 1 || p->n_helpers == 0 ||
        !atomic_compare_exchange_strong_explicit(&p->busy, &idle, 1, memory_order_acquire, memory_order_relaxed)) {
        for (int64_t i = 0; i < n; i++) fn(arg, i, &w);
        return;
    }
    open_gate(p, n, fn, arg);
    take_pieces(p, &w);
    shut_gate(dev, p);
    atomic_store_explicit(&p->busy, 0, memory_order_release);
}

/* ---- helper ---- */
/* Takes part in the loop of gate value g; false when it shut first. */
static int join_loop(cpu_pool *p, uint32_t g, cpu_worker *w) {
    if (!atomic_compare_exchange_strong_explicit(&p->gate, &g, g + GATE_ONE, memory_order_acquire,
                                                 memory_order_relaxed))
        return 0;
    take_pieces(p, w);
    g = atomic_fetch_sub(&p->gate, GATE_ONE) - GATE_ONE;
    if (!(g & (GATE_INSIDE | GATE_OPEN)) && atomic_load(&p->caller_sleeps)) cpu_futex_wake(&p->gate, 1, CALLER);
    return 1;
}

static void sleep_at_gate(cpu_pool *p, uint32_t seen) {
    atomic_fetch_add(&p->sleepers, 1);
    if (!atomic_load(&p->stop)) cpu_futex_wait(&p->gate, seen, HELPER);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *help(void *arg) {
    cpu_helper *h = arg;
    cpu_pool *p = &h->dev->pool;
    cpu_thread_enter(h->dev, &h->worker);
    uint32_t last = 0; /* the loop that this helper has taken part in */
    cpu_spinner spinner = {.limit_us = h->dev->settings.spin_us};
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        uint32_t g = atomic_load_explicit(&p->gate, memory_order_relaxed), loop = g & ~(uint32_t)(GATE_LOOP - 1);
        if ((g & GATE_OPEN) && loop != last) {
            if (!join_loop(p, g, &h->worker)) continue;
            last = loop;
            spinner = (cpu_spinner){.limit_us = h->dev->settings.spin_us};
        } else if (!cpu_spin(&spinner)) {
            sleep_at_gate(p, g);
            spinner = (cpu_spinner){.limit_us = h->dev->settings.spin_us};
        }
    }
    return NULL;
}

/* ---- set-up ---- */
moe_status cpu_pool_start(cpu_device *dev, moe_err *err) {
    cpu_pool *p = &dev->pool;
    uint32_t n = dev->settings.threads - 1;
    if (n == 0) return MOE_OK;
    p->helpers = calloc(n, sizeof *p->helpers);
    if (!p->helpers) return moe_fail(err, MOE_E_NOMEM, "device/cpu: %u helpers", n);
    for (uint32_t i = 0; i < n; i++) {
        cpu_helper *h = &p->helpers[i];
        char name[16];
        snprintf(name, sizeof name, "cpu-%u", i + 1);
        h->dev = dev;
        moe_status s = cpu_worker_start(dev, &h->worker, i + 1, err);
        if (s != MOE_OK) return s;
        s = cpu_thread_start(&h->thread, name, help, h, err);
        if (s != MOE_OK) {
            cpu_worker_stop(dev, &h->worker);
            return s;
        }
        p->n_helpers = i + 1;
    }
    return MOE_OK;
}

void cpu_pool_stop(cpu_device *dev) {
    cpu_pool *p = &dev->pool;
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->gate, GATE_LOOP); /* so that nobody falls asleep on the value it saw */
    cpu_futex_wake(&p->gate, INT_MAX, HELPER);
    for (uint32_t i = 0; i < p->n_helpers; i++) {
        pthread_join(p->helpers[i].thread, NULL);
        cpu_worker_stop(dev, &p->helpers[i].worker);
    }
    free(p->helpers);
}
