/* moe.sumsq/0, moe.clip_coef/0, moe.adamw/0, moe.sgd/0 against FP64. */
#include "ot.h"

typedef struct shape {
    int64_t n;
    int32_t copy;
} shape;
static const shape shapes[] = {{0, 1}, {1, 0}, {33, 1}, {1000, 0}, {70001, 1}};
static const moe_adamw_attr attr = {sizeof attr, 0.9f, 0.95f, 1e-8f, 0.1f};

static uint64_t sumsq_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor g = ot_random(t, ot_tensor(t, MOE_F32, s->n), -1, 1), sum = ot_fill(ot_tensor(t, MOE_F64, 1), 0.5);
    long double exact = 0.5L;
    for (int64_t i = 0; i < s->n; i++) exact += (long double)ot_get(&g, i) * (long double)ot_get(&g, i);
    double want = (double)exact;
    ot_forward(t, &call, MOE_OP_SUMSQ, OT_LIST(g), OT_LIST(sum), NULL, NULL);
    ot_near("sum", &sum, &want, 1e-14);
    return ot_hash(0, &sum);
}

START_TEST(squares_are_summed) {
    OT_EVERYWHERE(sumsq_case, shapes);
}
END_TEST

/* A replicated weight of norm 3 counted once gives 3; and the coefficient's limits. */
START_TEST(C060_norm_and_coefficient) {
    static const struct {
        double sum;
        float max, norm, coef;
    } rows[] = {{9, 0, 3, 1}, {9, 1, 3, 1.0f / 3}, {9, 4, 3, 1}, {0, 1, 0, 1}, {9, 3, 3, 1}, {1e60, 1, 1e30f, 1e-30f}};
    static const double broken[] = {INFINITY, NAN, 1e80, -1.0};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor sum = ot_tensor(&t, MOE_F64, 1), stats = ot_tensor(&t, MOE_F32, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        moe_clip_attr clip = {sizeof clip, rows[i].max};
        ot_set(&sum, 0, rows[i].sum);
        ot_forward(&t, &call, MOE_OP_CLIP_COEF, OT_LIST(sum), OT_LIST(stats), &clip, NULL);
        ot_want(fabs(ot_get(&stats, 0) - (double)rows[i].norm) <= 1e-6 * (double)rows[i].norm);
        ot_want(fabs(ot_get(&stats, 1) - (double)rows[i].coef) <= 1e-6 * (double)rows[i].coef);
    }
    for (size_t i = 0; i < 8; i++) {
        moe_clip_attr clip = {sizeof clip, i % 2 ? 1.0f : 0.0f};
        ot_set(&sum, 0, broken[i / 2]);
        ot_forward(&t, &call, MOE_OP_CLIP_COEF, OT_LIST(sum), OT_LIST(stats), &clip, NULL);
        ot_want(isnan(ot_get(&stats, 1)) && !isfinite(ot_get(&stats, 0)));
    }
    moe_clip_attr negative = {sizeof negative, -1.0f};
    ot_refused(&call, ot_try(&t, &call, MOE_OP_CLIP_COEF, OT_LIST(sum), OT_LIST(stats), &negative, NULL), MOE_E_ARG,
               "max_norm is -1");
    ot_close(&t);
}
END_TEST

typedef struct weights {
    moe_tensor grad, hyper, stats, w, m, v, copy;
} weights;
static weights make_weights(ot *t, const shape *s, double coef) {
    weights x = {.grad = ot_random(t, ot_tensor(t, MOE_F32, s->n), -1, 1), .hyper = ot_tensor(t, MOE_F32, 4)};
    static const double hyper[] = {0.01, 1 - 0.9 * 0.9 * 0.9, 1 - 0.95 * 0.95 * 0.95, 0};
    for (int i = 0; i < 4; i++) ot_set(&x.hyper, i, hyper[i]);
    x.stats = ot_fill(ot_tensor(t, MOE_F32, 2), coef);
    x.w = ot_random(t, ot_tensor(t, MOE_F32, s->n), -1, 1);
    x.m = ot_random(t, ot_tensor(t, MOE_F32, s->n), -0.1, 0.1);
    x.v = ot_random(t, ot_tensor(t, MOE_F32, s->n), 0, 0.1);
    x.copy = s->copy ? ot_tensor(t, MOE_BF16, s->n) : ot_absent();
    return x;
}
static void check_copy(const weights *x, const shape *s) {
    for (int64_t i = 0; s->copy && i < s->n; i++)
        ot_want(((const uint16_t *)x->copy.data)[i] == ot_bf16(((const float *)x->w.data)[i]));
}

