/* Router "forced" against what holds for every router: options, sizes, shapes and logits that it refuses, weights and
 * gradients by finite differences. */
#include <math.h>

#include "fixture.h"
#include "reference.h"
#include "test_main.h"

/* ---- refusals ---- */

static void refused(int64_t experts, int64_t k, const char *options, const char *a, const char *b) {
    rig_refuses("forced", experts, k, options, a, b);
}

START_TEST(C006_bad_sizes_are_refused) {
    refused(4, 5, "", "top_k = 5", "experts = 4");
    refused(4, 0, "", "top_k = 0", "experts = 4");
    refused(4, -1, "", "top_k = 4294967295", "experts = 4");
    refused(0, 0, "", "experts = 0", "at least one");
    refused(2000000, 2, "", "experts = 2000000", "1048576");
}
END_TEST

START_TEST(C033_unknown_words_do_not_fall_through) {
    refused(4, 2, "load=even", "load = even", "balanced|zipf");
    refused(4, 2, "load=", "load", "balanced|zipf");
    refused(4, 2, "shuffle=yes", "shuffle = yes", "false|true");
    refused(4, 2, "load=zipf exponent=-1", "exponent = -1", "0..8");
    refused(4, 2, "load=zipf exponent=8.5", "exponent = 8.5", "0..8");
    refused(4, 2, "load=zipf exponent=nan", "exponent = nan", "0..8");
    refused(4, 2, "load=zipf exponent=1x", "exponent = 1x", "0..8");
    refused(4, 2, "aux_coef=0.1", "aux_coef", "unknown");
}
END_TEST

START_TEST(C032_an_exponent_without_effect_is_refused) {
    refused(4, 2, "exponent=2", "exponent = 2", "load = balanced");
}
END_TEST

START_TEST(identity_experts_and_negative_tokens_are_refused) {
    rig_refuses_cfg("forced");
}
END_TEST

START_TEST(C008_one_choice_warns) {
    rig r;
    rig_open(&r, "forced", 4, 8, 1, "", NULL);
    ck_assert_ptr_nonnull(strstr(r.warning, "top_k = 1"));
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    for (int t = 0; t < 4; t++) ck_assert(r.weights[t] == 1);
    rig_close(&r);
    rig_open(&r, "forced", 4, 8, 2, "", NULL);
    ck_assert_str_eq(r.warning, "");
    rig_close(&r);
}
END_TEST

START_TEST(schema_and_needs) {
    static const char *const keys[] = {"load", "exponent", "shuffle"};
    rig_has_options("forced", keys, sizeof keys / sizeof keys[0]);
    rig r;
    rig_open(&r, "forced", 4, 8, 2, "load=zipf", NULL);
    ck_assert_uint_eq(r.needs.inputs, MOE_ROUTER_LOGITS);
    ck_assert_uint_eq(r.needs.n_state + r.needs.n_params + r.needs.n_losses, 0);
    ck_assert_uint_eq(r.needs.scope, MOE_SCOPE_TOKEN);
    ck_assert_uint_eq(r.needs.loss_scope, MOE_SCOPE_TOKEN);
    moe_router_needs less = {.size = offsetof(moe_router_needs, scope)};
    ck_assert_int_eq(r.table->needs(r.self, &less, &r.err), MOE_E_ARG);
    rig_close(&r);
}
END_TEST

START_TEST(wrong_shapes_are_refused) {
    rig r;
    rig_open(&r, "forced", 4, 8, 2, "load=zipf", NULL);
    rig_refuses_shapes(&r);
    r.first_token = -1;
    ck_assert_int_eq(rig_route(&r), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(r.err.msg, "first_token = -1"));
    r.first_token = 0;
    for (int e = 0; e < 8; e++) ck_assert_int_eq(r.counts[e], 0);
    rig_close(&r);
}
END_TEST

/* The least token is named, the counts are untouched, and the bad token has no choice. */
START_TEST(C001_bad_logits_are_refused) {
    rig r;
    rig_open(&r, "forced", 300, 8, 4, _i ? "load=zipf" : "", NULL);
    r.logits[8 * 70 + 1] = NAN;
    r.logits[8 * 20 + 7] = -INFINITY;
    rig_expect_data(&r, rig_route(&r), DEVICE_OPEN_ANY, DEVICE_OPEN_ANY,
                    "layer 3: logit of token 20, expert 7 is -inf");
    for (int e = 0; e < 8 && rig_is_synchronous(); e++) ck_assert_int_eq(r.counts[e], 0);
    for (int j = 0; j < 4; j++) ck_assert(r.ids[80 + j] == -1 && r.weights[80 + j] == 0);
    r.masked = 1;
    r.mask[20] = 0;
    rig_expect_data(&r, rig_route(&r), 70, 1, "layer 3: logit of token 70, expert 1 is nan");
    r.mask[70] = 0;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    rig_close(&r);
}
END_TEST

