/* moe.head_norm/0 against the formula in FP64: segments are normed, everything else passes bit for bit. */
#include "ot.h"

typedef struct shape {
    int64_t tokens, row, first, segments, width;
    int32_t act, apart; /* apart: the output is another buffer */
} shape;
static const shape shapes[] = {
    {0, 8, 0, 2, 4, MOE_F32, 0},       {1, 1, 0, 1, 1, MOE_F32, 1},         {1, 12, 3, 2, 4, MOE_BF16, 0},
    {7, 40, 5, 3, 9, MOE_F32, 0},      {33, 96, 64, 2, 16, MOE_BF16, 1},    {70, 50, 0, 1, 50, MOE_F32, 1},
    {2500, 12, 4, 2, 4, MOE_BF16, 0},  {3, 3000, 100, 1, 2500, MOE_F32, 0}, {3, 300, 2, 70, 4, MOE_F32, 0},
    {5, 1300, 4, 67, 19, MOE_BF16, 0}, {4, 300, 0, 4, 64, MOE_BF16, 0},     {4, 300, 8, 4, 64, MOE_F32, 0},
};

/* sum(y dy), y made from x and w; y is kept. */
typedef struct norm {
    const shape *s;
    double eps, *x, *w, *dy, *y; /* [T,W], [width], [T,W], [T,W] */
} norm;

static double norm_forward(void *ctx) {
    const norm *n = ctx;
    const shape *s = n->s;
    double sum = 0.0;
    for (int64_t i = 0; i < s->tokens * s->row; i++) n->y[i] = n->x[i];
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t g = 0; g < s->segments; g++) {
            int64_t at = t * s->row + s->first + g * s->width;
            double square = 0.0;
            for (int64_t i = 0; i < s->width; i++) square += n->x[at + i] * n->x[at + i];
            double rms = sqrt(square / (double)s->width + n->eps);
            for (int64_t i = 0; i < s->width; i++) n->y[at + i] = n->w[i] * n->x[at + i] / rms;
        }
    for (int64_t i = 0; i < s->tokens * s->row; i++) sum += n->y[i] * n->dy[i];
    return sum;
}

static int is_normed(const shape *s, int64_t i) {
    int64_t column = i % s->row;
    return column >= s->first && column < s->first + s->segments * s->width;
}

/* What lies outside of the segments is what was there before. */
static void passes(const shape *s, const moe_tensor *is, const moe_tensor *was) {
    for (int64_t i = 0; i < s->tokens * s->row; i++) ot_want(is_normed(s, i) || ot_get(is, i) == ot_get(was, i));
}

static uint64_t norm_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const moe_head_norm_attr attr = {sizeof attr, 1e-3f, s->first, s->segments, s->width};
    moe_tensor x = ot_random(t, ot_tensor(t, s->act, s->tokens, s->row), -2, 2), before = ot_clone(t, &x);
    moe_tensor w = ot_random(t, ot_tensor(t, MOE_F32, s->width), 0.5, 1.5);
    moe_tensor dy = ot_random(t, ot_tensor(t, s->act, s->tokens, s->row), -1, 1), dy_before = ot_clone(t, &dy);
    moe_tensor dw = ot_random(t, ot_tensor(t, MOE_F32, s->width), -1, 1), dw_before = ot_clone(t, &dw);
    moe_tensor y = s->apart ? ot_tensor(t, s->act, s->tokens, s->row) : x;
    moe_tensor dx = s->apart ? ot_tensor(t, s->act, s->tokens, s->row) : dy;
    norm n = {s, (double)attr.eps, ot_doubles(&x), ot_doubles(&w), ot_doubles(&dy), ot_zeros(s->tokens * s->row)};
    norm_forward(&n);
    ot_forward(t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(y), &attr, NULL);
    ot_near("y", &y, n.y, 1e-6);
    passes(s, &y, &before);
    moe_tensor y_kept = ot_clone(t, &y);
    ot_fill(y, NAN); /* backward reads what it saved */
    ot_backward(t, &call, OT_LIST(dy, w), OT_LIST(dx, dw));
    passes(s, &dx, &dy_before);
    for (int64_t i = 0; i < s->width; i++) ot_set(&dw, i, ot_get(&dw, i) - ot_get(&dw_before, i));
    ot_differences(t, "dx", norm_forward, &n, n.x, &dx, 16, 2e-5);
    ot_differences(t, "dw", norm_forward, &n, n.w, &dw, 8, s->act == MOE_BF16 ? 1e-4 : 2e-5);
    free(n.x);
    free(n.w);
    free(n.dy);
    free(n.y);
    return ot_hash(ot_hash(ot_hash(0, &y_kept), &dx), &dw);
}

START_TEST(norm_and_gradients_hold) {
    OT_EVERYWHERE(norm_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[12];
    ot r = {.seed = 81};
    for (size_t i = 0; i < 12; i++) {
        shape s = {
            ot_below(&r, 60), 0, ot_below(&r, 9), 1 + ot_below(&r, 5), 1 + ot_below(&r, 40), i % 3 ? MOE_F32 : MOE_BF16,
            (int32_t)(i % 2)};
        s.row = s.first + s.segments * s.width + ot_below(&r, 20);
        random[i] = s;
    }
    OT_EVERYWHERE(norm_case, random);
}
END_TEST

START_TEST(misfits_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor x = ot_fill(ot_tensor(&t, MOE_F32, 2, 20), 1), w = ot_fill(ot_tensor(&t, MOE_F32, 4), 1),
               w5 = ot_tensor(&t, MOE_F32, 5), half = ot_tensor(&t, MOE_BF16, 2, 20);
    moe_head_norm_attr attr = {sizeof attr, 1e-5f, 5, 4, 4};
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "4 segments of 4 elements from 5 on do not lie in rows of 20");
    attr.segments = INT64_MAX / 2;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "do not lie in rows of 20");
    attr.segments = 3;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w5), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "w is [5] F32, want [4] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(half), &attr, NULL), MOE_E_ARG,
               "x (output) is [2,20] BF16, want [2,20] F32");
    attr.width = 0;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(x), &attr, NULL), MOE_E_UNSUPPORTED,
               "segments of 0 elements");
    attr.width = 4;
    attr.eps = -1;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "eps is -1");
    attr.size = 24;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_HEAD_NORM, OT_LIST(x, w), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "attr has size 24, want at least 32");
    for (int64_t i = 0; i < 40; i++) ot_want(ot_get(&x, i) == 1);
    ot_close(&t);
}
END_TEST

OT_MAIN("head_norm", norm_and_gradients_hold, random_shapes_hold, misfits_are_named)
