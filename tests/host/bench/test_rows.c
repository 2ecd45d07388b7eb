/* Rows of bench from made-up runs: which node is which part, fractions within a run, medians over runs, what has no
 * figure, and how it is printed. */
#include <bench_show.h>
#include <jansson.h>
#include <math.h>
#include <moe/ops.h>
#include <moe/scheduler.h>
#include <stdlib.h>

#include "core/run_suite.h"

static trainer_span span_of(const char *name, int32_t phase) {
    return (trainer_span){.name = name, .phase = phase};
}

START_TEST(nodes_belong_to_parts_by_name) {
    static const struct {
        const char *name;
        int32_t phase;
        int part, role;
    } nodes[] = {
        {"L0.mb0.qkv.fwd", MOE_SCHED_FORWARD, BENCH_PROJECTIONS, -1},
        {"L12.mb3.out.wgrad.bwd", MOE_SCHED_BACKWARD, BENCH_PROJECTIONS, -1},
        {"L0.mb0.mla_pack.fwd", MOE_SCHED_FORWARD, BENCH_PROJECTIONS, -1},
        {"L0.mb0.attention.bwd", MOE_SCHED_BACKWARD, BENCH_ATTENTION, -1},
        {"L0.mb0.router_linear.fwd", MOE_SCHED_FORWARD, BENCH_ROUTING, -1},
        {"L0.mb0.route.fwd", MOE_SCHED_FORWARD, BENCH_ROUTING, -1},
        {"L0.mb0.layout.fwd", MOE_SCHED_FORWARD, BENCH_ROUTING, -1},
        {"L0.mb0.dispatch.pack.fwd", MOE_SCHED_FORWARD, BENCH_ROUTING, -1},
        {"L0.mb0.combine.unpack.bwd", MOE_SCHED_BACKWARD, BENCH_ROUTING, -1},
        {"L0.mb0.experts.w1.fwd", MOE_SCHED_FORWARD, BENCH_EXPERTS, MOE_FPROP},
        {"L0.mb0.experts.w2.dgrad.bwd", MOE_SCHED_BACKWARD, BENCH_EXPERTS, MOE_DGRAD},
        {"L0.mb0.experts.w1.wgrad.bwd", MOE_SCHED_BACKWARD, BENCH_EXPERTS, MOE_WGRAD},
        {"L0.mb0.experts.b1.bwd", MOE_SCHED_BACKWARD, BENCH_EXPERTS, -1},
        {"L0.mb0.experts.swiglu.fwd", MOE_SCHED_FORWARD, BENCH_ACTIVATION, -1},
        {"L0.mb0.shared.w1.fwd", MOE_SCHED_FORWARD, BENCH_DENSE, -1},
        {"L0.mb0.shared.swiglu.fwd", MOE_SCHED_FORWARD, BENCH_DENSE, -1},
        {"L0.mb0.mlp.swiglu.fwd", MOE_SCHED_FORWARD, BENCH_DENSE, -1},
        {"mb0.head.dgrad.fwd", MOE_SCHED_FORWARD, BENCH_HEAD, -1},
        {"mb0.cross_entropy.fwd", MOE_SCHED_FORWARD, BENCH_CROSS_ENTROPY, -1},
        {"L0.mb0.norm2.bwd", MOE_SCHED_BACKWARD, BENCH_NORMS, -1},
        {"mb0.final_norm.fwd", MOE_SCHED_FORWARD, BENCH_NORMS, -1},
        {"L0.mb0.q_down_norm.fwd", MOE_SCHED_FORWARD, BENCH_NORMS, -1},
        {"L0.mb0.q_down.fwd", MOE_SCHED_FORWARD, BENCH_PROJECTIONS, -1},
        {"L0.mb0.rope.fwd", MOE_SCHED_FORWARD, BENCH_ROPE, -1},
        {"L0.mb0.k_rope.fwd", MOE_SCHED_FORWARD, BENCH_PROJECTIONS, -1},
        {"mb0.embed.fwd", MOE_SCHED_FORWARD, BENCH_EMBEDDING, -1},
        {"adamw.update", MOE_SCHED_UPDATE, BENCH_UPDATE, -1},
        {"grads.0-3.all_reduce", MOE_SCHED_REDUCE, BENCH_UPDATE, -1},
        {"zero.grad.prep", MOE_SCHED_PREPARE, BENCH_OTHER, -1},
        {"L0.mb0.something.fwd", MOE_SCHED_FORWARD, BENCH_OTHER, -1},
    };
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        trainer_span s = span_of(nodes[i].name, nodes[i].phase);
        ck_assert_msg(bench_part_of(&s) == nodes[i].part, "%s is of part %s", nodes[i].name,
                      bench_part_names[bench_part_of(&s)]);
        ck_assert_msg(bench_expert_role_of(&s) == nodes[i].role, "%s is of role %d", nodes[i].name,
                      bench_expert_role_of(&s));
    }
}
END_TEST

