/* Router "topk": the reported losses and counts - formula, units, padding, accumulation over microbatches. */
#include <math.h>

#include "combos.h"
#include "fixture.h"
#include "test_main.h"

static void fill_rows(rig *r, const float *row) {
    for (int64_t t = 0; t < r->tokens; t++) memcpy(r->logits + t * r->experts, row, (size_t)r->experts * sizeof *row);
}

/* aux_loss per token: the mean that the host shows, as the one unit of the call */
static double aux_of_rows(const char *options, int64_t tokens, int64_t experts, int64_t k, const float *row) {
    rig r;
    rig_open(&r, "topk", tokens, experts, k, options, NULL);
    fill_rows(&r, row);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    double aux = r.losses[0] / (double)tokens;
    rig_close(&r);
    return aux;
}

static void check_losses(int i, int64_t tokens, int64_t seq_len, int64_t experts, int64_t k, int masked) {
    char text[256];
    ref_options o;
    double expected[3];
    if (!combo(i, experts, k, text, sizeof text, &o)) return;
    rig r;
    rig_open(&r, "topk", tokens, experts, k, text, NULL);
    r.seq_len = seq_len;
    rig_random(r.logits, tokens * experts, 2, (uint64_t)(i + 1));
    rig_random(r.bias, experts, 0.2, 99);
    r.masked = masked;
    for (int64_t t = 0; t < tokens; t++) r.mask[t] = !masked || (t % 3 != 1 && t / seq_len != 1);
    for (int l = 0; l < 3; l++) r.losses[l] = 1; /* losses accumulate */
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ref_losses(&o, r.logits, r.mask, r.ids, tokens, seq_len, experts, k, expected);
    for (int l = 0; l < 3; l++)
        ck_assert_double_eq_tol(r.losses[l] - 1, expected[l], 1e-5 * fabs(expected[l]) + 1e-7 * (double)tokens);
    rig_close(&r);
}

START_TEST(equal_reference) {
    static const int64_t shapes[][4] = {{1, 1, 8, 2},      {30, 10, 8, 3}, {150, 75, 16, 16}, {64, 1, 5, 1},
                                        {300, 100, 12, 2}, {6, 3, 128, 8}, {1, 1, 1, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int masked = 0; masked < 2; masked++)
            check_losses(_i, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], masked);
}
END_TEST

START_TEST(C011_sigmoid_scores_below_any_epsilon) {
    rig r;
    rig_open(&r, "topk", 5, 4, 2, "score=sigmoid aux_coef=1", NULL);
    for (int i = 0; i < 20; i++) r.logits[i] = -60;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert_double_eq_tol(r.losses[0] / 5, 1, 1e-6); /* the floor: P of 1/4 each */
    ck_assert_double_eq_tol(r.losses[2] / 5, log(4), 1e-6);
    for (int i = 0; i < 20; i++) r.logits[i] = -3000;
    r.losses[0] = 0;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert_double_eq_tol(r.losses[0] / 5, 1, 1e-6);
    rig_close(&r);
}
END_TEST

START_TEST(C020_one_softmax_not_two) {
    ck_assert_double_eq_tol(aux_of_rows("", 6, 4, 1, (float[]){4, 0, 0, 0}), 3.7917, 1e-3);
}
END_TEST

START_TEST(C021_raw_logits_are_no_probabilities) {
    ck_assert_double_eq_tol(aux_of_rows("", 6, 4, 1, (float[]){-1, -2, -3, -4}), 2.5756, 1e-3);
    ck_assert_double_ge(aux_of_rows("score=sigmoid", 6, 4, 1, (float[]){-1, -2, -3, -4}), 1);
}
END_TEST

/* The balance loss needs the softmax over all experts also where the weights are a softmax over the chosen. */
START_TEST(order_after_balances_over_all_experts) {
    const float row[4] = {2, 1, 0, -1};
    ck_assert_double_eq_tol(aux_of_rows("order=after", 6, 4, 2, row), aux_of_rows("", 6, 4, 2, row), 1e-12);
}
END_TEST

