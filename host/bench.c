/* Two trainers of the recipe: one whose step ends with the gradients, one with the optimiser. Times are medians. */
#include "bench.h"

#include <data/data.h>
#include <inttypes.h>
#include <io/fs.h>
#include <moe/options.h>
#include <moe/random.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench_parts.h"
#include "ranks.h"

enum { PEAK_SIDE = 2048, WARM_UP = 2 };

typedef struct bench {
    session *s;
    const bench_options *o;
    FILE *to;
    int update;                           /* this pass runs the optimiser too */
    double peak;                          /* GFLOP/s of one rank's device; 0 = it has no products */
    double *seconds;                      /* [steps] of rank 0 */
    double *parts[BENCH_PARTS];           /* [steps] seconds that nodes of the part took on rank 0 */
    int64_t tokens;                       /* of a step, all ranks */
    double step[2], part[2][BENCH_PARTS]; /* medians, seconds; [1]: with the optimiser */
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *v, int64_t n) {
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

/* ---- a pass ---- */
static void take_times(bench *b, const trainer *t, int64_t i) {
    trainer_span span;
    for (int part = 0; part < BENCH_PARTS; part++) b->parts[part][i] = 0;
    for (uint32_t k = 0; trainer_span_at(t, k, &span); k++)
        b->parts[bench_part_of(&span)][i] += 1e-9 * (double)(span.end - span.begin);
}

/* The best product of the whole run counts: on a shared machine a moment says little. */
static moe_status try_peak(bench *b, trainer *t, moe_err *err) {
    double now_best = 0;
    moe_status status = trainer_peak(t, PEAK_SIDE, &now_best, err);
    if (now_best > b->peak) b->peak = now_best;
    return status;
}

static moe_status run_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    bench *b = arg;
    trainer_cfg cfg = b->s->trainer;
    parts_cfg with = b->s->parts;
    trainer *t = NULL;
    step_result r;
    with.rank = rank;
    with.bootstrap = bootstrap;
    cfg.no_update = !b->update;
    cfg.lr.lr = 0; /* the weights stay as they are: every step is the same work */
    moe_status status = trainer_create(&t, &cfg, &with, err);
    if (!status) status = trainer_watch(t, 1, err);
    for (int64_t i = 0; i < WARM_UP + b->o->steps && !status; i++) {
        double begin = now();
        status = trainer_step(t, 1 + i, 0, &r, err);
        if (rank || i < WARM_UP || status) continue;
        b->seconds[i - WARM_UP] = now() - begin;
        b->tokens = r.tokens;
        take_times(b, t, i - WARM_UP);
        status = try_peak(b, t, err);
    }
    if (status && t) trainer_abort(t, err->msg);
    trainer_destroy(t);
    return status;
}

/* ---- the table ---- */
static void row(const bench *b, const char *name, double value, const char *unit, double peak) {
    if (b->o->json) {
        fprintf(b->to, "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", name, value, unit);
        if (peak > 0) fprintf(b->to, ",\"peak\":%.6g,\"fraction\":%.4f", peak, value / peak);
        fprintf(b->to, "}\n");
    } else if (peak > 0) {
        fprintf(b->to, "%-24s %10.1f %-9s %5.1f%% of %.1f\n", name, value, unit, 100 * value / peak, peak);
    } else {
        fprintf(b->to, "%-24s %10.1f %s\n", name, value, unit);
    }
}

static void show_parts(const bench *b) {
    const model_flops f = model_flops_per_token(&b->s->trainer.model);
    const double flops[BENCH_PARTS] = {[BENCH_PROJECTIONS] = f.projections,
                                       [BENCH_ATTENTION] = f.attention,
                                       [BENCH_EXPERTS] = f.experts,
                                       [BENCH_DENSE] = f.dense,
                                       [BENCH_HEAD] = f.head};
    double tokens = (double)b->tokens / b->s->ranks; /* of rank 0 */
    for (int part = 0; part < BENCH_PARTS; part++) {
        char name[64];
        double seconds = b->part[0][part];
        if (seconds <= 0) continue;
        snprintf(name, sizeof name, "%s.time", bench_part_names[part]);
        row(b, name, 1e3 * seconds, "ms", 1e3 * b->step[0]);
        if (flops[part] > 0) row(b, bench_part_names[part], 1e-9 * flops[part] * tokens / seconds, "GFLOP/s", b->peak);
    }
}

static void show(const bench *b) {
    double flops = 1e-9 * model_flops_total(&b->s->trainer.model) * (double)b->tokens;
    double peak = b->peak * b->s->ranks;
    row(b, "peak", b->peak, "GFLOP/s", 0);
    row(b, "step", flops / b->step[0], "GFLOP/s", peak);
    row(b, "step.time", 1e3 * b->step[0], "ms", 0);
    row(b, "tokens", (double)b->tokens / b->step[0], "tokens/s", 0);
    show_parts(b);
    row(b, "step_with_optimizer", flops / b->step[1], "GFLOP/s", peak);
    row(b, "step_with_optimizer.time", 1e3 * b->step[1], "ms", 0);
    row(b, "update.time", 1e3 * b->part[1][BENCH_UPDATE], "ms", 1e3 * b->step[1]);
}

static moe_status pass(bench *b, int update, moe_err *err) {
    b->update = update;
    moe_status status = ranks_run(b->s->ranks, run_rank, b, err);
    if (status) return status;
    b->step[update] = median(b->seconds, b->o->steps);
    for (int i = 0; i < BENCH_PARTS; i++) b->part[update][i] = median(b->parts[i], b->o->steps);
    return MOE_OK;
}

moe_status bench_run(session *s, const bench_options *o, FILE *to, moe_err *err) {
    bench b = {.s = s, .o = o, .to = to};
    size_t n = (size_t)o->steps;
    double *memory = calloc(n * (BENCH_PARTS + 1), sizeof *memory);
    moe_status status = memory ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %zu steps", n);
    if (!status) status = make_data(s, err);
    if (!status) {
        b.seconds = memory;
        for (int i = 0; i < BENCH_PARTS; i++) b.parts[i] = memory + n * (size_t)(i + 1);
        status = pass(&b, 0, err);
    }
    if (!status) status = pass(&b, 1, err);
    if (!status) show(&b);
    free(memory);
    return status;
}
