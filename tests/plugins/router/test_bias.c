/* Router "topk": the expert bias - update rule, exactness, and who may move it. */
#include <math.h>

#include "fixture.h"
#include "test_main.h"

#define BIASED "score=sigmoid expert_bias=true "

static void update(rig *r, const int64_t *counts) {
    memcpy(r->counts, counts, (size_t)r->experts * sizeof *counts);
    ck_assert_int_eq(rig_end_step(r), MOE_OK);
}

static void expect_bias(const rig *r, const double *expected) {
    for (int64_t e = 0; e < r->experts; e++) ck_assert_double_eq_tol((double)r->bias[e], expected[e], 1e-9);
}

START_TEST(C012_small_steps_from_one) {
    rig r;
    rig_open(&r, "topk", 1, 2, 1, BIASED, NULL);
    r.bias[0] = 1;
    for (int i = 0; i < 10; i++) update(&r, (int64_t[]){0, 4});
    ck_assert_double_eq_tol((double)r.bias[0], 1.010, 1e-6);
    rig_close(&r);
}
END_TEST

START_TEST(C013_large_counts_are_exact) {
    rig r;
    rig_open(&r, "topk", 1, 2, 1, BIASED, NULL);
    update(&r, (int64_t[]){40840, 41080});
    expect_bias(&r, (double[]){0.001, -0.001});
    update(&r, (int64_t[]){64 * 638, 64 * 638});
    expect_bias(&r, (double[]){0.001, -0.001});
    update(&r, (int64_t[]){INT64_C(1) << 60, (INT64_C(1) << 60) + 1}); /* beyond a double's integers */
    expect_bias(&r, (double[]){0.002, -0.002});
    rig_close(&r);
}
END_TEST

START_TEST(C017_centred_and_not) {
    rig r;
    rig_open(&r, "topk", 1, 4, 1, BIASED, NULL);
    update(&r, (int64_t[]){10, 2, 2, 2});
    expect_bias(&r, (double[]){-0.001, 0.001, 0.001, 0.001});
    rig_close(&r);
    rig_open(&r, "topk", 1, 4, 1, BIASED "bias_centre=true", NULL);
    update(&r, (int64_t[]){10, 2, 2, 2});
    expect_bias(&r, (double[]){-0.0015, 0.0005, 0.0005, 0.0005});
    rig_close(&r);
}
END_TEST

START_TEST(sign_against_a_mean_with_a_remainder) {
    rig r;
    rig_open(&r, "topk", 1, 4, 1, BIASED "bias_rate=1", NULL);
    update(&r, (int64_t[]){2, 2, 3, 3}); /* mean 2.5 */
    expect_bias(&r, (double[]){1, 1, -1, -1});
    update(&r, (int64_t[]){2, 2, 2, 2}); /* exactly the mean: no change */
    expect_bias(&r, (double[]){1, 1, -1, -1});
    update(&r, (int64_t[]){0, 0, 0, 0});
    expect_bias(&r, (double[]){1, 1, -1, -1});
    update(&r, (int64_t[]){2, 2, 2, 3}); /* mean 2.25 */
    expect_bias(&r, (double[]){2, 2, 0, -2});
    rig_close(&r);
}
END_TEST

/* Four microbatches add to one counts array; one update uses their sum. */
START_TEST(C014_one_update_from_summed_counts) {
    rig r;
    int64_t sum[8] = {0};
    rig_open(&r, "topk", 16, 8, 2, BIASED, NULL);
    for (int m = 0; m < 4; m++) {
        rig_random(r.logits, 128, 1, (uint64_t)(40 + m));
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        for (int j = 0; j < 32; j++) sum[r.ids[j]]++;
        for (int e = 0; e < 8; e++) ck_assert(r.bias[e] == 0);
    }
    for (int e = 0; e < 8; e++) ck_assert_int_eq(r.counts[e], sum[e]);
    ck_assert_int_eq(rig_end_step(&r), MOE_OK);
    for (int e = 0; e < 8; e++) {
        double sign = (sum[e] < 16) - (sum[e] > 16); /* mean: 4 * 16 * 2 / 8 */
        ck_assert_double_eq_tol((double)r.bias[e], 0.001 * sign, 1e-9);
    }
    rig_close(&r);
}
END_TEST

/* Layers are instances: one without bias leaves its neighbours' updates alone, and its own end_step changes nothing. */
START_TEST(C016_layers_update_alone) {
    rig layer[4];
    for (int i = 0; i < 4; i++) {
        rig_open(&layer[i], "topk", 1, 2, 1, i == 1 ? "score=sigmoid" : BIASED, NULL);
        update(&layer[i], (int64_t[]){3, 1});
    }
    for (int i = 0; i < 4; i++) {
        double u = i == 1 ? 0 : 0.001;
        expect_bias(&layer[i], (double[]){-u, u});
        rig_close(&layer[i]);
    }
}
END_TEST

static void train_step(rig *r, uint64_t seed) {
    memset(r->counts, 0, (size_t)r->experts * sizeof *r->counts);
    rig_random(r->logits, r->tokens * r->experts, 1, seed);
    ck_assert_int_eq(rig_route(r), MOE_OK);
    ck_assert_int_eq(rig_end_step(r), MOE_OK);
}