/* Not a bit on the CPU, which sums live tokens in order; another device may sum by place. */
static void same_losses(const rig *a, const rig *b) {
    if (test_on_cpu()) ck_assert_mem_eq(a->losses, b->losses, 3 * sizeof(double));
    for (int l = 0; l < 3; l++) ck_assert_double_eq_tol(a->losses[l], b->losses[l], 1e-13 * fabs(b->losses[l]));
}

START_TEST(C028_padding_changes_no_bit) {
    static const char *const styles[] = {"aux_coef=0.1 z_coef=0.1", "score=sigmoid aux_scope=sequence",
                                         "aux_coef=0.1 aux_scope=global"};
    for (int i = 0; i < 6; i++) {
        rig pad, all;
        int64_t tokens = i < 3 ? 6 : 600, kept = 0, padding = tokens / 3;
        rig_open(&pad, "topk", tokens, 8, 2, styles[i % 3], NULL);
        rig_open(&all, "topk", tokens - padding, 8, 2, styles[i % 3], NULL);
        rig_random(pad.logits, tokens * 8, 1, 31);
        pad.masked = 1;
        for (int64_t t = 0; t < tokens; t++) {
            pad.mask[t] = t % 3 != 1;
            if (t % 3 != 1) memcpy(all.logits + 8 * kept++, pad.logits + 8 * t, 8 * sizeof(float));
        }
        ck_assert_int_eq(rig_route(&pad), MOE_OK);
        ck_assert_int_eq(rig_route(&all), MOE_OK);
        ck_assert_int_eq(rig_bwd(&pad) | rig_bwd(&all), MOE_OK); /* the global loss comes from here */
        ck_assert_double_gt(pad.losses[0], 0);
        same_losses(&pad, &all);
        ck_assert_mem_eq(pad.counts, all.counts, 8 * sizeof(int64_t));
        rig_close(&pad);
        rig_close(&all);
    }
}
END_TEST

/* Token t prefers expert t % 4 by `margin`; the first `skewed` tokens prefer expert 0. */
static double aux_of_skew(int skewed, float margin) {
    rig r;
    rig_open(&r, "topk", 16, 4, 1, "", NULL);
    for (int t = 0; t < 16; t++) r.logits[4 * t + (t < skewed ? 0 : t % 4)] = margin;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    double aux = r.losses[0] / 16;
    rig_close(&r);
    return aux;
}

START_TEST(C029_aux_loss_reacts_to_routing) {
    double before = 0;
    ck_assert_double_eq_tol(aux_of_skew(0, 50), 1, 1e-6);
    ck_assert_double_eq_tol(aux_of_skew(16, 50), 4, 1e-6);
    for (int skewed = 0; skewed <= 16; skewed += 4, before = aux_of_skew(skewed - 4, 50))
        if (skewed > 0) ck_assert_double_gt(aux_of_skew(skewed, 50), before);
}
END_TEST

START_TEST(C030_each_layer_sees_its_own_collapse) {
    double sum = 0;
    for (int layer = 0; layer < 2; layer++) {
        float row[2] = {0, 0};
        row[layer] = 50;
        double aux = aux_of_rows("", 8, 2, 1, row);
        ck_assert_double_eq_tol(aux, 2, 1e-6);
        sum += aux / 2;
    }
    ck_assert_double_eq_tol(sum, 2, 1e-6);
}
END_TEST

START_TEST(C025_unequal_microbatches_sum_by_tokens) {
    rig r;
    rig_open(&r, "topk", 6, 4, 1, "", NULL);
    rig_random(r.logits, 24, 1, 8);
    r.masked = 1;
    ck_assert_int_eq(rig_route(&r), MOE_OK); /* six valid tokens */
    for (int t = 2; t < 6; t++) r.mask[t] = 0;
    ck_assert_int_eq(rig_route(&r), MOE_OK); /* two */
    double fractions = 0;
    for (int e = 0; e < 4; e++) fractions += (double)r.counts[e] / 8;
    ck_assert(fractions == 1);
    rig_close(&r);
}
END_TEST