static uint64_t adamw_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    weights x = make_weights(t, s, 0.7);
    double *w = ot_doubles(&x.w), *m = ot_doubles(&x.m), *v = ot_doubles(&x.v);
    for (int64_t i = 0; i < s->n; i++) {
        double g = ot_get(&x.stats, 1) * ot_get(&x.grad, i), b1 = (double)attr.beta1, b2 = (double)attr.beta2;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        double step = m[i] / ot_get(&x.hyper, 1) / (sqrt(v[i] / ot_get(&x.hyper, 2)) + (double)attr.eps);
        w[i] -= ot_get(&x.hyper, 0) * (step + (double)attr.weight_decay * w[i]);
    }
    ot_forward(t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m, x.v, x.copy), &attr, NULL);
    ot_near("m", &x.m, m, 3e-7);
    ot_near("v", &x.v, v, 3e-7);
    ot_near("w", &x.w, w, 3e-7);
    check_copy(&x, s);
    free(w);
    free(m);
    free(v);
    uint64_t hash = ot_hash(ot_hash(ot_hash(0, &x.w), &x.m), &x.v);
    return s->copy ? ot_hash(hash, &x.copy) : hash;
}

static uint64_t sgd_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    weights x = make_weights(t, s, 0.3);
    double *w = ot_doubles(&x.w);
    for (int64_t i = 0; i < s->n; i++)
        w[i] -= ot_get(&x.hyper, 0) * (ot_get(&x.stats, 1) * ot_get(&x.grad, i) + (double)attr.weight_decay * w[i]);
    ot_forward(t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.copy), &attr, NULL);
    ot_near("w", &x.w, w, 2e-7);
    check_copy(&x, s);
    free(w);
    return ot_hash(0, &x.w);
}

START_TEST(adamw_follows_the_formula) {
    OT_EVERYWHERE(adamw_case, shapes);
}
END_TEST

START_TEST(sgd_follows_the_formula) {
    OT_EVERYWHERE(sgd_case, shapes);
}
END_TEST

/* ---- gradients in blocks, of which some are not filled ---- */
typedef struct block_shape {
    shape s;
    int64_t groups;
} block_shape;
static const block_shape block_shapes[] = {{{0, 1}, 3},          {{6, 1}, 1},       {{12, 0}, 4},
                                           {{1000, 1}, 8},       {{70007, 0}, 7},   {{3 * 65536 + 96, 1}, 2},
                                           {{2 * 16384, 0}, 16}, {{5000, 1}, 5000}, {{8 * 1024, 1}, 4}};
static int takes_filled(void) {
    return strcmp(test_device(), "cuda") != 0;
}

static void want_same(const char *what, const moe_tensor *a, const moe_tensor *b) {
    uint64_t bytes = (uint64_t)ot_count(a) * ot_dtype_bytes(a->dtype);
    ot_want_msg(memcmp(a->data, b->data, bytes) == 0, "%s of %lld: other bits than with zeros", what,
                (long long)ot_count(a));
}

/* Random flags; in `blocks` what they leave out is NaN, in `zeros` it is 0. */
static moe_tensor make_blocks(ot *t, const block_shape *b, const moe_tensor *zeros, const moe_tensor *blocks) {
    moe_tensor filled = ot_tensor(t, MOE_I32, b->groups);
    int64_t each = b->s.n / b->groups;
    for (int64_t g = 0; g < b->groups; g++) {
        int64_t flag = ot_below(t, 2);
        ot_set(&filled, g, (double)flag);
        for (int64_t i = g * each; i < (g + 1) * each && !flag; i++) {
            ot_set(zeros, i, 0);
            ot_set(blocks, i, NAN);
        }
    }
    return filled;
}

