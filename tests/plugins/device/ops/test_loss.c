/* moe.cross_entropy/0 and moe.count_valid/0 against FP64; the one divisor. */
#include "loss_reference.h"

typedef struct shape {
    int64_t tokens, width;
    int32_t dtype, divided, gradient;
} shape;
static const shape shapes[] = {
    {0, 5, MOE_F32, 1, 1},   {1, 1, MOE_F32, 1, 1},     {7, 33, MOE_F32, 1, 1},     {9, 50, MOE_BF16, 1, 1},
    {40, 17, MOE_F32, 0, 1}, {3, 20000, MOE_F32, 1, 1}, {30, 1000, MOE_BF16, 0, 1}, {70, 600, MOE_F32, 0, 0},
};

static uint64_t loss_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor logits = ot_random(t, ot_tensor(t, s->dtype, s->tokens, s->width), -5, 5);
    moe_tensor targets = ot_tensor(t, MOE_I32, s->tokens), count = ot_fill(ot_tensor(t, MOE_I64, 1), 5);
    moe_tensor sum = ot_fill(ot_tensor(t, MOE_F64, 1), 2.5);
    int64_t valid = 5;
    for (int64_t i = 0; i < s->tokens; i++) {
        ot_set(&targets, i, i % 4 == 3 ? -1.0 : (double)ot_below(t, s->width));
        valid += i % 4 != 3;
    }
    ot_forward(t, &call, MOE_OP_COUNT_VALID, OT_LIST(targets), OT_LIST(count), NULL, NULL);
    ot_want(ot_get(&count, 0) == (double)valid);
    batch l = {s->tokens, s->width, &targets, s->divided ? (double)valid : 1.0, ot_doubles(&logits)};
    double want = 2.5 + loss_forward(&l) * l.divisor;
    moe_tensor divisor = s->divided ? count : ot_absent();
    if (s->gradient)
        ot_forward(t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets, divisor), OT_LIST(sum, logits), NULL, NULL);
    else
        ot_forward(t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets), OT_LIST(sum), NULL, NULL);
    ot_near("loss", &sum, &want, 1e-6);
    if (s->gradient) ot_differences(t, "dlogits", loss_forward, &l, l.logits, &logits, 24, 1e-5);
    for (int64_t i = 0; s->gradient && i < s->tokens * s->width; i++)
        ot_want(i / s->width % 4 != 3 || ot_get(&logits, i) == 0.0);
    free(l.logits);
    return ot_hash(ot_hash(0, &sum), &logits);
}

START_TEST(loss_and_gradient_hold) {
    OT_EVERYWHERE(loss_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[12];
    ot r = {.seed = 81};
    for (size_t i = 0; i < 12; i++)
        random[i] = (shape){ot_below(&r, 60), 1 + ot_below(&r, 300), i % 3 ? MOE_F32 : MOE_BF16, i % 2, 1};
    OT_EVERYWHERE(loss_case, random);
}
END_TEST

/* One token of loss 8 and seven of loss 1, in two calls with one divisor: 15 / 8, and the gradient of one batch. */
START_TEST(C094_microbatches_share_one_divisor) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor logits = ot_fill(ot_tensor(&t, MOE_F32, 8, 2), 0), targets = ot_fill(ot_tensor(&t, MOE_I32, 8), 0);
    moe_tensor first = logits, rest = logits, first_target = targets, rest_targets = targets;
    moe_tensor loss = ot_fill(ot_tensor(&t, MOE_F64, 1), 0), divisor = ot_fill(ot_tensor(&t, MOE_I64, 1), 0);
    for (int64_t i = 0; i < 8; i++) ot_set(&logits, 2 * i, i ? -log(exp(1.0) - 1.0) : -log(exp(8.0) - 1.0));
    first.shape[0] = first_target.shape[0] = 1;
    rest.shape[0] = rest_targets.shape[0] = 7;
    rest.data = (float *)logits.data + 2;
    rest_targets.data = (int32_t *)targets.data + 1;
    moe_tensor whole = ot_clone(&t, &logits), all = ot_fill(ot_tensor(&t, MOE_F64, 1), 0);
    ot_forward(&t, &call, MOE_OP_COUNT_VALID, OT_LIST(first_target), OT_LIST(divisor), NULL, NULL);
    ot_forward(&t, &call, MOE_OP_COUNT_VALID, OT_LIST(rest_targets), OT_LIST(divisor), NULL, NULL);
    ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(first, first_target, divisor), OT_LIST(loss, first), NULL,
               NULL);
    ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(rest, rest_targets, divisor), OT_LIST(loss, rest), NULL, NULL);
    ot_want(fabs(ot_get(&loss, 0) / ot_get(&divisor, 0) - 1.875) < 1e-6);
    ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(whole, targets, divisor), OT_LIST(all, whole), NULL, NULL);
    ot_want(memcmp(whole.data, logits.data, 8 * 2 * 4) == 0);
    ot_close(&t);
}
END_TEST