/* ---- one run ---- */
/* 2 ranks, one MoE layer, 1 M tokens a step. FLOPs a token: experts 18 h f k = 18 * 10 * 5 * 2 = 1800. */
static session session_of(void) {
    session s = {.ranks = 2};
    s.trainer.model = (model_cfg){.layers = 1,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 10,
                                  .v_dim = 10,
                                  .experts = 4,
                                  .top_k = 2,
                                  .hidden = 10,
                                  .expert_ffn = 5,
                                  .vocab = 10,
                                  .seq = 10,
                                  .micro = 1};
    return s;
}

static bench_sample sample_of(double speed) {
    bench_sample m = {.threads = 1,
                      .tokens = 1000000,
                      .fma = 100 * speed,
                      .peak = 80 * speed,
                      .copy = {20 * speed, 30 * speed},
                      .step = {0.5 / speed, 0.625 / speed},
                      .experts = {0.01 / speed, 0.02 / speed, 0.03 / speed},
                      .plain = {0.001 / speed, 0.001 / speed, 0},
                      .plain_flop = 0.06e9,
                      .memory = {.weights = 3000000, .params = 12000000, .arena = 5000000}};
    for (int i = 0; i < BENCH_PARTS; i++) {
        m.nodes[i] = i != BENCH_DENSE;
        m.bytes[i] = m.nodes[i] * 100000000;
        m.part[0][i] = i == BENCH_UPDATE || !m.nodes[i] ? 0 : 0.01 / speed;
        m.part[1][i] = 0.02 / speed;
    }
    m.part[0][BENCH_EXPERTS] = 0.06 / speed;
    return m;
}

static void rows_of(double speed, bench_table *out) {
    session s = session_of();
    bench_sample m = sample_of(speed);
    bench_rows(&s, &m, out);
}

static void check_row(const bench_table *t, const char *name, const char *unit, double value, double peak) {
    const bench_row *r = bench_rows_find(t, name);
    ck_assert_msg(r != NULL, "no row %s", name);
    ck_assert_str_eq(r->unit, unit);
    ck_assert_msg(fabs(r->value - value) <= 1e-9 * value, "%s: %.17g, not %.17g", name, r->value, value);
    if (peak <= 0) {
        ck_assert_msg(isnan(r->fraction), "%s is a fraction", name);
        return;
    }
    ck_assert_msg(fabs(r->peak - peak) <= 1e-9 * peak, "%s: peak %.17g, not %.17g", name, r->peak, peak);
    ck_assert_msg(fabs(r->fraction - value / peak) <= 1e-9, "%s: fraction %.17g", name, r->fraction);
}

