/* moe.sigmoid/0, and moe.swiglu_prob/0 with its halves clamped: formulas and gradients in FP64, at and beyond the
 * limits, with rows in expert order. The plain activation: test_swiglu_prob.c. */
#include "ot.h"

/* ---- sigmoid ---- */
typedef struct squash {
    int64_t n;
    double *x, *dy; /* [n] */
} squash;

static double squash_forward(void *ctx) {
    const squash *s = ctx;
    double sum = 0.0;
    for (int64_t i = 0; i < s->n; i++) sum += s->dy[i] / (1.0 + exp(-s->x[i]));
    return sum;
}

static uint64_t sigmoid_case(ot *t, const void *arg) {
    const int64_t *n = arg;
    ot_call call;
    moe_tensor x = ot_random(t, ot_tensor(t, MOE_F32, *n, 3), -6, 6), dy = ot_random(t, ot_clone(t, &x), -1, 1);
    squash s = {*n * 3, ot_doubles(&x), ot_doubles(&dy)};
    double *want = ot_zeros(*n * 3);
    for (int64_t i = 0; i < *n * 3; i++) want[i] = 1.0 / (1.0 + exp(-s.x[i]));
    ot_forward(t, &call, MOE_OP_SIGMOID, OT_LIST(x), OT_LIST(x), NULL, NULL); /* in place, both ways */
    ot_near("y", &x, want, 5e-7);
    ot_backward(t, &call, OT_LIST(dy, x), OT_LIST(dy));
    ot_differences(t, "dx", squash_forward, &s, s.x, &dy, 24, 1e-5);
    free(s.x);
    free(s.dy);
    free(want);
    return ot_hash(ot_hash(0, &x), &dy);
}

START_TEST(sigmoid_and_gradient_hold) {
    static const int64_t sizes[] = {0, 1, 7, 5500, 12001};
    OT_EVERYWHERE(sigmoid_case, sizes);
}
END_TEST

START_TEST(sigmoid_has_its_limits_and_keeps_a_nan) {
    static const double x[] = {-1e30, -100, -0.0, 100, 1e30, INFINITY, -INFINITY, NAN};
    static const double y[] = {0, 0, 0.5, 1, 1, 1, 0, NAN};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor in = ot_tensor(&t, MOE_F32, 8), out = ot_tensor(&t, MOE_F32, 8), cube = ot_tensor(&t, MOE_F32, 2, 2, 2);
    for (int64_t i = 0; i < 8; i++) ot_set(&in, i, x[i]);
    ot_forward(&t, &call, MOE_OP_SIGMOID, OT_LIST(in), OT_LIST(out), NULL, NULL);
    for (int64_t i = 0; i < 8; i++)
        ot_want(isnan(y[i]) ? isnan(ot_get(&out, i)) : fabs(ot_get(&out, i) - y[i]) < 1e-30 || i == 2);
    ot_want(ot_get(&out, 2) == 0.5);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SIGMOID, OT_LIST(in), OT_LIST(cube), NULL, NULL), MOE_E_ARG,
               "y is [2,2,2] F32, want [8] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SIGMOID, OT_LIST(ot_absent()), OT_LIST(out), NULL, NULL), MOE_E_ARG,
               "x has ndim 0");
    ot_close(&t);
}
END_TEST

/* ---- clamped SwiGLU ---- */
typedef struct shape {
    int64_t rows, width;
    int32_t act, prob, grouped;
    float alpha, limit;
} shape;
static const shape shapes[] = {
    {0, 4, MOE_F32, 1, 0, 1.702f, 7},    {1, 1, MOE_F32, 0, 0, 1.702f, 2},    {9, 33, MOE_F32, 1, 0, 1.702f, 3},
    {12, 40, MOE_BF16, 1, 0, 1.5f, 2},   {40, 24, MOE_F32, 1, 1, 1.702f, 3},  {40, 17, MOE_BF16, 0, 1, 1, 2.5f},
    {6, 5000, MOE_F32, 1, 0, 1.702f, 3}, {8, 20, MOE_F32, 1, 0, 1.702f, 100},
};

