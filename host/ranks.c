/* A meeting point for blobs under one lock, and the threads around it. */
#include "ranks.h"

#include <moe/options.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "stop.h"

typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t world, arrived;
    int failed; /* a rank has ended with an error */
    uint64_t round, bytes;
    char *blobs[2]; /* of even and odd rounds: a rank is at most one round ahead of the slowest */
    moe_err cause;
    moe_status status;
} meeting;

typedef struct rank_thread {
    meeting *m;
    uint32_t rank;
    ranks_fn fn;
    void *arg;
    pthread_t thread;
    moe_bootstrap bootstrap;
} rank_thread;

static moe_status put_blob(meeting *m, uint32_t rank, const void *in, uint64_t bytes, moe_err *err) {
    char **blobs = &m->blobs[m->round & 1];
    if (m->arrived == 0) {
        free(*blobs);
        *blobs = calloc(m->world, bytes + 1);
        m->bytes = bytes;
    }
    if (!*blobs) return moe_fail(err, MOE_E_NOMEM, "bootstrap: out of memory for %u blobs", m->world);
    if (m->bytes != bytes)
        return moe_fail(err, MOE_E_COMM, "bootstrap: rank %u gives %llu bytes, others %llu", rank,
                        (unsigned long long)bytes, (unsigned long long)m->bytes);
    memcpy(*blobs + rank * bytes, in, bytes);
    return MOE_OK;
}

static moe_status all_gather(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err) {
    rank_thread *t = ctx;
    meeting *m = t->m;
    pthread_mutex_lock(&m->lock);
    uint64_t round = m->round;
    moe_status status = put_blob(m, t->rank, in, bytes, err);
    if (!status) {
        if (++m->arrived == m->world) {
            m->arrived = 0;
            m->round++;
            pthread_cond_broadcast(&m->changed);
        }
        while (m->round == round && !m->failed) pthread_cond_wait(&m->changed, &m->lock);
        if (m->round == round)
            status = moe_fail(err, MOE_E_COMM, "bootstrap: another rank has failed");
        else
            memcpy(out, m->blobs[round & 1], m->world * bytes);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static void *rank_main(void *arg) {
    rank_thread *t = arg;
    meeting *m = t->m;
    moe_err err = {.size = sizeof err};
    crash_cover_thread();
    moe_status status = t->fn(t->arg, t->rank, &t->bootstrap, &err);
    if (!status) return NULL;
    pthread_mutex_lock(&m->lock);
    if (!m->status || (m->status == MOE_E_COMM && status != MOE_E_COMM)) {
        m->status = status;
        m->cause = err;
    }
    m->failed = 1;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

moe_status ranks_run(uint32_t world, ranks_fn fn, void *arg, moe_err *err) {
    meeting m = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .world = world};
    rank_thread *ranks = calloc(world ? world : 1, sizeof *ranks);
    if (!ranks) return moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", world);
    uint32_t started = 0;
    for (; started < world; started++) {
        rank_thread *t = &ranks[started];
        *t = (rank_thread){.m = &m, .rank = started, .fn = fn, .arg = arg};
        t->bootstrap = (moe_bootstrap){.size = sizeof(moe_bootstrap),
                                       .rank = started,
                                       .world = world,
                                       .local = started,
                                       .ctx = t,
                                       .all_gather = all_gather};
        if (pthread_create(&t->thread, NULL, rank_main, t)) break;
    }
    if (started < world) { /* those that run must not wait for the missing */
        pthread_mutex_lock(&m.lock);
        m.failed = 1;
        m.status = moe_fail(&m.cause, MOE_E_NOMEM, "the system refuses a thread for rank %u of %u", started, world);
        pthread_cond_broadcast(&m.changed);
        pthread_mutex_unlock(&m.lock);
    }
    for (uint32_t i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
    if (m.status) *err = m.cause;
    free(ranks);
    free(m.blobs[0]);
    free(m.blobs[1]);
    return m.status;
}

moe_status ranks_meet(const moe_bootstrap *b, moe_err *err) {
    uint8_t here = 1, *all = malloc(b->world);
    moe_status status = all ? b->all_gather(b->ctx, &here, 1, all, err) : moe_fail(err, MOE_E_NOMEM, "out of memory");
    free(all);
    return status;
}

moe_status ranks_max(const moe_bootstrap *b, int64_t *value, moe_err *err) {
    int64_t *all = malloc(b->world * sizeof *all);
    moe_status status = all ? b->all_gather(b->ctx, value, sizeof *value, all, err)
                            : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->world);
    for (uint32_t r = 0; r < b->world && !status; r++)
        if (all[r] > *value) *value = all[r];
    free(all);
    return status;
}

typedef struct row_range {
    uint64_t first, n;
} row_range;

moe_status ranks_share_rows(const moe_bootstrap *b, void *array, uint64_t row_bytes, uint64_t first, uint64_t n,
                            moe_err *err) {
    const row_range own = {first, n};
    row_range *of = calloc(b->world, sizeof *of);
    char *part = NULL, *all = NULL;
    uint64_t most = n;
    moe_status status = of ? b->all_gather(b->ctx, &own, sizeof own, of, err)
                           : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->world);
    for (uint32_t r = 0; r < b->world && !status; r++)
        if (of[r].n > most) most = of[r].n;
    if (!status) {
        part = calloc(most + 1, row_bytes);
        all = calloc(b->world * most + 1, row_bytes);
        if (!part || !all) status = moe_fail(err, MOE_E_NOMEM, "out of memory for the rows of %u ranks", b->world);
    }
    if (!status) {
        memcpy(part, (const char *)array + first * row_bytes, n * row_bytes);
        status = b->all_gather(b->ctx, part, most * row_bytes, all, err);
    }
    for (uint32_t r = 0; r < b->world && !status; r++)
        memcpy((char *)array + of[r].first * row_bytes, all + r * most * row_bytes, of[r].n * row_bytes);
    free(of);
    free(part);
    free(all);
    return status;
}
