/* Router "topk" backward: against central differences of the FP64 loss for every combination of options, and the ways
 * in which coefficient and divisor enter. */
#include <math.h>

#include "combos.h"
#include "fixture.h"
#include "test_main.h"

/* Choices of each expert in the unit of token t, and its live tokens. */
static int64_t unit_load(const rig *r, const ref_options *o, int64_t t, int64_t *load) {
    int64_t unit = o->sequence ? r->seq_len : r->tokens, begin = t / unit * unit, live = 0;
    if (o->global) {
        memcpy(load, r->batch, (size_t)r->experts * sizeof *load);
        return r->divisor;
    }
    memset(load, 0, REF_MAX_EXPERTS * sizeof *load);
    for (int64_t i = begin; i < begin + unit; i++) {
        if (!r->mask[i]) continue;
        live++;
        for (int64_t j = 0; j < r->k; j++) load[r->ids[i * r->k + j]]++;
    }
    return live;
}

static void check_row(const rig *r, const ref_options *o, int64_t t) {
    double x[REF_MAX_EXPERTS], h = 1e-5;
    int64_t load[REF_MAX_EXPERTS], live = unit_load(r, o, t, load);
    const float *d = r->d_logits + t * r->experts;
    for (int64_t e = 0; e < r->experts; e++) x[e] = (double)r->logits[t * r->experts + e];
    for (int64_t e = 0; e < r->experts; e++) {
        double side[2], middle = x[e];
        for (int s = 0; s < 2; s++) {
            x[e] = middle + (s ? h : -h);
            side[s] = ref_token_loss(o, x, r->ids + t * r->k, r->d_weights + t * r->k, r->experts, r->k, load, live,
                                     (double)r->divisor);
        }
        x[e] = middle;
        double slope = (side[1] - side[0]) / (2 * h);
        check_that(fabs((double)d[e] - slope) <= 2e-6 + 1e-5 * fabs(slope), "token %d, logit %d: %.9g, not %.9g",
                   (int)t, (int)e, (double)d[e], slope);
    }
}

/* The batch has this call's tokens and five more, which chose the first k experts. */
static void set_batch(rig *r) {
    r->batch_given = 1;
    r->divisor = 5;
    for (int64_t e = 0; e < r->experts; e++) r->batch[e] = r->counts[e] + (e < r->k ? 5 : 0);
    for (int64_t t = 0; t < r->tokens; t++) r->divisor += r->mask[t];
}

static void check_global_loss(const rig *r, const ref_options *o, double before) {
    double want = ref_global_loss(o, r->logits, r->mask, r->batch, r->tokens, r->experts, r->k, (double)r->divisor);
    ck_assert_double_eq_tol(r->losses[0] - before, want, 2e-6 * want);
}

static void check_gradient(int i, int64_t tokens, int64_t seq_len, int64_t experts, int64_t k, int masked) {
    char text[256];
    ref_options o;
    if (!combo(i, experts, k, text, sizeof text, &o)) return;
    rig r;
    rig_open(&r, "topk", tokens, experts, k, text, NULL);
    r.seq_len = seq_len;
    r.divisor = 3; /* small: the losses then weigh as much as the main loss */
    rig_random(r.logits, tokens * experts, 1.5, (uint64_t)(i + 1));
    rig_random(r.d_weights, tokens * k, 1, 6);
    rig_random(r.bias, experts, 0.2, 99);
    r.masked = masked;
    for (int64_t t = 0; t < tokens; t++) r.mask[t] = !masked || t % 3 != 1;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    for (int64_t j = 0; j < tokens * experts; j++) r.d_logits[j] = NAN; /* overwritten */
    if (o.global) set_batch(&r);
    double before = r.losses[0];
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    if (o.global) check_global_loss(&r, &o, before);
    for (int64_t t = 0; t < tokens; t++)
        if (r.mask[t])
            check_row(&r, &o, t);
        else
            for (int64_t e = 0; e < experts; e++)
                check_that(r.d_logits[t * experts + e] == 0, "padding token %d", (int)t);
    rig_close(&r);
}

START_TEST(equals_finite_differences) {
    static const int64_t shapes[][4] = {{1, 1, 6, 2}, {12, 4, 8, 3},  {10, 5, 7, 7},
                                        {9, 9, 5, 1}, {70, 70, 6, 2}, {10, 5, 16, 6}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int masked = 0; masked < 2; masked++)
            check_gradient(_i, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], masked);
}
END_TEST

START_TEST(C008_one_choice_trains_the_router) {
    rig r;
    rig_open(&r, "topk", 1, 4, 1, "", NULL);
    const float row[4] = {0.3f, 0.1f, -0.2f, 0.25f};
    memcpy(r.logits, row, sizeof row);
    r.d_weights[0] = 1;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    check_row(&r, &(ref_options){.scale = 1}, 0);
    ck_assert_double_gt((double)r.d_logits[0], 0.1);
    rig_close(&r);
}
END_TEST