static uint64_t blocks_case(ot *t, const void *arg) {
    const block_shape *b = arg;
    ot_call call;
    weights x = make_weights(t, &b->s, 0.7), y = x;
    y.grad = ot_clone(t, &x.grad);
    y.w = ot_clone(t, &x.w);
    y.m = ot_clone(t, &x.m);
    y.v = ot_clone(t, &x.v);
    if (b->s.copy) y.copy = ot_tensor(t, MOE_BF16, b->s.n);
    moe_tensor filled = make_blocks(t, b, &x.grad, &y.grad);
    moe_tensor sums[] = {ot_fill(ot_tensor(t, MOE_F64, 1), 0.5), ot_fill(ot_tensor(t, MOE_F64, 1), 0.5)};
    ot_forward(t, &call, MOE_OP_SUMSQ, OT_LIST(x.grad), &sums[0], 1, NULL, NULL);
    ot_forward(t, &call, MOE_OP_SUMSQ, OT_LIST(y.grad, filled), &sums[1], 1, NULL, NULL);
    want_same("sum", &sums[0], &sums[1]);
    ot_forward(t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m, x.v, x.copy), &attr, NULL);
    ot_forward(t, &call, MOE_OP_ADAMW, OT_LIST(y.grad, y.hyper, y.stats, filled), OT_LIST(y.w, y.m, y.v, y.copy), &attr,
               NULL);
    want_same("w", &x.w, &y.w);
    want_same("m", &x.m, &y.m);
    want_same("v", &x.v, &y.v);
    if (b->s.copy) want_same("copy", &x.copy, &y.copy);
    ot_forward(t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.copy), &attr, NULL);
    ot_forward(t, &call, MOE_OP_SGD, OT_LIST(y.grad, y.hyper, y.stats, filled), OT_LIST(y.w, y.copy), &attr, NULL);
    want_same("w of sgd", &x.w, &y.w);
    if (b->s.copy) want_same("copy of sgd", &x.copy, &y.copy);
    return ot_hash(ot_hash(ot_hash(0, &y.w), &y.m), &sums[1]);
}

START_TEST(blocks_that_are_not_filled_are_zeros) {
    if (takes_filled()) OT_EVERYWHERE(blocks_case, block_shapes);
}
END_TEST

START_TEST(flags_that_do_not_fit_are_refused) {
    static const shape s = {12, 0};
    ot t;
    ot_call call;
    ot_start(&t);
    weights x = make_weights(&t, &s, 0.0);
    moe_tensor sum = ot_fill(ot_tensor(&t, MOE_F64, 1), 0), four = ot_tensor(&t, MOE_I32, 4),
               five = ot_tensor(&t, MOE_I32, 5), none = ot_tensor(&t, MOE_I32, 0), wide = ot_tensor(&t, MOE_I64, 4);
    const struct {
        const moe_tensor *filled;
        const char *text;
    } rows[] = {{&five, "filled has 5 blocks, the gradient 12 elements"},
                {&none, "filled has 0 blocks, the gradient 12 elements"},
                {&wide, "filled is [4] I64, want [*] I32"}};
    moe_status code = MOE_E_ARG;
    for (size_t i = 0; i < 3 + !takes_filled(); i++) {
        moe_tensor f = i < 3 ? *rows[i].filled : four;
        const char *text = i < 3 ? rows[i].text : "filled is given, which this device does not take";
        if (i == 3) code = MOE_E_UNSUPPORTED;
        ot_refused(&call, ot_try(&t, &call, MOE_OP_SUMSQ, OT_LIST(x.grad, f), OT_LIST(sum), NULL, NULL), code, text);
        ot_refused(
            &call,
            ot_try(&t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats, f), OT_LIST(x.w, x.m, x.v), &attr, NULL),
            code, text);
        ot_refused(&call,
                   ot_try(&t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats, f), OT_LIST(x.w), &attr, NULL), code,
                   text);
    }
    ot_close(&t);
}
END_TEST

/* A coefficient that is not a number leaves every byte of weights, moments and copy as it was. */
START_TEST(nan_coefficient_changes_nothing) {
    static const shape s = {50, 1};
    ot t;
    ot_call call;
    ot_start(&t);
    weights x = make_weights(&t, &s, NAN);
    moe_tensor w = ot_clone(&t, &x.w), m = ot_clone(&t, &x.m), v = ot_clone(&t, &x.v);
    ot_forward(&t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m, x.v, x.copy), &attr, NULL);
    ot_forward(&t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.copy), &attr, NULL);
    ot_want(memcmp(w.data, x.w.data, 200) == 0 && memcmp(m.data, x.m.data, 200) == 0);
    ot_want(memcmp(v.data, x.v.data, 200) == 0);
    ot_untouched("copy", &x.copy, 0, 50);
    ot_close(&t);
}
END_TEST

