/* The three roles, dense and grouped, against plain loops in FP64: bit for bit where the inputs are small integers,
 * within rounding where they are not. Groups without rows, padding rows, accumulation, FP32 outputs. */
#include <math.h>

#include "linear_case.h"

typedef struct product {
    const product_case *p;
    moe_tensor a, b, out;
    float *first; /* what out held before the call; NULL: poison */
    moe_rows rows;
    int64_t *offsets, *counts, n_offsets, m;
    moe_tensor filled; /* [groups] */
} product;

static const int64_t guard = 32; /* elements behind the output */

static uint64_t width(int32_t dtype) {
    return dtype == MOE_BF16 ? 2 : 4;
}
static int64_t elements(const moe_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}
static moe_tensor tensor(any_device *d, int32_t dtype, int64_t lead, int64_t rows, int64_t columns) {
    moe_tensor t = {.dtype = dtype, .ndim = lead ? 3 : 2, .shape = {lead ? lead : rows, lead ? rows : columns, 1, 1}};
    if (lead) t.shape[2] = columns;
    t.data = device_alloc(d, (uint64_t)(elements(&t) + guard) * width(dtype));
    return t;
}
static void tensor_free(any_device *d, const moe_tensor *t) {
    device_free(d, t->data, (uint64_t)(elements(t) + guard) * width(t->dtype));
}

static float number(int exact, uint64_t key) {
    uint64_t x = (key + 1) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return exact ? (float)((int)(x >> 33) % 7 - 3) : (float)((double)(x >> 11) * 0x1p-52 - 1.0);
}
static void fill(const moe_tensor *t, int exact, uint64_t key) {
    for (int64_t i = 0; i < elements(t); i++) plain_put(t, i, number(exact, key * 1000003 + (uint64_t)i));
}

static void lay_rows(precision_case *c, product *x) {
    const product_case *p = x->p;
    any_device *d = &c->dev;
    moe_precision_needs needs = {.size = sizeof needs};
    x->m = p->m;
    if (!p->groups) return;
    ck_assert_int_eq(c->table->needs(c->self, &needs, &c->err), MOE_OK);
    const int64_t align = (p->align + needs.row_align - 1) / needs.row_align * needs.row_align;
    x->n_offsets = p->groups + 1;
    x->offsets = device_alloc(d, 8 * (uint64_t)x->n_offsets);
    x->counts = device_alloc(d, 8 * (uint64_t)p->groups);
    for (uint32_t g = 0; g < p->groups; g++) {
        x->counts[g] = p->counts[g];
        x->offsets[g + 1] = x->offsets[g] + (p->counts[g] + align - 1) / align * align;
    }
    x->m = x->offsets[p->groups] + p->spare;
    x->rows = (moe_rows){.size = sizeof x->rows,
                         .groups = p->groups,
                         .max = x->m,
                         .dev_offsets = x->offsets,
                         .dev_counts = x->counts,
                         .host_total = -1};
    if (!p->host_counts) return;
    x->rows.host_total = x->offsets[p->groups];
    x->rows.host_offsets = x->offsets;
    x->rows.host_counts = x->counts;
}

/* Padding rows of an input are zero, rows past the end NaN: nobody may read them. */
static void blank_rows(const product *x, const moe_tensor *t) {
    const int64_t c = t->shape[1];
    for (uint32_t g = 0; g < x->p->groups; g++)
        for (int64_t i = (x->offsets[g] + x->counts[g]) * c; i < x->offsets[g + 1] * c; i++) plain_put(t, i, 0);
    if (!x->p->groups) return;
    const int64_t end = x->offsets[x->p->groups] * c;
    memset((char *)t->data + (uint64_t)end * width(t->dtype), 0xff, (uint64_t)(x->m * c - end) * width(t->dtype));
}

