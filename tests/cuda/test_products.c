/* How device/cuda uses cuBLASLt, seen through its double: what is chosen before the step and what is not in it, which
 * products are its and which our own kernels', what happens where it refuses. And that the double refuses at all. */
#include <blaslt.h>
#include <cublasLt.h>

#include "plugins/device/linear_case.h"

static moe_err err = {.size = sizeof(moe_err)};
static device_open c;

static void setup(void) {
    device_open_start(&c, 1);
}
static void teardown(void) {
    device_open_stop(&c);
}

/* ---- one product ---- */
typedef struct prepared {
    linear_case z;
    linear_data d;
    moe_linear_attr attr;
    moe_op_args args;
    uint64_t workspace;
} prepared;

static const moe_op *linear(void) {
    return device_open_find(&c, MOE_OP_LINEAR);
}
static void prepare(prepared *p, const linear_case *z, int host_counts) {
    uint64_t saved = 0;
    memset(p, 0, sizeof *p);
    p->z = *z;
    linear_make(&c, z, &p->d, 7);
    if (host_counts) p->d.rows.host_offsets = p->z.offsets, p->d.rows.host_counts = p->z.counts;
    p->attr = (moe_linear_attr){sizeof p->attr, z->role, z->accumulate, 0};
    p->args = (moe_op_args){.size = sizeof p->args, .n_in = 2, .n_out = 1, .in = p->d.in, .out = p->d.to};
    p->args.attr = &p->attr;
    p->args.rows = z->groups ? &p->d.rows : NULL;
    ck_assert_int_eq(linear()->sizes(c.self, &p->args, &saved, &p->workspace, &err), MOE_OK);
    if (p->workspace) p->args.workspace = device_open_alloc_in(&c, MOE_SPACE_DEVICE, p->workspace);
}
static moe_status step(prepared *p) {
    return device_open_run_step(&c, linear()->forward, &p->args, &err);
}
static void drop(prepared *p) {
    if (p->args.workspace) device_open_free_in(&c, MOE_SPACE_DEVICE, p->args.workspace, p->workspace);
    linear_drop(&c, &p->d);
}

/* What was called between two counts. */
static double_blaslt_count since(double_blaslt_count before) {
    const double_blaslt_count now = double_blaslt_counts();
    return (double_blaslt_count){now.creates - before.creates, now.destroys - before.destroys,
                                 now.heuristics - before.heuristics, now.products - before.products,
                                 now.refused - before.refused};
}

/* Runs it once; its result is right, nothing is created, chosen or refused in the step; cuBLASLt has `products`. */
static void expect(const linear_case *z, int host_counts, int64_t products) {
    prepared p;
    prepare(&p, z, host_counts);
    const double_blaslt_count before = double_blaslt_counts();
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    const double_blaslt_count did = since(before);
    linear_check(z, &p.d);
    ck_assert_int_eq(did.creates, 0);
    ck_assert_int_eq(did.heuristics, 0);
    ck_assert_int_eq(did.refused, 0);
    ck_assert_int_eq(did.products, products);
    drop(&p);
}

static const int32_t dtypes[2] = {MOE_F32, MOE_BF16};

/* ---- what is chosen when ---- */
START_TEST(a_step_chooses_and_creates_nothing) {
    for (int t = 0; t < 2; t++)
        for (int32_t role = MOE_FPROP; role <= MOE_WGRAD; role++) {
            linear_case z = {.role = role, .dtype = dtypes[t], .out_dtype = MOE_F32, .m = 40, .n = 24, .k = 32};
            expect(&z, 0, 1);
            z.groups = 6;
            z.m = 450;
            memcpy(z.offsets, (int64_t[]){0, 128, 128, 256, 400, 408, 440}, 7 * sizeof(int64_t));
            memcpy(z.counts, (int64_t[]){100, 0, 128, 129, 1, 32}, 6 * sizeof(int64_t));
            expect(&z, 1, 5); /* one has no rows */
            expect(&z, 0, 0); /* rows that only the device knows */
        }
}
END_TEST

