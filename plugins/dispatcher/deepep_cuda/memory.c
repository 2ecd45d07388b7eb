/* Shared memory of instances, and the thread that watches its barriers. See memory.h. */
#include "memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

enum { NAP_MS = 20 };

/* ---- watching ---- */
typedef struct late {
    uint32_t waits, epoch;
    double seconds;
} late;

/* One look at a channel: true when the same member has been waited for in the same barrier for too long. */
static int is_late(const memory *m, int channel, late *l) {
    const uint32_t waits = __atomic_load_n(&m->watch->waits[channel], __ATOMIC_ACQUIRE);
    const uint32_t epoch = __atomic_load_n(&m->watch->epoch[channel], __ATOMIC_ACQUIRE);
    const int same = waits && waits == l->waits && epoch == l->epoch;
    *l = (late){waits, epoch, same ? l->seconds + NAP_MS / 1e3 : 0};
    return m->timeout > 0 && l->seconds >= m->timeout;
}

static void end_late(const memory *m, int channel, const late *l) {
    const disp *d = &m->made_by;
    char reason[200];
    snprintf(reason, sizeof reason, "%s: member %u of %u (rank %u) has waited %.3g s for member %u (rank %u) in %s %u",
             d->name, d->me, d->members, d->first_rank + d->me, l->seconds, l->waits - 1, d->first_rank + l->waits - 1,
             channel == DEEPEP_LAYOUT ? "meeting of layout" : "movement", l->epoch);
    d->comm->abort(d->comm_self, reason);
}

static int nap(memory *m) { /* 0: it is over */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += NAP_MS * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&m->lock);
    if (!m->stop) pthread_cond_timedwait(&m->stopped, &m->lock, &t);
    const int stop = (int)m->stop;
    pthread_mutex_unlock(&m->lock);
    return !stop;
}

static void *watch(void *arg) {
    memory *m = arg;
    const disp *d = &m->made_by;
    late lates[DEEPEP_CHANNELS] = {{0}};
    moe_err err = {.size = sizeof err};
    while (nap(m)) {
        for (int c = 0; c < DEEPEP_CHANNELS; c++)
            if (is_late(m, c, &lates[c])) end_late(m, c, &lates[c]);
        if (d->comm->poll(d->comm_self, &err) == MOE_OK) continue;
        __atomic_store_n(&m->watch->end, 1, __ATOMIC_RELEASE);
        break;
    }
    return NULL;
}

/* ---- memory ---- */
static moe_status make_window(memory *m, moe_err *err) {
    const disp *d = &m->made_by;
    static const char *const instead = "dispatcher/alltoall and dispatcher/allgather need none";
    m->window = (moe_window){.size = sizeof m->window};
    if (!MOE_REACH(d->comm, moe_comm_v0, window_destroy) || !d->comm->window_create)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s needs windows, and this comm has none; %s", d->name, instead);
    moe_status s = d->comm->window_create(d->comm_self, d->group, m->shape.bytes, &m->window, err);
    for (uint32_t i = 0; s == MOE_OK && i < m->window.n; i++)
        if (!m->window.peers[i])
            s = moe_fail(err, MOE_E_UNSUPPORTED,
                         "%s: layer %u: member %u of %u cannot address the memory of member %u; %s", d->name, d->layer,
                         d->me, d->members, i, instead);
    return s;
}

static moe_status start_watch(memory *m, moe_err *err) {
    if (pthread_create(&m->thread, NULL, watch, m))
        return moe_fail(err, MOE_E_INTERNAL, "%s: no thread to watch its barriers", m->made_by.name);
    m->watching = 1;
    return MOE_OK;
}

static void end_memory(memory *m) {
    const disp *d = &m->made_by;
    if (m->watching) {
        pthread_mutex_lock(&m->lock);
        m->stop = 1;
        pthread_cond_signal(&m->stopped);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    if (m->window.n) d->comm->window_destroy(d->comm_self, &m->window);
    d->device->free(d->dev, MOE_SPACE_HOST, m->watch, sizeof *m->watch);
    d->device->free(d->dev, MOE_SPACE_DEVICE, m->sync, DEEPEP_CHANNELS * sizeof *m->sync);
    pthread_cond_destroy(&m->stopped);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static moe_status make_memory(const disp *d, const deepep_shape *shape, double timeout, memory **out, moe_err *err) {
    memory *m = calloc(1, sizeof *m);
    void *sync = NULL, *words = NULL;
    if (!m) return moe_fail(err, MOE_E_NOMEM, "%s: layer %u: out of memory", d->name, d->layer);
    m->made_by = *d;
    m->shape = *shape;
    m->timeout = timeout;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->stopped, NULL);
    moe_status s = d->device->alloc(d->dev, MOE_SPACE_DEVICE, DEEPEP_CHANNELS * sizeof *m->sync, &sync, err);
    if (s == MOE_OK) s = d->device->alloc(d->dev, MOE_SPACE_HOST, sizeof *m->watch, &words, err);
    m->sync = sync;
    m->watch = words;
    if (s == MOE_OK && d->members > 1) s = make_window(m, err);
    if (s == MOE_OK && d->members > 1) s = start_watch(m, err);
    if (s == MOE_OK)
        *out = m;
    else
        end_memory(m);
    return s;
}

/* Do the parts of a shape fit in those of another? Then it takes over where they begin. */
static int fits(const deepep_shape *in, deepep_shape *s) {
    if (s->members != in->members || s->came - s->numbers > in->came - in->numbers ||
        s->halves - s->lists > in->halves - in->lists || s->half > in->half)
        return 0;
    s->numbers = in->numbers;
    s->came = in->came;
    s->lists = in->lists;
    s->halves = in->halves;
    s->half = in->half;
    s->bytes = in->bytes;
    return 1;
}

moe_status memory_open(const disp *d, deepep_shape *shape, double timeout, memory **out, moe_err *err) {
    memory *m = d->shared ? *d->shared : NULL;
    moe_status s = MOE_OK;
    if (!m || !fits(&m->shape, shape)) {
        s = make_memory(d, shape, timeout, &m, err);
        if (s == MOE_OK && d->shared && !*d->shared) *d->shared = m;
    }
    if (s != MOE_OK) return s;
    m->users++;
    *out = m;
    return s;
}

void memory_close(const disp *d, memory *m) {
    if (!m || --m->users) return;
    if (d->shared && *d->shared == m) *d->shared = NULL;
    end_memory(m);
}

deepep_rank memory_rank(const memory *m, const deepep_shape *shape, uint32_t me) {
    deepep_rank r = {.shape = *shape, .me = me, .sync = m->sync, .watch = m->watch};
    for (uint32_t i = 0; i < m->window.n; i++) r.peer[i] = m->window.peers[i];
    return r;
}

moe_status memory_poll(const memory *m, moe_err *err) {
    const disp *d = &m->made_by;
    if (!__atomic_load_n(&m->watch->end, __ATOMIC_ACQUIRE)) return MOE_OK;
    return d->comm->poll(d->comm_self, err);
}