START_TEST(C098_targets_outside_the_vocabulary_are_refused) {
    static const int32_t bad[] = {9, -2, -1149026846};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor logits = ot_tensor(&t, MOE_F32, 5, 9), targets = ot_fill(ot_tensor(&t, MOE_I32, 5), 1);
    moe_tensor loss = ot_tensor(&t, MOE_F64, 1);
    for (int i = 0; i < 3; i++) {
        char text[64];
        snprintf(text, sizeof text, "token 4 has target %d, want -1..8", bad[i]);
        ot_set(&targets, 4, bad[i]);
        ot_expect_data(
            &t, &call,
            ot_try(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets), OT_LIST(loss, logits), NULL, NULL),
            MOE_E_DATA, 4, bad[i], text);
    }
    if (!ot_async(&t)) ot_untouched("loss", &loss, 0, 1);
    if (!ot_async(&t)) ot_untouched("dlogits", &logits, 0, 45);
    ot_close(&t);
}
END_TEST

/* A slice that is all padding adds zero although its divisor is zero; a divisor of zero with a target is refused. */
START_TEST(C093_no_valid_token_gives_zero) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor logits = ot_fill(ot_tensor(&t, MOE_F32, 3, 4), 1), targets = ot_fill(ot_tensor(&t, MOE_I32, 3), -1);
    moe_tensor loss = ot_fill(ot_tensor(&t, MOE_F64, 1), 0), divisor = ot_fill(ot_tensor(&t, MOE_I64, 1), 0);
    ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets, divisor), OT_LIST(loss, logits), NULL, NULL);
    ot_want(ot_get(&loss, 0) == 0.0);
    for (int64_t i = 0; i < 12; i++) ot_want(ot_get(&logits, i) == 0.0);
    ot_set(&targets, 2, 3);
    ot_expect_data(
        &t, &call,
        ot_try(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets, divisor), OT_LIST(loss), NULL, NULL),
        MOE_E_DATA, 2, DEVICE_OPEN_ANY, "divisor is 0, but token 2 has target 3");
    ot_close(&t);
}
END_TEST

START_TEST(extreme_logits_behave) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor logits = ot_fill(ot_tensor(&t, MOE_F32, 3, 40), -3e38), targets = ot_fill(ot_tensor(&t, MOE_I32, 3), 7);
    moe_tensor loss = ot_fill(ot_tensor(&t, MOE_F64, 1), 0), d = ot_tensor(&t, MOE_F32, 3, 40);
    for (int64_t i = 0; i < 40; i++) ot_set(&logits, 40 + i, -INFINITY); /* barred words */
    for (int64_t r = 0; r < 3; r++) ot_set(&logits, r * 40 + 7, 3e4);
    ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets), OT_LIST(loss, d), NULL, NULL);
    ot_want(ot_get(&loss, 0) == 0.0);
    for (int64_t i = 0; i < 120; i++) ot_want(ot_get(&d, i) == 0.0);
    ot_set(&logits, 90, NAN);
    ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets), OT_LIST(loss, d), NULL, NULL);
    ot_want(isnan(ot_get(&loss, 0)));
    ot_close(&t);
}
END_TEST

