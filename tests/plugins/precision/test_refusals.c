/* precision/fp32 and precision/bf16: shapes, dtypes and hosts that do not fit are refused, with the exact text. */
#include "linear_case.h"
#include "plugins/lacks.h"

static moe_tensor shape(int32_t dtype, int32_t ndim, int64_t a, int64_t b, int64_t c) {
    return (moe_tensor){.dtype = dtype, .ndim = ndim, .shape = {a, b, c, 1}};
}

typedef struct refusal {
    int32_t role;
    moe_tensor a, b, out;
    const moe_rows *rows;
    const char *text; /* after "precision/ID: "; NULL = fits */
} refusal;

static void expect_of(precision_case *c, const refusal *r, const moe_tensor *filled, moe_status code) {
    const moe_linear_args args = {.size = sizeof args,
                                  .role = r->role,
                                  .a = &r->a,
                                  .b = &r->b,
                                  .out = &r->out,
                                  .rows = r->rows,
                                  .filled = filled};
    uint64_t workspace = 0;
    const moe_status s = c->table->sizes(c->self, &args, &workspace, &c->err);
    if (!r->text) {
        ck_assert_msg(s == MOE_OK, "%s", c->err.msg);
        return;
    }
    char want[504];
    snprintf(want, sizeof want, "precision/%s: %s", c->act == MOE_F32 ? "fp32" : "bf16", r->text);
    ck_assert_int_eq(s, code);
    ck_assert_str_eq(c->err.msg, want);
    c->err.msg[0] = 0;
    ck_assert_int_eq(c->table->linear(c->self, &args, &c->err), code); /* nor in a step */
    ck_assert_str_eq(c->err.msg, want);
}

static void expect(precision_case *c, const refusal *r) {
    expect_of(c, r, NULL, MOE_E_ARG);
}