START_TEST(C018_evaluation_moves_nothing) {
    rig a, b;
    rig_open(&a, "topk", 32, 8, 2, BIASED, NULL);
    rig_open(&b, "topk", 32, 8, 2, BIASED, NULL);
    for (uint64_t step = 0; step < 3; step++) {
        train_step(&a, step + 1);
        train_step(&b, step + 1);
        for (uint64_t i = 0; step == 1 && i < 5; i++) {
            a.silent = 1;
            a.flags = 0;
            rig_random(a.logits, 256, 1, 70 + i);
            ck_assert_int_eq(rig_route(&a), MOE_OK);
            a.silent = 0;
            a.flags = MOE_ROUTE_TRAIN;
        }
    }
    ck_assert_mem_eq(a.bias, b.bias, 8 * sizeof(float));
    ck_assert_mem_eq(a.counts, b.counts, 8 * sizeof(int64_t));
    rig_close(&a);
    rig_close(&b);
}
END_TEST

/* The rule does what it is for: under a constant preference the loads even out. */
START_TEST(bias_evens_the_load) {
    rig r;
    rig_open(&r, "topk", 256, 8, 2, BIASED "bias_rate=0.02", NULL);
    int64_t first = 0, most = 0;
    for (uint64_t step = 0; step < 200; step++) {
        memset(r.counts, 0, 8 * sizeof *r.counts);
        rig_random(r.logits, 256 * 8, 1, step + 1);
        for (int t = 0; t < 256; t++) r.logits[8 * t + 3] += 2;
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        most = 0;
        for (int e = 0; e < 8; e++) most = r.counts[e] > most ? r.counts[e] : most;
        if (step == 0) first = most;
        ck_assert_int_eq(rig_end_step(&r), MOE_OK);
    }
    ck_assert_int_gt(first, 150);
    ck_assert_int_lt(most, 100); /* the mean is 64 */
    rig_close(&r);
}
END_TEST

/* A step whose gradient norm is not finite is skipped: the bias stays with the weights. */
START_TEST(a_skipped_step_moves_nothing) {
    rig r;
    rig_open(&r, "topk", 1, 4, 1, BIASED, NULL);
    update(&r, (int64_t[]){10, 2, 2, 2});
    float before[4];
    memcpy(before, r.bias, sizeof before);
    r.update[0] = _i ? INFINITY : NAN;
    r.update[1] = NAN;
    update(&r, (int64_t[]){10, 2, 2, 2});
    ck_assert_mem_eq(r.bias, before, sizeof before);
    r.update[0] = 1e30F; /* clipped to nearly nothing, but a step */
    r.update[1] = 1e-30F;
    update(&r, (int64_t[]){10, 2, 2, 2});
    expect_bias(&r, (double[]){-0.002, 0.002, 0.002, 0.002});
    rig_close(&r);
}
END_TEST

/* Arguments that are wrong by what the host sees. */
static void expect_refused(rig *r, const moe_end_step_args *args, const char *say) {
    ck_assert_int_eq(r->table->end_step(r->self, args, &r->err), MOE_E_ARG);
    ck_assert_msg(strstr(r->err.msg, say) != NULL, "'%s' lacks '%s'", r->err.msg, say);
}

START_TEST(bad_state_and_counts_are_refused) {
    rig r;
    rig_open(&r, "topk", 1, 4, 2, BIASED, NULL);
    if (rig_is_synchronous()) { /* end_step has no fault */
        r.counts[2] = -1;
        rig_expect_bad(&r, rig_end_step(&r), MOE_E_ARG, "expert 2 is -1");
    }
    r.bias[1] = NAN;
    rig_expect_bad(&r, rig_route(&r), MOE_E_DATA, "expert_bias of expert 1 is nan");
    moe_tensor counts = {r.counts, MOE_I64, 1, {4, 1, 1, 1}}, state = {r.bias, MOE_F32, 1, {4, 1, 1, 1}};
    moe_tensor update = {r.update, MOE_F32, 1, {2, 1, 1, 1}}, half = state, five = counts, one = update;
    half.dtype = MOE_BF16;
    five.shape[0] = 5;
    one.shape[0] = 1;
    const moe_end_step_args good = {.size = sizeof good, .state = &state, .counts = &counts, .update = &update};
    moe_end_step_args a[6] = {good, good, good, good, good, good};
    a[0].state = &half;
    a[1].state = NULL;
    a[2].counts = &five;
    a[3].update = &one;
    a[4].update = NULL;
    a[5].size = offsetof(moe_end_step_args, update);
    expect_refused(&r, &a[0], "expert_bias is not F32 [4]");
    expect_refused(&r, &a[1], "expert_bias is not F32 [4]");
    expect_refused(&r, &a[2], "counts is not I64 [4]");
    expect_refused(&r, &a[3], "update is not F32 [2]");
    expect_refused(&r, &a[4], "update is not F32 [2]");
    expect_refused(&r, &a[5], "lacks update");
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("bias");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, C012_small_steps_from_one);
    tcase_add_test(c, C013_large_counts_are_exact);
    tcase_add_test(c, C017_centred_and_not);
    tcase_add_test(c, sign_against_a_mean_with_a_remainder);
    tcase_add_test(c, C014_one_update_from_summed_counts);
    tcase_add_test(c, C016_layers_update_alone);
    tcase_add_test(c, C018_evaluation_moves_nothing);
    tcase_add_test(c, bias_evens_the_load);
    tcase_add_loop_test(c, a_skipped_step_moves_nothing, 0, 2);
    tcase_add_test(c, bad_state_and_counts_are_refused);
    return run_case(c);
}
