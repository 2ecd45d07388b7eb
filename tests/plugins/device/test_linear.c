/* moe.linear/0 against a triple loop: all roles, dense and grouped, both dtypes, sizes 0 and 1 and odd
 * ones, padding and poisoned tails; the same bits whatever the number of threads; arguments refused. */
#include <dirent.h>

#include "linear_case.h"

static moe_err err = {.size = sizeof(moe_err)};
static device_open c;

static void setup(void) {
    device_open_start(&c, 2);
}
static void teardown(void) {
    device_open_stop(&c);
}

static void run_and_check(const linear_case *z, uint32_t seed) {
    linear_data d;
    linear_make(&c, z, &d, seed);
    moe_status s = linear_run(&c, z, &d, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    linear_check(z, &d);
    linear_drop(&c, &d);
}

static const int32_t dtypes[3][2] = {{MOE_F32, MOE_F32}, {MOE_BF16, MOE_BF16}, {MOE_BF16, MOE_F32}};

/* Every role, dtype and accumulate of one shape. */
static void run_all(linear_case z, uint32_t seed) {
    for (z.role = MOE_FPROP; z.role <= MOE_WGRAD; z.role++)
        for (int t = 0; t < 3; t++)
            for (z.accumulate = 0; z.accumulate < 2; z.accumulate++) {
                z.dtype = dtypes[t][0];
                z.out_dtype = z.role == MOE_WGRAD ? MOE_F32 : dtypes[t][1];
                run_and_check(&z, seed++);
            }
}

START_TEST(dense_equals_the_triple_loop) {
    static const int64_t sizes[][3] = {
        {0, 5, 7},       {3, 0, 7},       {3, 5, 0},       {0, 0, 0},       {1, 1, 1},      {1, 17, 33},
        {19, 1, 5},      {23, 29, 1},     {64, 64, 64},    {37, 101, 53},   {130, 67, 530}, {270, 258, 9},
        {200, 321, 130}, {199, 130, 321}, {130, 198, 321}, {197, 256, 163}, {33, 320, 512}};
    linear_case z = {.m = sizes[_i][0], .n = sizes[_i][1], .k = sizes[_i][2]};
    run_all(z, 1);
}
END_TEST

/* Sizes whose tiles are the device's own product, in each role; "auto" is one of the sets above. */
START_TEST(large_tiles_of_every_instruction_set_equal_the_triple_loop) {
    static const char *const sets[] = {"base", "v3", "v4"};
    static const int64_t sizes[][3] = {{200, 321, 130}, {199, 130, 321}, {130, 198, 321}};
    device_open auto_device = c;
    if (device_open_try(&c, "2", sets[_i], "20", &err) == MOE_OK) {
        for (int i = 0; i < 3; i++) {
            linear_case z = {.m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2]};
            run_all(z, 5);
        }
        device_open_stop(&c);
    } else {
        ck_assert_int_eq(err.code, MOE_E_UNSUPPORTED);
    }
    c = auto_device;
}
END_TEST

/* Random counts, each offset a multiple of align. */
static void make_groups(linear_case *z, uint32_t groups, int64_t most, int64_t align, uint32_t *seed) {
    z->groups = groups;
    z->offsets[0] = 0;
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t kind = linear_random(seed) % 4;
        z->counts[g] = kind == 0 ? 0 : kind == 1 ? 1 : (int64_t)(linear_random(seed) % (uint32_t)(most + 1));
        z->offsets[g + 1] = z->offsets[g] + (z->counts[g] + align - 1) / align * align;
    }
    z->m = z->offsets[groups] + (int64_t)(linear_random(seed) % 20);
}

START_TEST(grouped_equals_the_triple_loop) {
    uint32_t seed = 7u * (uint32_t)_i + 1;
    static const int64_t aligns[] = {1, 8, 32};
    linear_case z = {.n = 1 + linear_random(&seed) % 70, .k = 1 + linear_random(&seed) % 70};
    make_groups(&z, 1 + linear_random(&seed) % 16, 40, aligns[_i % 3], &seed);
    run_all(z, seed);
}
END_TEST

