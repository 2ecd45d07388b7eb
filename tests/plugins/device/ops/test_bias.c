/* moe.bias/0 against the formula in FP64: one bias for all rows, and one a group of rows in expert order. */
#include "ot.h"

typedef struct shape {
    int64_t rows, width;
    int32_t act, prob, grouped, apart; /* grouped: rows in expert order; apart: the output is another buffer */
} shape;
static const shape shapes[] = {
    {0, 4, MOE_F32, 1, 0, 0},     {1, 1, MOE_F32, 0, 0, 1},     {9, 33, MOE_F32, 1, 0, 0},
    {120, 40, MOE_BF16, 0, 0, 0}, {5, 2500, MOE_F32, 1, 0, 1},  {3000, 7, MOE_BF16, 1, 0, 0},
    {400, 24, MOE_F32, 1, 1, 0},  {400, 17, MOE_BF16, 1, 1, 1}, {400, 30, MOE_F32, 0, 1, 1},
    {60, 1100, MOE_F32, 1, 2, 0}, {400, 6, MOE_BF16, 0, 1, 0},  {0, 4, MOE_F32, 1, 1, 0},
    {8, 4, MOE_F32, 1, 3, 0},
};

/* Six experts: empty ones at the begin, in the middle and at the end, one of one row, one that spans blocks of 32 rows,
 * and rows of which none is valid. Rows past the last offset belong to nobody. grouped: 1, 2 = the first 56 rows of
 * that, 3 = no rows at all. */
static const int64_t offsets[][7] = {{0, 0, 8, 16, 16, 320, 336}, {0, 0, 8, 16, 16, 48, 56}, {0, 0, 0, 0, 0, 0, 0}};
static const int64_t counts[][6] = {{0, 1, 8, 0, 290, 0}, {0, 1, 8, 0, 30, 0}, {0, 0, 0, 0, 0, 0}};
enum { GROUPS = 6, USED = 336 };

/* The group of a row, -1 in padding and past the end. */
static int64_t group_of(const moe_rows *rows, int64_t r) {
    if (!rows) return 0;
    for (int64_t g = 0; g < GROUPS; g++)
        if (r >= rows->dev_offsets[g] && r < rows->dev_offsets[g] + rows->dev_counts[g]) return g;
    return -1;
}

typedef struct affine {
    int64_t rows, width;
    const moe_rows *in;
    double *x, *b, *p, *dy, *y; /* [N,W], [G,W], [N], [N,W], [N,W] */
} affine;

static double affine_forward(void *ctx) {
    affine *f = ctx;
    double sum = 0.0;
    for (int64_t r = 0; r < f->rows; r++) {
        int64_t g = group_of(f->in, r);
        const double *x = f->x + r * f->width, *dy = f->dy + r * f->width, *b = f->b + (g < 0 ? 0 : g) * f->width;
        double *y = f->y + r * f->width;
        for (int64_t i = 0; i < f->width; i++) y[i] = x[i];
        for (int64_t i = 0; g >= 0 && i < f->width; i++) {
            y[i] += f->p[r] * b[i];
            sum += y[i] * dy[i];
        }
    }
    return sum;
}

/* Rows that no group has hold NaN: reading one shows. Past the end in y alone, so that padding can be compared. */
static void poison(const moe_rows *rows, const moe_tensor *x, int64_t width) {
    for (int64_t r = 0; rows && r < x->shape[0]; r++) {
        int nobody = group_of(rows, r) < 0;
        for (int64_t i = 0; nobody && i < width; i++) ot_set(x, r * width + i, NAN);
    }
}

/* Rows without a group: the same bytes as before below the last offset, untouched past it. */
static void check_others(const moe_rows *rows, const moe_tensor *is, const moe_tensor *was, int apart) {
    uint64_t bytes = (uint64_t)is->shape[1] * ot_dtype_bytes(is->dtype);
    for (int64_t r = 0; rows && r < is->shape[0]; r++) {
        if (group_of(rows, r) >= 0) continue;
        const char *a = (const char *)is->data + (uint64_t)r * bytes,
                   *b = (const char *)was->data + (uint64_t)r * bytes;
        if (apart && r >= rows->dev_offsets[GROUPS])
            ot_untouched("y", is, r * is->shape[1], (r + 1) * is->shape[1]);
        else
            ot_want(memcmp(a, b, bytes) == 0);
    }
}