static void prepare(precision_case *c, product *x) {
    const product_case *p = x->p;
    const int64_t g = p->groups, n = p->n, k = p->k;
    lay_rows(c, x);
    x->a = tensor(&c->dev, c->act, 0, x->m, p->role == MOE_FPROP ? k : n);
    x->b = p->role == MOE_WGRAD ? tensor(&c->dev, c->act, 0, x->m, k) : tensor(&c->dev, c->act, g, n, k);
    x->out = p->role == MOE_WGRAD ? tensor(&c->dev, p->out_dtype, g, n, k)
                                  : tensor(&c->dev, p->out_dtype, 0, x->m, p->role == MOE_FPROP ? n : k);
    fill(&x->a, p->exact, 1);
    fill(&x->b, p->exact, 2);
    blank_rows(x, &x->a);
    if (p->role == MOE_WGRAD) blank_rows(x, &x->b);
    memset(x->out.data, 0xff, (uint64_t)(elements(&x->out) + guard) * width(p->out_dtype)); /* NaN */
    if (p->accumulate) fill(&x->out, p->exact, 3);
    for (int64_t i = 0; p->filled && i < elements(&x->out); i++) /* a block that is not filled holds anything */
        if (!p->filled[i / (n * k)]) plain_put(&x->out, i, NAN);
    if (p->filled) {
        x->filled = (moe_tensor){device_alloc(&c->dev, 4 * (uint64_t)g), MOE_I32, 1, {g, 1, 1, 1}};
        memcpy(x->filled.data, p->filled, 4 * (size_t)g);
    }
    x->first = malloc((uint64_t)(elements(&x->out) + 1) * sizeof *x->first);
    for (int64_t i = 0; i < elements(&x->out); i++) x->first[i] = plain_get(&x->out, i);
}

/* The product for output element i of the group whose rows are [from, to), with weights at w0, and the sum of the
 * magnitudes of its terms. */
static double one(const product *x, int64_t i, int64_t from, int64_t to, int64_t w0, double *size) {
    const int64_t n = x->p->n, k = x->p->k;
    double sum = 0;
    *size = 0;
#define TERM(u, v) (sum += (double)(u) * (double)(v), *size += fabs((double)(u) * (double)(v)))
    if (x->p->role == MOE_FPROP)
        for (int64_t j = 0; j < k; j++) TERM(plain_get(&x->a, i / n * k + j), plain_get(&x->b, w0 + i % n * k + j));
    else if (x->p->role == MOE_DGRAD)
        for (int64_t j = 0; j < n; j++) TERM(plain_get(&x->a, i / k * n + j), plain_get(&x->b, w0 + j * k + i % k));
    else
        for (int64_t r = from; r < to; r++)
            TERM(plain_get(&x->a, r * n + (i - w0) / k), plain_get(&x->b, r * k + (i - w0) % k));
#undef TERM
    return sum;
}

/* Elements [begin, end) of the output, of one group (or all, dense), added to what was there. Returns how many are
 * wrong.
 */
static int64_t check_part(const product *x, int64_t begin, int64_t end, int64_t from, int64_t to, int64_t w0, int add) {
    int64_t wrong = 0;
    for (int64_t i = begin; i < end; i++) {
        double size, want = one(x, i, from, to, w0, &size);
        if (add) {
            want += (double)x->first[i];
            size += fabs((double)x->first[i]);
        }
        const float got = plain_get(&x->out, i);
        if (x->p->exact) {
            float rounded = (float)want;
            if (x->out.dtype == MOE_BF16) rounded = plain_from_bf16(plain_to_bf16(rounded));
            wrong += got != rounded;
        } else
            wrong +=
                !(fabs((double)got - want) <= size * 0x1p-20 + (x->out.dtype == MOE_BF16 ? fabs(want) * 0x1.02p-8 : 0));
    }
    return wrong;
}

/* The block of group g, which begins at w0, and its flag. */
static int64_t check_block(const product *x, uint32_t g, int64_t w0, int64_t size) {
    const product_case *p = x->p;
    const int64_t from = x->offsets[g], to = from + x->counts[g];
    if (!p->filled) return check_part(x, w0, w0 + size, from, to, w0, p->accumulate != 0);
    const int before = p->accumulate && p->filled[g], want = before || to > from;
    int64_t wrong = ((const int32_t *)x->filled.data)[g] != want;
    if (to > from) return wrong + check_part(x, w0, w0 + size, from, to, w0, before);
    return wrong + (memcmp((const float *)x->out.data + w0, x->first + w0, (size_t)size * 4) != 0);
}

