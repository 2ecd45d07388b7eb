/* The writer: exact bytes, round trips, and every failure before or during writing. */
#include <signal.h>
#include <sys/resource.h>

#include "core/io/scratch.h"
#include "io/safetensors.h"

static st_writer *writer(const char *name) {
    st_writer *w = NULL;
    ck_ok(st_writer_create(scratch_path(name), &w, err));
    return w;
}

START_TEST(writes_the_bytes_of_the_format) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"q\":\"\\\"\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],"
        "\"data_offsets\":[0,8]},\"\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    float values[2] = {1.0f, -2.5f};
    st_writer *w = writer("x");
    ck_ok(st_writer_meta(w, "format", "pt", err));
    ck_ok(st_writer_meta(w, "q", "\"", err));
    ck_ok(st_writer_declare(w, "w", MOE_F32, 2, (int64_t[]){1, 2}, err));
    ck_ok(st_writer_declare(w, "\xc3\xa9", MOE_U8, 1, (int64_t[]){3}, err));
    ck_ok(st_write(w, values, 3, err)); /* chunks need not match tensors */
    ck_ok(st_write(w, (char *)values + 3, 5, err));
    ck_ok(st_write(w, "abc", 3, err));
    ck_assert(!scratch_exists("x"));
    ck_ok(st_writer_finish(w, err));
    char *bytes = NULL;
    uint64_t n = 0;
    ck_ok(fs_load(scratch_path("x"), 4096, &bytes, &n, err));
    size_t length = (sizeof header - 1 + 7) / 8 * 8;
    ck_assert_uint_eq(n, 8 + length + 11);
    ck_assert_uint_eq((unsigned char)bytes[0], length & 0xff);
    ck_assert_uint_eq((unsigned char)bytes[1], length >> 8);
    ck_assert_mem_eq(bytes + 2, "\0\0\0\0\0\0", 6);
    ck_assert_mem_eq(bytes + 8, header, sizeof header - 1);
    for (size_t i = sizeof header - 1; i < length; i++) ck_assert_int_eq(bytes[8 + i], ' ');
    ck_assert_mem_eq(bytes + 8 + length, values, 8);
    ck_assert_mem_eq(bytes + 16 + length, "abc", 3);
    ck_assert(!scratch_exists("x.part"));
    free(bytes);
}
END_TEST

/* n tensors of every dtype and of sizes 0, 1, 2, ..; with or without metadata; header lengths of every remainder. */
START_TEST(round_trips) {
    static unsigned char data[1 << 14];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + i / 256);
    for (int n = 0; n < 40; n++) {
        char name[64];
        uint64_t total = 0;
        st_writer *w = writer("r");
        for (int i = 0; i < n; i++) {
            snprintf(name, sizeof name, "layers.%d.%.*s", i, n, "........................................");
            int32_t dtype = (n + i) % ST_DTYPE_COUNT;
            int64_t shape[3] = {2, i % 4, 1 + i % 3};
            ck_ok(st_writer_declare(w, name, dtype, 3, shape, err));
            total += 2 * (uint64_t)(i % 4) * (uint64_t)(1 + i % 3) * st_dtype_bits(dtype) / 8;
        }
        if (n % 2) ck_ok(st_writer_meta(w, "step", "12", err));
        ck_ok(st_write(w, data, total, err));
        ck_ok(st_writer_finish(w, err));
        st_file *st = NULL;
        ck_ok(st_open(scratch_path("r"), &st, err));
        ck_assert_uint_eq(st_count(st), (uint64_t)n);
        if (n % 2) ck_assert_str_eq(st_meta(st, "step"), "12");
        for (uint64_t i = 0, at = 0; i < (uint64_t)n; i++) {
            static unsigned char back[1 << 14];
            const st_tensor *t = st_at(st, i);
            if (i == 0) ck_assert_uint_eq(t->offset % 8, 0);
            ck_ok(st_read(st, t, back, t->bytes, err));
            ck_assert_mem_eq(back, data + at, t->bytes);
            at += t->bytes;
        }
        st_close(st);
    }
}
END_TEST

