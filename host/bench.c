/* One run: two trainers of the recipe, one whose step ends with the gradients, one with the optimiser. */
#include "bench.h"

#include <data/data.h>
#include <inttypes.h>
#include <io/fs.h>
#include <math.h>
#include <moe/ops.h>
#include <moe/options.h>
#include <moe/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/measure.h>
#include <unistd.h>
#include <util/clock.h>

#include "ranks.h"
#include "stop.h"

enum {
    WARM_UP = 1,      /* steps before those that count */
    PEAK_SIDE = 2048, /* of the product that is the peak */
    PEAK_TRIES = 3,   /* of it after each timed step */
    TRIES = 3,        /* of the others */
    COPY_BYTES = 1 << 27
};

/* Times of one pass. */
typedef struct bench {
    session *s;
    int64_t steps;
    int update; /* this pass runs the optimiser too */
    int timed;  /* the device tells the times of a step's parts: it is not asynchronous */
    bench_sample *out;
    double *seconds;            /* [steps] */
    double *parts[BENCH_PARTS]; /* [steps] seconds that nodes of the part took */
    double *experts[BENCH_ROLES], *plain[BENCH_ROLES];
} bench;

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double bench_median(double *v, int64_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- tokens ---- */
/* Uniform ids, enough that no step repeats another. */
static moe_status make_data(session *s, moe_err *err) {
    const model_cfg *c = &s->trainer.model;
    char path[] = "/tmp/moehost-bench-XXXXXX";
    const char *const files[] = {path};
    const data_config cfg = {.train = files,
                             .n_train = 1,
                             .seq_len = c->seq,
                             .seed = c->seed,
                             .format = DATA_TOKENS,
                             .token_dtype = DATA_U32,
                             .vocab = c->vocab};
    const moe_random_key key = moe_random_key_make(c->seed, MOE_RANDOM_DATA, "bench");
    int64_t n = 4 * s->trainer.global * c->seq + 1;
    uint32_t *ids = malloc((size_t)n * sizeof *ids);
    int fd = ids ? mkstemp(path) : -1;
    if (fd < 0) {
        free(ids);
        return fs_fail(err, MOE_E_IO, path, "cannot make a file of %" PRId64 " tokens: %m", n);
    }
    for (int64_t i = 0; i < n; i++) ids[i] = moe_random_words(key, (uint64_t)i, 0).v[0] % (uint32_t)c->vocab;
    moe_status status = fs_write(fd, path, ids, (uint64_t)n * sizeof *ids, err);
    close(fd);
    free(ids);
    if (!status) status = data_open(&cfg, &s->data, err);
    unlink(path); /* an open reader maps it */
    s->trainer.data = s->data;
    return status;
}

static moe_status plan_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    const session *s = arg;
    trainer_cfg cfg = s->trainer;
    trainer *t = NULL;
    (void)rank;
    cfg.plan_only = 1;
    moe_status status = session_trainer(s, &cfg, bootstrap, &t, err);
    trainer_destroy(t);
    return status;
}

moe_status bench_prepare(session *s, moe_err *err) {
    s->trainer.programs = TRAINER_TRAIN;
    s->trainer.lr.lr = 0; /* the weights stay as they are: every step is the same work */
    moe_status status = session_run(s, plan_rank, s, err);
    return status ? status : make_data(s, err);
}

/* ---- the machine ---- */
static void keep_best(double *best, double value) {
    if (value > *best) *best = value;
}

static moe_status take_peaks(bench *b, measure *m, moe_err *err) {
    double value = 0;
    moe_status status = measure_fma(m, 2.0 * PEAK_SIDE * PEAK_SIDE * PEAK_SIDE, TRIES, &value, err);
    if (status) return status;
    keep_best(&b->out->fma, value);
    for (int streaming = 0; streaming < 2; streaming++) {
        status = measure_copy(m, COPY_BYTES, streaming, TRIES, &value, err);
        if (status) return status;
        keep_best(&b->out->copy[streaming], value);
    }
    status = measure_peak(m, PEAK_SIDE, PEAK_TRIES, &value, err);
    keep_best(&b->out->peak, value);
    return status;
}

/* Plain products like the experts' (bench.h), after step i. */
static moe_status take_plain(bench *b, measure *m, int64_t i, moe_err *err) {
    const model_cfg *c = &b->s->trainer.model;
    int64_t choices = c->micro * c->seq * c->top_k, used = choices < c->experts ? choices : c->experts;
    moe_status status = MOE_OK;
    if (!c->experts || c->dense_layers >= c->layers) return MOE_OK;
    measure_product w1 = {.dtype = measure_dtype(m),
                          .rows = (choices + used - 1) / used,
                          .n = 2 * c->expert_ffn,
                          .k = c->hidden,
                          .matrices = used,
                          .cold = 1};
    measure_product w2 = w1;
    w2.n = c->hidden;
    w2.k = c->expert_ffn;
    b->out->plain_flop = 6.0 * (double)w1.rows * (double)used * (double)c->hidden * (double)c->expert_ffn;
    for (int role = 0; role < BENCH_ROLES && !status; role++) {
        double first = 0, second = 0;
        w1.role = w2.role = role;
        status = measure_products(m, &w1, 1, &first, err);
        if (!status) status = measure_products(m, &w2, 1, &second, err);
        b->plain[role][i] = first + second;
    }
    return status;
}

