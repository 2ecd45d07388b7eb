/* Rows from one run, and from several. A quotient by nothing is no figure (NaN). */
#include "bench_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double ratio(double a, double b) {
    return b > 0 ? a / b : (double)NAN;
}

static bench_row *add(bench_table *t, const char *name, double value, const char *unit, double peak) {
    bench_row *r = &t->row[t->n < BENCH_MAX_ROWS ? t->n++ : BENCH_MAX_ROWS - 1];
    *r = (bench_row){.unit = unit, .value = value, .peak = peak > 0 ? peak : (double)NAN};
    snprintf(r->name, sizeof r->name, "%s", name);
    r->fraction = ratio(value, peak);
    return r;
}

static void add_step(bench_table *t, const bench_sample *m, const char *name, int update, double gflop, double peak) {
    char time[40];
    snprintf(time, sizeof time, "%s.time", name);
    add(t, name, ratio(gflop, m->step[update]), "GFLOP/s", peak);
    add(t, time, 1e3 * m->step[update], "ms", 0);
}

/* ---- parts ---- */
static double part_seconds(const bench_sample *m, int part) {
    return m->part[part == BENCH_UPDATE][part];
}

static int is_bound_by_memory(int part) {
    return part == BENCH_CROSS_ENTROPY || part == BENCH_NORMS || part == BENCH_ROPE || part == BENCH_UPDATE;
}

static void add_part(bench_table *t, const bench_sample *m, int part, double gflop) {
    char name[40];
    double seconds = part_seconds(m, part), took = seconds;
    if (part == BENCH_EXPERTS) took += part_seconds(m, BENCH_ACTIVATION);
    snprintf(name, sizeof name, "%s.time", bench_part_names[part]);
    add(t, name, m->nodes[part] ? 1e3 * seconds : (double)NAN, "ms", 1e3 * m->step[part == BENCH_UPDATE]);
    if (gflop > 0) add(t, bench_part_names[part], ratio(gflop, took), "GFLOP/s", m->peak);
    if (m->nodes[part] && is_bound_by_memory(part))
        add(t, bench_part_names[part], ratio(1e-9 * (double)m->bytes[part], seconds), "GB/s", m->copy[0]);
}

static void add_parts(bench_table *t, const session *s, const bench_sample *m) {
    const model_flops f = model_flops_per_token(&s->trainer.model);
    const double flops[BENCH_PARTS] = {[BENCH_PROJECTIONS] = f.projections,
                                       [BENCH_ATTENTION] = f.attention,
                                       [BENCH_EXPERTS] = f.experts,
                                       [BENCH_DENSE] = f.dense,
                                       [BENCH_HEAD] = f.head};
    double tokens = (double)m->tokens / s->ranks; /* of rank 0 */
    for (int part = 0; part < BENCH_PARTS; part++) add_part(t, m, part, 1e-9 * flops[part] * tokens);
}

/* ---- experts ---- */
static void add_experts(bench_table *t, const session *s, const bench_sample *m) {
    double tokens = (double)m->tokens / s->ranks;
    double gflop = 1e-9 * model_flops_per_token(&s->trainer.model).experts * tokens / BENCH_ROLES;
    double around = part_seconds(m, BENCH_ROUTING) + part_seconds(m, BENCH_ACTIVATION);
    add(t, "moe.overhead", 100 * ratio(around, around + part_seconds(m, BENCH_EXPERTS)), "%", 0);
    for (int role = 0; role < BENCH_ROLES; role++) {
        char name[40];
        snprintf(name, sizeof name, "experts.%s", bench_role_names[role]);
        add(t, name, ratio(gflop, m->experts[role]), "GFLOP/s", ratio(1e-9 * m->plain_flop, m->plain[role]));
    }
}

void bench_rows(const session *s, const bench_sample *m, bench_table *out) {
    double gflop = 1e-9 * model_flops_total(&s->trainer.model) * (double)m->tokens, peak = m->peak * s->ranks;
    const trainer_memory *bytes = &m->memory;
    out->n = 0;
    add(out, "fma", m->fma > 0 ? m->fma : (double)NAN, "GFLOP/s", 0);
    add(out, "peak", m->peak > 0 ? m->peak : (double)NAN, "GFLOP/s", m->fma);
    add(out, "copy", m->copy[0] > 0 ? m->copy[0] : (double)NAN, "GB/s", 0);
    add(out, "copy.streaming", m->copy[1] > 0 ? m->copy[1] : (double)NAN, "GB/s", 0);
    add_step(out, m, "step", 0, gflop, peak);
    add_step(out, m, "step_with_optimizer", 1, gflop, peak);
    add(out, "tokens", ratio((double)m->tokens, m->step[0]), "tokens/s", 0);
    add_parts(out, s, m);
    if (m->nodes[BENCH_EXPERTS]) add_experts(out, s, m);
    add(out, "memory.weights", 1e-6 * (double)bytes->weights, "MB", 0);
    add(out, "memory.params", 1e-6 * (double)bytes->params, "MB", 0);
    add(out, "memory.arena", 1e-6 * (double)bytes->arena, "MB", 0);
}

/* ---- several ---- */
void bench_rows_compare(bench_table *t, const bench_table *first) {
    const bench_row *a = bench_rows_find(t, "experts"), *b = bench_rows_find(first, "experts");
    add(t, "experts.vs_first", a && b ? 100 * ratio(a->value, b->value) : (double)NAN, "%", 0);
}

/* The median of field `offset` of row i, without the runs that lack it. */
static double median_of(const bench_table *runs, int64_t n, int i, size_t offset) {
    double v[BENCH_MAX_RUNS], x;
    int64_t some = 0;
    for (int64_t run = 0; run < n; run++) {
        memcpy(&x, (const char *)&runs[run].row[i] + offset, sizeof x);
        if (!isnan(x)) v[some++] = x;
    }
    return some ? bench_median(v, some) : (double)NAN;
}

void bench_rows_median(const bench_table *runs, int64_t n, bench_table *out) {
    *out = runs[0];
    for (int i = 0; i < out->n; i++) {
        out->row[i].value = median_of(runs, n, i, offsetof(bench_row, value));
        out->row[i].peak = median_of(runs, n, i, offsetof(bench_row, peak));
        out->row[i].fraction = median_of(runs, n, i, offsetof(bench_row, fraction));
    }
}

const bench_row *bench_rows_find(const bench_table *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->row[i].name, name) == 0 && !isnan(t->row[i].value)) return &t->row[i];
    return NULL;
}