/* x -= y; both F32. by_row: one element a row, and those of no group must not have changed, NaN as they are. */
static void subtract(const moe_rows *rows, const moe_tensor *x, const moe_tensor *y, int by_row) {
    for (int64_t i = 0; i < ot_count(x); i++) {
        if (by_row && group_of(rows, i) < 0) {
            ot_want(memcmp((float *)x->data + i, (float *)y->data + i, 4) == 0);
            ot_set(x, i, 0);
        } else {
            ot_set(x, i, ot_get(x, i) - ot_get(y, i));
        }
    }
}

static uint64_t bias_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const int64_t layout = s->rows && s->grouped ? s->grouped - 1 : 2, *n = counts[layout];
    const moe_rows in = ot_rows(t, GROUPS, s->rows, offsets[layout], n);
    const moe_rows *rows = s->grouped ? &in : NULL;
    int64_t f = s->width, groups = rows ? GROUPS : 1;
    moe_tensor b = rows ? ot_tensor(t, MOE_F32, groups, f) : ot_tensor(t, MOE_F32, f);
    moe_tensor x = ot_random(t, ot_tensor(t, s->act, s->rows, f), -2, 2), dy = ot_random(t, ot_clone(t, &x), -1, 1);
    moe_tensor p = ot_random(t, ot_tensor(t, MOE_F32, s->rows), 0.1, 1), dp = ot_random(t, ot_clone(t, &p), -1, 1);
    moe_tensor given = s->prob ? p : ot_fill(ot_clone(t, &p), 1), db = ot_random(t, ot_clone(t, &b), -1, 1);
    ot_random(t, b, -1, 1);
    poison(rows, &x, f);
    poison(rows, &dy, f);
    poison(rows, &p, 1);
    poison(rows, &dp, 1);
    moe_tensor x_before = ot_clone(t, &x), dy_before = ot_clone(t, &dy), db_before = ot_clone(t, &db);
    moe_tensor dp_before = ot_clone(t, &dp), y = s->apart ? ot_tensor(t, s->act, s->rows, f) : x;
    affine a = {s->rows, f, rows, ot_doubles(&x), ot_doubles(&b), ot_doubles(&given), ot_doubles(&dy), NULL};
    a.y = ot_zeros(s->rows * f);
    affine_forward(&a);
    if (s->prob) {
        ot_forward(t, &call, MOE_OP_BIAS, OT_LIST(x, b, p), OT_LIST(y), NULL, rows);
        ot_backward(t, &call, OT_LIST(dy, b, p), OT_LIST(db, dp));
    } else {
        ot_forward(t, &call, MOE_OP_BIAS, OT_LIST(x, b), OT_LIST(y), NULL, rows);
        ot_backward(t, &call, OT_LIST(dy, b), OT_LIST(db));
    }
    ot_want(s->rows == 0 || memcmp(dy.data, dy_before.data, (uint64_t)ot_count(&dy) * ot_dtype_bytes(dy.dtype)) == 0);
    check_others(rows, &y, &x_before, s->apart);
    moe_tensor y_kept = ot_clone(t, &y);
    for (int64_t r = 0; r < s->rows; r++) {
        int nobody = group_of(rows, r) < 0;
        for (int64_t i = r * f; nobody && i < (r + 1) * f; i++) {
            ot_set(&y, i, 0);
            a.y[i] = 0;
        }
    }
    ot_near("y", &y, a.y, 1e-6);
    subtract(rows, &db, &db_before, 0);
    subtract(rows, &dp, &dp_before, 1);
    ot_differences(t, "db", affine_forward, &a, a.b, &db, 12, 1e-5);
    if (s->prob) ot_differences(t, "dp", affine_forward, &a, a.p, &dp, 8, 1e-5);
    for (int64_t g = 0; rows && g < groups; g++) /* a group without rows has gradient 0, exactly */
        for (int64_t i = 0; n[g] == 0 && i < f; i++) ot_want(ot_get(&db, g * f + i) == 0);
    free(a.x);
    free(a.b);
    free(a.p);
    free(a.dy);
    free(a.y);
    return ot_hash(ot_hash(ot_hash(0, &y_kept), &db), &dp);
}

