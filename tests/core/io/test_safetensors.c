/* The strict reader against hand-made good and bad files, each refusal for its own reason. */
#include <fcntl.h>

#include "core/io/scratch.h"
#include "io/safetensors.h"

/* A file of this header (its length in front) and `data` bytes 0, 1, 2, ... */
static const char *save_header(const char *header, size_t data) {
    static char bytes[1 << 16];
    size_t n = strlen(header);
    ck_assert_uint_lt(8 + n + data, sizeof bytes);
    for (size_t i = 0; i < 8; i++) bytes[i] = (char)(n >> (8 * i));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data; i++) bytes[8 + n + i] = (char)i;
    return scratch_save("t.safetensors", bytes, 8 + n + data);
}

static moe_status open_header(const char *header, size_t data, moe_err *err) {
    st_file *st = NULL;
    moe_status s = st_open(save_header(header, data), &st, err);
    ck_assert((s == MOE_OK) == (st != NULL));
    st_close(st);
    return s;
}

#define REFUSED(header, data, code, part) ck_fails(open_header(header, data, err), code, part)
#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

START_TEST(reads_what_the_reference_writes) {
    /* As the Python package writes {"b": float32 [2], "a": int16 [3]} with metadata: largest alignment first, header
     * padded with spaces. */
    st_file *st = NULL;
    ck_ok(st_open(save_header("{\"__metadata__\":{\"format\":\"pt\"},\"b\":" T("F32", "[2]", "[0,8]") ",\"a\":" T(
                                  "I16", "[3]", "[8,14]") "}    ",
                              14),
                  &st, err));
    ck_assert_uint_eq(st_count(st), 2);
    ck_assert_str_eq(st_at(st, 0)->name, "b");
    const st_tensor *a = st_find(st, "a");
    ck_assert_ptr_nonnull(a);
    ck_assert_int_eq(a->dtype, ST_I16);
    ck_assert_int_eq(a->ndim, 1);
    ck_assert_int_eq(a->shape[0], 3);
    ck_assert_int_eq(a->shape[1], 1);
    ck_assert_int_eq(a->elements, 3);
    unsigned char data[6], part[2];
    ck_ok(st_read(st, a, data, 6, err));
    ck_assert_int_eq(data[0], 8);
    ck_assert_int_eq(data[5], 13);
    ck_ok(st_read_part(st, a, 4, part, 2, err));
    ck_assert_int_eq(part[0], 12);
    ck_fails(st_read(st, a, data, 5, err), MOE_E_ARG, "'a' has 6 bytes, the reader wants 5");
    ck_fails(st_read_part(st, a, 5, part, 2, err), MOE_E_ARG, "wants 2 from 5");
    ck_fails(st_read_part(st, a, UINT64_MAX, part, 2, err), MOE_E_ARG, "wants 2");
    ck_assert_str_eq(st_meta(st, "format"), "pt");
    ck_assert_ptr_null(st_meta(st, "other"));
    ck_assert_ptr_null(st_find(st, "c"));
    ck_assert_ptr_null(st_find(st, "__metadata__"));
    st_close(st);
}
END_TEST