START_TEST(every_figure_has_its_own_denominator) {
    bench_table t;
    session s = session_of();
    double gflop = 1e-3 * model_flops_total(&s.trainer.model);
    rows_of(1, &t);
    check_row(&t, "fma", "GFLOP/s", 100, 0);
    check_row(&t, "peak", "GFLOP/s", 80, 100);
    check_row(&t, "copy", "GB/s", 20, 0);
    check_row(&t, "copy.streaming", "GB/s", 30, 0);
    check_row(&t, "step", "GFLOP/s", gflop / 0.5, 2 * 80); /* the peak of both ranks */
    check_row(&t, "step_with_optimizer", "GFLOP/s", gflop / 0.625, 2 * 80);
    check_row(&t, "step.time", "ms", 500, 0);
    check_row(&t, "step_with_optimizer.time", "ms", 625, 0);
    check_row(&t, "tokens", "tokens/s", 2e6, 0);
    check_row(&t, "attention.time", "ms", 10, 500);
    check_row(&t, "experts.time", "ms", 60, 500);
    check_row(&t, "experts", "GFLOP/s", 1800 * 0.5e-3 / 0.07, 80); /* with the activation; half of the tokens */
    check_row(&t, "experts.fprop", "GFLOP/s", 600 * 0.5e-3 / 0.01, 60);
    check_row(&t, "experts.dgrad", "GFLOP/s", 600 * 0.5e-3 / 0.02, 60);
    check_row(&t, "norms", "GB/s", 10, 20);
    check_row(&t, "rope", "GB/s", 10, 20);
    check_row(&t, "cross_entropy", "GB/s", 10, 20);
    check_row(&t, "update", "GB/s", 5, 20); /* of the pass with the optimiser */
    check_row(&t, "update.time", "ms", 20, 625);
    check_row(&t, "moe.overhead", "%", 100 * 0.02 / 0.08, 0);
    check_row(&t, "memory.weights", "MB", 3, 0);
    check_row(&t, "memory.params", "MB", 12, 0);
    check_row(&t, "memory.arena", "MB", 5, 0);
}
END_TEST