START_TEST(groups_of_several_tiles_equal_the_triple_loop) {
    linear_case z = {.m = 700, .n = 40, .k = 24, .groups = 2, .offsets = {0, 300, 695}, .counts = {290, 395}};
    run_all(z, 3);
}
END_TEST

START_TEST(C065_rows_past_the_last_offset_are_never_read) {
    linear_case z = {.m = 16, .n = 24, .k = 20, .groups = 3, .offsets = {0, 4, 4, 11}, .counts = {4, 0, 7}};
    for (z.role = MOE_FPROP; z.role <= MOE_WGRAD; z.role++)
        for (int t = 0; t < 2; t++) {
            linear_data d;
            z.dtype = dtypes[t][0];
            z.out_dtype = z.role == MOE_WGRAD ? MOE_F32 : dtypes[t][1];
            linear_make(&c, &z, &d, 5); /* rows 11..15 of the operands and of out are NaN */
            ck_assert_int_eq(linear_run(&c, &z, &d, &err), MOE_OK);
            linear_check(&z, &d);
            int64_t width = z.role == MOE_FPROP ? z.n : z.k, end = z.role == MOE_WGRAD ? d.nout : 11 * width;
            for (int64_t i = 0; i < d.nout; i++)
                if ((isnan(linear_get(d.out, z.out_dtype, i)) != 0) != (i >= end))
                    ck_abort_msg("role %d: out[%d] is %g", z.role, (int)i, (double)linear_get(d.out, z.out_dtype, i));
            linear_drop(&c, &d);
        }
}
END_TEST

START_TEST(C066_weight_gradient_of_an_empty_group_is_zero) {
    linear_case z = {.role = MOE_WGRAD, .m = 7, .n = 12, .k = 9, .groups = 4};
    static const int64_t offsets[] = {0, 4, 4, 7, 7}, counts[] = {4, 0, 3, 0};
    memcpy(z.offsets, offsets, sizeof offsets);
    memcpy(z.counts, counts, sizeof counts);
    for (int t = 0; t < 2; t++) {
        linear_data d;
        z.dtype = dtypes[t][0];
        z.out_dtype = MOE_F32;
        linear_make(&c, &z, &d, 9); /* out is poisoned */
        ck_assert_int_eq(linear_run(&c, &z, &d, &err), MOE_OK);
        linear_check(&z, &d);
        static const float zero = 0.0f;
        for (int64_t i = 0; i < z.n * z.k; i++) {
            ck_assert_int_eq(memcmp((float *)d.out + 1 * z.n * z.k + i, &zero, 4), 0);
            ck_assert_int_eq(memcmp((float *)d.out + 3 * z.n * z.k + i, &zero, 4), 0);
        }
        linear_drop(&c, &d);
    }
}
END_TEST

START_TEST(C067_no_rows_at_all_is_no_error) {
    linear_case z = {.n = 12, .k = 9, .groups = 4, .m = _i ? 5 : 0}; /* with and without room for rows */
    run_all(z, 11);
}
END_TEST

START_TEST(C068_padding_rows_of_an_aligned_group_become_zero) {
    linear_case z = {.m = 224, .n = 33, .k = 17, .groups = 4};
    static const int64_t offsets[] = {0, 64, 96, 160, 160}, counts[] = {33, 31, 64, 0};
    memcpy(z.offsets, offsets, sizeof offsets);
    memcpy(z.counts, counts, sizeof counts);
    run_all(z, 13);
}
END_TEST

START_TEST(counts_may_be_left_out) {
    linear_case z = {.role = MOE_FPROP, .m = 9, .n = 5, .k = 6, .groups = 2, .offsets = {0, 4, 9}, .counts = {4, 5}};
    linear_data d;
    linear_make(&c, &z, &d, 15);
    d.rows.dev_counts = NULL;
    ck_assert_int_eq(linear_run(&c, &z, &d, &err), MOE_OK);
    linear_check(&z, &d);
    linear_drop(&c, &d);
}
END_TEST

