/* Router "topk" forward: which experts, in which order, with which weights, against the FP64 reference. */
#include <math.h>

#include "combos.h"
#include "fixture.h"
#include "test_main.h"

static void set_row(rig *r, int64_t t, const float *row) {
    memcpy(r->logits + t * r->experts, row, (size_t)r->experts * sizeof *row);
}

static void expect_token(const rig *r, int64_t t, const int32_t *ids, const double *weights, double tolerance) {
    for (int64_t j = 0; j < r->k; j++) {
        ck_assert_int_eq(r->ids[t * r->k + j], ids[j]);
        ck_assert_double_eq_tol((double)r->weights[t * r->k + j], weights[j], tolerance);
    }
}

/* ids distinct, in range, by descending selection score, none left out that scores more; weights as the formula. */
static void check_token(const rig *r, const ref_options *o, int64_t t) {
    double x[REF_MAX_EXPERTS], s[REF_MAX_EXPERTS], w[REF_MAX_EXPERTS];
    char taken[REF_MAX_EXPERTS] = {0}, allowed[REF_MAX_EXPERTS];
    const int32_t *ids = r->ids + t * r->k;
    for (int64_t e = 0; e < r->experts; e++) x[e] = (double)r->logits[t * r->experts + e];
    const float *bias = o->bias ? r->bias : NULL;
    ref_selection(o, x, bias, r->experts, s);
    int judged = ref_groups(o, x, bias, r->experts, allowed) > 1e-6; /* else two groups are too close */
    for (int64_t j = 0; j < r->k; j++) {
        check_that(ids[j] >= 0 && ids[j] < r->experts, "token %d, id %d", (int)t, ids[j]);
        check_that(!taken[ids[j]]++, "token %d: id %d twice", (int)t, ids[j]);
        check_that(!judged || allowed[ids[j]], "token %d: expert %d of a rejected group", (int)t, ids[j]);
        check_that(j == 0 || s[ids[j - 1]] + 1e-6 >= s[ids[j]], "token %d, choice %d: out of order", (int)t, (int)j);
    }
    for (int64_t e = 0; e < r->experts; e++)
        check_that(!judged || !allowed[e] || taken[e] || s[ids[r->k - 1]] + 1e-6 >= s[e],
                   "token %d: expert %d left out", (int)t, (int)e);
    ref_weights(o, x, r->experts, ids, r->k, w);
    for (int64_t j = 0; j < r->k; j++) {
        double got = (double)r->weights[t * r->k + j];
        check_that(fabs(got - w[j]) <= 2e-6 * fabs(w[j]) + 1e-37, "token %d, choice %d: weight %.9g, not %.9g", (int)t,
                   (int)j, got, w[j]);
    }
}

static void check_shape(int i, int64_t tokens, int64_t experts, int64_t k, int masked) {
    char text[256];
    ref_options o;
    if (!combo(i, experts, k, text, sizeof text, &o)) return;
    rig r;
    rig_open(&r, "topk", tokens, experts, k, text, NULL);
    rig_random(r.logits, tokens * experts, 2, (uint64_t)(i + 1));
    rig_random(r.bias, experts, 0.2, 99);
    r.masked = masked;
    for (int64_t t = 0; t < tokens; t++) r.mask[t] = !masked || t % 3 != 1;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    int64_t histogram[REF_MAX_EXPERTS] = {0};
    for (int64_t t = 0; t < tokens; t++) {
        if (r.mask[t])
            check_token(&r, &o, t);
        else
            for (int64_t j = 0; j < k; j++) {
                check_that(r.ids[t * k + j] == -1 && r.weights[t * k + j] == 0, "padding token %d chose", (int)t);
            }
        for (int64_t j = 0; j < k && r.mask[t]; j++) histogram[r.ids[t * k + j]]++;
    }
    for (int64_t e = 0; e < experts; e++) ck_assert_int_eq(r.counts[e], histogram[e]);
    rig_close(&r);
}