START_TEST(a_shape_is_prepared_once) {
    linear_case z = {.dtype = MOE_BF16, .out_dtype = MOE_BF16, .m = 64, .n = 16, .k = 16};
    expect(&z, 0, 1);
    const double_blaslt_count before = double_blaslt_counts();
    expect(&z, 0, 1);
    ck_assert_int_eq(since(before).heuristics, 0);
    ck_assert_int_eq(since(before).creates, 0);
}
END_TEST

/* A step with sizes that nobody announced is right, and chooses once. */
START_TEST(a_shape_that_was_not_announced_is_chosen_in_its_first_step) {
    linear_case z = {.dtype = MOE_F32, .out_dtype = MOE_F32, .m = 64, .n = 16, .k = 16};
    prepared p;
    prepare(&p, &z, 0);
    z.m = 48; /* the first of the rows */
    p.d.in[0].shape[0] = p.d.to[0].shape[0] = 48;
    double_blaslt_count before = double_blaslt_counts();
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    ck_assert_int_eq(since(before).heuristics, 1);
    ck_assert_int_eq(since(before).products, 1);
    before = double_blaslt_counts();
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    ck_assert_int_eq(since(before).heuristics, 0);
    ck_assert_int_eq(since(before).creates, 0);
    p.d.nout = 48 * 16;
    linear_check(&z, &p.d);
    drop(&p);
}
END_TEST

START_TEST(what_a_device_creates_it_destroys) {
    device_open other;
    const double_blaslt_count before = double_blaslt_counts();
    device_open_start(&other, 1);
    const device_open usual = c;
    c = other;
    linear_case z = {.dtype = MOE_F32, .out_dtype = MOE_F32, .m = 8, .n = 16, .k = 16};
    expect(&z, 0, 1);
    device_open_stop(&c);
    c = usual;
    ck_assert_int_gt(since(before).creates, 0);
    ck_assert_int_eq(since(before).creates, since(before).destroys);
}
END_TEST

/* ---- lanes ---- */
/* The double's algorithm writes its workspace: two products at once in one are seen. */
START_TEST(groups_at_once_have_workspaces_of_their_own) {
    linear_case z = {.role = _i, .dtype = MOE_F32, .out_dtype = MOE_F32, .m = 512, .n = 96, .k = 64, .groups = 16};
    for (int g = 0; g < 16; g++) z.offsets[g + 1] = z.offsets[g] + (z.counts[g] = 32);
    prepared p;
    prepare(&p, &z, 1);
    ck_assert_uint_gt(p.workspace, 0);
    for (int i = 0; i < 8; i++) {
        ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
        linear_check(&z, &p.d);
    }
    drop(&p);
}
END_TEST

/* What comes next on the stream sees the results of all groups. */
START_TEST(the_stream_goes_on_behind_all_groups) {
    linear_case z = {.role = MOE_FPROP, .dtype = MOE_F32, .out_dtype = MOE_F32, .m = 256, .n = 200, .k = 64};
    z.groups = 8;
    for (int g = 0; g < 8; g++) z.offsets[g + 1] = z.offsets[g] + (z.counts[g] = 32);
    prepared p;
    prepare(&p, &z, 1);
    const uint64_t bytes = (uint64_t)p.d.nout * 4;
    void *copy = device_open_alloc(&c, bytes);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, p.d.out, 0xff, bytes, &err), MOE_OK);
    p.args.stream = c.stream;
    ck_assert_msg(linear()->forward(c.self, &p.args, &err) == MOE_OK, "%s", err.msg);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, copy, p.d.out, bytes, &err), MOE_OK);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, p.d.out, 0xff, bytes, &err), MOE_OK);
    ck_assert_int_eq(c.table->stream_sync(c.self, c.stream, &err), MOE_OK);
    memcpy(p.d.out, copy, bytes);
    linear_check(&z, &p.d);
    device_open_free(&c, copy, bytes);
    drop(&p);
}
END_TEST