static int64_t check_groups(const product *x) {
    const int64_t per_group = x->p->n * x->p->k, columns = x->p->role == MOE_FPROP ? x->p->n : x->p->k;
    const int add = x->p->accumulate != 0;
    int64_t wrong = 0;
    for (uint32_t g = 0; g < x->p->groups; g++) {
        const int64_t from = x->offsets[g], to = from + x->counts[g], w0 = g * per_group;
        if (x->p->role == MOE_WGRAD) {
            wrong += check_block(x, g, w0, per_group);
            continue;
        }
        wrong += check_part(x, from * columns, to * columns, from, to, w0, add);
        for (int64_t i = to * columns; i < x->offsets[g + 1] * columns; i++) /* padding: zero, or as it was */
            wrong += plain_get(&x->out, i) != (x->p->accumulate ? x->first[i] : 0.0f);
    }
    if (x->p->role == MOE_WGRAD) return wrong;
    const int64_t end = x->offsets[x->p->groups] * columns;
    for (int64_t i = end; i < x->m * columns; i++) {
        const float got = plain_get(&x->out, i);
        wrong += memcmp(&got, &x->first[i], sizeof got) != 0;
    }
    return wrong;
}

static moe_status enter_linear(const void *self, const void *args, void *fault, moe_err *err) {
    (void)fault;
    const precision_case *c = self;
    return c->table->linear(c->self, args, err);
}

void product_check(precision_case *c, const product_case *p) {
    product x = {.p = p};
    prepare(c, &x);
    moe_linear_args args = {.size = sizeof args,
                            .role = p->role,
                            .accumulate = p->accumulate,
                            .stream = c->dev.stream,
                            .a = &x.a,
                            .b = &x.b,
                            .out = &x.out,
                            .rows = p->groups ? &x.rows : NULL,
                            .filled = p->filled ? &x.filled : NULL};
    uint64_t workspace = 0;
    ck_assert_msg(c->table->sizes(c->self, &args, &workspace, &c->err) == MOE_OK, "%s", c->err.msg);
    if (workspace) args.workspace = device_alloc_in(&c->dev, MOE_SPACE_DEVICE, workspace);
    ck_assert_msg(device_run(&c->dev, enter_linear, c, &args, &c->err) == MOE_OK, "%s", c->err.msg);
    int64_t wrong = p->groups ? check_groups(&x) : check_part(&x, 0, elements(&x.out), 0, x.m, 0, p->accumulate != 0);
    const unsigned char *end = (unsigned char *)x.out.data + (uint64_t)elements(&x.out) * width(p->out_dtype);
    for (uint64_t i = 0; i < (uint64_t)guard * width(p->out_dtype); i++) wrong += end[i] != 0xff;
    ck_assert_msg(
        wrong == 0,
        "role %d, out dtype %d, accumulate %u, M %lld N %lld K %lld, %u groups, align %lld: %lld of %lld wrong",
        p->role, p->out_dtype, p->accumulate, (long long)x.m, (long long)p->n, (long long)p->k, p->groups,
        (long long)p->align, (long long)wrong, (long long)elements(&x.out));
    if (args.workspace) device_free_in(&c->dev, MOE_SPACE_DEVICE, args.workspace, workspace);
    tensor_free(&c->dev, &x.a);
    tensor_free(&c->dev, &x.b);
    tensor_free(&c->dev, &x.out);
    if (p->filled) device_free(&c->dev, x.filled.data, 4 * (uint64_t)p->groups);
    if (p->groups) {
        device_free(&c->dev, x.offsets, 8 * (uint64_t)x.n_offsets);
        device_free(&c->dev, x.counts, 8 * (uint64_t)p->groups);
    }
    free(x.first);
}

/* p in every role, with the output dtypes that the role has, fresh and accumulated. */
static void each_role(precision_case *c, product_case p) {
    for (p.role = MOE_FPROP; p.role <= MOE_WGRAD; p.role++)
        for (p.accumulate = 0; p.accumulate < 2; p.accumulate++) {
            p.out_dtype = MOE_F32;
            product_check(c, &p);
            p.out_dtype = c->act;
            if (p.role != MOE_WGRAD && c->act != MOE_F32) product_check(c, &p);
        }
}

/* The same for grouped rows whose numbers only an asynchronous device knows, or the host too. */
static void all_roles(precision_case *c, product_case p) {
    each_role(c, p);
    if (!p.groups || test_on_cpu()) return;
    p.host_counts = 1;
    each_role(c, p);
}