START_TEST(shapes_that_do_not_fit) {
    precision_case c;
    precision_open(&c, _i);
    const int32_t t = c.act;
    const moe_rows rows = {.size = sizeof rows, .groups = 2, .max = 8, .host_total = -1};
    const moe_tensor x = shape(t, 2, 8, 6, 1), w = shape(t, 2, 4, 6, 1), y = shape(t, 2, 8, 4, 1),
                     ws = shape(t, 3, 2, 4, 6), dw = shape(MOE_F32, 2, 4, 6, 1), dws = shape(MOE_F32, 3, 2, 4, 6);
    const refusal cases[] = {
        {MOE_FPROP, x, w, y, NULL, NULL},
        {MOE_DGRAD, y, w, x, NULL, NULL},
        {MOE_WGRAD, y, x, dw, NULL, NULL},
        {MOE_FPROP, x, ws, y, &rows, NULL},
        {MOE_WGRAD, y, x, dws, &rows, NULL},
        {3, x, w, y, NULL, "role 3 is none of fprop, dgrad, wgrad"},
        {MOE_FPROP, x, shape(t, 2, 4, 5, 1), y, NULL, "fprop: w has K = 5, but x has K = 6"},
        {MOE_FPROP, x, w, shape(t, 2, 8, 5, 1), NULL, "fprop: y has N = 5, but w has N = 4"},
        {MOE_FPROP, x, w, shape(t, 2, 7, 4, 1), NULL, "fprop: y has M = 7, but x has M = 8"},
        {MOE_DGRAD, y, shape(t, 2, 5, 6, 1), x, NULL, "dgrad: w has N = 5, but dy has N = 4"},
        {MOE_WGRAD, y, shape(t, 2, 9, 6, 1), dw, NULL, "wgrad: x has M = 9, but dy has M = 8"},
        {MOE_FPROP, x, ws, y, NULL, "fprop: w has 3 axes, expected [N,K]"},
        {MOE_FPROP, x, w, y, &rows, "fprop: w has 2 axes, expected grouped [G,N,K]"},
        {MOE_WGRAD, y, x, dw, &rows, "wgrad: dw has 2 axes, expected grouped [G,N,K]"},
        {MOE_FPROP, x, shape(t, 3, 3, 4, 6), y, &rows, "fprop: w has G = 3, but rows has 2 groups"},
        {MOE_FPROP, shape(t, 2, 9, 6, 1), ws, y, &rows, "fprop: x has M = 9, but rows.max has M = 8"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) expect(&c, &cases[i]);
    precision_close(&c);
}
END_TEST

START_TEST(flags_that_do_not_fit) {
    precision_case c;
    precision_open(&c, _i);
    const int takes = strcmp(test_device(), "cuda") != 0;
    const moe_rows rows = {.size = sizeof rows, .groups = 2, .max = 8, .host_total = -1};
    const moe_tensor x = shape(c.act, 2, 8, 6, 1), y = shape(c.act, 2, 8, 4, 1), w = shape(c.act, 3, 2, 4, 6),
                     dw = shape(MOE_F32, 2, 4, 6, 1), dws = shape(MOE_F32, 3, 2, 4, 6);
    const moe_tensor flags[] = {shape(MOE_I32, 1, 2, 1, 1), shape(MOE_I32, 1, 3, 1, 1), shape(MOE_I64, 1, 2, 1, 1)};
    const struct {
        refusal r;
        int flag;
    } cases[] = {
        {{MOE_WGRAD, y, x, dws, &rows, NULL}, 0},
        {{MOE_WGRAD, y, x, dw, NULL, "wgrad: filled is for grouped wgrad alone"}, 0},
        {{MOE_FPROP, x, w, y, &rows, "fprop: filled is for grouped wgrad alone"}, 0},
        {{MOE_WGRAD, y, x, dws, &rows, "wgrad: filled is I32 of 1 axes, the first of 3, expected I32 [2]"}, 1},
        {{MOE_WGRAD, y, x, dws, &rows, "wgrad: filled is I64 of 1 axes, the first of 2, expected I32 [2]"}, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refusal r = cases[i].r;
        if (!takes)
            r.text = r.role == MOE_FPROP ? "fprop: filled is not taken on this device"
                                         : "wgrad: filled is not taken on this device";
        expect_of(&c, &r, &flags[cases[i].flag], takes ? MOE_E_ARG : MOE_E_UNSUPPORTED);
    }
    precision_close(&c);
}
END_TEST

START_TEST(dtypes_that_do_not_fit) {
    precision_case c;
    precision_open(&c, _i);
    const int32_t t = c.act, other = t == MOE_F32 ? MOE_BF16 : MOE_F32;
    const int bf16 = t == MOE_BF16;
    const moe_tensor x = shape(t, 2, 8, 6, 1), w = shape(t, 2, 4, 6, 1), y = shape(t, 2, 8, 4, 1);
    const refusal cases[] = {{MOE_FPROP, x, w, shape(MOE_F32, 2, 8, 4, 1), NULL, NULL},
                             {MOE_FPROP, shape(other, 2, 8, 6, 1), w, y, NULL,
                              bf16 ? "fprop: x is F32, expected BF16" : "fprop: x is BF16, expected F32"},
                             {MOE_DGRAD, y, shape(other, 2, 4, 6, 1), x, NULL,
                              bf16 ? "dgrad: w is F32, expected BF16" : "dgrad: w is BF16, expected F32"},
                             {MOE_FPROP, x, w, shape(MOE_I32, 2, 8, 4, 1), NULL,
                              bf16 ? "fprop: y is I32, expected BF16 or F32" : "fprop: y is I32, expected F32"},
                             {MOE_WGRAD, y, x, shape(MOE_BF16, 2, 4, 6, 1), NULL, "wgrad: dw is BF16, expected F32"},
                             {MOE_WGRAD, y, shape(99, 2, 8, 6, 1), w, NULL,
                              bf16 ? "wgrad: x is unknown, expected BF16" : "wgrad: x is unknown, expected F32"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) expect(&c, &cases[i]);
    precision_close(&c);
}
END_TEST

static const char *const names[] = {"precision/fp32", "precision/bf16"};
static moe_status try_create(int format, const moe_host *host, moe_err *err) {
    const moe_precision_v0 *t = plugin_open("precision", strchr(names[format], '/') + 1)->vtable;
    const moe_precision_cfg cfg = {.size = sizeof cfg};
    void *self = NULL;
    const moe_status s = t->create(&cfg, host, &self, err);
    ck_assert_ptr_null(self);
    return s;
}

START_TEST(a_device_without_products_is_named) {
    if (!test_on_cpu()) return; /* whose precision may multiply by itself */
    expect_needs_operation(try_create, _i, names[_i], MOE_OP_LINEAR);
}
END_TEST

START_TEST(C122_a_host_without_a_device_is_refused_with_text) {
    expect_needs_device(try_create, _i, names[_i]);
}
END_TEST

Suite *suite_refusals(void) {
    Suite *s = suite_create("precision refusals");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, shapes_that_do_not_fit, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, flags_that_do_not_fit, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, dtypes_that_do_not_fit, 0, N_COMBINATIONS);
    tcase_add_loop_test(t, a_device_without_products_is_named, 0, N_FORMATS);
    tcase_add_loop_test(t, C122_a_host_without_a_device_is_refused_with_text, 0, N_FORMATS);
    suite_add_tcase(s, t);
    return s;
}