/* The host's numbers do not fit together: the device's do, and are the ones that count. */
START_TEST(bad_numbers_of_the_host_are_not_used) {
    static const int64_t wrong[][3] = {{0, 8, 17}, {0, 9, 8}, {-1, 8, 16}};
    linear_case z = {.dtype = MOE_F32, .out_dtype = MOE_F32, .m = 16, .n = 16, .k = 16, .groups = 2};
    memcpy(z.offsets, (int64_t[]){0, 8, 16}, 3 * sizeof(int64_t));
    z.counts[0] = z.counts[1] = 8;
    prepared p;
    prepare(&p, &z, 1);
    p.d.rows.host_offsets = wrong[_i];
    const double_blaslt_count before = double_blaslt_counts();
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    ck_assert_int_eq(since(before).products, 0);
    linear_check(&z, &p.d);
    drop(&p);
}
END_TEST

/* ---- what cuBLASLt does not take ---- */
/* The operand begins one element behind a multiple of 16 bytes: 0 a, 1 b, 2 out. */
static void shift(prepared *p, int operand, int64_t bytes) {
    void **data = operand == 0 ? &p->d.in[0].data : operand == 1 ? &p->d.in[1].data : &p->d.to[0].data;
    const int64_t n = operand == 0 ? p->d.na : operand == 1 ? p->d.nb : p->d.nout;
    memmove((char *)*data + bytes, *data, (size_t)(n * bytes)); /* linear_make gives 4 bytes for each element */
    *data = (char *)*data + bytes;
}

START_TEST(operands_that_are_not_aligned_give_the_same) {
    for (int32_t role = MOE_FPROP; role <= MOE_WGRAD; role++)
        for (int operand = 0; operand < 3; operand++) {
            /* BF16: twice as much memory as the numbers need */
            const int32_t out = role == MOE_WGRAD ? MOE_F32 : MOE_BF16;
            linear_case z = {.role = role, .dtype = MOE_BF16, .out_dtype = out, .m = 24, .n = 16, .k = 40};
            if (out == MOE_F32 && operand == 2) continue;
            prepared p;
            prepare(&p, &z, 0);
            shift(&p, operand, 2);
            const double_blaslt_count before = double_blaslt_counts();
            ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
            ck_assert_int_eq(since(before).products, 0);
            ck_assert_int_eq(since(before).refused, 0);
            if (operand == 2) memmove(p.d.out, p.d.to[0].data, (size_t)p.d.nout * 2);
            linear_check(&z, &p.d);
            drop(&p);
        }
}
END_TEST

START_TEST(fp32_at_4_bytes_is_still_cublaslts) {
    linear_case z = {.dtype = MOE_F32, .out_dtype = MOE_F32, .m = 24, .n = 16, .k = 40}, less = z;
    prepared p;
    prepare(&p, &z, 0);
    less.m = 23; /* rows 1 to 23: a begins 160 bytes later; one row less is one element's shift of out */
    memmove((float *)p.d.out + 1, p.d.out, (size_t)(23 * 16) * 4);
    p.d.to[0].data = (float *)p.d.out + 1;
    p.d.in[0].shape[0] = p.d.to[0].shape[0] = less.m;
    const double_blaslt_count before = double_blaslt_counts();
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    ck_assert_int_eq(since(before).products, 1);
    ck_assert_int_eq(since(before).refused, 0);
    memmove(p.d.out, p.d.to[0].data, (size_t)(23 * 16) * 4);
    p.d.nout = 23 * 16;
    linear_check(&less, &p.d);
    drop(&p);
}
END_TEST

START_TEST(widths_that_are_not_aligned_give_the_same) {
    linear_case z = {.role = _i, .dtype = MOE_BF16, .out_dtype = MOE_F32, .m = 40, .n = 20, .k = 36};
    expect(&z, 0, 0);
    z.dtype = MOE_F32;
    z.k = 37;
    expect(&z, 0, 1);
}
END_TEST

/* Our own kernels: several tiles in every direction, more depth than is on its way at once, groups that end in the
 * middle of a tile, and one that has none. Widths with packs of 16 bytes and without. */
