/* moe.swiglu_prob/0 against the formula in FP64, with and without rows in expert order. */
#include "ot.h"

typedef struct shape {
    int64_t rows, width;
    int32_t act, prob, grouped; /* grouped: rows in expert order with padding and an unused end */
} shape;
static const shape shapes[] = {
    {0, 4, MOE_F32, 1, 0},   {1, 1, MOE_F32, 0, 0},    {9, 33, MOE_F32, 1, 0},   {12, 40, MOE_BF16, 1, 0},
    {40, 24, MOE_F32, 1, 1}, {40, 17, MOE_BF16, 0, 1}, {6, 5000, MOE_F32, 1, 0}, {0, 4, MOE_F32, 1, 1},
};

/* Four experts of 3, 0, 5, 8 rows aligned to 8: valid rows 0-2, 8-12, 16-23, unused from 24 on. */
static const int64_t offsets[] = {0, 8, 8, 16, 24}, counts[] = {3, 0, 5, 8};
static const int64_t none[] = {0, 0, 0, 0, 0};
enum { USED = 24 };
static int is_valid(const moe_rows *rows, int64_t r) {
    if (!rows) return 1;
    for (int g = 0; g < 4; g++)
        if (r >= rows->dev_offsets[g] && r < rows->dev_offsets[g] + rows->dev_counts[g]) return 1;
    return 0;
}

typedef struct gate {
    int64_t rows, width;
    const moe_rows *in;
    double *z, *p, *da, *a; /* [N,2f], [N], [N,f], [N,f] */
} gate;

static double gate_forward(void *ctx) {
    gate *g = ctx;
    double sum = 0.0;
    for (int64_t r = 0; r < g->rows; r++)
        for (int64_t i = 0; i < g->width; i++) {
            double x = g->z[r * 2 * g->width + i], up = g->z[r * 2 * g->width + g->width + i];
            int64_t at = r * g->width + i;
            g->a[at] = is_valid(g->in, r) ? g->p[r] * x / (1.0 + exp(-x)) * up : 0.0;
            sum += g->a[at] * g->da[at];
        }
    return sum;
}

/* The first `rows` rows of a tensor. */
static moe_tensor head(moe_tensor x, int64_t rows) {
    x.shape[0] = rows;
    return x;
}

static uint64_t gate_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const moe_rows in = ot_rows(t, 4, s->rows, s->rows ? offsets : none, s->rows ? counts : none);
    const moe_rows *rows = s->grouped ? &in : NULL;
    int64_t used = s->grouped && s->rows ? USED : s->rows, f = s->width;
    moe_tensor z = ot_random(t, ot_tensor(t, s->act, s->rows, 2 * f), -4, 4), a = ot_tensor(t, s->act, s->rows, f);
    moe_tensor p = ot_random(t, ot_tensor(t, MOE_F32, s->rows), 0.1, 1), da = ot_tensor(t, s->act, s->rows, f);
    moe_tensor dp = ot_tensor(t, MOE_F32, s->rows), given = s->prob ? p : ot_fill(ot_tensor(t, MOE_F32, s->rows), 1);
    ot_random(t, da, -1, 1);
    gate g = {used, f, rows, ot_doubles(&z), ot_doubles(&given), ot_doubles(&da), ot_zeros(s->rows * f)};
    moe_tensor z_before = ot_clone(t, &z);
    gate_forward(&g);
    if (s->prob) {
        ot_forward(t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z, p), OT_LIST(a), NULL, rows);
        ot_backward(t, &call, OT_LIST(da, z, p), OT_LIST(z, dp));
    } else {
        ot_forward(t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(a), NULL, rows);
        ot_backward(t, &call, OT_LIST(da, z), OT_LIST(z));
    }
    moe_tensor a_used = head(a, used), dz = head(z, used), dp_used = head(dp, used);
    ot_near("a", &a_used, g.a, 1e-6);
    ot_untouched("a", &a, used * f, s->rows * f);
    ot_untouched("dp", &dp, s->prob ? used : 0, s->rows);
    for (int64_t i = used * 2 * f; i < s->rows * 2 * f; i++) ot_want(ot_get(&z, i) == ot_get(&z_before, i));
    ot_differences(t, "dz", gate_forward, &g, g.z, &dz, 24, s->act == MOE_BF16 ? 1e-4 : 1e-5);
    if (s->prob) ot_differences(t, "dp", gate_forward, &g, g.p, &dp_used, 8, 1e-5);
    free(g.z);
    free(g.p);
    free(g.da);
    free(g.a);
    return ot_hash(ot_hash(ot_hash(0, &a_used), &dz), s->prob ? &dp_used : &dz);
}