START_TEST(refuses_bad_declarations) {
    st_writer *w = writer("x");
    int64_t one = 1, huge[3] = {1ll << 40, 1ll << 40, 1};
    ck_ok(st_writer_declare(w, "a", MOE_F32, 1, &one, err));
    ck_fails(st_writer_declare(w, "a", MOE_F32, 1, &one, err), MOE_E_ARG, "'a' is declared twice");
    ck_fails(st_writer_declare(w, "__metadata__", MOE_F32, 1, &one, err), MOE_E_ARG, "__metadata__");
    ck_fails(st_writer_declare(w, "b\xff", MOE_F32, 1, &one, err), MOE_E_ARG, "not UTF-8");
    ck_fails(st_writer_declare(w, "b", 99, 1, &one, err), MOE_E_ARG, "no dtype 99");
    ck_fails(st_writer_declare(w, "b", MOE_F32, 9, &one, err), MOE_E_ARG, "9 dimensions");
    ck_fails(st_writer_declare(w, "b", MOE_F32, 1, (int64_t[]){-1}, err), MOE_E_ARG, "shape[0] = -1");
    ck_fails(st_writer_declare(w, "b", MOE_F32, 3, huge, err), MOE_E_ARG, "shape[1] = 1099511627776");
    ck_fails(st_writer_declare(w, "b", MOE_F4E2M1X2, 1, (int64_t[]){3}, err), MOE_E_ARG, "3 elements of F4");
    ck_ok(st_writer_meta(w, "k", "v", err));
    ck_fails(st_writer_meta(w, "k", "v", err), MOE_E_ARG, "'k' is given twice");
    ck_fails(st_writer_meta(w, "l", "\xff", err), MOE_E_ARG, "not UTF-8");
    ck_ok(st_write(w, "abcd", 4, err));
    ck_fails(st_writer_declare(w, "late", MOE_F32, 1, &one, err), MOE_E_ARG, "'late' declared after the first byte");
    ck_fails(st_writer_meta(w, "late", "v", err), MOE_E_ARG, "'late' declared after");
    ck_fails(st_write(w, "e", 1, err), MOE_E_ARG, "1 bytes given after 4, but only 4 are declared");
    ck_ok(st_writer_finish(w, err)); /* refused calls changed nothing */
    st_file *st = NULL;
    ck_ok(st_open(scratch_path("x"), &st, err));
    ck_assert_uint_eq(st_count(st), 1);
    st_close(st);
}
END_TEST

START_TEST(unfinished_file_leaves_the_old_one) {
    scratch_save("x", "old", 3);
    st_writer *w = writer("x");
    ck_ok(st_writer_declare(w, "a", MOE_U8, 1, (int64_t[]){4}, err));
    ck_ok(st_writer_declare(w, "b", MOE_U8, 1, (int64_t[]){4}, err));
    ck_ok(st_write(w, "123456", 6, err));
    ck_fails(st_writer_finish(w, err), MOE_E_ARG, "after 6 of 8 bytes: tensor 'b' is not complete");
    w = writer("x");
    ck_ok(st_writer_declare(w, "a", MOE_U8, 1, (int64_t[]){4}, err));
    ck_ok(st_write(w, "1234", 4, err));
    st_writer_abort(w);
    st_writer_abort(NULL);
    char *bytes = NULL;
    uint64_t n = 0;
    ck_ok(fs_load(scratch_path("x"), 10, &bytes, &n, err));
    ck_assert_str_eq(bytes, "old");
    free(bytes);
    ck_assert_int_eq(scratch_count(""), 1);
}
END_TEST