START_TEST(dense_roles_equal_plain_loops) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 3, 7}, {16, 32, 8}, {33, 17, 65}, {1, 64, 48}, {0, 4, 4}};
    precision_case c;
    precision_open(&c, _i);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        all_roles(&c, (product_case){.m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2], .exact = 1});
        all_roles(&c, (product_case){.m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2]});
    }
    precision_close(&c);
}
END_TEST

START_TEST(C066_groups_without_rows_give_zero_gradients) {
    const int64_t counts[] = {4, 0, 3, 0};
    precision_case c;
    precision_open(&c, _i);
    all_roles(&c, (product_case){.groups = 4, .counts = counts, .align = 1, .n = 6, .k = 5, .exact = 1});
    all_roles(&c, (product_case){.groups = 4, .counts = counts, .align = 4, .spare = 5, .n = 6, .k = 5, .exact = 1});
    precision_close(&c);
}
END_TEST

START_TEST(C067_no_rows_at_all_give_zero_gradients) {
    const int64_t counts[] = {0, 0, 0};
    precision_case c;
    precision_open(&c, _i);
    all_roles(&c, (product_case){.groups = 3, .counts = counts, .align = 1, .n = 6, .k = 5, .exact = 1});
    all_roles(&c, (product_case){.groups = 3, .counts = counts, .align = 16, .spare = 7, .n = 6, .k = 5, .exact = 1});
    precision_close(&c);
}
END_TEST

/* Tail rows hold NaN in the inputs and must stay as they were in the output: nothing reads or writes them. */
START_TEST(C065_rows_past_the_last_are_never_touched) {
    const int64_t counts[] = {33, 31, 64, 0};
    precision_case c;
    precision_open(&c, _i);
    all_roles(&c, (product_case){.groups = 4, .counts = counts, .align = 32, .spare = 9, .n = 16, .k = 24, .exact = 1});
    all_roles(&c, (product_case){.groups = 4, .counts = counts, .align = 1, .spare = 1, .n = 16, .k = 24});
    precision_close(&c);
}
END_TEST

/* What no row has reached is noted, and neither written nor read. */
START_TEST(blocks_without_rows_are_left_alone_where_flags_are_given) {
    const int64_t counts[] = {4, 0, 3, 0, 2, 0};
    const int32_t before[] = {1, 1, 0, 0, 1, 1}, none[6] = {0};
    precision_case c;
    precision_open(&c, _i);
    moe_precision_needs needs = {.size = sizeof needs};
    ck_assert_int_eq(c.table->needs(c.self, &needs, &c.err), MOE_OK);
    ck_assert_uint_eq(needs.takes_filled, strcmp(test_device(), "cuda") != 0);
    for (uint32_t i = 0; i < 4 && needs.takes_filled; i++) {
        product_case p = {.role = MOE_WGRAD, .out_dtype = MOE_F32, .accumulate = i % 2, .groups = 6, .counts = counts};
        p.align = 4;
        p.spare = 5;
        p.n = 6;
        p.k = 5;
        p.exact = 1;
        p.filled = i < 2 ? before : none;
        product_check(&c, &p);
    }
    precision_close(&c);
}
END_TEST

START_TEST(needs_are_those_of_the_format) {
    precision_case c;
    precision_open(&c, _i);
    moe_precision_needs needs = {.size = sizeof needs};
    ck_assert_int_eq(c.table->needs(c.self, &needs, &c.err), MOE_OK);
    ck_assert_int_eq(needs.act_dtype, c.act);
    ck_assert_int_eq(needs.weight_dtype, c.act);
    if (test_on_cpu()) ck_assert_int_eq(needs.row_align, 1);
    ck_assert_int_ge(needs.row_align, 1);
    precision_close(&c);
}
END_TEST

Suite *suite_linear(void) {
    Suite *s = suite_create("precision linear");
    TCase *t = tcase_create("each format and device");
    tcase_add_loop_test(t, dense_roles_equal_plain_loops, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, C066_groups_without_rows_give_zero_gradients, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, C067_no_rows_at_all_give_zero_gradients, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, C065_rows_past_the_last_are_never_touched, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, blocks_without_rows_are_left_alone_where_flags_are_given, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, needs_are_those_of_the_format, 0, N_COMBINATIONS);
    suite_add_tcase(s, t);
    return s;
}