START_TEST(equals_reference) {
    static const int64_t shapes[][3] = {{0, 8, 2},   {1, 8, 2},   {37, 8, 3},   {130, 16, 16}, {65, 5, 1},
                                        {1, 1, 1},   {9, 33, 20}, {70, 128, 8}, {20, 64, 16},  {4, 512, 8},
                                        {3, 64, 64}, {7, 48, 17}, {200, 32, 4}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int masked = 0; masked < 2; masked++) check_shape(_i, shapes[s][0], shapes[s][1], shapes[s][2], masked);
}
END_TEST

START_TEST(C001_nan_row_names_layer_and_token) {
    rig r;
    const float good[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    rig_open(&r, "topk", 2, 8, 4, "", NULL);
    for (int e = 0; e < 8; e++) r.logits[e] = NAN;
    set_row(&r, 1, good);
    rig_expect_data(&r, rig_route(&r), 0, DEVICE_OPEN_ANY, "layer 3: logit of token 0, expert 0 is nan");
    for (int j = 0; j < 4; j++) ck_assert_int_eq(r.ids[j], -1); /* never one expert four times */
    float beside[4];
    memcpy(beside, r.weights + 4, sizeof beside);
    for (int e = 0; e < 8 && rig_is_synchronous(); e++) ck_assert_int_eq(r.counts[e], 0);
    if (rig_is_synchronous()) ck_assert(r.losses[0] == 0 && r.losses[1] == 0 && r.losses[2] == 0);
    rig_close(&r);
    if (!rig_is_synchronous()) return;
    rig_open(&r, "topk", 1, 8, 4, "", NULL);
    set_row(&r, 0, good);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert_mem_eq(beside, r.weights, sizeof beside);
    rig_close(&r);
}
END_TEST

START_TEST(C002_partly_nan_row_is_refused) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const words[] = {"nan", "inf", "-inf"};
    static const char *const styles[] = {"", "order=after", "score=sigmoid expert_bias=true"};
    for (int i = 0; i < 9; i++) {
        rig r;
        char expected[96];
        rig_open(&r, "topk", 100, 4, 2, styles[i / 3], NULL);
        rig_random(r.logits, 400, 1, 5);
        r.logits[17 * 4 + 2] = bad[i % 3];
        r.logits[90 * 4 + 1] = NAN;
        snprintf(expected, sizeof expected, "layer 3: logit of token 17, expert 2 is %s", words[i % 3]);
        rig_expect_data(&r, rig_route(&r), DEVICE_OPEN_ANY, DEVICE_OPEN_ANY, expected);
        for (int j = 0; j < 200; j++) ck_assert(r.ids[j] >= -1 && r.ids[j] < 4);
        rig_close(&r);
    }
}
END_TEST

START_TEST(nan_in_padding_is_not_read) {
    rig r;
    rig_open(&r, "topk", 3, 4, 2, "aux_coef=0.1 z_coef=0.1", NULL);
    rig_random(r.logits, 12, 1, 5);
    r.masked = 1;
    r.mask[1] = 0;
    for (int e = 0; e < 4; e++) r.logits[4 + e] = NAN;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert(isfinite(r.losses[0]) && isfinite(r.losses[1]) && isfinite(r.losses[2]));
    for (int i = 0; i < 12; i++) r.d_logits[i] = 7;
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    for (int e = 0; e < 4; e++) ck_assert(r.d_logits[4 + e] == 0);
    rig_close(&r);
}
END_TEST

START_TEST(C003_ties_take_lowest_index) {
    static const char *const styles[] = {"", "score=sigmoid expert_bias=true"};
    for (int i = 0; i < 4; i++) {
        rig r;
        rig_open(&r, "topk", 3, i & 1 ? 128 : 8, 2, styles[i / 2], NULL);
        for (int64_t e = 0; e < r.experts; e++) r.logits[r.experts + e] = e % 2 ? -0.0f : 0.0f; /* equal as well */
        for (int again = 0; again < 100; again++) {
            ck_assert_int_eq(rig_route(&r), MOE_OK);
            for (int t = 0; t < 3; t++) ck_assert(r.ids[2 * t] == 0 && r.ids[2 * t + 1] == 1);
        }
        rig_close(&r);
    }
}
END_TEST