START_TEST(C110_header_over_the_cap_is_refused_before_writing) {
    enum { NAME = 1 << 20 };
    st_writer *w = writer("x");
    char *name = malloc(NAME + 1);
    ck_assert_ptr_nonnull(name);
    memset(name, 'n', NAME);
    name[NAME] = 0;
    int declared = 0;
    moe_err full = {.code = MOE_OK};
    for (; declared < 200; declared++) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08d", declared);
        memcpy(name, digits, 8);
        if (st_writer_declare(w, name, MOE_F32, 1, (int64_t[]){1}, &full) != MOE_OK) break;
    }
    ck_assert_int_eq(full.code, MOE_E_OVERFLOW);
    ck_assert_ptr_nonnull(strstr(full.msg, "exceeds 100000000 bytes"));
    ck_assert_int_eq(declared, (int)(ST_HEADER_MAX / (NAME + 64)));
    ck_fails(st_writer_meta(w, "k", name, err), MOE_E_OVERFLOW, "header");
    ck_assert_int_eq(scratch_count(""), 0);
    /* What was accepted is a file whose header the reader takes. */
    float zero = 0;
    for (int i = 0; i < declared; i++) ck_ok(st_write(w, &zero, 4, err));
    ck_ok(st_writer_finish(w, err));
    uint64_t length = 0;
    FILE *f = fopen(scratch_path("x"), "rb");
    ck_assert(f && fread(&length, 8, 1, f) == 1);
    fclose(f);
    ck_assert_uint_le(length, ST_HEADER_MAX);
    ck_assert_uint_gt(length, ST_HEADER_MAX - NAME - 64);
    free(name);
}
END_TEST

START_TEST(disk_full_surfaces_with_the_path) {
    /* /dev/full behind the temporary name: a real ENOSPC. */
    if (symlink("/dev/full", scratch_path("x.part")) != 0 || access("/dev/full", W_OK) != 0) return;
    char *block = calloc(1, 4 << 20);
    st_writer *w = writer("x");
    ck_ok(st_writer_declare(w, "a", MOE_U8, 1, (int64_t[]){8 << 20}, err));
    ck_fails(st_write(w, block, 4 << 20, err), MOE_E_IO, "x.part: cannot write data: No space left on device");
    ck_fails(st_write(w, block, 4 << 20, err), MOE_E_IO, "No space left"); /* for good */
    ck_fails(st_writer_finish(w, err), MOE_E_IO, "No space left");
    ck_assert(!scratch_exists("x"));
    free(block);
}
END_TEST

START_TEST(failures_at_the_last_flush_surface) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = 4096;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    char block[8192] = {0};
    st_writer *w = writer("x");
    ck_ok(st_writer_declare(w, "a", MOE_U8, 1, (int64_t[]){sizeof block}, err));
    ck_ok(st_write(w, block, sizeof block, err)); /* still in the buffer */
    ck_fails(st_writer_finish(w, err), MOE_E_IO, "x.part: cannot write data: File too large");
    limit.rlim_cur = soft;
    setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert_int_eq(scratch_count(""), 0);
}
END_TEST

START_TEST(places_that_cannot_be_written) {
    st_writer *w = NULL;
    ck_fails(st_writer_create(scratch_dir, &w, err), MOE_E_IO, "exists and is not a regular file");
    w = writer("no/such/x");
    ck_fails(st_writer_finish(w, err), MOE_E_IO, "no/such/x.part: cannot create: No such file");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("safetensors_write");
    TCase *tc = tcase_create("writer");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, writes_the_bytes_of_the_format);
    tcase_add_test(tc, round_trips);
    tcase_add_test(tc, refuses_bad_declarations);
    tcase_add_test(tc, unfinished_file_leaves_the_old_one);
    tcase_add_test(tc, C110_header_over_the_cap_is_refused_before_writing);
    tcase_add_test(tc, disk_full_surfaces_with_the_path);
    tcase_add_test(tc, failures_at_the_last_flush_surface);
    tcase_add_test(tc, places_that_cannot_be_written);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