START_TEST(bf16_is_rounded_once) {
    /* 256 + 1 + 1 is 258 in FP32 and a BF16 number; rounded on the way it stays 256. The depth is that of many calls.
     */
    linear_case z = {.role = MOE_FPROP, .dtype = MOE_BF16, .out_dtype = MOE_BF16, .m = 1, .n = 1, .k = 2000};
    linear_data d;
    linear_make(&c, &z, &d, 1);
    for (int i = 0; i < 2000; i++) {
        linear_put(d.a, MOE_BF16, i, i == 0 ? 256.0f : i == 1000 || i == 1999 ? 1.0f : 0.0f);
        linear_put(d.b, MOE_BF16, i, 1.0f);
    }
    ck_assert_int_eq(linear_run(&c, &z, &d, &err), MOE_OK);
    ck_assert_float_eq(linear_get(d.out, MOE_BF16, 0), 258.0f);
    linear_drop(&c, &d);
}
END_TEST

/* ---- filled ---- */
/* A grouped weight gradient with flags, which are random before it. Blocks that are not filled hold NaN: whoever reads
 * them gives it on, and those of groups without rows stay as they are, bit by bit. */
static void run_filled(linear_case z, uint32_t seed) {
    linear_data d;
    int64_t block = z.n * z.k;
    uint64_t bytes = z.groups * sizeof(int32_t);
    linear_make(&c, &z, &d, seed);
    int32_t *filled = device_open_alloc(&c, bytes), before[16];
    for (uint32_t g = 0; g < z.groups; g++) {
        filled[g] = before[g] = (int32_t)(linear_random(&seed) % 2);
        if (!before[g]) memset((float *)d.out + g * block, 0xff, (size_t)block * 4);
    }
    float *first = malloc((size_t)d.nout * 4 + 4);
    memcpy(first, d.out, (size_t)d.nout * 4);
    moe_tensor to[] = {d.to[0], device_open_tensor(filled, MOE_I32, 1, (int64_t)z.groups)};
    moe_linear_attr attr = {sizeof attr, MOE_WGRAD, z.accumulate, 0};
    moe_op_args args = {.n_in = 2, .n_out = 2, .in = d.in, .out = to, .attr = &attr, .rows = &d.rows};
    moe_status s = device_open_forward(&c, MOE_OP_LINEAR, &args, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    for (uint32_t g = 0; g < z.groups; g++) {
        linear_case one = z;
        one.accumulate = z.accumulate && before[g];
        ck_assert_int_eq(filled[g], one.accumulate || z.counts[g] > 0);
        if (!z.counts[g]) ck_assert_mem_eq((float *)d.out + g * block, first + g * block, (size_t)block * 4);
        for (int64_t i = g * block; i < (g + 1) * block && z.counts[g]; i++)
            if (((float *)d.out)[i] != linear_want(&one, &d, i))
                ck_abort_msg("accumulate %u, block %u, filled %d: dw[%lld] is %g, want %g", z.accumulate, g, before[g],
                             (long long)i, (double)((float *)d.out)[i], (double)linear_want(&one, &d, i));
    }
    free(first);
    device_open_free(&c, filled, bytes);
    linear_drop(&c, &d);
}

static void run_filled_all(linear_case z, uint32_t seed) {
    z.role = MOE_WGRAD;
    z.out_dtype = MOE_F32;
    for (int t = 0; t < 2; t++)
        for (z.accumulate = 0; z.accumulate < 2; z.accumulate++) {
            z.dtype = dtypes[t][0];
            run_filled(z, seed++);
        }
}

static int takes_filled(void) {
    return strcmp(test_device(), "cuda") != 0;
}

START_TEST(blocks_without_rows_are_left_alone_where_flags_are_given) {
    uint32_t seed = 11u * (uint32_t)_i + 3;
    static const int64_t aligns[] = {1, 8, 32};
    if (!takes_filled()) return;
    linear_case z = {.n = 1 + linear_random(&seed) % 70, .k = 1 + linear_random(&seed) % 70};
    make_groups(&z, 1 + linear_random(&seed) % 16, 40, aligns[_i % 3], &seed);
    run_filled_all(z, seed);
    linear_case none = {.n = 12, .k = 9, .groups = 4, .m = 5}; /* no rows at all */
    run_filled_all(none, seed);
}
END_TEST

/* Two threads take the tiles of a block, and all see the flag that was there before. */
START_TEST(every_tile_of_a_block_sees_its_flag) {
    linear_case z = {.m = 40, .n = 1100, .k = 700, .groups = 4, .offsets = {0, 9, 9, 30, 40}, .counts = {7, 0, 20, 10}};
    if (takes_filled()) run_filled_all(z, 5 + (uint32_t)_i);
}
END_TEST

START_TEST(flags_that_do_not_fit_are_refused) {
    static const struct {
        const char *text;
        int32_t role, dtype;
        int64_t groups; /* of the flags */
        int grouped;
        moe_status status;
    } rows[] = {
        {"", MOE_WGRAD, MOE_I32, 2, 1, MOE_OK},
        {"moe.linear/0: filled is given, and the call is no grouped wgrad", MOE_FPROP, MOE_I32, 2, 1, MOE_E_ARG},
        {"moe.linear/0: filled is given, and the call is no grouped wgrad", MOE_WGRAD, MOE_I32, 2, 0, MOE_E_ARG},
        {"moe.linear/0: filled is [2] F32, want [2] I32", MOE_WGRAD, MOE_F32, 2, 1, MOE_E_ARG},
        {"moe.linear/0: filled is [3] I32, want [2] I32", MOE_WGRAD, MOE_I32, 3, 1, MOE_E_ARG}};
    const moe_op *op = device_open_find(&c, MOE_OP_LINEAR);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int wgrad = rows[i].role == MOE_WGRAD;
        moe_linear_attr attr = {sizeof attr, rows[i].role, 0, 0};
        moe_tensor x = device_open_tensor(NULL, MOE_F32, 2, 4, 7), y = device_open_tensor(NULL, MOE_F32, 2, 4, 5);
        moe_tensor w = rows[i].grouped ? device_open_tensor(NULL, MOE_F32, 3, 2, 5, 7)
                                       : device_open_tensor(NULL, MOE_F32, 2, 5, 7);
        moe_tensor in[] = {wgrad ? y : x, wgrad ? x : w};
        moe_tensor out[] = {wgrad ? w : y, device_open_tensor(NULL, rows[i].dtype, 1, rows[i].groups)};
        moe_rows two = {.size = sizeof two, .groups = 2, .max = 4, .host_total = -1};
        moe_op_args args = {.size = sizeof args, .n_in = 2, .n_out = 2, .in = in, .out = out, .attr = &attr};
        uint64_t saved = 0, workspace = 0;
        if (rows[i].grouped) args.rows = &two;
        moe_status want = rows[i].status, s = op->sizes(c.self, &args, &saved, &workspace, &err);
        if (!takes_filled() && want == MOE_OK) want = MOE_E_UNSUPPORTED;
        ck_assert_msg(s == want, "status %d: %s", s, err.msg);
        if (want) ck_assert_msg(strstr(err.msg, rows[i].text) != NULL, "got: %s", err.msg);
        if (want == MOE_E_UNSUPPORTED)
            ck_assert_str_eq(err.msg, "moe.linear/0: filled is given, which this device does not take");
    }
}
END_TEST

