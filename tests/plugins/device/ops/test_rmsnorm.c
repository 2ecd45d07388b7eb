/* moe.rmsnorm/0 against the formula in FP64; gradients against central differences of that formula. */
#include "ot.h"

typedef struct shape {
    int64_t tokens, width;
    int32_t act, residual; /* residual: b, s and dres are given */
} shape;
static const shape shapes[] = {
    {0, 8, MOE_F32, 1},    {1, 1, MOE_F32, 0},   {3, 7, MOE_F32, 1},     {5, 64, MOE_BF16, 1},
    {40, 33, MOE_BF16, 0}, {70, 48, MOE_F32, 0}, {131, 100, MOE_F32, 1}, {9, 1500, MOE_F32, 1},
};
static const moe_rmsnorm_attr attr = {sizeof attr, 1e-5f};

typedef struct norm {
    int64_t tokens, width;
    double *s, *w, *dy, *y; /* [T,h], [h], [T,h], [T,h] */
} norm;

/* y from s and w; returns sum of dy * y. */
static double norm_forward(void *ctx) {
    norm *n = ctx;
    double sum = 0.0;
    for (int64_t t = 0; t < n->tokens; t++) {
        double mean = 0.0;
        for (int64_t i = 0; i < n->width; i++) mean += pow(n->s[t * n->width + i], 2) / (double)n->width;
        for (int64_t i = 0; i < n->width; i++) {
            int64_t at = t * n->width + i;
            n->y[at] = n->w[i] * n->s[at] / sqrt(mean + (double)attr.eps);
            sum += n->dy[at] * n->y[at];
        }
    }
    return sum;
}

/* dres is inside dx, dw held `was` before: both are taken off before the comparison. */
static void check_gradients(ot *t, norm *n, const moe_tensor *dx, const double *dres, const moe_tensor *dw,
                            double was) {
    moe_tensor own = ot_tensor(t, MOE_F32, n->tokens, n->width), dw_own = ot_tensor(t, MOE_F32, n->width);
    double tol = dx->dtype == MOE_BF16 ? 4e-3 : 1e-5;
    for (int64_t i = 0; i < n->tokens * n->width; i++) ot_set(&own, i, ot_get(dx, i) - (dres ? dres[i] : 0.0));
    for (int64_t i = 0; i < n->width; i++) ot_set(&dw_own, i, ot_get(dw, i) - was);
    ot_differences(t, "dx", norm_forward, n, n->s, &own, 12, tol);
    ot_differences(t, "dw", norm_forward, n, n->w, &dw_own, 6, 1e-5);
}

static uint64_t norm_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor a = ot_random(t, ot_tensor(t, s->act, s->tokens, s->width), -1, 1);
    moe_tensor b = s->residual ? ot_random(t, ot_tensor(t, s->act, s->tokens, s->width), -1, 1) : ot_absent();
    moe_tensor sum = s->residual ? ot_tensor(t, s->act, s->tokens, s->width) : ot_absent();
    moe_tensor w = ot_random(t, ot_tensor(t, MOE_F32, s->width), 0.5, 1.5);
    moe_tensor y = ot_tensor(t, s->act, s->tokens, s->width);
    moe_tensor dy = ot_random(t, ot_tensor(t, s->act, s->tokens, s->width), -1, 1);
    moe_tensor dw = ot_fill(ot_tensor(t, MOE_F32, s->width), 0.25);
    ot_forward(t, &call, MOE_OP_RMSNORM, OT_LIST(a, b, w), OT_LIST(sum, y), &attr, NULL);
    const moe_tensor *stored = s->residual ? &sum : &a;
    norm n = {s->tokens, s->width, ot_doubles(stored), ot_doubles(&w), ot_doubles(&dy), ot_doubles(&y)};
    if (s->residual) {
        double *added = ot_doubles(&a);
        for (int64_t i = 0; i < s->tokens * s->width; i++) added[i] += ot_get(&b, i);
        ot_near("s", &sum, added, 1e-7);
        free(added);
    }
    norm_forward(&n);
    ot_near("y", &y, n.y, 1e-6);
    moe_tensor dx = ot_random(t, ot_tensor(t, s->act, s->tokens, s->width), -1, 1); /* dres, in place */
    double *dres = ot_doubles(&dx);
    if (s->residual)
        ot_backward(t, &call, OT_LIST(dy, sum, w, dx), OT_LIST(dx, dw));
    else
        ot_backward(t, &call, OT_LIST(dy, a, w), OT_LIST(dx, dw));
    uint64_t hash = ot_hash(ot_hash(ot_hash(0, &y), &dx), &dw);
    check_gradients(t, &n, &dx, s->residual ? dres : NULL, &dw, 0.25);
    free(n.s);
    free(n.w);
    free(n.dy);
    free(n.y);
    free(dres);
    return hash;
}