/* Four experts of 3, 0, 5, 8 rows aligned to 8; rows from 24 on are unused. */
static const int64_t offsets[] = {0, 8, 8, 16, 24}, counts[] = {3, 0, 5, 8};
enum { USED = 24 };
static int is_valid(const moe_rows *rows, int64_t r) {
    if (!rows) return 1;
    for (int g = 0; g < 4; g++)
        if (r >= offsets[g] && r < offsets[g] + counts[g]) return 1;
    return 0;
}

typedef struct gate {
    const shape *s;
    int64_t rows;
    const moe_rows *in;
    double *z, *p, *da, *a; /* [N,2f], [N], [N,f], [N,f] */
} gate;

static double gate_forward(void *ctx) {
    gate *g = ctx;
    int64_t f = g->s->width;
    double sum = 0.0, alpha = (double)g->s->alpha, limit = (double)g->s->limit;
    for (int64_t r = 0; r < g->rows; r++)
        for (int64_t i = 0; i < f && is_valid(g->in, r); i++) {
            double x = fmin(g->z[r * 2 * f + i], limit), u = fmax(-limit, fmin(g->z[r * 2 * f + f + i], limit));
            g->a[r * f + i] = g->p[r] * x / (1.0 + exp(-alpha * x)) * (u + 1.0);
            sum += g->a[r * f + i] * g->da[r * f + i];
        }
    return sum;
}

/* Values stay away from the kinks, where differences mean nothing. */
static void keep_off(const moe_tensor *z, double limit) {
    for (int64_t i = 0; i < ot_count(z); i++)
        if (fabs(fabs(ot_get(z, i)) - limit) < 0.02) ot_set(z, i, limit - 0.25);
}

static uint64_t gate_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const moe_rows in = ot_rows(t, 4, s->rows, offsets, counts);
    const moe_rows *rows = s->grouped ? &in : NULL;
    const moe_swiglu_attr attr = {sizeof attr, s->alpha, s->limit};
    int64_t used = s->grouped ? USED : s->rows, f = s->width;
    moe_tensor z = ot_random(t, ot_tensor(t, s->act, s->rows, 2 * f), -6, 6), a = ot_tensor(t, s->act, s->rows, f);
    moe_tensor p = ot_random(t, ot_tensor(t, MOE_F32, s->rows), 0.1, 1), da = ot_random(t, ot_clone(t, &a), -1, 1);
    moe_tensor dp = ot_tensor(t, MOE_F32, s->rows), given = s->prob ? p : ot_fill(ot_clone(t, &p), 1);
    keep_off(&z, (double)s->limit);
    for (int64_t i = 0; i < s->rows * f; i++)
        if (!is_valid(rows, i / f)) {
            ot_set(&da, i, NAN);
            ot_set(&z, i / f * 2 * f + i % f, NAN);
            ot_set(&z, i / f * 2 * f + f + i % f, NAN);
        }
    gate g = {s, used, rows, ot_doubles(&z), ot_doubles(&given), ot_doubles(&da), ot_zeros(s->rows * f)};
    gate_forward(&g);
    if (s->prob) {
        ot_forward(t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z, p), OT_LIST(a), &attr, rows);
        ot_backward(t, &call, OT_LIST(da, z, p), OT_LIST(z, dp));
    } else {
        ot_forward(t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(a), &attr, rows);
        ot_backward(t, &call, OT_LIST(da, z), OT_LIST(z));
    }
    moe_tensor a_used = a, dz = z, dp_used = dp;
    a_used.shape[0] = dz.shape[0] = dp_used.shape[0] = used;
    ot_near("a", &a_used, g.a, 1e-6);
    ot_untouched("a", &a, used * f, s->rows * f);
    for (int64_t i = 0; i < 2 * used * f; i++)
        ot_want(is_valid(rows, i / (2 * f)) ? !isnan(ot_get(&dz, i)) : ot_get(&dz, i) == 0);
    ot_differences(t, "dz", gate_forward, &g, g.z, &dz, 40, s->act == MOE_BF16 ? 1e-4 : 1e-5);
    if (s->prob) ot_differences(t, "dp", gate_forward, &g, g.p, &dp_used, 8, 1e-5);
    free(g.z);
    free(g.p);
    free(g.da);
    free(g.a);
    return ot_hash(ot_hash(ot_hash(0, &a_used), &dz), s->prob ? &dp_used : &dz);
}