/* Both ways of multiplying BF16 on the CPU, whatever `auto` takes here. A machine without the instructions says so. */
START_TEST(bf16_converted_and_native_equal_the_triple_loop) {
    if (!test_on_cpu()) return;
    static const char *const ways[] = {"convert", "native"};
    const moe_kv kv[] = {{"threads", "2"}, {"bf16", ways[_i % 2]}};
    device_open usual = c;
    moe_status s = device_open_with(&c, kv, 2, &err);
    if (s == MOE_OK) {
        linear_case dense = {.m = 37, .n = 101, .k = 1053}, groups = {.n = 33, .k = 70};
        uint32_t seed = 17u + (uint32_t)_i;
        make_groups(&groups, 9, 60, 8, &seed);
        run_all(dense, seed);
        run_all(groups, seed);
        run_filled_all(groups, seed);
        device_open_stop(&c);
    } else {
        ck_assert_int_eq(_i % 2, 1);
        ck_assert_int_eq(s, MOE_E_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.msg, "AVX512-BF16"));
    }
    c = usual;
}
END_TEST

START_TEST(same_bits_with_one_two_and_three_threads) {
    linear_case z = {.fractions = 1, .m = 300, .n = 129, .k = 270};
    if (_i >= 3) {
        z.groups = 3;
        static const int64_t offsets[] = {0, 160, 160, 290}, counts[] = {157, 0, 130};
        memcpy(z.offsets, offsets, sizeof offsets);
        memcpy(z.counts, counts, sizeof counts);
    }
    z.role = _i % 3;
    for (int t = 0; t < 2; t++) {
        void *first = NULL;
        z.dtype = dtypes[t][0];
        z.out_dtype = z.role == MOE_WGRAD ? MOE_F32 : dtypes[t][1];
        for (int threads = 1; threads <= 3; threads++) {
            device_open other;
            linear_data d;
            device_open_start(&other, threads);
            linear_make(&other, &z, &d, 21);
            ck_assert_int_eq(linear_run(&other, &z, &d, &err), MOE_OK);
            size_t bytes = (size_t)d.nout * (z.out_dtype == MOE_F32 ? 4 : 2);
            if (!first) {
                first = malloc(bytes);
                memcpy(first, d.out, bytes);
            }
            ck_assert_msg(memcmp(first, d.out, bytes) == 0, "role %d: %d threads differ from 1", z.role, threads);
            linear_drop(&other, &d);
            device_open_stop(&other);
        }
        free(first);
    }
}
END_TEST

