/* Streams of the CPU device: a fixed ring of commands, filled by the issuing thread and emptied in order by one worker.
 * `head` counts commands issued and `done` commands finished; a position is a value of head, and has passed when done
 * has reached it. A push to a worker that is awake makes no system call. */
#include "futex.h"
#include "runtime.h"

enum { RING = 4096, RING_SLACK = RING / 8 }; /* commands; a full ring is waited for until SLACK are free */

enum { DO_CALL, DO_COPY, DO_FILL, DO_HOLD };
typedef struct command {
    uint32_t what, byte;
    void *a;
    union {
        moe_host_fn fn;  /* DO_CALL: fn(a) */
        const void *src; /* DO_COPY: to a */
    } b;
    uint64_t n; /* bytes, or a position: DO_HOLD until stream a has passed it */
} command;

struct cpu_stream {
    _Alignas(64) atomic_ullong head; /* written by the issuing thread */
    uint64_t free_until;             /* its memory of done + RING */
    _Alignas(64) atomic_ullong done; /* written by the worker */
    atomic_ullong wake_at;           /* the worker rings when done reaches it; UINT64_MAX = nobody waits */
    atomic_uint bell;
    _Alignas(64) atomic_uint sleeping; /* 1: the worker sleeps on it, or is about to */
    atomic_uint stop;
    atomic_uint refs; /* the owner, and every DO_HOLD that names this stream */
    cpu_device *dev;
    command *ring; /* [RING] */
    cpu_worker worker;
    pthread_t thread;
};

/* ---- waiting for a position ---- */
uint64_t cpu_stream_position(const cpu_stream *s) {
    return atomic_load_explicit(&s->head, memory_order_relaxed);
}

int cpu_stream_passed(cpu_stream *s, uint64_t position) {
    return atomic_load_explicit(&s->done, memory_order_acquire) >= position;
}

void cpu_stream_await(cpu_stream *s, uint64_t position) {
    cpu_spinner spinner = {.limit_us = s->dev->settings.spin_us};
    while (!cpu_stream_passed(s, position)) {
        if (cpu_spin(&spinner)) continue;
        uint32_t bell = atomic_load(&s->bell);
        unsigned long long at = atomic_load(&s->wake_at);
        while (at > position && !atomic_compare_exchange_weak(&s->wake_at, &at, position)) {
        }
        if (atomic_load(&s->done) < position) cpu_futex_wait(&s->bell, bell, FUTEX_BITSET_MATCH_ANY);
    }
}

/* The worker has finished one more command. */
static void advance(cpu_stream *s, uint64_t done) {
    atomic_store(&s->done, done);
    if (done < atomic_load(&s->wake_at)) return;
    atomic_store(&s->wake_at, UINT64_MAX); /* who waits for a later position registers again when woken */
    atomic_fetch_add(&s->bell, 1);
    cpu_futex_wake(&s->bell, INT_MAX, FUTEX_BITSET_MATCH_ANY);
}

static void release(cpu_stream *s) {
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) free(s);
}

/* ---- worker ---- */
static void execute(const command *c) {
    switch (c->what) {
        case DO_CALL:
            c->b.fn(c->a);
            break;
        case DO_COPY:
            memcpy(c->a, c->b.src, c->n);
            break;
        case DO_FILL:
            memset(c->a, (int)c->byte, c->n);
            break;
        case DO_HOLD:
            cpu_stream_await(c->a, c->n);
            release(c->a);
            break;
    }
}

/* Until there is a command at `done`, or the stream ends: then false. */
static int await_command(cpu_stream *s, uint64_t done) {
    cpu_spinner spinner = {.limit_us = s->dev->settings.spin_us};
    while (atomic_load_explicit(&s->head, memory_order_acquire) == done) {
        if (cpu_spin(&spinner)) continue;
        atomic_store(&s->sleeping, 1);
        if (atomic_load(&s->head) == done) {
            if (atomic_load(&s->stop)) return 0;
            cpu_futex_wait(&s->sleeping, 1, FUTEX_BITSET_MATCH_ANY);
        }
        atomic_store_explicit(&s->sleeping, 0, memory_order_relaxed);
    }
    return 1;
}

static void *work(void *arg) {
    cpu_stream *s = arg;
    cpu_thread_enter(s->dev, &s->worker);
    for (uint64_t done = 0; await_command(s, done); done++) {
        execute(&s->ring[done % RING]);
        advance(s, done + 1);
    }
    return NULL;
}