/* Loss and gradient into another buffer, of rows of V logits; the largest logit comes late in each. */
static void check_rows(ot *t, int32_t dtype, int64_t width) {
    ot_call call;
    moe_tensor logits = ot_random(t, ot_tensor(t, dtype, 3, width), -4, 4), d = ot_tensor(t, dtype, 3, width);
    moe_tensor targets = ot_fill(ot_tensor(t, MOE_I32, 3), (double)(width - 1)), loss = ot_tensor(t, MOE_F64, 1);
    ot_set(&targets, 1, 0);
    for (int64_t i = 0; i < 3; i++) ot_set(&logits, i * width + width - 2, 9);
    moe_tensor kept = ot_clone(t, &logits);
    double *want = ot_doubles(&logits), all = 0.0;
    for (int64_t r = 0; r < 3; r++) {
        double *row = want + r * width, sum = 0.0, own = row[(int64_t)ot_get(&targets, r)];
        for (int64_t i = 0; i < width; i++) sum += row[i] = exp(row[i]);
        for (int64_t i = 0; i < width; i++) row[i] /= sum;
        row[(int64_t)ot_get(&targets, r)] -= 1.0;
        all += log(sum) - own;
    }
    ot_fill(loss, 0);
    ot_forward(t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets), OT_LIST(loss, d), NULL, NULL);
    ot_near("loss", &loss, &all, 1e-6);
    ot_near("dlogits", &d, want, 1e-6);
    ot_want(memcmp(kept.data, logits.data, (size_t)(3 * width) * ot_dtype_bytes(dtype)) == 0);
    free(want);
    ot_clear(t);
}

/* Chunks that end anywhere, and BF16 rows that do not fit in a worker's scratch. */
START_TEST(logits_stay_and_rows_may_be_wide) {
    static const char *const isas[] = {"base", "v3", "v4"};
    for (size_t i = 0; i < 3; i++) {
        ot t;
        if (ot_open(&t, isas[i], "2") != MOE_OK) continue;
        for (int64_t width = 2; width < 1100; width += 121) check_rows(&t, width % 2 ? MOE_F32 : MOE_BF16, width);
        check_rows(&t, MOE_F32, 4099);
        ot_close(&t);
    }
    ot t;
    ot_start(&t);
    check_rows(&t, MOE_BF16, 1048576 + 700);
    ot_close(&t);
}
END_TEST

/* The call once more, with what its tensors hold now. */
static void repeat(ot *t, ot_call *call) {
    ot_want_msg(device_open_run_step(&t->dev, call->op->forward, &call->args, &call->err) == MOE_OK, "%s",
                call->err.msg);
}

/* Loss of equal BF16 logits, whose exact value is log V: what is left is the error of their exponential. */
static void check_equal(ot *t, int64_t width, int stride) {
    ot_call call;
    moe_tensor logits = ot_tensor(t, MOE_BF16, 1, width), target = ot_fill(ot_tensor(t, MOE_I32, 1), 0);
    moe_tensor loss = ot_tensor(t, MOE_F64, 1);
    const moe_tensor in[] = {logits, target}, out[] = {loss};
    ot_fill(logits, 0);
    ot_forward(t, &call, MOE_OP_CROSS_ENTROPY, in, 2, out, 1, NULL, NULL);
    for (double step = 0x1p-8; step < 100; step *= 2)
        for (int i = -128; i < 128; i += stride) { /* BF16s of this exponent */
            double l = i < 0 ? step * (i / 128.0 - 1) : step * (i / 128.0 + 1);
            ot_fill(logits, l);
            ot_fill(loss, 0);
            repeat(t, &call);
            double error = ot_get(&loss, 0) - log((double)width);
            ot_want_msg(fabs(error) < 2e-7, "%lld logits %g: error %.3g", (long long)width, l, error);
        }
    ot_clear(t);
}

START_TEST(exponentials_of_bf16_are_within_2e_7) {
    static const char *const isas[] = {"base", "v3", "v4"};
    for (size_t i = 0; i < 3; i++) {
        ot t;
        if (ot_open(&t, isas[i], "1") != MOE_OK) continue;
        check_equal(&t, 1, 37);
        check_equal(&t, 64, 5);
        ot_close(&t);
    }
}
END_TEST