START_TEST(activation_and_gradients_hold) {
    OT_EVERYWHERE(gate_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[12];
    ot r = {.seed = 80};
    for (size_t i = 0; i < 12; i++)
        random[i] = (shape){i % 2 ? 24 + ot_below(&r, 9) : ot_below(&r, 50), 1 + ot_below(&r, 90),
                            i % 3 ? MOE_F32 : MOE_BF16, (int32_t)(i / 2 % 2), i % 2};
    OT_EVERYWHERE(gate_case, random);
}
END_TEST

/* Rows past the last offset hold NaN and are neither read nor written; padding rows give zero whatever their p. */
START_TEST(C065_rows_past_the_end_are_never_read) {
    static const int64_t at[] = {0, 4, 11}, n[] = {4, 5};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_rows rows = ot_rows(&t, 2, 16, at, n);
    moe_tensor z = ot_fill(ot_tensor(&t, MOE_F32, 16, 8), NAN), a = ot_fill(ot_tensor(&t, MOE_F32, 16, 4), NAN);
    moe_tensor p = ot_fill(ot_tensor(&t, MOE_F32, 16), NAN), dp = ot_fill(ot_tensor(&t, MOE_F32, 16), NAN);
    moe_tensor da = ot_fill(ot_tensor(&t, MOE_F32, 16, 4), NAN);
    for (int64_t r = 0; r < 9; r++) {
        ot_set(&p, r, 0.5);
        for (int64_t i = 0; i < 8; i++) ot_set(&z, r * 8 + i, 1);
        for (int64_t i = 0; i < 4; i++) ot_set(&da, r * 4 + i, 1);
    }
    ot_forward(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z, p), OT_LIST(a), NULL, &rows);
    ot_backward(&t, &call, OT_LIST(da, z, p), OT_LIST(z, dp));
    for (int64_t r = 0; r < 16; r++) {
        ot_want(r < 11 ? isfinite(ot_get(&a, r * 4 + 3)) && isfinite(ot_get(&z, r * 8 + 7)) : isnan(ot_get(&a, r * 4)));
        ot_want(r < 11 ? isfinite(ot_get(&dp, r)) : isnan(ot_get(&dp, r)) && isnan(ot_get(&z, r * 8)));
        if (r == 9 || r == 10) ot_want(ot_get(&a, r * 4) == 0 && ot_get(&z, r * 8) == 0 && ot_get(&dp, r) == 0);
    }
    ot_close(&t);
}
END_TEST

START_TEST(bad_rows_are_named) {
    static const int64_t past[] = {0, 4, 17}, back[] = {0, 6, 4}, n[] = {4, 5}, small[] = {0, 1, 2};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor z = ot_fill(ot_tensor(&t, MOE_F32, 16, 8), 1), a = ot_tensor(&t, MOE_F32, 16, 4);
    const int64_t *const bad[] = {past, back, small};
    static const char *const texts[] = {"offsets[2] is 17, the buffers have 16 rows", "group 1",
                                        "group 0 has offsets 0..1 and count 4"};
    moe_rows rows;
    for (int i = 0; i < 3; i++) {
        rows = ot_rows(&t, 2, 16, bad[i], n);
        ot_expect_data(&t, &call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(a), NULL, &rows),
                       MOE_E_DATA, DEVICE_OPEN_ANY, DEVICE_OPEN_ANY, texts[i]);
    }
    rows.max = 15;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(a), NULL, &rows), MOE_E_ARG,
               "rows.max is 15");
    if (!ot_async(&t)) ot_untouched("a", &a, 0, 64);
    ot_close(&t);
}
END_TEST

/* Swapped halves or another width cannot be passed unnoticed: there are no strides, and shapes are checked. */
START_TEST(C123_other_layouts_are_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor z = ot_tensor(&t, MOE_F32, 16, 8), flipped = ot_tensor(&t, MOE_F32, 4, 16),
               odd = ot_tensor(&t, MOE_F32, 16, 7);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(z), OT_LIST(flipped), NULL, NULL), MOE_E_ARG,
               "a is [4,16] F32, want [16,4] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SWIGLU_PROB, OT_LIST(odd), OT_LIST(flipped), NULL, NULL), MOE_E_ARG,
               "z has 7 columns");
    ot_close(&t);
}
END_TEST

OT_MAIN("swiglu_prob", activation_and_gradients_hold, random_shapes_hold, C065_rows_past_the_end_are_never_read,
        bad_rows_are_named, C123_other_layouts_are_refused)