START_TEST(norm_and_gradients_hold) {
    OT_EVERYWHERE(norm_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[12];
    ot r = {.seed = 78};
    for (size_t i = 0; i < 12; i++)
        random[i] = (shape){ot_below(&r, 90), 2 + ot_below(&r, 150), i % 3 ? MOE_F32 : MOE_BF16, i % 2};
    OT_EVERYWHERE(norm_case, random);
}
END_TEST

/* In place on dres gives the bits that another buffer gives. */
START_TEST(in_place_equals_out_of_place) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor a = ot_random(&t, ot_tensor(&t, MOE_F32, 37, 50), -1, 1), w = ot_fill(ot_tensor(&t, MOE_F32, 50), 1.5);
    moe_tensor y = ot_tensor(&t, MOE_F32, 37, 50), dy = ot_random(&t, ot_tensor(&t, MOE_F32, 37, 50), -1, 1);
    moe_tensor dres = ot_random(&t, ot_tensor(&t, MOE_F32, 37, 50), -1, 1), dx = ot_tensor(&t, MOE_F32, 37, 50);
    moe_tensor dw = ot_fill(ot_tensor(&t, MOE_F32, 50), 0), dw2 = ot_fill(ot_tensor(&t, MOE_F32, 50), 0);
    ot_forward(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, ot_absent(), w), OT_LIST(ot_absent(), y), &attr, NULL);
    ot_backward(&t, &call, OT_LIST(dy, a, w, dres), OT_LIST(dx, dw));
    ot_backward(&t, &call, OT_LIST(dy, a, w, dres), OT_LIST(dres, dw2));
    ot_want(memcmp(dx.data, dres.data, 37 * 50 * 4) == 0);
    ot_want(memcmp(dw.data, dw2.data, 50 * 4) == 0);
    ot_close(&t);
}
END_TEST

START_TEST(zero_rows_are_finite_and_nan_passes) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor a = ot_fill(ot_tensor(&t, MOE_F32, 3, 20), 0), w = ot_fill(ot_tensor(&t, MOE_F32, 20), 1);
    moe_tensor y = ot_tensor(&t, MOE_F32, 3, 20);
    ot_set(&a, 45, NAN);
    ot_forward(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, ot_absent(), w), OT_LIST(ot_absent(), y), &attr, NULL);
    for (int i = 0; i < 40; i++) ot_want(ot_get(&y, i) == 0.0);
    for (int i = 40; i < 60; i++) ot_want(isnan(ot_get(&y, i)));
    ot_close(&t);
}
END_TEST

START_TEST(bad_arguments_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_rmsnorm_attr negative = {sizeof negative, -1.0f};
    moe_tensor a = ot_tensor(&t, MOE_F32, 3, 20), w = ot_tensor(&t, MOE_F32, 20), w2 = ot_tensor(&t, MOE_F32, 19);
    moe_tensor none = ot_absent(), b = ot_tensor(&t, MOE_BF16, 3, 20);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, none, w2), OT_LIST(none, a), &attr, NULL), MOE_E_ARG,
               "w is [19] F32, want [20] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, a, w), OT_LIST(none, a), &attr, NULL), MOE_E_ARG,
               "s is given exactly where b is");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, b, w), OT_LIST(a, a), &attr, NULL), MOE_E_ARG,
               "b is [3,20] BF16, want [3,20] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, none, w), OT_LIST(none, a), &negative, NULL),
               MOE_E_ARG, "eps is -1");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_RMSNORM, OT_LIST(a, none, w), OT_LIST(none, a), NULL, NULL), MOE_E_ARG,
               "attr is NULL");
    ot_close(&t);
}
END_TEST

OT_MAIN("rmsnorm", norm_and_gradients_hold, random_shapes_hold, in_place_equals_out_of_place,
        zero_rows_are_finite_and_nan_passes, bad_arguments_are_named)