/* Sum of d_logits over `calls` equal microbatches of `tokens`, divisor = all their tokens. */
static void accumulate(const char *options, int64_t tokens, int64_t seq_len, int calls, const float *logits,
                       double *sum) {
    rig r;
    rig_open(&r, "topk", tokens, 8, 2, options, NULL);
    r.seq_len = seq_len;
    r.divisor = tokens * calls;
    memcpy(r.logits, logits, (size_t)(tokens * 8) * sizeof *logits);
    r.batch_given = 1;
    for (int c = 0; c < calls; c++) ck_assert_int_eq(rig_route(&r), MOE_OK);
    memcpy(r.batch, r.counts, 8 * sizeof *r.batch);
    for (int i = 0; i < 8; i++) sum[i] = 0;
    for (int c = 0; c < calls; c++) {
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        ck_assert_int_eq(rig_bwd(&r), MOE_OK);
        for (int64_t j = 0; j < tokens * 8; j++) sum[j % 8] += (double)r.d_logits[j];
    }
    rig_close(&r);
}

static void two_equal_sequences(float *logits, int64_t length) {
    rig_random(logits, length * 8, 1, 12);
    memcpy(logits + length * 8, logits, (size_t)(length * 8) * sizeof *logits);
}

static void same8(const double *a, const double *b) {
    double size = 0;
    for (int i = 0; i < 8; i++) {
        ck_assert_double_eq_tol(a[i], b[i], 1e-6);
        size += fabs(a[i]);
    }
    ck_assert_double_gt(size, 1e-3); /* there is something to compare */
}

static const char *const kinds[] = {"aux_coef=1", "aux_coef=1 aux_scope=sequence", "z_coef=1",
                                    "score=sigmoid aux_coef=1 z_coef=0.5",
                                    "aux_coef=1 aux_scope=global groups=4 groups_kept=2 group_score=sum2"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

START_TEST(C022_accumulation_keeps_the_strength) {
    float logits[20 * 8];
    double once[8], four[8];
    two_equal_sequences(logits, 10);
    accumulate(kinds[_i], 20, 10, 1, logits, once);
    accumulate(kinds[_i], 20, 10, 4, logits, four);
    same8(once, four);
}
END_TEST

START_TEST(C024_microbatch_size_keeps_the_strength) {
    float logits[20 * 8];
    double one_of_two[8], two_of_one[8];
    two_equal_sequences(logits, 10);
    accumulate(kinds[_i], 20, 10, 1, logits, one_of_two);
    accumulate(kinds[_i], 10, 10, 2, logits, two_of_one);
    same8(one_of_two, two_of_one);
}
END_TEST

/* Padding: gradients of the live rows equal those of the batch without the padding, bit for bit. */
START_TEST(C028_padding_changes_no_gradient) {
    rig pad, all;
    rig_open(&pad, "topk", 6, 8, 2, kinds[_i], NULL);
    rig_open(&all, "topk", 4, 8, 2, kinds[_i], NULL);
    rig_random(pad.logits, 48, 1, 31);
    rig_random(pad.d_weights, 12, 1, 32);
    pad.masked = 1;
    pad.divisor = all.divisor = 4;
    const int rows[4] = {0, 2, 3, 5};
    pad.mask[1] = pad.mask[4] = 0;
    for (int t = 0; t < 4; t++) {
        memcpy(all.logits + 8 * t, pad.logits + 8 * rows[t], 8 * sizeof(float));
        memcpy(all.d_weights + 2 * t, pad.d_weights + 2 * rows[t], 2 * sizeof(float));
    }
    ck_assert_int_eq(rig_route(&pad) | rig_route(&all), MOE_OK);
    ck_assert_int_eq(rig_bwd(&pad) | rig_bwd(&all), MOE_OK);
    for (int t = 0; t < 4; t++) ck_assert_mem_eq(all.d_logits + 8 * t, pad.d_logits + 8 * rows[t], 8 * sizeof(float));
    rig_close(&pad);
    rig_close(&all);
}
END_TEST

START_TEST(ids_and_divisor_are_checked) {
    rig r;
    rig_open(&r, "topk", 4, 8, 2, "aux_coef=1", NULL);
    rig_random(r.logits, 32, 1, 31);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    r.divisor = 0;
    rig_expect_bad(&r, rig_bwd(&r), MOE_E_ARG, "divisor is 0");
    r.divisor = 4;
    static const int32_t bad[] = {8, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        r.ids[5] = bad[i];
        rig_expect_bad(&r, rig_bwd(&r), MOE_E_ARG, "token 2, choice 1");
    }
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("gradient");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, equals_finite_differences, 0, COMBOS);
    tcase_add_test(c, C008_one_choice_trains_the_router);
    tcase_add_loop_test(c, C022_accumulation_keeps_the_strength, 0, KINDS);
    tcase_add_loop_test(c, C024_microbatch_size_keeps_the_strength, 0, KINDS);
    tcase_add_loop_test(c, C028_padding_changes_no_gradient, 0, KINDS);
    tcase_add_test(c, ids_and_divisor_are_checked);
    return run_case(c);
}