/* Replay after recompute, and evaluation, report nothing: counts and losses are absent, ids and weights the same. */
START_TEST(C015_replay_counts_nothing) {
    rig r;
    int32_t ids[16];
    float weights[16];
    rig_open(&r, "topk", 8, 8, 2, "score=sigmoid expert_bias=true", NULL);
    rig_random(r.logits, 64, 1, 8);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    memcpy(ids, r.ids, sizeof ids);
    memcpy(weights, r.weights, sizeof weights);
    double losses[3] = {r.losses[0], r.losses[1], r.losses[2]};
    r.silent = 1;
    r.flags = MOE_ROUTE_TRAIN | MOE_ROUTE_RECOMPUTE;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    int64_t sum = 0;
    for (int e = 0; e < 8; e++) sum += r.counts[e];
    ck_assert_int_eq(sum, 16);
    ck_assert_mem_eq(losses, r.losses, sizeof losses);
    ck_assert_mem_eq(ids, r.ids, sizeof ids);
    ck_assert_mem_eq(weights, r.weights, sizeof weights);
    rig_close(&r);
}
END_TEST

START_TEST(all_padding_and_no_tokens) {
    static const char *const styles[] = {"aux_coef=1 z_coef=1", "score=sigmoid aux_scope=sequence aux_coef=1",
                                         "aux_coef=1 aux_scope=global groups=2 groups_kept=1"};
    for (int i = 0; i < 6; i++) {
        rig r;
        rig_open(&r, "topk", i < 3 ? 0 : 6, 4, 2, styles[i % 3], NULL);
        r.seq_len = i < 3 ? 0 : 3;
        r.masked = 1;
        r.divisor = 0;
        for (int t = 0; i >= 3 && t < 6; t++) r.mask[t] = 0;
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        ck_assert_int_eq(rig_bwd(&r), MOE_OK);
        ck_assert(r.losses[0] == 0 && r.losses[1] == 0 && r.losses[2] == 0);
        for (int e = 0; e < 4; e++) ck_assert_int_eq(r.counts[e], 0);
        for (int64_t j = 0; j < r.tokens * 4; j++) ck_assert(r.d_logits[j] == 0);
        rig_close(&r);
    }
}
END_TEST

START_TEST(sequences_must_divide_the_tokens) {
    rig r;
    rig_open(&r, "topk", 6, 4, 2, "aux_scope=sequence", NULL);
    for (int64_t length = -1; length < 7; length++) {
        r.seq_len = length;
        moe_status expected = length > 0 && 6 % length == 0 ? MOE_OK : MOE_E_ARG;
        ck_assert_int_eq(rig_route(&r), expected);
        ck_assert_int_eq(rig_bwd(&r), expected);
    }
    ck_assert_ptr_nonnull(strstr(r.err.msg, "sequence"));
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("losses");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, equal_reference, 0, COMBOS);
    tcase_add_test(c, C011_sigmoid_scores_below_any_epsilon);
    tcase_add_test(c, C020_one_softmax_not_two);
    tcase_add_test(c, C021_raw_logits_are_no_probabilities);
    tcase_add_test(c, order_after_balances_over_all_experts);
    tcase_add_test(c, C028_padding_changes_no_bit);
    tcase_add_test(c, C029_aux_loss_reacts_to_routing);
    tcase_add_test(c, C030_each_layer_sees_its_own_collapse);
    tcase_add_test(c, C025_unequal_microbatches_sum_by_tokens);
    tcase_add_test(c, C015_replay_counts_nothing);
    tcase_add_test(c, all_padding_and_no_tokens);
    tcase_add_test(c, sequences_must_divide_the_tokens);
    return run_case(c);
}