START_TEST(ids_are_checked_in_backward) {
    static const int32_t bad[] = {8, -1, INT32_MAX, INT32_MIN};
    rig r;
    rig_open(&r, "forced", 4, 8, 2, "", NULL);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    for (int i = 0; i < 4; i++) {
        r.ids[5] = bad[i];
        rig_expect_bad(&r, rig_bwd(&r), MOE_E_ARG, "token 2, choice 1");
    }
    rig_close(&r);
}
END_TEST

/* ---- weights and gradient ---- */

static const ref_options formula = {.after = 1, .scale = 1};

/* sum_j w_j dw_j in FP64 */
static double main_loss(const rig *r, int64_t t, const double *x) {
    double w[REF_MAX_EXPERTS], sum = 0;
    ref_weights(&formula, x, r->experts, r->ids + t * r->k, r->k, w);
    for (int64_t j = 0; j < r->k; j++) sum += w[j] * (double)r->d_weights[t * r->k + j];
    return sum;
}

static void check_token(const rig *r, int64_t t) {
    double x[REF_MAX_EXPERTS], w[REF_MAX_EXPERTS], h = 1e-5;
    for (int64_t e = 0; e < r->experts; e++) x[e] = (double)r->logits[t * r->experts + e];
    ref_weights(&formula, x, r->experts, r->ids + t * r->k, r->k, w);
    for (int64_t j = 0; j < r->k; j++)
        check_that(fabs((double)r->weights[t * r->k + j] - w[j]) < 1e-6, "weight of token %d", (int)t);
    for (int64_t e = 0; e < r->experts; e++) {
        double middle = x[e], side[2];
        for (int s = 0; s < 2; s++) {
            x[e] = middle + (s ? h : -h);
            side[s] = main_loss(r, t, x);
        }
        x[e] = middle;
        double slope = (side[1] - side[0]) / (2 * h), d = (double)r->d_logits[t * r->experts + e];
        check_that(fabs(d - slope) <= 2e-6 + 1e-5 * fabs(slope), "token %d, logit %d: %.9g, not %.9g", (int)t, (int)e,
                   d, slope);
    }
}

static void check_gradient(const char *options, int64_t tokens, int64_t experts, int64_t k, int masked) {
    rig r;
    rig_open(&r, "forced", tokens, experts, k, options, NULL);
    rig_random(r.logits, tokens * experts, 2, 11);
    rig_random(r.d_weights, tokens * k, 1, 12);
    r.masked = masked;
    for (int64_t t = 0; t < tokens; t++) r.mask[t] = !masked || t % 3 != 1;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    for (int64_t i = 0; i < tokens * experts; i++) r.d_logits[i] = NAN; /* overwritten */
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    for (int64_t t = 0; t < tokens; t++)
        if (r.mask[t])
            check_token(&r, t);
        else
            for (int64_t e = 0; e < experts; e++)
                check_that(r.d_logits[t * experts + e] == 0, "padding token %d", (int)t);
    rig_close(&r);
}

START_TEST(weights_and_gradient_equal_the_formula) {
    static const int64_t shapes[][3] = {{0, 8, 2}, {1, 8, 2}, {50, 8, 3}, {10, 6, 6}, {90, 64, 8}, {5, 1, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int masked = 0; masked < 2; masked++)
            check_gradient(_i ? "load=zipf" : "", shapes[s][0], shapes[s][1], shapes[s][2], masked);
}
END_TEST

/* Logits far apart or far from zero: the largest of the chosen is subtracted, not that of the row. */
START_TEST(C009_large_logits_keep_their_weights) {
    rig r;
    rig_open(&r, "forced", 1, 4, 2, "shuffle=false", NULL);
    static const float row[4] = {-300, -301, 3e38f, -3e38f};
    memcpy(r.logits, row, sizeof row);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert(r.ids[0] == 0 && r.ids[1] == 1);
    ck_assert_double_eq_tol((double)r.weights[0], 0.7310586, 1e-6);
    ck_assert_double_eq_tol((double)r.weights[1], 0.2689414, 1e-6);
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("forced rules");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, C006_bad_sizes_are_refused);
    tcase_add_test(c, C033_unknown_words_do_not_fall_through);
    tcase_add_test(c, C032_an_exponent_without_effect_is_refused);
    tcase_add_test(c, identity_experts_and_negative_tokens_are_refused);
    tcase_add_test(c, C008_one_choice_warns);
    tcase_add_test(c, schema_and_needs);
    tcase_add_test(c, wrong_shapes_are_refused);
    tcase_add_loop_test(c, C001_bad_logits_are_refused, 0, 2);
    tcase_add_test(c, ids_are_checked_in_backward);
    tcase_add_loop_test(c, weights_and_gradient_equal_the_formula, 0, 2);
    tcase_add_test(c, C009_large_logits_keep_their_weights);
    return run_case(c);
}