START_TEST(sum_and_gradients_hold) {
    OT_EVERYWHERE(bias_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[12];
    ot r = {.seed = 82};
    for (size_t i = 0; i < 12; i++)
        random[i] = (shape){i % 2 ? USED + ot_below(&r, 400) : ot_below(&r, 200),
                            1 + ot_below(&r, 60),
                            i % 3 ? MOE_F32 : MOE_BF16,
                            (int32_t)(i / 2 % 2),
                            i % 2,
                            (int32_t)(i / 4 % 2)};
    OT_EVERYWHERE(bias_case, random);
}
END_TEST

/* One large row and 2047 ones: added row by row in FP32 every one would be lost, in blocks only those beside it are. */
START_TEST(sums_go_by_blocks) {
    enum { ROWS = 2048 };
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor y = ot_fill(ot_tensor(&t, MOE_F32, ROWS, 1), 1), b = ot_fill(ot_tensor(&t, MOE_F32, 1), 0);
    moe_tensor db = ot_clone(&t, &b);
    ot_set(&y, 0, 0x1p24);
    ot_forward(&t, &call, MOE_OP_BIAS, OT_LIST(y, b), OT_LIST(y), NULL, NULL);
    ot_backward(&t, &call, OT_LIST(y, b), OT_LIST(db));
    double lost =
        0x1p24 + ROWS - 1 - ot_get(&db, 0); /* on the CPU the block of the large one, less what it rounds to */
    ot_want_msg(test_on_cpu() ? lost == 31 : fabs(lost) <= 128, "sum %.9g", ot_get(&db, 0));
    ot_close(&t);
}
END_TEST

START_TEST(misfits_are_named) {
    static const int64_t at[] = {0, 4, 8}, n[] = {4, 3}, far[] = {0, 4, 9};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_rows rows = ot_rows(&t, 2, 8, at, n), bad = ot_rows(&t, 2, 8, far, n);
    moe_tensor y = ot_fill(ot_tensor(&t, MOE_F32, 8, 3), 1), b = ot_fill(ot_tensor(&t, MOE_F32, 3), 1);
    moe_tensor both = ot_fill(ot_tensor(&t, MOE_F32, 2, 3), 1), p = ot_fill(ot_tensor(&t, MOE_F32, 7), 1);
    moe_tensor p8 = ot_fill(ot_tensor(&t, MOE_F32, 8), 1), db = ot_clone(&t, &both);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_BIAS, OT_LIST(y, b), OT_LIST(y), NULL, &rows), MOE_E_ARG,
               "b is [3] F32, want [2,3] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_BIAS, OT_LIST(y, both), OT_LIST(y), NULL, NULL), MOE_E_ARG,
               "b is [2,3] F32, want [3] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_BIAS, OT_LIST(y, both, p), OT_LIST(y), NULL, &rows), MOE_E_ARG,
               "p is [7] F32, want [8] F32");
    ot_expect_data(&t, &call, ot_try(&t, &call, MOE_OP_BIAS, OT_LIST(y, both), OT_LIST(y), NULL, &bad), MOE_E_DATA,
                   DEVICE_OPEN_ANY, DEVICE_OPEN_ANY, "offsets[2] is 9, the buffers have 8 rows");
    for (int64_t i = 0; i < 24 && !ot_async(&t); i++) ot_want(ot_get(&y, i) == 1);
    ot_forward(&t, &call, MOE_OP_BIAS, OT_LIST(y, both, p8), OT_LIST(y), NULL, &rows);
    const moe_tensor back_in[] = {y, both, p8}, back_out[] = {db};
    call.args.in = back_in;
    call.args.out = back_out;
    call.args.n_out = 1;
    ot_refused(&call, device_open_run_step(&t.dev, call.op->backward, &call.args, &call.err), MOE_E_ARG,
               "dp is given exactly where p is");
    ot_close(&t);
}
END_TEST

OT_MAIN("bias", sum_and_gradients_hold, random_shapes_hold, sums_go_by_blocks, misfits_are_named)