START_TEST(tiles_of_our_own_equal_the_triple_loop) {
    linear_case z = {.role = _i % 3, .m = 420, .n = _i < 6 ? 136 : 131, .k = _i < 6 ? 200 : 197, .groups = 4};
    memcpy(z.offsets, (int64_t[]){8, 208, 208, 248, 410}, 5 * sizeof(int64_t));
    memcpy(z.counts, (int64_t[]){190, 0, 40, 161}, 4 * sizeof(int64_t));
    z.dtype = dtypes[_i / 3 % 2];
    for (int narrow = 0; narrow < (z.dtype == MOE_BF16 && z.role != MOE_WGRAD ? 2 : 1); narrow++)
        for (z.accumulate = 0; z.accumulate < 2; z.accumulate++) {
            z.out_dtype = narrow ? MOE_BF16 : MOE_F32;
            expect(&z, 0, 0);
        }
}
END_TEST

START_TEST(rows_that_do_not_fit_are_told_to_the_fault) {
    linear_case z = {.role = _i % 3, .dtype = dtypes[_i / 3], .out_dtype = MOE_F32, .m = 16, .n = 16, .k = 16};
    z.groups = 2;
    memcpy(z.offsets, (int64_t[]){0, 8, 16}, 3 * sizeof(int64_t));
    z.counts[0] = z.counts[1] = 8;
    prepared p;
    prepare(&p, &z, 0);
    p.d.offsets[2] = 17;
    device_open_expect(&c, step(&p), MOE_E_OVERFLOW, &err, 1, 17, "");
    p.d.offsets[2] = 7;
    device_open_expect(&c, step(&p), MOE_E_OVERFLOW, &err, 1, 7, "");
    p.d.offsets[2] = 16;
    p.d.offsets[17] = 9;
    device_open_expect(&c, step(&p), MOE_E_DATA, &err, 0, 9, "");
    p.d.offsets[17] = -1;
    device_open_expect(&c, step(&p), MOE_E_DATA, &err, 0, -1, "");
    p.d.offsets[17] = 8;
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    linear_check(&z, &p.d);
    drop(&p);
}
END_TEST

START_TEST(a_product_without_an_algorithm_is_ours) {
    setenv("MOE_DOUBLE_FAIL", "cublasLtMatmulAlgoGetHeuristic 1", 1);
    device_open_start(&c, 1);
    linear_case z = {.dtype = MOE_BF16, .out_dtype = MOE_BF16, .m = 24, .n = 16, .k = 40};
    expect(&z, 0, 0);
    z.m = 32;
    expect(&z, 0, 1);
    device_open_stop(&c);
}
END_TEST

/* ---- errors ---- */
START_TEST(a_failure_is_told_by_name) {
    setenv("MOE_DOUBLE_FAIL", "cublasLtMatmul 1", 1);
    device_open_start(&c, 1);
    linear_case z = {.dtype = MOE_F32, .out_dtype = MOE_F32, .m = 24, .n = 16, .k = 40};
    if (_i) z.groups = 2, z.offsets[1] = 8, z.offsets[2] = 24, z.counts[0] = 8, z.counts[1] = 16;
    prepared p;
    prepare(&p, &z, _i);
    ck_assert_int_eq(step(&p), MOE_E_DEVICE);
    ck_assert_str_eq(err.msg, "moe.linear/0: cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED");
    ck_assert_msg(step(&p) == MOE_OK, "%s", err.msg);
    linear_check(&z, &p.d);
    drop(&p);
    device_open_stop(&c);
}
END_TEST

START_TEST(a_device_without_cublaslt_is_not_created) {
    setenv("MOE_DOUBLE_FAIL", "cublasLtCreate 1", 1);
    ck_assert_int_eq(device_open_with(&c, NULL, 0, &err), MOE_E_NOMEM);
    ck_assert_str_eq(err.msg, "device/cuda: cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED");
    device_open_start(&c, 1);
    device_open_stop(&c);
}
END_TEST

START_TEST(a_workspace_that_is_missing_is_an_error) {
    linear_case z = {.dtype = MOE_F32, .out_dtype = MOE_F32, .m = 24, .n = 16, .k = 40};
    prepared p;
    prepare(&p, &z, 0);
    void *room = p.args.workspace;
    ck_assert_ptr_nonnull(room);
    p.args.workspace = NULL;
    ck_assert_int_eq(step(&p), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "moe.linear/0: workspace is NULL");
    p.args.workspace = room;
    drop(&p);
}
END_TEST