/* BF16 logits have many ties: ids equal those of a stable sort. */
START_TEST(C004_many_columns_equal_stable_sort) {
    rig r;
    rig_open(&r, "topk", 256, 512, 8, "", NULL);
    rig_random(r.logits, 256 * 512, 1, 21);
    for (int i = 0; i < 256 * 512; i++) {
        uint32_t bits;
        memcpy(&bits, &r.logits[i], 4);
        bits &= 0xffff0000u;
        memcpy(&r.logits[i], &bits, 4);
    }
    int32_t expected[256 * 8];
    for (int t = 0; t < 256; t++) {
        const float *x = r.logits + t * 512;
        char taken[512] = {0};
        for (int j = 0; j < 8; j++) {
            int best = -1;
            for (int e = 0; e < 512; e++)
                if (!taken[e] && (best < 0 || x[e] > x[best])) best = e;
            taken[best] = 1;
            expected[t * 8 + j] = best;
        }
    }
    for (int again = 0; again < 10; again++) {
        memset(r.ids, 0, sizeof expected);
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        ck_assert_mem_eq(r.ids, expected, sizeof expected);
    }
    rig_close(&r);
}
END_TEST

START_TEST(C005_weights_do_not_see_a_negative_bias) {
    rig r;
    rig_open(&r, "topk", 1, 4, 2, "score=sigmoid renormalise=true expert_bias=true", NULL);
    const float bias[4] = {-1, -1, -2, -2};
    memcpy(r.bias, bias, sizeof bias);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    expect_token(&r, 0, (int32_t[]){0, 1}, (double[]){0.5, 0.5}, 1e-7);
    rig_close(&r);
}
END_TEST

START_TEST(C007_k_equal_to_experts) {
    static const char *const styles[] = {"", "order=after", "renormalise=true", "score=sigmoid renormalise=true"};
    for (int i = 0; i < 4; i++) {
        rig r;
        rig_open(&r, "topk", 5, 4, 4, styles[i], NULL);
        rig_random(r.logits, 20, 1, 3);
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        for (int t = 0; t < 5; t++) {
            float sum = 0;
            for (int j = 0; j < 4; j++) sum += r.weights[4 * t + j];
            ck_assert_double_eq_tol((double)sum, 1, 1e-6);
        }
        for (int e = 0; e < 4; e++) ck_assert_int_eq(r.counts[e], 5);
        rig_close(&r);
    }
}
END_TEST

START_TEST(C009_negative_logits_and_shifts) {
    static const char *const styles[] = {"order=after", "renormalise=true", ""};
    const float row[4] = {-9, -1, -5, -3};
    rig r;
    rig_open(&r, "topk", 1, 4, 2, "order=after", NULL);
    set_row(&r, 0, row);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    expect_token(&r, 0, (int32_t[]){1, 3}, (double[]){0.8808, 0.1192}, 1e-4);
    rig_close(&r);
    for (int i = 0; i < 3; i++) { /* on a grid of 1/64 the shift by 100 is exact */
        rig s;
        rig_open(&r, "topk", 50, 32, 4, styles[i], NULL);
        rig_open(&s, "topk", 50, 32, 4, styles[i], NULL);
        rig_random(r.logits, 50 * 32, 2, 3);
        for (int j = 0; j < 50 * 32; j++) {
            r.logits[j] = roundf(r.logits[j] * 64) / 64;
            s.logits[j] = r.logits[j] - 100;
        }
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        ck_assert_int_eq(rig_route(&s), MOE_OK);
        ck_assert_mem_eq(r.ids, s.ids, 50 * 4 * sizeof *r.ids);
        ck_assert_mem_eq(r.weights, s.weights, 50 * 4 * sizeof *r.weights);
        rig_close(&s);
        rig_close(&r);
    }
}
END_TEST

static float logit_of(double score) {
    return (float)log(score / (1 - score));
}