START_TEST(a_quotient_by_nothing_is_no_figure) {
    bench_table t;
    session s = session_of();
    bench_sample m = sample_of(1);
    m.part[0][BENCH_NORMS] = m.part[0][BENCH_HEAD] = 0;
    m.fma = m.peak = m.copy[0] = m.copy[1] = 0;
    bench_rows(&s, &m, &t);
    static const char *const absent[] = {"norms", "head", "fma", "peak", "copy", "dense", "dense.time"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        ck_assert_msg(!bench_rows_find(&t, absent[i]), "%s is there", absent[i]);
    check_row(&t, "norms.time", "ms", 0, 500); /* it was there, and too quick to see */
    check_row(&t, "rope", "GB/s", 10, 0);      /* of nothing */
    const bench_row *wgrad = bench_rows_find(&t, "experts.wgrad");
    ck_assert(wgrad && isnan(wgrad->fraction)); /* plain products took no time */
    m = (bench_sample){.tokens = 0};
    bench_rows(&s, &m, &t); /* nothing at all */
    for (int i = 0; i < t.n; i++) ck_assert_msg(!isinf(t.row[i].value), "%s is infinite", t.row[i].name);
}
END_TEST

/* ---- several runs ---- */
START_TEST(fractions_are_of_one_run_and_medians_of_fractions) {
    enum { RUNS = 3 };
    bench_table runs[RUNS], t;
    const double speeds[RUNS] = {1, 4, 2}; /* a machine that others use too: all of a run is fast or slow together */
    for (int i = 0; i < RUNS; i++) rows_of(speeds[i], &runs[i]);
    double fraction = bench_rows_find(&runs[0], "step")->fraction;
    bench_rows_median(runs, RUNS, &t);
    check_row(&t, "fma", "GFLOP/s", 200, 0);
    check_row(&t, "step.time", "ms", 250, 0);
    ck_assert_double_eq_tol(bench_rows_find(&t, "step")->fraction, fraction, 1e-12);
    for (int i = 0; i < runs[1].n; i++)
        if (strcmp(runs[1].row[i].name, "step") == 0) runs[1].row[i].fraction = 0.9;
    bench_rows_median(runs, RUNS, &t);
    ck_assert_double_eq_tol(bench_rows_find(&t, "step")->fraction, fraction, 1e-12);
    for (int i = 0; i < runs[2].n; i++)
        if (strcmp(runs[2].row[i].name, "step") == 0) runs[2].row[i].fraction = (double)NAN;
    bench_rows_median(runs, RUNS, &t); /* of two: their mean */
    ck_assert_double_eq_tol(bench_rows_find(&t, "step")->fraction, (fraction + 0.9) / 2, 1e-12);
}
END_TEST

START_TEST(a_recipe_stands_beside_the_first_of_its_run) {
    bench_table first[2], second[2], t;
    rows_of(1, &first[0]);
    rows_of(10, &first[1]);
    rows_of(0.5, &second[0]);
    rows_of(7, &second[1]);
    for (int i = 0; i < 2; i++) bench_rows_compare(&second[i], &first[i]);
    bench_rows_median(second, 2, &t);
    check_row(&t, "experts.vs_first", "%", (50 + 70) / 2.0, 0);
}
END_TEST

/* ---- on paper ---- */
static char *printed(void (*print)(const bench_result *r, FILE *to), const bench_result *r) {
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    ck_assert_ptr_nonnull(to);
    print(r, to);
    ck_assert_int_eq(fclose(to), 0);
    return text;
}

START_TEST(every_line_of_json_is_an_object) {
    bench_result r = {.recipe = "a \"b\"\\\n.ini", .device = "d", .threads = 3, .runs = 1, .steps = 1};
    rows_of(1, &r.table);
    char *text = printed(bench_show_json, &r), *save = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
        json_error_t error;
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        ck_assert_msg(json_is_object(o), "%s: %s", line, error.text);
        ck_assert_str_eq(json_string_value(json_object_get(o, "recipe")), r.recipe);
        ck_assert_int_eq(json_integer_value(json_object_get(o, "threads")), 3);
        ck_assert(json_is_string(json_object_get(o, "name")) && json_is_string(json_object_get(o, "unit")));
        ck_assert(json_is_number(json_object_get(o, "value")));
        ck_assert(!json_object_get(o, "peak") == !json_object_get(o, "fraction"));
        json_decref(o);
    }
    ck_assert_int_gt(lines, 30);
    free(text);
}
END_TEST

static void print_summary(const bench_result *r, FILE *to) {
    bench_show_summary(r, 2, to);
}

START_TEST(the_summary_has_a_line_a_recipe) {
    bench_result r[2] = {{.recipe = "a.ini", .threads = 1}, {.recipe = "longer.ini", .threads = 2}};
    rows_of(1, &r[0].table);
    r[1].table = r[0].table;
    bench_rows_compare(&r[0].table, &r[1].table);
    char *text = printed(print_summary, r);
    ck_assert_msg(strstr(text, "\na.ini             1 "), "%s", text);
    ck_assert_msg(strstr(text, "\nlonger.ini        2 "), "%s", text);
    ck_assert_msg(strstr(text, "25.0%      100.0%\n"), "%s", text); /* overhead, vs first */
    ck_assert_msg(strstr(text, "25.0%           -\n"), "%s", text);
    free(text);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("bench");
    tcase_add_test(t, nodes_belong_to_parts_by_name);
    tcase_add_test(t, every_figure_has_its_own_denominator);
    tcase_add_test(t, a_quotient_by_nothing_is_no_figure);
    tcase_add_test(t, fractions_are_of_one_run_and_medians_of_fractions);
    tcase_add_test(t, a_recipe_stands_beside_the_first_of_its_run);
    tcase_add_test(t, every_line_of_json_is_an_object);
    tcase_add_test(t, the_summary_has_a_line_a_recipe);
    return run_suite("bench", t);
}
