/* Byte data: which files, which bytes, which windows. */
#include <xxhash.h>

#include "core/io/scratch.h"
#include "data/data.h"

enum { S = 8 };

/* A file whose byte i is first + i. */
static const char *save_bytes(const char *name, size_t n, int first) {
    static unsigned char bytes[1 << 16];
    ck_assert_uint_le(n, sizeof bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)((size_t)first + i);
    return scratch_save(name, bytes, n);
}

static char notes[1024];
static void take_note(void *ctx, const char *text) {
    ck_assert_ptr_eq(ctx, notes);
    snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

/* Opens one train pattern (NULL: none) in the test's directory. */
static moe_status open_pattern(const char *train, const char *valid, double fraction, data_reader **out, moe_err *err) {
    data_config cfg = {.base = scratch_dir,
                       .train = &train,
                       .valid = &valid,
                       .n_train = train != NULL,
                       .n_valid = valid != NULL,
                       .valid_fraction = fraction,
                       .seq_len = S,
                       .seed = 3,
                       .note = take_note,
                       .note_ctx = notes};
    notes[0] = 0;
    return data_open(&cfg, out, err);
}

#define REFUSED(train, valid, fraction, code, part)                             \
    do {                                                                        \
        data_reader *none = NULL;                                               \
        ck_fails(open_pattern(train, valid, fraction, &none, err), code, part); \
        ck_assert_ptr_null(none);                                               \
    } while (0)

static data_reader *opened(const char *train, const char *valid, double fraction) {
    data_reader *r = NULL;
    ck_ok(open_pattern(train, valid, fraction, &r, err));
    return r;
}

START_TEST(C097_windows_need_one_byte_more) {
    static const struct {
        size_t bytes;
        int64_t windows;
    } rows[] = {{33, 4}, {32, 3}, {9, 1}, {16, 1}, {17, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        save_bytes("a", rows[i].bytes, 0);
        data_reader *r = opened("a", NULL, 0);
        ck_assert_int_eq(data_count_windows(r, DATA_TRAIN), rows[i].windows);
        ck_assert_int_eq(data_count_windows(r, DATA_VALID), 0);
        data_close(r);
    }
    save_bytes("a", 8, 0);
    REFUSED("a", NULL, 0, MOE_E_ARG, "train: found 8 bytes, but one window of sequence length 8 needs 9");
    data_close(NULL);
}
END_TEST

/* Every window inside the stream, none skipped, no byte read past the end (the sanitizers watch), targets one ahead;
 * four data-parallel slices of a batch are the batch. */
START_TEST(C097_epoch_covers_each_window_once_in_every_slicing) {
    for (size_t bytes = 9; bytes < 200; bytes += 13) {
        save_bytes("a", bytes, 1);
        data_reader *r = opened("a", NULL, 0);
        int64_t windows = data_count_windows(r, DATA_TRAIN);
        int32_t tokens[200], targets[200], slice_tokens[S], slice_targets[S];
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int seen[32] = {0};
            ck_ok(data_fill(r, DATA_TRAIN, epoch * windows, windows, tokens, targets, NULL, err));
            for (int64_t i = 0; i < windows; i++) {
                int64_t window = data_window_of(r, DATA_TRAIN, epoch * windows + i);
                ck_assert(window >= 0 && window < windows && !seen[window]++);
                for (int64_t j = 0; j < S; j++) {
                    ck_assert_int_eq(tokens[i * S + j], 1 + window * S + j);
                    ck_assert_int_eq(targets[i * S + j], 2 + window * S + j);
                }
                ck_ok(data_fill(r, DATA_TRAIN, epoch * windows + i, 1, slice_tokens, slice_targets, NULL, err));
                ck_assert_mem_eq(slice_tokens, tokens + i * S, sizeof slice_tokens);
                ck_assert_mem_eq(slice_targets, targets + i * S, sizeof slice_targets);
            }
        }
        data_close(r);
    }
}
END_TEST

START_TEST(each_epoch_has_its_own_order) {
    save_bytes("a", 100 * S + 1, 0);
    data_reader *r = opened("a", NULL, 0);
    int same = 0, in_place = 0;
    for (int64_t i = 0; i < 100; i++) {
        same += data_window_of(r, DATA_TRAIN, i) == data_window_of(r, DATA_TRAIN, 100 + i);
        in_place += data_window_of(r, DATA_TRAIN, i) == i;
    }
    ck_assert_int_lt(same, 10); /* expected 1 */
    ck_assert_int_lt(in_place, 10);
    data_close(r);
}
END_TEST

START_TEST(C095_position_is_a_global_sample_index) {
    /* Two ranks at samples 2i and 2i+1, resumed as one rank: the same samples, across an epoch's end too. */
    save_bytes("a", 80, 0);
    data_reader *r = opened("a", NULL, 0), *again = opened("a", NULL, 0);
    int32_t two[2][S], one[2 * S], targets[2 * S];
    for (int64_t step = 0; step < 20; step++) {
        for (int rank = 0; rank < 2; rank++)
            ck_ok(data_fill(r, DATA_TRAIN, step * 2 + rank, 1, two[rank], targets, NULL, err));
        ck_ok(data_fill(again, DATA_TRAIN, step * 2, 2, one, targets, NULL, err));
        ck_assert_mem_eq(two, one, sizeof one);
    }
    data_close(r);
    data_close(again);
}
END_TEST

START_TEST(validation_goes_in_order_and_ends_without_loss) {
    save_bytes("a", 100, 0);
    save_bytes("v", 26, 100);               /* 3 windows and a byte that is no window */
    data_reader *r = opened("a", "v", 0.5); /* own files: the fraction does not matter */
    ck_assert_int_eq(data_count_windows(r, DATA_VALID), 3);
    ck_assert_uint_eq(data_count_tokens(r, DATA_TRAIN), 100);
    int32_t tokens[5 * S], targets[5 * S];
    ck_ok(data_fill(r, DATA_VALID, 1, 5, tokens, targets, NULL, err));
    for (int i = 0; i < 5 * S; i++) {
        ck_assert_int_eq(tokens[i], i < 2 * S ? 108 + i : 0);
        ck_assert_int_eq(targets[i], i < 2 * S ? 109 + i : -1);
    }
    ck_assert_int_eq(data_window_of(r, DATA_VALID, 2), 2);
    ck_assert_int_eq(data_window_of(r, DATA_VALID, 3), -1);
    data_close(r);
}
END_TEST

START_TEST(validation_is_the_tail_of_every_file) {
    save_bytes("1.txt", 40, 0);
    save_bytes("2.txt", 55, 100);
    data_reader *r = opened("*.txt", NULL, 0.25);
    ck_assert_uint_eq(data_count_tokens(r, DATA_TRAIN), 30 + 42);
    ck_assert_uint_eq(data_count_tokens(r, DATA_VALID), 10 + 13);
    ck_assert_uint_eq(data_count_files(r), 2);
    ck_assert_ptr_nonnull(strstr(data_file_at(r, 1)->path, "/2.txt"));
    ck_assert_uint_eq(data_file_at(r, 1)->bytes, 55);
    ck_assert_uint_eq(data_file_at(r, 1)->train, 42);
    ck_assert_uint_eq(data_file_at(r, 1)->valid, 13);
    int32_t tokens[2 * S], targets[2 * S];
    ck_ok(data_fill(r, DATA_VALID, 0, 2, tokens, targets, NULL, err)); /* 30..39, then 142.. */
    for (int i = 0; i < 2 * S; i++) {
        ck_assert_int_eq(tokens[i], i < 10 ? 30 + i : 142 + i - 10);
        ck_assert_int_eq(targets[i], i < 9 ? 31 + i : i == 9 ? -1 : 142 + i - 9); /* never from the next file */
    }
    int seen[256] = {0};
    for (int64_t i = 0; i < data_count_windows(r, DATA_TRAIN); i++) {
        ck_ok(data_fill(r, DATA_TRAIN, i, 1, tokens, targets, NULL, err));
        for (int j = 0; j < S; j++) seen[tokens[j]]++, seen[targets[j] < 0 ? tokens[j] : targets[j]]++;
    }
    for (int i = 0; i < 256; i++) ck_assert(!seen[i] || i < 30 || (i >= 100 && i < 142)); /* no leak */
    data_close(r);
    REFUSED("1.txt", NULL, 0.1, MOE_E_ARG, "valid: found 4 bytes, but one window of sequence length 8 needs 9");
    REFUSED("1.txt", NULL, 1.0, MOE_E_ARG, "valid_fraction 1 is not in [0, 1)");
    REFUSED("1.txt", NULL, -0.1, MOE_E_ARG, "valid_fraction -0.1");
    REFUSED("1.txt", NULL, strtod("nan", NULL), MOE_E_ARG, "valid_fraction");
}
END_TEST

START_TEST(each_file_counts_once) {
    save_bytes("GPL-3", 20, 0);
    ck_assert_int_eq(symlink("GPL-3", scratch_path("GPL")), 0);
    ck_assert_int_eq(mkdir(scratch_path("sub"), 0700), 0);
    save_bytes("sub/a", 30, 50);
    save_bytes("empty", 0, 0);
    const char *patterns[] = {"GPL*", "sub/../GPL-3", "emp*", "sub/*", scratch_path("GPL"), "GP?"};
    data_config cfg = {
        .base = scratch_dir, .train = patterns, .n_train = 6, .seq_len = S, .note = take_note, .note_ctx = notes};
    data_reader *r = NULL;
    notes[0] = 0;
    ck_ok(data_open(&cfg, &r, err));
    ck_assert_uint_eq(data_count_files(r), 2);
    ck_assert_uint_eq(data_count_tokens(r, DATA_TRAIN), 50);
    ck_assert_ptr_nonnull(strstr(data_file_at(r, 0)->path, "/GPL-3"));
    ck_assert_ptr_nonnull(strstr(notes, "empty has no bytes and is skipped\n"));
    uint64_t hash = data_hash(r);
    data_close(r);
    cfg.train = patterns + 3;
    cfg.n_train = 2; /* the same files by other names */
    ck_ok(data_open(&cfg, &r, err));
    ck_assert_uint_eq(data_hash(r), hash);
    data_close(r);
    save_bytes("sub/a", 30, 51);
    ck_ok(data_open(&cfg, &r, err));
    ck_assert_uint_ne(data_hash(r), hash);
    data_close(r);
}
END_TEST

START_TEST(same_file_in_both_is_noted) {
    save_bytes("a", 20, 0);
    save_bytes("b", 20, 0);
    data_reader *r = opened("?", "b", 0);
    ck_assert_ptr_nonnull(strstr(notes, "/b is in both train and valid\n"));
    ck_assert_ptr_null(strstr(notes, "/a "));
    data_close(r);
}
END_TEST

START_TEST(names_with_glob_characters_are_literal) {
    ck_assert_int_eq(mkdir(scratch_path("d[1]*"), 0700), 0);
    ck_assert_int_eq(mkdir(scratch_path("d1x"), 0700), 0);
    save_bytes("d[1]*/a[0].txt", 20, 0);
    save_bytes("d1x/a[0].txt", 30, 0);
    char base[512];
    snprintf(base, sizeof base, "%s", scratch_path("d[1]*"));
    static const char *const patterns[] = {"a[0].txt", "*.txt"};
    for (int i = 0; i < 2; i++) {
        data_config cfg = {.base = base, .train = patterns + i, .n_train = 1, .seq_len = S};
        data_reader *r = NULL;
        ck_ok(data_open(&cfg, &r, err));
        ck_assert_uint_eq(data_count_tokens(r, DATA_TRAIN), 20);
        data_close(r);
    }
}
END_TEST

START_TEST(what_cannot_be_read_is_refused) {
    save_bytes("a", 40, 0);
    save_bytes("empty", 0, 0);
    ck_assert_int_eq(mkdir(scratch_path("sub"), 0700), 0);
    ck_assert_int_eq(symlink("nowhere", scratch_path("dangling")), 0);
    ck_assert_int_eq(mkfifo(scratch_path("pipe"), 0600), 0);
    REFUSED(NULL, NULL, 0, MOE_E_ARG, "train: no file is named");
    REFUSED("*.none", NULL, 0, MOE_E_ARG, "train: no file matches '*.none' (in ");
    REFUSED("", NULL, 0, MOE_E_ARG, "train: no file matches ''");
    REFUSED("a", "absent", 0, MOE_E_ARG, "valid: no file matches 'absent'");
    REFUSED("sub", NULL, 0, MOE_E_ARG, "sub: is a directory");
    REFUSED("s*", NULL, 0, MOE_E_ARG, "sub: is a directory");
    REFUSED("pipe", NULL, 0, MOE_E_ARG, "pipe: is not a regular file");
    REFUSED("dangling", NULL, 0, MOE_E_IO, "dangling: cannot open: No such file");
    REFUSED("empty", NULL, 0, MOE_E_ARG, "train: found 0 bytes");
    REFUSED("a", "empty", 0, MOE_E_ARG, "valid: found 0 bytes");
    const char *name = "a";
    data_reader *r = NULL;
    data_config cfg = {.base = scratch_dir, .train = &name, .n_train = 1, .seq_len = 0};
    ck_fails(data_open(&cfg, &r, err), MOE_E_ARG, "sequence length 0");
    cfg.seq_len = 1;
    ck_ok(data_open(&cfg, &r, err));
    ck_assert_int_eq(data_count_windows(r, DATA_TRAIN), 39);
    data_close(r);
}
END_TEST

/* Files are mapped: one that no memory holds opens at once, and its hash is of samples. */
START_TEST(huge_files_open_at_once) {
    save_bytes("huge", 100, 1);
    if (truncate(scratch_path("huge"), (off_t)(DATA_HASH_WHOLE << 4)) != 0) return; /* sparse, 64 GiB */
    data_reader *r = opened("huge", NULL, 0.5);
    int64_t windows = (int64_t)(((DATA_HASH_WHOLE << 3) - 1) / S);
    ck_assert_int_eq(data_count_windows(r, DATA_TRAIN), windows);
    ck_assert_int_eq(data_count_windows(r, DATA_VALID), windows);
    int32_t tokens[S], targets[S];
    ck_ok(data_fill(r, DATA_VALID, windows - 1, 1, tokens, targets, NULL, err)); /* behind 2^35 */
    ck_assert_int_eq(tokens[0], 0);
    ck_ok(data_fill(r, DATA_TRAIN, 5, 1, tokens, targets, NULL, err));
    data_close(r);
}
END_TEST

/* Runs of older versions resume: the hash is that of all bytes, seeded by where train and valid part. */
START_TEST(hash_is_that_of_all_bytes) {
    unsigned char all[95];
    save_bytes("1.txt", 40, 0);
    save_bytes("2.txt", 55, 100);
    data_reader *r = opened("*.txt", NULL, 0.25);
    for (int i = 0; i < 95; i++) { /* heads of 30 and 42, tails of 10 and 13 */
        int second = (i >= 30 && i < 72) || i >= 82, at = i < 30 ? i : i < 72 ? i - 30 : i < 82 ? i - 42 : i - 40;
        all[i] = (unsigned char)(second ? 100 + at : at);
    }
    ck_assert_uint_eq(data_hash(r), XXH3_64bits_withSeed(all, sizeof all, 72));
    data_close(r);
}
END_TEST

START_TEST(a_file_cut_in_use_is_an_error_and_no_crash) {
    int32_t tokens[S], targets[S];
    save_bytes("a", 60000, 0);
    data_reader *r = opened("a", NULL, 0.1);
    ck_ok(data_fill(r, DATA_TRAIN, 0, 1, tokens, targets, NULL, err));
    ck_assert_int_eq(truncate(scratch_path("a"), 5000), 0);
    ck_fails(data_fill(r, DATA_VALID, 0, 1, tokens, targets, NULL, err), MOE_E_DATA,
             "/a: was cut from 60000 to 5000 bytes while in use");
    data_close(r);
    save_bytes("a", 60000, 0);
    r = opened("a", NULL, 0.1);
    ck_assert_int_eq(unlink(scratch_path("a")), 0); /* the mapping lives on */
    ck_ok(data_fill(r, DATA_VALID, 0, 1, tokens, targets, NULL, err));
    save_bytes("a", 10, 0); /* another file */
    ck_ok(data_fill(r, DATA_VALID, 0, 1, tokens, targets, NULL, err));
    ck_assert_int_eq(tokens[0], 54000 % 256);
    data_close(r);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("data_bytes");
    TCase *tc = tcase_create("bytes");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, C097_windows_need_one_byte_more);
    tcase_add_test(tc, C097_epoch_covers_each_window_once_in_every_slicing);
    tcase_add_test(tc, each_epoch_has_its_own_order);
    tcase_add_test(tc, C095_position_is_a_global_sample_index);
    tcase_add_test(tc, validation_goes_in_order_and_ends_without_loss);
    tcase_add_test(tc, validation_is_the_tail_of_every_file);
    tcase_add_test(tc, each_file_counts_once);
    tcase_add_test(tc, same_file_in_both_is_noted);
    tcase_add_test(tc, names_with_glob_characters_are_literal);
    tcase_add_test(tc, what_cannot_be_read_is_refused);
    tcase_add_test(tc, huge_files_open_at_once);
    tcase_add_test(tc, hash_is_that_of_all_bytes);
    tcase_add_test(tc, a_file_cut_in_use_is_an_error_and_no_crash);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