static int count_threads(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A library for CPUs could; a GPU's keeps threads of its own. */
START_TEST(products_start_no_threads_of_their_own) {
    if (!test_on_cpu()) return;
    int before = count_threads();
    linear_case z = {.role = MOE_FPROP, .m = 512, .n = 300, .k = 300};
    linear_data d;
    linear_make(&c, &z, &d, 23);
    ck_assert_int_eq(linear_run(&c, &z, &d, &err), MOE_OK);
    ck_assert_int_eq(count_threads(), before);
    linear_drop(&c, &d);
}
END_TEST

/* ---- refusals ---- */
typedef struct refusal {
    const char *text;
    int what;
    moe_status status;
} refusal;
static const refusal refusals[] = {
    {"moe.linear/0: role is 3", 0, MOE_E_ARG},
    {"moe.linear/0: accumulate is 2, want 0 or 1", 1, MOE_E_ARG},
    {"moe.linear/0: w is [5,7] F32, want [5,7] BF16", 2, MOE_E_ARG},
    {"moe.linear/0: y is [4,6] F32, want [4,5] F32", 3, MOE_E_ARG},
    {"moe.linear/0: attr is NULL", 4, MOE_E_ARG},
    {"moe.linear/0: 1 inputs, want 2", 5, MOE_E_ARG},
    {"moe.linear/0: x is [4,7] I32, want [4,7] F32 or BF16", 6, MOE_E_ARG},
    {"moe.linear/0: w is [5,7] F32, want [2,5,7] F32", 7, MOE_E_ARG},
    {"moe.linear/0: attr has size 4, want at least 16", 8, MOE_E_ARG},
};

START_TEST(bad_arguments_are_refused_by_name_and_shape) {
    moe_linear_attr attr = {sizeof attr, MOE_FPROP, 0, 0};
    moe_tensor in[2] = {device_open_tensor(NULL, MOE_F32, 2, 4, 7), device_open_tensor(NULL, MOE_F32, 2, 5, 7)};
    moe_tensor out = device_open_tensor(NULL, MOE_F32, 2, 4, 5);
    moe_rows rows = {.size = sizeof rows, .groups = 2, .max = 4, .host_total = -1};
    moe_op_args args = {.size = sizeof args, .n_in = 2, .n_out = 1, .in = in, .out = &out, .attr = &attr};
    uint64_t saved = 1, workspace = 1;
    const moe_op *op = device_open_find(&c, MOE_OP_LINEAR);
    ck_assert_int_eq(op->sizes(c.self, &args, &saved, &workspace, &err), MOE_OK);
    ck_assert_uint_eq(saved, 0);
    int what = refusals[_i].what;
    if (what == 0) attr.role = 3;
    if (what == 1) attr.accumulate = 2;
    if (what == 2) in[0].dtype = MOE_BF16;
    if (what == 3) out.shape[1] = 6;
    if (what == 4) args.attr = NULL;
    if (what == 5) args.n_in = 1;
    if (what == 6) in[0].dtype = MOE_I32;
    if (what == 7) args.rows = &rows;
    if (what == 8) attr.size = 4;
    ck_assert_int_eq(op->sizes(c.self, &args, &saved, &workspace, &err), refusals[_i].status);
    ck_assert_msg(strstr(err.msg, refusals[_i].text) != NULL, "got: %s", err.msg);
}
END_TEST

START_TEST(offsets_that_descend_or_exceed_the_buffer_are_refused) {
    linear_case z = {.role = MOE_FPROP, .m = 8, .n = 3, .k = 3, .groups = 2, .offsets = {0, 4, 8}, .counts = {4, 4}};
    linear_data d;
    linear_make(&c, &z, &d, 1);
    d.offsets[2] = 9;
    device_open_expect(&c, linear_run(&c, &z, &d, &err), MOE_E_OVERFLOW, &err, DEVICE_OPEN_ANY, DEVICE_OPEN_ANY,
                       "dev_offsets[2] is 9 after 4, with room for 8 rows");
    d.offsets[2] = 8;
    d.offsets[17] = 5;
    moe_status s = linear_run(&c, &z, &d, &err);
    ck_assert_int_ne(s, MOE_OK);
    if (test_on_cpu()) ck_assert_int_eq(s, MOE_E_ARG);
    if (test_on_cpu()) ck_assert_msg(strstr(err.msg, "dev_counts[0] is 5 of 4 rows") != NULL, "got: %s", err.msg);
    linear_drop(&c, &d);
}
END_TEST

int main(void) {
    Suite *s = suite_create("device linear");
    TCase *t = tcase_create("linear");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, dense_equals_the_triple_loop, 0, 17);
    tcase_add_loop_test(t, large_tiles_of_every_instruction_set_equal_the_triple_loop, 0, 3);
    tcase_add_loop_test(t, grouped_equals_the_triple_loop, 0, 12);
    tcase_add_test(t, groups_of_several_tiles_equal_the_triple_loop);
    tcase_add_test(t, C065_rows_past_the_last_offset_are_never_read);
    tcase_add_test(t, C066_weight_gradient_of_an_empty_group_is_zero);
    tcase_add_loop_test(t, C067_no_rows_at_all_is_no_error, 0, 2);
    tcase_add_test(t, C068_padding_rows_of_an_aligned_group_become_zero);
    tcase_add_test(t, counts_may_be_left_out);
    tcase_add_test(t, bf16_is_rounded_once);
    tcase_add_loop_test(t, blocks_without_rows_are_left_alone_where_flags_are_given, 0, 12);
    tcase_add_loop_test(t, every_tile_of_a_block_sees_its_flag, 0, 4);
    tcase_add_test(t, flags_that_do_not_fit_are_refused);
    tcase_add_loop_test(t, bf16_converted_and_native_equal_the_triple_loop, 0, 4);
    tcase_add_loop_test(t, same_bits_with_one_two_and_three_threads, 0, 6);
    tcase_add_test(t, products_start_no_threads_of_their_own);
    tcase_add_loop_test(t, bad_arguments_are_refused_by_name_and_shape, 0, (int)(sizeof refusals / sizeof refusals[0]));
    tcase_add_test(t, offsets_that_descend_or_exceed_the_buffer_are_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