static void wake_worker(cpu_stream *s) {
    if (!atomic_load(&s->sleeping)) return;
    atomic_store_explicit(&s->sleeping, 0, memory_order_relaxed);
    cpu_futex_wake(&s->sleeping, 1, FUTEX_BITSET_MATCH_ANY);
}

/* ---- issuing ---- */
static void push(cpu_stream *s, command c) {
    uint64_t head = atomic_load_explicit(&s->head, memory_order_relaxed);
    if (head == s->free_until) {
        uint64_t done = atomic_load_explicit(&s->done, memory_order_acquire);
        if (head - done == RING) cpu_stream_await(s, head - RING + RING_SLACK);
        s->free_until = atomic_load_explicit(&s->done, memory_order_acquire) + RING;
    }
    s->ring[head % RING] = c;
    atomic_store(&s->head, head + 1);
    wake_worker(s);
}

void cpu_stream_hold(cpu_stream *s, cpu_stream *target, uint64_t position) {
    if (s == target || cpu_stream_passed(target, position)) return;
    atomic_fetch_add_explicit(&target->refs, 1, memory_order_relaxed);
    push(s, (command){.what = DO_HOLD, .a = target, .n = position});
}

moe_status cpu_stream_call(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err) {
    (void)self;
    (void)err;
    push(stream, (command){.what = DO_CALL, .a = arg, .b.fn = fn});
    return MOE_OK;
}

moe_status cpu_stream_copy(void *self, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err) {
    (void)self;
    if (bytes == 0) return MOE_OK;
    if (!dst || !src)
        return moe_fail(err, MOE_E_ARG, "device/cpu: copy of %llu bytes: NULL", (unsigned long long)bytes);
    push(stream, (command){.what = DO_COPY, .a = dst, .b.src = src, .n = bytes});
    return MOE_OK;
}

moe_status cpu_stream_fill(void *self, void *stream, void *dst, uint8_t byte, uint64_t bytes, moe_err *err) {
    (void)self;
    if (bytes == 0) return MOE_OK;
    if (!dst) return moe_fail(err, MOE_E_ARG, "device/cpu: fill of %llu bytes: NULL", (unsigned long long)bytes);
    push(stream, (command){.what = DO_FILL, .byte = byte, .a = dst, .n = bytes});
    return MOE_OK;
}

moe_status cpu_stream_sync(void *self, void *stream, moe_err *err) {
    (void)self;
    (void)err;
    cpu_stream *s = stream;
    cpu_stream_await(s, cpu_stream_position(s));
    return MOE_OK;
}

/* ---- set-up ---- */
moe_status cpu_stream_create(void *self, const char *name, void **out, moe_err *err) {
    cpu_device *dev = self;
    void *ring = NULL;
    cpu_stream *s = aligned_alloc(64, sizeof *s);
    if (!s) return moe_fail(err, MOE_E_NOMEM, "device/cpu: stream '%s'", name);
    memset(s, 0, sizeof *s);
    s->dev = dev;
    s->free_until = RING;
    atomic_init(&s->wake_at, UINT64_MAX);
    atomic_init(&s->refs, 1);
    moe_status status = cpu_worker_start(dev, &s->worker, 0, err);
    if (status != MOE_OK) goto free_stream;
    status = cpu_map(RING * sizeof(command), name, &ring, err);
    if (status != MOE_OK) goto free_worker;
    s->ring = ring;
    status = cpu_thread_start(&s->thread, name, work, s, err);
    if (status != MOE_OK) goto free_ring;
    atomic_fetch_add(&dev->own_memory, RING * sizeof(command));
    *out = s;
    return MOE_OK;
free_ring:
    cpu_unmap(ring, RING * sizeof(command));
free_worker:
    cpu_worker_stop(dev, &s->worker);
free_stream:
    free(s);
    return status;
}

void cpu_stream_destroy(void *self, void *stream) {
    cpu_device *dev = self;
    cpu_stream *s = stream;
    if (!s) return;
    atomic_store(&s->stop, 1); /* the worker leaves when the ring is empty */
    atomic_store(&s->sleeping, 0);
    cpu_futex_wake(&s->sleeping, 1, FUTEX_BITSET_MATCH_ANY);
    pthread_join(s->thread, NULL);
    cpu_event_forget(dev, s);
    cpu_worker_stop(dev, &s->worker);
    cpu_unmap(s->ring, RING * sizeof(command));
    atomic_fetch_sub(&dev->own_memory, RING * sizeof(command));
    release(s);
}