START_TEST(clamped_activation_and_gradients_hold) {
    OT_EVERYWHERE(gate_case, shapes);
}
END_TEST

/* At the limit the value is not cut yet; beyond it nothing flows back through the half that was cut. */
START_TEST(what_was_cut_has_no_gradient) {
    static const moe_swiglu_attr attr = {sizeof attr, 1.702f, 2};
    static const double gates[] = {3, 2, 1, 1, 1, 1, -1000, NAN}, ups[] = {1, 1, 3, 2, -2, -3, 1, 1};
    static const int gate_flows[] = {0, 1, 1, 1, 1, 1, 0, 1}, up_flows[] = {1, 1, 0, 1, 1, 0, 0, 1};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor z = ot_tensor(&t, MOE_F32, 1, 16), a = ot_tensor(&t, MOE_F32, 1, 8);
    moe_tensor da = ot_fill(ot_tensor(&t, MOE_F32, 1, 8), 1), dz = ot_tensor(&t, MOE_F32, 1, 16);
    for (int64_t i = 0; i < 8; i++) {
        ot_set(&z, i, gates[i]);
        ot_set(&z, 8 + i, ups[i]);
    }
    ot_forward(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(a), &attr, NULL);
    ot_backward(&t, &call, OT_LIST(da, z), OT_LIST(dz));
    for (int64_t i = 0; i < 8; i++) {
        ot_want_msg((ot_get(&dz, i) != 0) == gate_flows[i], "gate %lld: %g", (long long)i, ot_get(&dz, i));
        ot_want_msg((ot_get(&dz, 8 + i) != 0) == up_flows[i], "up %lld: %g", (long long)i, ot_get(&dz, 8 + i));
    }
    ot_want(ot_get(&a, 0) == ot_get(&a, 1) && ot_get(&a, 2) == ot_get(&a, 3) && ot_get(&a, 4) == ot_get(&a, 5));
    ot_want(isnan(ot_get(&a, 7))); /* a number that is none is not cut to one that is */
    ot_close(&t);
}
END_TEST

/* limit 0, and a struct that ends before limit, are the plain activation, bit for bit. */
START_TEST(without_a_limit_it_is_the_plain_one) {
    static const moe_swiglu_attr zero = {sizeof zero, 1.702f, 0}, cut = {8, 1.702f, 3}, only_size = {4, 5, 3};
    static const moe_swiglu_attr *const attrs[] = {&zero, &cut, &only_size};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor z = ot_random(&t, ot_tensor(&t, MOE_F32, 5, 14), -9, 9), want = ot_tensor(&t, MOE_F32, 5, 7);
    ot_forward(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(want), NULL, NULL);
    for (int i = 0; i < 3; i++) {
        moe_tensor a = ot_tensor(&t, MOE_F32, 5, 7);
        ot_forward(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(a), attrs[i], NULL);
        ot_want(memcmp(a.data, want.data, 35 * 4) == 0);
    }
    moe_swiglu_attr bad = {sizeof bad, 1.702f, -1};
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(want), &bad, NULL), MOE_E_ARG,
               "limit is -1, want at least 0");
    bad.limit = NAN;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(want), &bad, NULL), MOE_E_ARG,
               "limit is nan");
    bad = (moe_swiglu_attr){sizeof bad, INFINITY, 7};
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(want), &bad, NULL), MOE_E_ARG,
               "alpha is inf");
    ot_close(&t);
}
END_TEST

OT_MAIN("gates", sigmoid_and_gradient_hold, sigmoid_has_its_limits_and_keeps_a_nan,
        clamped_activation_and_gradients_hold, what_was_cut_has_no_gradient, without_a_limit_it_is_the_plain_one)