/* An expert without rows has zero gradient and still decays: 1 becomes 0.99 with lr 0.1 and decay 0.1. */
START_TEST(C045_zero_gradient_decays) {
    static const shape s = {2, 0};
    ot t;
    ot_call call;
    ot_start(&t);
    weights x = make_weights(&t, &s, 1.0);
    ot_set(&x.hyper, 0, 0.1);
    ot_fill(x.grad, 0);
    ot_fill(x.m, 0);
    ot_fill(x.v, 0);
    ot_fill(x.w, 1);
    ot_forward(&t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m, x.v), &attr, NULL);
    for (int i = 0; i < 2; i++) ot_want(fabs(ot_get(&x.w, i) - 0.99) < 1e-7 && ot_get(&x.m, i) == 0.0);
    ot_close(&t);
}
END_TEST

START_TEST(bf16_copy_rounds_ties_to_even) {
    static const shape s = {4, 1};
    static const float value[] = {1.00390625f, 1.01171875f, 1.0039064f, -3.4e38f}; /* tie down, tie up, above a tie */
    static const uint16_t want[] = {0x3f80, 0x3f82, 0x3f81, 0xff80};
    ot t;
    ot_call call;
    ot_start(&t);
    weights x = make_weights(&t, &s, 0.0);
    moe_adamw_attr still = attr;
    still.weight_decay = 0.0f;
    for (int i = 0; i < 4; i++) ot_set(&x.w, i, (double)value[i]);
    ot_forward(&t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.copy), &still, NULL);
    ot_want(memcmp(x.copy.data, want, 8) == 0);
    ot_close(&t);
}
END_TEST

/* Every kind of number, in whole vectors and in the rest, on every instruction set: no NaN becomes a number. */
START_TEST(bf16_copy_is_exact_everywhere) {
    static const char *const isas[] = {"base", "v3", "v4"};
    static const uint32_t
        bits[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0xff7f7fff,
                  0x7f800000, 0xff800000, 0x7fffffff, 0xffffffff, 0x7fc00001, 0x7f800001,
                  0x80000000, 0xbf807fff, 0x00000001, 0x80408000, 0x00018000}; /* denormals: as the workers leave them
                                                                                  in w */
    static const shape s = {67, 1};
    moe_adamw_attr still = attr;
    still.weight_decay = 0.0f;
    for (size_t k = 0; k < 3; k++) {
        ot t;
        ot_call call;
        if (ot_open(&t, isas[k], "1") != MOE_OK) continue;
        weights x = make_weights(&t, &s, 0.0);
        uint32_t *w = x.w.data;
        for (int64_t i = 0; i < s.n; i++) w[i] = bits[i % 17];
        ot_forward(&t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.copy), &still, NULL);
        for (int64_t i = 0; i < s.n; i++) {
            uint16_t is = ((const uint16_t *)x.copy.data)[i];
            int nan = (w[i] & 0x7fffffffu) > 0x7f800000u;
            if (nan)
                ot_want((is & 0x7fffu) > 0x7f80u);
            else
                ot_want(is == ot_bf16(((const float *)x.w.data)[i]));
        }
        ot_close(&t);
    }
}
END_TEST

START_TEST(bad_arguments_are_named) {
    static const shape s = {4, 1};
    ot t;
    ot_call call;
    ot_start(&t);
    weights x = make_weights(&t, &s, 0.0);
    moe_adamw_attr beta = attr;
    beta.beta2 = 1.0f;
    moe_tensor five = ot_tensor(&t, MOE_F32, 5);
    ot_refused(&call,
               ot_try(&t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m, five), &attr, NULL),
               MOE_E_ARG, "v is [5] F32, want [4] F32");
    ot_refused(&call,
               ot_try(&t, &call, MOE_OP_ADAMW, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m, x.v), &beta, NULL),
               MOE_E_ARG, "betas are");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SGD, OT_LIST(x.grad, x.hyper, x.stats), OT_LIST(x.w, x.m), &attr, NULL),
               MOE_E_ARG, "copy is [4] F32, want [4] BF16");
    ot_close(&t);
}
END_TEST

OT_MAIN("optimizer", squares_are_summed, C060_norm_and_coefficient, adamw_follows_the_formula, sgd_follows_the_formula,
        blocks_that_are_not_filled_are_zeros, flags_that_do_not_fit_are_refused, nan_coefficient_changes_nothing,
        C045_zero_gradient_decays, bf16_copy_rounds_ties_to_even, bf16_copy_is_exact_everywhere,
        bad_arguments_are_named)