START_TEST(C010_tiny_scores_keep_their_ratio) {
    static const double scale_down[] = {1, 1e-20}; /* scores of 1e-28 as well */
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_open(&r, "topk", 1, 4, 2, "score=sigmoid renormalise=true expert_bias=true", NULL);
        const float row[4] = {0.5f, logit_of(1e-8 * scale_down[i]), 1, logit_of(3e-8 * scale_down[i])};
        const float bias[4] = {0, 30, 0, 30};
        set_row(&r, 0, row);
        memcpy(r.bias, bias, sizeof bias);
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        expect_token(&r, 0, (int32_t[]){1, 3}, (double[]){0.25, 0.75}, 1e-5);
        rig_close(&r);
    }
}
END_TEST

/* The bias picks experts whose softmax or sigmoid score is zero in FP32: their ratio is still that of their logits. */
START_TEST(weights_of_vanished_scores) {
    static const char *const styles[] = {"renormalise=true expert_bias=true", "order=after expert_bias=true",
                                         "score=sigmoid renormalise=true expert_bias=true"};
    for (int i = 0; i < 3; i++) {
        rig r;
        rig_open(&r, "topk", 1, 4, 2, styles[i], NULL);
        const float row[4] = {100, -200, 90, -201}, bias[4] = {0, 30, 0, 30};
        set_row(&r, 0, row);
        memcpy(r.bias, bias, sizeof bias);
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        expect_token(&r, 0, (int32_t[]){1, 3}, (double[]){0.731058579, 0.268941421}, 1e-6);
        rig_close(&r);
    }
}
END_TEST

START_TEST(extreme_logits_stay_finite) {
    static const float rows[][4] = {{3e38f, -3e38f, 0, 1},
                                    {-3e38f, -3e38f, -3e38f, -3e38f},
                                    {1e-42f, -1e-42f, 0, 1e-45f},
                                    {-3.4e38f, -200, -1e30f, -90}};
    for (int i = 0; i < COMBOS; i++) {
        char text[256];
        ref_options o;
        rig r;
        if (!combo(i, 4, 2, text, sizeof text, &o)) continue;
        rig_open(&r, "topk", 4, 4, 2, text, NULL);
        for (int t = 0; t < 4; t++) set_row(&r, t, rows[t]);
        for (int j = 0; j < 8; j++) r.d_weights[j] = 1;
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        ck_assert_int_eq(rig_bwd(&r), MOE_OK);
        for (int j = 0; j < 8; j++) ck_assert(isfinite(r.weights[j]) && r.weights[j] >= 0);
        for (int l = 0; l < 3; l++) ck_assert(isfinite(r.losses[l]) && r.losses[l] >= 0);
        for (int j = 0; j < 16; j++) ck_assert(isfinite(r.d_logits[j]));
        rig_close(&r);
    }
}
END_TEST

/* Weights leave the router in FP32: not one of them is rounded to the 8 bits of BF16. */
START_TEST(C046_weights_are_fp32) {
    rig r;
    rig_open(&r, "topk", 64, 8, 2, "renormalise=true", NULL);
    rig_random(r.logits, 64 * 8, 1, 77);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    int fine = 0;
    for (int j = 0; j < 128; j++) {
        uint32_t bits;
        memcpy(&bits, &r.weights[j], 4);
        fine += (bits & 0xffffu) != 0;
    }
    ck_assert_int_gt(fine, 120);
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("choice");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, equals_reference, 0, COMBOS);
    tcase_add_test(c, C001_nan_row_names_layer_and_token);
    tcase_add_test(c, C002_partly_nan_row_is_refused);
    tcase_add_test(c, nan_in_padding_is_not_read);
    tcase_add_test(c, C003_ties_take_lowest_index);
    tcase_add_test(c, C004_many_columns_equal_stable_sort);
    tcase_add_test(c, C005_weights_do_not_see_a_negative_bias);
    tcase_add_test(c, C007_k_equal_to_experts);
    tcase_add_test(c, C009_negative_logits_and_shifts);
    tcase_add_test(c, C010_tiny_scores_keep_their_ratio);
    tcase_add_test(c, weights_of_vanished_scores);
    tcase_add_test(c, extreme_logits_stay_finite);
    tcase_add_test(c, C046_weights_are_fp32);
    return run_case(c);
}