START_TEST(allows_odd_but_valid_files) {
    ck_ok(open_header("{}", 0, err));
    ck_ok(open_header("{\"scalar\":" T("F64", "[]", "[0,8]") "}", 8, err));
    ck_ok(open_header("{\"none\":" T("F32", "[3,0]", "[4,4]") ",\"x\":" T("F32", "[1]", "[0,4]") "}", 4, err));
    ck_ok(open_header("{\"none\":" T("F32", "[0]", "[0,0]") ",\"x\":" T("F32", "[1]", "[0,4]") "}", 4, err));
    ck_ok(open_header("{\"x\":" T("F4", "[3,2]", "[0,3]") "}", 3, err));
    ck_ok(open_header("{\"x\":" T("U8", "[1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, err));
}
END_TEST

START_TEST(C111_header_length_is_checked_before_allocation) {
    st_file *st = NULL;
    unsigned char bytes[64];
    memset(bytes, 0xff, sizeof bytes);
    ck_fails(st_open(scratch_save("a", bytes, 64), &st, err), MOE_E_DATA,
             "header length 18446744073709551615, but only");
    memset(bytes, 0, sizeof bytes);
    bytes[0] = 64 - 7; /* one more than there is */
    ck_fails(st_open(scratch_save("b", bytes, 64), &st, err), MOE_E_DATA, "header length 57, but only 56 bytes follow");
    ck_fails(st_open(scratch_save("c", bytes, 7), &st, err), MOE_E_DATA, "has 7 bytes, less than the 8");
    ck_fails(st_open(scratch_save("d", bytes, 0), &st, err), MOE_E_DATA, "has 0 bytes");
    memset(bytes, 0, 8);
    ck_fails(st_open(scratch_save("e", bytes, 8), &st, err), MOE_E_DATA, "offset 8: header:");
    /* A sparse file that does have the bytes: the cap holds. */
    bytes[3] = 0x40; /* 2^30 */
    const char *path = scratch_save("f", bytes, 8);
    ck_assert_int_eq(truncate(path, (1ll << 30) + 8), 0);
    ck_fails(st_open(path, &st, err), MOE_E_DATA, "header length 1073741824 exceeds the limit of 100000000");
    ck_assert_ptr_null(st);
}
END_TEST

START_TEST(C112_unknown_dtype_is_refused_by_name) {
    REFUSED("{\"x\":" T("F99", "[1]", "[4611686018427387904,4611686018427387905]") "}", 4, MOE_E_UNSUPPORTED,
            "'x' has unknown dtype 'F99'");
    REFUSED("{\"x\":" T("F99", "[1]", "[0,4]") "}", 4, MOE_E_UNSUPPORTED, "F99");
    REFUSED("{\"x\":" T("f32", "[1]", "[0,4]") "}", 4, MOE_E_UNSUPPORTED, "f32");
    REFUSED("{\"x\":" T("F99", "[1]", "[9223372036854775808,4]") "}", 4, MOE_E_DATA, "too big integer");
    REFUSED("{\"x\":" T("F32", "[1]", "[9223372036854775804,9223372036854775807]") "}", 4, MOE_E_DATA,
            "are not a range in 4 bytes");
}
END_TEST

START_TEST(refuses_bad_shapes) {
    REFUSED("{\"x\":" T("U8", "[-1]", "[0,1]") "}", 1, MOE_E_DATA, "not a non-negative integer");
    REFUSED("{\"x\":" T("U8", "[1.0]", "[0,1]") "}", 1, MOE_E_DATA, "not a non-negative integer");
    REFUSED("{\"x\":" T("U8", "1", "[0,1]") "}", 1, MOE_E_DATA, "shape is not an array");
    REFUSED("{\"x\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, MOE_E_DATA, "product of its shape");
    REFUSED("{\"x\":" T("F64", "[2305843009213693952]", "[0,0]") "}", 0, MOE_E_DATA, "size in bits overflows");
    REFUSED("{\"x\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, MOE_E_UNSUPPORTED, "9 dimensions");
    REFUSED("{\"x\":" T("F4", "[3]", "[0,1]") "}", 1, MOE_E_DATA, "whole number of bytes");
}
END_TEST

START_TEST(refuses_bad_ranges) {
    REFUSED("{\"x\":" T("F32", "[1]", "[4,0]") "}", 4, MOE_E_DATA, "[4, 0] are not a range in 4 bytes");
    REFUSED("{\"x\":" T("F32", "[2]", "[0,8]") "}", 4, MOE_E_DATA, "[0, 8] are not a range in 4 bytes");
    REFUSED("{\"x\":" T("F32", "[2]", "[0,4]") "}", 4, MOE_E_DATA, "dtype and shape give 8 bytes, data_offsets 4");
    REFUSED("{\"x\":" T("F32", "[1]", "[0]") "}", 4, MOE_E_DATA, "not a pair");
    REFUSED("{\"x\":" T("F32", "[1]", "[0,4,4]") "}", 4, MOE_E_DATA, "not a pair");
    REFUSED("{\"x\":" T("F32", "[1]", "[-4,0]") "}", 4, MOE_E_DATA, "not a pair");
    REFUSED("{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4, MOE_E_DATA, "'b' overlaps");
    REFUSED("{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[2,6]") "}", 6, MOE_E_DATA, "'b' overlaps");
    REFUSED("{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[5,9]") "}", 9, MOE_E_DATA,
            "'b' leaves a hole");
    REFUSED("{\"a\":" T("F32", "[1]", "[1,5]") "}", 5, MOE_E_DATA, "'a' leaves a hole");
    REFUSED("{\"a\":" T("F32", "[1]", "[0,4]") "}", 7, MOE_E_DATA, "3 bytes follow the last tensor");
    REFUSED("{}", 1, MOE_E_DATA, "1 bytes follow");
}
END_TEST

START_TEST(refuses_bad_headers) {
    REFUSED("[]", 0, MOE_E_DATA, "offset 8");
    REFUSED(" {}", 0, MOE_E_DATA, "does not begin with '{'");
    REFUSED("{} x", 0, MOE_E_DATA, "offset 12: header:");
    REFUSED("{\"a\":", 0, MOE_E_DATA, "offset 13: header:");
    REFUSED("{\"a\":1}", 0, MOE_E_DATA, "'a': is not an object of exactly");
    REFUSED("{\"a\":" T("U8", "[1]", "[0,1],\"more\":1") "}", 1, MOE_E_DATA, "'a': is not an object of exactly");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, MOE_E_DATA, "'a': is not an object of exactly");
    REFUSED("{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, MOE_E_DATA, "dtype is not a string");
    REFUSED("{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[0,1]") "}", 1, MOE_E_DATA, "duplicate");
    REFUSED("{\"__metadata__\":{\"k\":1}}", 0, MOE_E_DATA, "__metadata__ 'k' is not a string");
    REFUSED("{\"__metadata__\":[]}", 0, MOE_E_DATA, "__metadata__ is not an object");
    REFUSED("{\"a\xff\":1}", 0, MOE_E_DATA, "unable to decode byte 0xff");
    REFUSED("{\"two\\nlines\":1}", 0, MOE_E_DATA, "'two?lines'");
    char deep[1 << 14];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[sizeof deep - 1] = 0;
    REFUSED(deep, 0, MOE_E_DATA, "depth");
}
END_TEST

START_TEST(refuses_what_is_no_file) {
    st_file *st = NULL;
    ck_fails(st_open(scratch_path("absent"), &st, err), MOE_E_IO, "absent: cannot open: No such file");
    ck_fails(st_open(scratch_dir, &st, err), MOE_E_IO, "is not a regular file");
    ck_assert_int_eq(mkfifo(scratch_path("pipe"), 0600), 0);
    ck_fails(st_open(scratch_path("pipe"), &st, err), MOE_E_IO, "is not a regular file");
}
END_TEST

START_TEST(survives_a_file_cut_while_open) {
    st_file *st = NULL;
    char data[100];
    const char *path = save_header("{\"x\":" T("U8", "[100]", "[0,100]") "}", 100);
    ck_ok(st_open(path, &st, err));
    struct stat before;
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(truncate(path, before.st_size - 1), 0);
    ck_fails(st_read(st, st_at(st, 0), data, 100, err), MOE_E_DATA, "1 bytes short: it was cut while in use");
    st_close(st);
}
END_TEST

/* Every cut and every changed byte of a good file: refused, or still a tiling of the file. Never a crash. */
static void open_mutant(const unsigned char *bytes, size_t n, int must_fail) {
    st_file *st = NULL;
    moe_err refused;
    unsigned char data[64];
    if (st_open(scratch_save("m", bytes, n), &st, &refused) != MOE_OK) return;
    ck_assert(!must_fail);
    for (uint64_t i = 0; i < st_count(st); i++) {
        const st_tensor *t = st_at(st, i);
        ck_assert_uint_le(t->offset + t->bytes, n);
        ck_assert_uint_le(t->bytes, sizeof data);
        ck_ok(st_read(st, t, data, t->bytes, err));
        ck_assert_ptr_eq(st_find(st, t->name), t);
    }
    st_close(st);
}

START_TEST(mutants_are_refused_or_sound) {
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":" T("F32", "[2,1]", "[0,8]") ",\"b\":" T("BF16", "[3]", "[8,14]") "}";
    unsigned char bytes[512];
    FILE *f = fopen(save_header(header, 14), "rb");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    for (size_t cut = 0; cut < n; cut++) open_mutant(bytes, cut, 1);
    static const unsigned char flips[] = {1, 2, 4, 8, 16, 32, 64, 128};
    for (size_t at = 0; at < n; at++)
        for (size_t i = 0; i < sizeof flips; i++) {
            bytes[at] ^= flips[i];
            open_mutant(bytes, n, at < 8);
            bytes[at] ^= flips[i];
        }
}
END_TEST

START_TEST(dtype_table_is_whole) {
    for (int32_t i = 0; i < ST_DTYPE_COUNT; i++) {
        ck_assert_ptr_nonnull(st_dtype_name(i));
        ck_assert_uint_gt(st_dtype_bits(i), 0);
        ck_assert_int_eq(st_dtype_from_name(st_dtype_name(i)), i);
    }
    ck_assert_ptr_null(st_dtype_name(-1));
    ck_assert_ptr_null(st_dtype_name(ST_DTYPE_COUNT));
    ck_assert_uint_eq(st_dtype_bits(ST_DTYPE_COUNT), 0);
    ck_assert_uint_eq(st_dtype_bits(MOE_BF16), 16);
    ck_assert_str_eq(st_dtype_name(MOE_F8E4M3), "F8_E4M3");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("safetensors");
    TCase *tc = tcase_create("reader");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, reads_what_the_reference_writes);
    tcase_add_test(tc, allows_odd_but_valid_files);
    tcase_add_test(tc, C111_header_length_is_checked_before_allocation);
    tcase_add_test(tc, C112_unknown_dtype_is_refused_by_name);
    tcase_add_test(tc, refuses_bad_shapes);
    tcase_add_test(tc, refuses_bad_ranges);
    tcase_add_test(tc, refuses_bad_headers);
    tcase_add_test(tc, refuses_what_is_no_file);
    tcase_add_test(tc, survives_a_file_cut_while_open);
    tcase_add_test(tc, mutants_are_refused_or_sound);
    tcase_add_test(tc, dtype_table_is_whole);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
