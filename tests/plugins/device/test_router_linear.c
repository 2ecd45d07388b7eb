/* moe.router_linear/0: forward and backward against plain loops, finite differences, sums over many rows
 * in a fixed order, empty inputs. */
#include "linear_case.h"

static moe_err err = {.size = sizeof(moe_err)};

/* Operands: x, w, dlogits in, logits, dx, dw out. dx and dw begin with numbers: backward adds. */
typedef struct router_case {
    int64_t t, h, e;
    int32_t dtype;
    void *x, *dx;
    float *w, *dlogits, *logits, *dw, *dx0, *dw0;
} router_case;

/* Asserts only on a fault: Check writes a line for each assertion that it passes. */
static void check_near(const char *what, int64_t i, double got, double want, double tol) {
    if (!(fabs(got - want) <= tol)) ck_abort_msg("%s[%lld] is %g, want %g", what, (long long)i, got, want);
}

static void make(device_open *c, router_case *z, uint32_t seed) {
    linear_case plain = {.fractions = 1};
    int64_t tx = z->t * z->h, te = z->t * z->e, eh = z->e * z->h, most = tx + te + eh + 1;
    float *unused = malloc((size_t)most * 4);
    z->x = device_open_alloc(c, (uint64_t)tx * 4);
    z->dx = device_open_alloc(c, (uint64_t)tx * 4);
    z->w = device_open_alloc(c, (uint64_t)eh * 4);
    z->dw = device_open_alloc(c, (uint64_t)eh * 4);
    z->dlogits = device_open_alloc(c, (uint64_t)te * 4);
    z->logits = device_open_alloc(c, (uint64_t)te * 4);
    z->dx0 = malloc((size_t)tx * 4 + 4);
    z->dw0 = malloc((size_t)eh * 4 + 4);
    linear_fill(&plain, z->x, unused, z->dtype, tx, 0, &seed);
    linear_fill(&plain, z->dx, z->dx0, z->dtype, tx, 0, &seed);
    linear_fill(&plain, z->w, unused, MOE_F32, eh, 0, &seed);
    linear_fill(&plain, z->dw, z->dw0, MOE_F32, eh, 0, &seed);
    linear_fill(&plain, z->dlogits, unused, MOE_F32, te, 0, &seed);
    for (int64_t i = 0; i < te; i++) z->logits[i] = NAN;
    free(unused);
}
static void drop(device_open *c, router_case *z) {
    device_open_free(c, z->x, (uint64_t)(z->t * z->h) * 4);
    device_open_free(c, z->dx, (uint64_t)(z->t * z->h) * 4);
    device_open_free(c, z->w, (uint64_t)(z->e * z->h) * 4);
    device_open_free(c, z->dw, (uint64_t)(z->e * z->h) * 4);
    device_open_free(c, z->dlogits, (uint64_t)(z->t * z->e) * 4);
    device_open_free(c, z->logits, (uint64_t)(z->t * z->e) * 4);
    free(z->dx0);
    free(z->dw0);
}

static void run(device_open *c, router_case *z, int backward) {
    moe_tensor x = device_open_tensor(z->x, z->dtype, 2, z->t, z->h),
               w = device_open_tensor(z->w, MOE_F32, 2, z->e, z->h);
    moe_tensor l = device_open_tensor(z->logits, MOE_F32, 2, z->t, z->e);
    moe_tensor dl = device_open_tensor(z->dlogits, MOE_F32, 2, z->t, z->e);
    moe_tensor in[2] = {x, w}, in_back[3] = {dl, x, w};
    moe_tensor out_back[2] = {device_open_tensor(z->dx, z->dtype, 2, z->t, z->h),
                              device_open_tensor(z->dw, MOE_F32, 2, z->e, z->h)};
    moe_op_args args = {.size = sizeof args, .n_in = 2, .n_out = 1, .in = in, .out = &l};
    const moe_op *op = device_open_find(c, MOE_OP_ROUTER_LINEAR);
    uint64_t saved = 1, workspace = 0;
    ck_assert_int_eq(op->sizes(c->self, &args, &saved, &workspace, &err), MOE_OK);
    ck_assert_uint_eq(saved, 0);
    void *room = device_open_alloc_in(c, MOE_SPACE_DEVICE, workspace);
    if (backward) args = (moe_op_args){.size = sizeof args, .n_in = 3, .n_out = 2, .in = in_back, .out = out_back};
    args.workspace = workspace ? room : NULL;
    moe_status s = device_open_run_step(c, backward ? op->backward : op->forward, &args, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    device_open_free_in(c, MOE_SPACE_DEVICE, room, workspace);
}

static const int64_t shapes[][3] = {{0, 8, 4},     {1, 1, 1},     {5, 16, 3},  {40, 33, 8},
                                    {1300, 40, 8}, {64, 24, 300}, {700, 70, 2}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

START_TEST(forward_equals_the_plain_loop) {
    device_open c;
    device_open_start(&c, 2);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        router_case z = {
            .t = shapes[_i][0], .h = shapes[_i][1], .e = shapes[_i][2], .dtype = bf16 ? MOE_BF16 : MOE_F32};
        make(&c, &z, 3);
        run(&c, &z, 0);
        for (int64_t t = 0; t < z.t; t++)
            for (int64_t e = 0; e < z.e; e++) {
                double sum = 0;
                for (int64_t i = 0; i < z.h; i++)
                    sum += (double)linear_get(z.x, z.dtype, t * z.h + i) * (double)z.w[e * z.h + i];
                check_near("logits", t * z.e + e, (double)z.logits[t * z.e + e], sum, 2e-5);
            }
        drop(&c, &z);
    }
    device_open_stop(&c);
}
END_TEST

START_TEST(backward_adds_the_plain_loops) {
    device_open c;
    device_open_start(&c, 2);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        router_case z = {
            .t = shapes[_i][0], .h = shapes[_i][1], .e = shapes[_i][2], .dtype = bf16 ? MOE_BF16 : MOE_F32};
        make(&c, &z, 5);
        run(&c, &z, 1);
        for (int64_t t = 0; t < z.t; t++)
            for (int64_t i = 0; i < z.h; i++) {
                double sum = (double)z.dx0[t * z.h + i];
                for (int64_t e = 0; e < z.e; e++) sum += (double)z.dlogits[t * z.e + e] * (double)z.w[e * z.h + i];
                double tol = bf16 ? fabs(sum) / 256 + 1e-4 : 1e-4;
                check_near("dx", t * z.h + i, (double)linear_get(z.dx, z.dtype, t * z.h + i), sum, tol);
            }
        for (int64_t e = 0; e < z.e; e++)
            for (int64_t i = 0; i < z.h; i++) {
                double sum = (double)z.dw0[e * z.h + i];
                for (int64_t t = 0; t < z.t; t++)
                    sum += (double)z.dlogits[t * z.e + e] * (double)linear_get(z.x, z.dtype, t * z.h + i);
                check_near("dw", e * z.h + i, (double)z.dw[e * z.h + i], sum, 2e-4);
            }
        drop(&c, &z);
    }
    device_open_stop(&c);
}
END_TEST