/* ---- the double itself ---- */
/* D [8,16] = A [8,32] B [32,16] in BF16, column-major. */
typedef struct raw {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    void *data, *workspace;
    float one;
} raw;

static cublasStatus_t ask(raw *r) {
    int n = 0;
    return cublasLtMatmulAlgoGetHeuristic(r->handle, r->desc, r->a, r->b, r->d, r->d, r->wish, 1, &r->found, &n);
}
static void set_preference(raw *r, cublasLtMatmulPreferenceAttributes_t which, uint32_t value) {
    ck_assert_int_eq(cublasLtMatmulPreferenceSetAttribute(r->wish, which, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
}
static void open_raw(raw *r) {
    const uint64_t room = 4096;
    memset(r, 0, sizeof *r);
    r->one = 1;
    ck_assert_int_eq(cublasLtCreate(&r->handle), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatmulDescCreate(&r->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatrixLayoutCreate(&r->a, CUDA_R_16BF, 8, 32, 8), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatrixLayoutCreate(&r->b, CUDA_R_16BF, 32, 16, 32), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatrixLayoutCreate(&r->d, CUDA_R_16BF, 8, 16, 8), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatmulPreferenceCreate(&r->wish), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(
        cublasLtMatmulPreferenceSetAttribute(r->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room),
        CUBLAS_STATUS_SUCCESS);
    set_preference(r, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16);
    set_preference(r, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16);
    set_preference(r, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 16);
    set_preference(r, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 16);
    r->data = device_open_alloc(&c, 8192);
    r->workspace = device_open_alloc_in(&c, MOE_SPACE_DEVICE, 4096);
}
static void close_raw(raw *r) {
    device_open_free_in(&c, MOE_SPACE_DEVICE, r->workspace, 4096);
    device_open_free(&c, r->data, 8192);
    cublasLtMatmulPreferenceDestroy(r->wish);
    cublasLtMatrixLayoutDestroy(r->d);
    cublasLtMatrixLayoutDestroy(r->b);
    cublasLtMatrixLayoutDestroy(r->a);
    cublasLtMatmulDescDestroy(r->desc);
    cublasLtDestroy(r->handle);
}
/* A, B and D lie that many bytes behind a multiple of 256. */
static cublasStatus_t multiply(raw *r, int a, int b, int d, void *workspace, size_t bytes) {
    char *data = r->data;
    return cublasLtMatmul(r->handle, r->desc, &r->one, data + a, r->a, data + 2048 + b, r->b, &r->one, data + 4096 + d,
                          r->d, data + 4096 + d, r->d, &r->found.algo, workspace, bytes, c.stream);
}

START_TEST(the_double_refuses_what_the_library_may) {
    raw r;
    open_raw(&r);
    ck_assert_int_eq(ask(&r), CUBLAS_STATUS_SUCCESS);
    ck_assert_uint_gt(r.found.workspaceSize, 0);
    char *room = r.workspace;
    ck_assert_int_eq(multiply(&r, 0, 0, 0, room, r.found.workspaceSize), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(multiply(&r, 8, 0, 0, room, 4096), CUBLAS_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(multiply(&r, 0, 2, 0, room, 4096), CUBLAS_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(multiply(&r, 0, 0, 4, room, 4096), CUBLAS_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(multiply(&r, 0, 0, 0, room + 16, 4000), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(multiply(&r, 0, 0, 0, room, r.found.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(multiply(&r, 0, 0, 0, NULL, 4096), CUBLAS_STATUS_INVALID_VALUE);
    const uint64_t columns = 15;
    cublasLtMatrixLayoutSetAttribute(r.b, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
    ck_assert_int_eq(multiply(&r, 0, 0, 0, room, 4096), CUBLAS_STATUS_INVALID_VALUE); /* D has 16 */
    ck_assert_int_eq(c.table->stream_sync(c.self, c.stream, &err), MOE_OK);
    close_raw(&r);
}
END_TEST

START_TEST(the_double_knows_no_other_attributes_and_dtypes) {
    const uint32_t word = 1;
    const int32_t conjugate = CUBLAS_OP_C;
    raw r;
    open_raw(&r);
    ck_assert_int_eq(cublasLtMatmulDescSetAttribute(r.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &word, sizeof word),
                     CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasLtMatmulDescSetAttribute(r.desc, CUBLASLT_MATMUL_DESC_TRANSA, &conjugate, sizeof conjugate),
                     CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(r.a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &word, sizeof word),
                     CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasLtMatmulPreferenceSetAttribute(r.wish, CUBLASLT_MATMUL_PREF_IMPL_MASK, &word, sizeof word),
                     CUBLAS_STATUS_INVALID_VALUE);
    set_preference(&r, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 8);
    ck_assert_int_eq(ask(&r), CUBLAS_STATUS_NOT_SUPPORTED);
    set_preference(&r, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16);
    cublasLtMatrixLayout_t usual = r.b;
    cublasLtMatrixLayoutCreate(&r.b, CUDA_R_32F, 32, 16, 32);
    ck_assert_int_eq(ask(&r), CUBLAS_STATUS_NOT_SUPPORTED); /* BF16 times FP32 */
    cublasLtMatrixLayoutDestroy(r.b);
    cublasLtMatrixLayoutCreate(&r.b, CUDA_R_16BF, 32, 16, 36);
    ck_assert_int_eq(ask(&r), CUBLAS_STATUS_NOT_SUPPORTED); /* a leading dimension of 72 bytes */
    cublasLtMatrixLayoutDestroy(r.b);
    cublasLtMatrixLayoutCreate(&r.b, CUDA_R_16BF, 31, 16, 32);
    ck_assert_int_eq(ask(&r), CUBLAS_STATUS_INVALID_VALUE); /* 31 rows for 32 columns */
    cublasLtMatrixLayoutDestroy(r.b);
    r.b = usual;
    ck_assert_int_eq(ask(&r), CUBLAS_STATUS_SUCCESS);
    close_raw(&r);
}
END_TEST

int main(void) {
    setenv("MOE_TEST_DEVICE", "cuda", 1);
    setenv("MOE_TEST_PLUGINS", MOE_BUILD_DIR "/double/plugins", 1);
    Suite *s = suite_create("cuda products");
    TCase *t = tcase_create("open"), *own = tcase_create("own device");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_step_chooses_and_creates_nothing);
    tcase_add_test(t, a_shape_is_prepared_once);
    tcase_add_test(t, a_shape_that_was_not_announced_is_chosen_in_its_first_step);
    tcase_add_test(t, what_a_device_creates_it_destroys);
    tcase_add_loop_test(t, groups_at_once_have_workspaces_of_their_own, 0, 3);
    tcase_add_test(t, the_stream_goes_on_behind_all_groups);
    tcase_add_loop_test(t, bad_numbers_of_the_host_are_not_used, 0, 3);
    tcase_add_test(t, operands_that_are_not_aligned_give_the_same);
    tcase_add_test(t, fp32_at_4_bytes_is_still_cublaslts);
    tcase_add_loop_test(t, widths_that_are_not_aligned_give_the_same, 0, 3);
    tcase_add_loop_test(t, tiles_of_our_own_equal_the_triple_loop, 0, 12);
    tcase_add_loop_test(t, rows_that_do_not_fit_are_told_to_the_fault, 0, 6);
    tcase_add_test(t, a_workspace_that_is_missing_is_an_error);
    tcase_add_test(t, the_double_refuses_what_the_library_may);
    tcase_add_test(t, the_double_knows_no_other_attributes_and_dtypes);
    tcase_add_test(own, a_product_without_an_algorithm_is_ours); /* each a process: the double reads its environment */
    tcase_add_loop_test(own, a_failure_is_told_by_name, 0, 2);
    tcase_add_test(own, a_device_without_cublaslt_is_not_created);
    suite_add_tcase(s, t);
    suite_add_tcase(s, own);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