/* Equal logits 0 have the gradient 1 / (V divisor) exactly before it is rounded; among these divisors are ties. */
START_TEST(bf16_gradients_are_the_nearest) {
    static const char *const isas[] = {"base", "v3", "v4"};
    enum { V = 128 };
    int up = 0, down = 0;
    for (size_t k = 0; k < 3; k++) {
        ot t;
        ot_call call;
        if (ot_open(&t, isas[k], "1") != MOE_OK) continue;
        moe_tensor logits = ot_tensor(&t, MOE_BF16, 1, V), d = ot_tensor(&t, MOE_BF16, 1, V);
        moe_tensor target = ot_fill(ot_tensor(&t, MOE_I32, 1), 3), loss = ot_tensor(&t, MOE_F64, 1);
        moe_tensor divisor = ot_tensor(&t, MOE_I64, 1);
        const moe_tensor in[] = {logits, target, divisor}, out[] = {loss, d};
        ot_fill(logits, 0);
        ot_set(&divisor, 0, 1);
        ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, in, 3, out, 2, NULL, NULL);
        for (int i = 1; i < 2000000; i++) {
            float want = (float)(1.0 / i) / V;
            uint32_t bits;
            memcpy(&bits, &want, 4);
            int tie = (bits & 0xffffu) == 0x8000u && ot_bf16(want) != 0;
            if (i > 300 && !tie) continue;
            up += tie && (bits & 0x10000u);
            down += tie && !(bits & 0x10000u);
            ot_set(&divisor, 0, i);
            ot_fill(loss, 0);
            repeat(&t, &call);
            const uint16_t *is = d.data;
            for (int j = 0; j < V; j++)
                ot_want_msg(j == 3 || is[j] == ot_bf16(want), "divisor %d: d[%d] is %04x, want %04x", i, j, is[j],
                            ot_bf16(want));
        }
        ot_close(&t);
    }
    ot_want_msg(up > 2 && down > 2, "%d and %d ties", up, down);
}
END_TEST

/* One logit in the middle, in the first vector or in the rest, that is far away or not finite. */
static void check_far(ot *t, float far, int64_t at) {
    enum { V = 300 };
    ot_call call;
    moe_tensor logits = ot_random(t, ot_tensor(t, MOE_BF16, 3, V), -4, 4), d = ot_tensor(t, MOE_BF16, 3, V);
    moe_tensor targets = ot_fill(ot_tensor(t, MOE_I32, 3), 7), loss = ot_fill(ot_tensor(t, MOE_F64, 1), 0);
    ot_set(&logits, V + at, (double)far);
    double *l = ot_doubles(&logits), all = 0.0, want[3 * V];
    for (int64_t r = 0; r < 3; r++) {
        double most = -INFINITY, sum = 0.0;
        for (int64_t i = 0; i < V; i++) most = fmax(most, l[r * V + i]);
        for (int64_t i = 0; i < V; i++) sum += want[r * V + i] = exp(l[r * V + i] - most);
        for (int64_t i = 0; i < V; i++) want[r * V + i] = want[r * V + i] / sum - (i == 7);
        all += most + log(sum) - l[r * V + 7];
    }
    ot_forward(t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets), OT_LIST(loss, d), NULL, NULL);
    if (isnan(far) || far > 3.39e38f) {
        ot_want(isnan(ot_get(&loss, 0)));
        for (int64_t i = 0; i < V; i++) ot_want(isnan(ot_get(&d, V + i)));
    } else {
        ot_near("loss", &loss, &all, 1e-6);
        ot_near("dlogits", &d, want, 1e-6);
        if (far < -200.0f) ot_want(ot_get(&d, V + at) == 0.0);
    }
    free(l);
    ot_clear(t);
}

START_TEST(bf16_logits_may_be_far_or_not_finite) {
    static const char *const isas[] = {"base", "v3", "v4"};
    static const float far[] = {63.75f, 64.0f, 64.5f,  -64.0f,   -64.5f,    90,  -90, 3e4f,
                                -3e4f,  3e38f, -3e38f, INFINITY, -INFINITY, NAN, -NAN};
    static const int64_t at[] = {0, 1, 127, 255, 256, 299};
    for (size_t k = 0; k < 3; k++) {
        ot t;
        if (ot_open(&t, isas[k], "1") != MOE_OK) continue;
        for (size_t i = 0; i < sizeof far / sizeof far[0]; i++)
            for (size_t j = 0; j < sizeof at / sizeof at[0]; j++) check_far(&t, far[i], at[j]);
        ot_close(&t);
    }
}
END_TEST

OT_MAIN("loss", loss_and_gradient_hold, random_shapes_hold, C094_microbatches_share_one_divisor,
        C098_targets_outside_the_vocabulary_are_refused, C093_no_valid_token_gives_zero, extreme_logits_behave,
        logits_stay_and_rows_may_be_wide, exponentials_of_bf16_are_within_2e_7, bf16_gradients_are_the_nearest,
        bf16_logits_may_be_far_or_not_finite)