/* loss = <dlogits, logits(x, w)>, in double from the FP32 logits. */
static double loss(device_open *c, router_case *z) {
    double sum = 0;
    run(c, z, 0);
    for (int64_t i = 0; i < z->t * z->e; i++) sum += (double)z->dlogits[i] * (double)z->logits[i];
    return sum;
}
static double slope(device_open *c, router_case *z, float *at) {
    const float step = 0.25f, was = *at;
    *at = was + step;
    double up = loss(c, z), high = (double)*at;
    *at = was - step;
    double down = loss(c, z), low = (double)*at;
    *at = was;
    return (up - down) / (high - low);
}

START_TEST(backward_equals_finite_differences) {
    device_open c;
    device_open_start(&c, 2);
    router_case z = {.t = 6, .h = 11, .e = 4, .dtype = MOE_F32};
    make(&c, &z, 7);
    run(&c, &z, 1);
    for (int64_t i = 0; i < z.t * z.h; i++)
        ck_assert_double_eq_tol((double)(((float *)z.dx)[i] - z.dx0[i]), slope(&c, &z, (float *)z.x + i), 2e-4);
    for (int64_t i = 0; i < z.e * z.h; i++)
        ck_assert_double_eq_tol((double)(z.dw[i] - z.dw0[i]), slope(&c, &z, z.w + i), 2e-4);
    drop(&c, &z);
    device_open_stop(&c);
}
END_TEST

START_TEST(same_bits_with_one_two_and_three_threads) {
    float *dw = NULL, *dx = NULL, *logits = NULL;
    const int64_t t = 2500, h = 48, e = 8;
    for (int threads = 1; threads <= 3; threads++) {
        device_open c;
        device_open_start(&c, threads);
        router_case z = {.t = t, .h = h, .e = e, .dtype = MOE_F32};
        make(&c, &z, 9);
        run(&c, &z, 0);
        run(&c, &z, 1);
        if (threads == 1) {
            dw = malloc((size_t)(e * h) * 4);
            dx = malloc((size_t)(t * h) * 4);
            logits = malloc((size_t)(t * e) * 4);
            memcpy(dw, z.dw, (size_t)(e * h) * 4);
            memcpy(dx, z.dx, (size_t)(t * h) * 4);
            memcpy(logits, z.logits, (size_t)(t * e) * 4);
        }
        ck_assert_int_eq(memcmp(dw, z.dw, (size_t)(e * h) * 4), 0);
        ck_assert_int_eq(memcmp(dx, z.dx, (size_t)(t * h) * 4), 0);
        ck_assert_int_eq(memcmp(logits, z.logits, (size_t)(t * e) * 4), 0);
        drop(&c, &z);
        device_open_stop(&c);
    }
    free(dw);
    free(dx);
    free(logits);
}
END_TEST

START_TEST(a_weight_in_bf16_is_refused) {
    device_open c;
    device_open_start(&c, 1);
    moe_tensor in[2] = {device_open_tensor(NULL, MOE_BF16, 2, 4, 8), device_open_tensor(NULL, MOE_BF16, 2, 3, 8)};
    moe_tensor out = device_open_tensor(NULL, MOE_F32, 2, 4, 3);
    moe_op_args args = {.size = sizeof args, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    uint64_t saved, workspace;
    const moe_op *op = device_open_find(&c, MOE_OP_ROUTER_LINEAR);
    ck_assert_int_eq(op->sizes(c.self, &args, &saved, &workspace, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "moe.router_linear/0: w is [3,8] BF16, want [*,8] F32");
    device_open_stop(&c);
}
END_TEST

int main(void) {
    Suite *s = suite_create("device router_linear");
    TCase *t = tcase_create("router_linear");
    tcase_add_loop_test(t, forward_equals_the_plain_loop, 0, SHAPES);
    tcase_add_loop_test(t, backward_adds_the_plain_loops, 0, SHAPES);
    tcase_add_test(t, backward_equals_finite_differences);
    tcase_add_test(t, same_bits_with_one_two_and_three_threads);
    tcase_add_test(t, a_weight_in_bf16_is_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