/* ---- a pass ---- */
static void take_times(bench *b, const trainer *t, int64_t i) {
    bench_sample *out = b->out;
    if (!b->timed) {
        for (int part = 0; part < BENCH_PARTS; part++) b->parts[part][i] = (double)NAN;
        for (int role = 0; role < BENCH_ROLES; role++) b->experts[role][i] = (double)NAN;
        return;
    }
    trainer_span span;
    uint64_t nodes[BENCH_PARTS] = {0}, bytes[BENCH_PARTS] = {0};
    for (int part = 0; part < BENCH_PARTS; part++) b->parts[part][i] = 0;
    for (int role = 0; role < BENCH_ROLES; role++) b->experts[role][i] = 0;
    for (uint32_t k = 0; trainer_span_at(t, k, &span); k++) {
        double seconds = 1e-9 * (double)(span.end - span.begin);
        int part = bench_part_of(&span), role = bench_expert_role_of(&span);
        b->parts[part][i] += seconds;
        if (role >= 0) b->experts[role][i] += seconds;
        nodes[part]++;
        bytes[part] += span.bytes;
    }
    for (int part = 0; part < BENCH_PARTS; part++) {
        if (b->update && part != BENCH_UPDATE) continue;
        out->nodes[part] = nodes[part];
        out->bytes[part] = bytes[part];
    }
}

static moe_status timed_steps(bench *b, trainer *t, uint32_t rank, moe_err *err) {
    measure *m = NULL;
    step_result r;
    moe_status status = measure_open(&m, t, err);
    for (int64_t i = 0; i < WARM_UP + b->steps && !status; i++) {
        double begin = clock_seconds();
        status = trainer_step(t, 1 + i, stop_requested() != 0, &r, err);
        double took = clock_seconds() - begin;
        if (!status && r.stop) {
            if (!rank) b->out->stopped = 1;
            break;
        }
        if (rank || i < WARM_UP || status) continue;
        b->seconds[i - WARM_UP] = took;
        b->out->tokens = r.tokens;
        take_times(b, t, i - WARM_UP);
        status = take_peaks(b, m, err);
        if (!status && !b->update) status = take_plain(b, m, i - WARM_UP, err);
    }
    if (!status && !rank) {
        b->out->threads = measure_threads(m);
        b->out->memory = trainer_memory_of(t);
        snprintf(b->out->device, sizeof b->out->device, "%s", trainer_device_name(t));
    }
    measure_close(m);
    return status;
}

static moe_status run_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    bench *b = arg;
    trainer_cfg cfg = b->s->trainer;
    trainer *t = NULL;
    cfg.no_update = !b->update;
    moe_status status = session_trainer(b->s, &cfg, bootstrap, &t, err);
    if (!status && b->timed) status = trainer_watch(t, 1, err);
    if (!status) status = timed_steps(b, t, rank, err);
    if (status && t) trainer_abort(t, err->msg);
    trainer_destroy(t);
    return status;
}

static moe_status pass(bench *b, int update, moe_err *err) {
    bench_sample *out = b->out;
    b->update = update;
    moe_status status = session_run(b->s, run_rank, b, err);
    if (status || out->stopped) return status;
    out->step[update] = bench_median(b->seconds, b->steps);
    for (int i = 0; i < BENCH_PARTS; i++) out->part[update][i] = bench_median(b->parts[i], b->steps);
    for (int i = 0; i < BENCH_ROLES && !update; i++) {
        out->experts[i] = bench_median(b->experts[i], b->steps);
        out->plain[i] = bench_median(b->plain[i], b->steps);
    }
    return MOE_OK;
}

moe_status bench_run(session *s, int64_t steps, bench_sample *out, moe_err *err) {
    bench b = {.s = s, .steps = steps, .out = out, .timed = !(s->parts.device.desc->flags & MOE_ASYNC)};
    size_t n = (size_t)steps;
    double *memory = calloc(n * (1 + BENCH_PARTS + 2 * BENCH_ROLES), sizeof *memory), *at = memory;
    if (!memory) return moe_fail(err, MOE_E_NOMEM, "out of memory for %zu steps", n);
    *out = (bench_sample){0};
    b.seconds = at;
    for (int i = 0; i < BENCH_PARTS; i++) b.parts[i] = at += n;
    for (int i = 0; i < BENCH_ROLES; i++) b.experts[i] = at += n;
    for (int i = 0; i < BENCH_ROLES; i++) b.plain[i] = at += n;
    moe_status status = pass(&b, 0, err);
    if (!status && !out->stopped) status = pass(&b, 1, err);
    free(memory);
    return status;
}
