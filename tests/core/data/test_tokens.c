/* The tokens format and what all formats share: element types, the vocabulary, sources with weights, resume. */
#include "core/data/opened.h"

enum { S = 8 };

static const uint32_t widths[] = {[DATA_U16] = 2, [DATA_U32] = 4, [DATA_I32] = 4};

/* Token i is first + i, but for token `at`, which is `odd`. */
static const char *save_tokens(const char *name, int dtype, int64_t n, int64_t first, int64_t at, int64_t odd) {
    static unsigned char bytes[1 << 16];
    uint32_t width = widths[dtype];
    ck_assert_uint_le((size_t)n * width, sizeof bytes);
    for (int64_t i = 0; i < n; i++)
        for (uint32_t b = 0; b < width; b++)
            bytes[(size_t)i * width + b] = (unsigned char)((uint64_t)(i == at ? odd : first + i) >> 8 * b);
    return scratch_save(name, bytes, (size_t)n * width);
}

static data_config config(const char *const *train, uint64_t n, int dtype) {
    return (data_config){.base = scratch_dir,
                         .train = train,
                         .n_train = n,
                         .seq_len = S,
                         .seed = 3,
                         .format = DATA_TOKENS,
                         .token_dtype = dtype};
}

START_TEST(every_dtype_is_read_little_endian) {
    const char *name = "a";
    static const int64_t firsts[] = {[DATA_U16] = 65535 - 40, [DATA_U32] = INT32_MAX - 40, [DATA_I32] = INT32_MAX - 40};
    for (int dtype = DATA_U16; dtype <= DATA_I32; dtype++) {
        save_tokens("a", dtype, 41, firsts[dtype], -1, 0);
        data_config cfg = config(&name, 1, dtype);
        data_reader *r = opened(&cfg);
        ck_assert_int_eq(data_count_windows(r, DATA_TRAIN), 5);
        ck_assert_uint_eq(data_count_tokens(r, DATA_TRAIN), 41);
        ck_assert_uint_eq(data_file_at(r, 0)->bytes, 41 * widths[dtype]);
        int32_t tokens[S], targets[S], docs[S];
        for (int64_t i = 0; i < 5; i++) {
            int64_t from = firsts[dtype] + S * data_window_of(r, DATA_TRAIN, i);
            ck_ok(data_fill(r, DATA_TRAIN, i, 1, tokens, targets, docs, err));
            for (int j = 0; j < S; j++) {
                ck_assert_int_eq(tokens[j], from + j);
                ck_assert_int_eq(targets[j], from + j + 1);
                ck_assert_int_eq(docs[j], 0);
            }
        }
        data_close(r);
    }
}
END_TEST

START_TEST(lengths_within_a_token_are_refused) {
    const char *name = "a";
    unsigned char bytes[44] = {0};
    for (int dtype = DATA_U16; dtype <= DATA_I32; dtype++)
        for (size_t n = 40; n < 44; n++) {
            scratch_save("a", bytes, n);
            data_config cfg = config(&name, 1, dtype);
            if (n % widths[dtype] == 0) {
                data_close(opened(&cfg));
                continue;
            }
            char text[100];
            snprintf(text, sizeof text, "/a: offset %zu: ends within a token: %zu bytes are no multiple of %u",
                     n / widths[dtype] * widths[dtype], n, widths[dtype]);
            refused(&cfg, MOE_E_DATA, text);
        }
    scratch_save("a", bytes, 16);
    data_config cfg = config(&name, 1, DATA_U16);
    refused(&cfg, MOE_E_ARG, "train: found 8 tokens, but one window of sequence length 8 needs 9");
    scratch_save("a", bytes, 0);
    refused(&cfg, MOE_E_ARG, "train: found 0 tokens");
}
END_TEST

/* A token that no vocabulary holds is found before any table is looked up by it, as input and as target alike. */
START_TEST(C098_id_outside_the_vocabulary_names_file_and_offset) {
    static const struct {
        int dtype;
        int64_t id, vocab;
        const char *text;
    } rows[] = {{DATA_U16, 65535, 512, "/a: offset 34: token id 65535 (uint16) is not in 0..511"},
                {DATA_U16, 512, 512, "/a: offset 34: token id 512 (uint16) is not in 0..511"},
                {DATA_I32, -1, 512, "/a: offset 68: token id -1 (int32) is not in 0..511"},
                {DATA_I32, -1149026846, 0, "/a: offset 68: token id -1149026846 (int32) is not in 0..2147483647"},
                {DATA_U32, INT64_C(1) << 31, 0, "/a: offset 68: token id 2147483648 (uint32) is not in 0..2147483647"}};
    const char *name = "a";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        save_tokens("a", rows[i].dtype, 26, 0, 17, rows[i].id);
        data_config cfg = config(&name, 1, rows[i].dtype);
        cfg.vocab = rows[i].vocab;
        data_reader *r = opened(&cfg);
        int32_t tokens[2 * S], targets[2 * S];
        for (int64_t sample = 0; sample < 3; sample++) {
            if (data_window_of(r, DATA_TRAIN, sample) == 2)
                ck_fails(data_fill(r, DATA_TRAIN, sample, 1, tokens, targets, NULL, err), MOE_E_DATA, rows[i].text);
            else
                ck_ok(data_fill(r, DATA_TRAIN, sample, 1, tokens, targets, NULL, err));
        }
        data_close(r);
        save_tokens("a", rows[i].dtype, 17, 0, 16, rows[i].id); /* now a target alone */
        r = opened(&cfg);
        ck_fails(data_fill(r, DATA_TRAIN, 0, 2, tokens, targets, NULL, err), MOE_E_DATA, "/a: offset ");
        data_close(r);
    }
    save_tokens("a", DATA_U16, 26, 486, -1, 0); /* 486..511: all fit */
    data_config cfg = config(&name, 1, DATA_U16);
    cfg.vocab = 512;
    data_reader *r = opened(&cfg);
    int32_t tokens[3 * S], targets[3 * S];
    ck_ok(data_fill(r, DATA_TRAIN, 0, 3, tokens, targets, NULL, err));
    data_close(r);
}
END_TEST

/* Three files of 3, 20 and 6 tokens as one stream: a target never comes from the next file, and with documents a file
 * is one. */
START_TEST(files_are_borders) {
    static const char *const names[] = {"a", "b", "c"};
    save_tokens("a", DATA_U16, 3, 100, -1, 0);
    save_tokens("b", DATA_U16, 20, 200, -1, 0);
    save_tokens("c", DATA_U16, 6, 300, -1, 0);
    for (int documents = 0; documents < 2; documents++) {
        data_config cfg = config(names, 1, DATA_U16);
        cfg.valid = names;
        cfg.n_valid = 3;
        cfg.train = names + 1;
        cfg.documents = documents;
        data_reader *r = opened(&cfg);
        int32_t tokens[4 * S], targets[4 * S], docs[4 * S];
        ck_assert_int_eq(data_count_windows(r, DATA_VALID), 3);
        ck_ok(data_fill(r, DATA_VALID, 0, 4, tokens, targets, docs, err));
        for (int i = 0; i < 4 * S; i++) {
            int file = i < 3 ? 0 : i < 23 ? 1 : 2, at = i - (file == 0 ? 0 : file == 1 ? 3 : 23);
            int last = i == 2 || i == 22, in = i < 3 * S;
            ck_assert_int_eq(tokens[i], in ? 100 * (file + 1) + at : 0);
            ck_assert_int_eq(targets[i], in && !last ? 100 * (file + 1) + at + 1 : -1);
            int number = i < S ? file : i < 2 * S ? 0 : file - 1; /* of the window */
            ck_assert_int_eq(docs[i], !in ? -1 : documents ? number : 0);
        }
        data_close(r);
    }
}
END_TEST

/* The last tokens of each file, by size in tokens, and no target across the cut. */
START_TEST(validation_is_cut_by_tokens) {
    const char *name = "a";
    save_tokens("a", DATA_U32, 100, 0, -1, 0);
    data_config cfg = config(&name, 1, DATA_U32);
    cfg.valid_fraction = 0.3;
    data_reader *r = opened(&cfg);
    ck_assert_uint_eq(data_file_at(r, 0)->train, 70);
    ck_assert_uint_eq(data_file_at(r, 0)->valid, 30);
    int32_t tokens[S], targets[S];
    for (int64_t i = 0; i < data_count_windows(r, DATA_TRAIN); i++) {
        ck_ok(data_fill(r, DATA_TRAIN, i, 1, tokens, targets, NULL, err));
        for (int j = 0; j < S; j++) ck_assert(tokens[j] < 70 && targets[j] < 70);
    }
    ck_ok(data_fill(r, DATA_VALID, 0, 1, tokens, targets, NULL, err));
    ck_assert_int_eq(tokens[0], 70);
    data_close(r);
}
END_TEST

/* Sources of 10, 3 and 5 windows with weights 5, 3, 2: each goes through its windows in epochs of its own. */
START_TEST(each_source_has_its_own_epochs) {
    static const char *const names[] = {"a", "b", "c*"};
    static const double weights[] = {5, 3, 2};
    static const int64_t windows[] = {10, 3, 5};
    save_tokens("a", DATA_U16, 10 * S + 1, 0, -1, 0);
    save_tokens("b", DATA_U16, 3 * S + 1, 1000, -1, 0);
    save_tokens("c1", DATA_U16, 2 * S + 3, 2000, -1, 0); /* one stream over both files of the pattern */
    save_tokens("c2", DATA_U16, 3 * S, 3000, -1, 0);
    data_config cfg = config(names, 3, DATA_U16);
    cfg.weights = weights;
    cfg.n_weights = 3;
    data_reader *r = opened(&cfg);
    ck_assert_uint_eq(data_count_sources(r), 3);
    ck_assert_int_eq(data_count_windows(r, DATA_TRAIN), 18);
    int64_t taken[3] = {0}, last_window = -1;
    unsigned seen[3] = {0}; /* windows of the running epoch, as bits */
    int same_order = 0;
    for (int64_t i = 0; i < 600; i++) {
        int32_t tokens[S], targets[S];
        uint64_t k = data_source_of(r, DATA_TRAIN, i);
        int64_t base = k == 0 ? 0 : k == 1 ? 10 : 13, window = data_window_of(r, DATA_TRAIN, i) - base;
        ck_assert(k < 3 && window >= 0 && window < windows[k]);
        ck_assert_int_eq(data_source_windows(r, k), windows[k]);
        if (taken[k]++ % windows[k] == 0) seen[k] = 0;
        ck_assert_msg(!(seen[k] >> window & 1), "sample %ld: window %ld of source %lu twice in an epoch", (long)i,
                      (long)window, (unsigned long)k);
        seen[k] |= 1u << window;
        ck_ok(data_fill(r, DATA_TRAIN, i, 1, tokens, targets, NULL, err));
        if (k < 2) ck_assert_int_eq(tokens[0], 1000 * (int)k + window * S);
        if (k == 2) ck_assert_int_eq(tokens[S - 1], window < 2 ? 2000 + window * S + S - 1 : 3000 + window * S - 12);
        same_order += window == last_window;
        last_window = window;
        if (i % 10 == 9) ck_assert(taken[0] == i / 10 * 5 + 5 && taken[1] == i / 10 * 3 + 3);
    }
    ck_assert_int_lt(same_order, 300);
    data_close(r);
}
END_TEST

/* Two ranks that stopped at 223 samples in all go on as one, as three, and the samples are those of a run that never
 * stopped: a position is one number, whatever the sources and ranks. */
START_TEST(C095_blend_resumes_from_the_sample_number) {
    static const char *const names[] = {"a", "b"};
    static const double weights[] = {0.37, 0.63};
    static int32_t whole[400 * S], part[400 * S], targets[400 * S];
    save_tokens("a", DATA_U16, 300, 0, -1, 0);
    save_tokens("b", DATA_U16, 100, 1000, -1, 0);
    data_config cfg = config(names, 2, DATA_U16);
    cfg.weights = weights;
    cfg.n_weights = 2;
    data_reader *r = opened(&cfg), *again = opened(&cfg);
    ck_assert_uint_eq(data_hash(r), data_hash(again));
    ck_ok(data_fill(r, DATA_TRAIN, 0, 400, whole, targets, NULL, err));
    for (int64_t ranks = 1; ranks <= 3; ranks++)
        for (int64_t i = 223; i + ranks <= 400; i += ranks)
            for (int64_t rank = 0; rank < ranks; rank++) {
                ck_ok(data_fill(again, DATA_TRAIN, i + rank, 1, part, targets, NULL, err));
                ck_assert_mem_eq(part, whole + (i + rank) * S, S * sizeof *part);
            }
    data_close(r);
    data_close(again);
}
END_TEST

START_TEST(bad_sources_are_refused) {
    static const char *const names[] = {"a", "b", "?"};
    static const double weights[] = {1, 2, -1};
    save_tokens("a", DATA_U16, 30, 0, -1, 0);
    save_tokens("b", DATA_U16, 8, 0, -1, 0);
    data_config cfg = config(names, 3, DATA_U16);
    cfg.weights = weights;
    cfg.n_weights = 2;
    refused(&cfg, MOE_E_ARG, "weights: 2 for 3 train patterns");
    cfg.n_weights = 3;
    refused(&cfg, MOE_E_ARG, "weights[2] = -1 is not a positive number");
    static const double positive[] = {1, 2, 3};
    cfg.weights = positive;
    refused(&cfg, MOE_E_ARG, "/a: has two weights, as 'a' and as '?'");
    cfg.n_train = cfg.n_weights = 2;
    refused(&cfg, MOE_E_ARG, "train: found 8 tokens in 'b', but one window of sequence length 8 needs 9");
    cfg.n_weights = 0;
    data_close(opened(&cfg)); /* without weights it only adds to the stream */
    cfg.token_dtype = 3;
    refused(&cfg, MOE_E_ARG, "token_dtype 3");
    cfg.format = 3;
    refused(&cfg, MOE_E_ARG, "format 3");
    cfg.format = DATA_BYTES;
    cfg.vocab = -1;
    refused(&cfg, MOE_E_ARG, "vocabulary -1 is not in 0..2^31");
}
END_TEST

static uint64_t hash_of(const data_config *cfg) {
    data_reader *r = opened(cfg);
    uint64_t hash = data_hash(r);
    data_close(r);
    return hash;
}

START_TEST(hash_tells_runs_apart) {
    static const char *const names[] = {"a", "b"};
    static const double weights[][2] = {{1, 1}, {1, 2}, {2, 2}};
    uint64_t hashes[8];
    save_tokens("a", DATA_U32, 300, 0, -1, 0);
    save_tokens("b", DATA_U32, 100, 0, -1, 0);
    data_config cfg = config(names, 2, DATA_U32);
    hashes[0] = hash_of(&cfg);
    cfg.token_dtype = DATA_U16;
    hashes[1] = hash_of(&cfg);
    cfg.token_dtype = DATA_U32;
    cfg.documents = 1;
    hashes[2] = hash_of(&cfg);
    cfg.documents = 0;
    cfg.valid_fraction = 0.2;
    hashes[3] = hash_of(&cfg);
    cfg.valid_fraction = 0;
    cfg.n_weights = 2;
    cfg.weights = weights[0];
    hashes[4] = hash_of(&cfg);
    cfg.weights = weights[2];
    ck_assert_uint_eq(hash_of(&cfg), hashes[4]); /* the same shares */
    cfg.weights = weights[1];
    hashes[5] = hash_of(&cfg);
    cfg.n_weights = 0;
    ck_assert_uint_eq(hash_of(&cfg), hashes[0]);
    save_tokens("b", DATA_U32, 100, 0, 50, 7);
    hashes[6] = hash_of(&cfg);
    save_tokens("b", DATA_U32, 101, 0, -1, 0);
    hashes[7] = hash_of(&cfg);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++) ck_assert_msg(hashes[i] != hashes[j], "%d and %d", i, j);
}
END_TEST

START_TEST(hash_of_a_large_file_samples_both_ends) {
    const char *name = "large";
    data_config cfg = config(&name, 1, DATA_U16);
    uint64_t hashes[3];
    unsigned char one = 1;
    static const long at[] = {-1, 0, (3 << 20) - 1}; /* the byte that is 1 */
    for (int i = 0; i < 3; i++) {
        scratch_save("large", &one, at[i] == 0);
        ck_assert_int_eq(truncate(scratch_path("large"), 3 << 20), 0);
        FILE *f = fopen(scratch_path("large"), "r+b");
        ck_assert(f && fseek(f, at[i] < 0 ? 0 : at[i], SEEK_SET) == 0);
        ck_assert_int_eq(fputc(at[i] >= 0, f), at[i] >= 0);
        fclose(f);
        hashes[i] = hash_of(&cfg);
    }
    ck_assert_uint_ne(hashes[0], hashes[1]);
    ck_assert_uint_ne(hashes[0], hashes[2]);
    ck_assert_uint_ne(hashes[1], hashes[2]);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("data_tokens");
    TCase *tc = tcase_create("tokens");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, every_dtype_is_read_little_endian);
    tcase_add_test(tc, lengths_within_a_token_are_refused);
    tcase_add_test(tc, C098_id_outside_the_vocabulary_names_file_and_offset);
    tcase_add_test(tc, files_are_borders);
    tcase_add_test(tc, validation_is_cut_by_tokens);
    tcase_add_test(tc, each_source_has_its_own_epochs);
    tcase_add_test(tc, C095_blend_resumes_from_the_sample_number);
    tcase_add_test(tc, bad_sources_are_refused);
    tcase_add_test(tc, hash_tells_runs_apart);
    tcase_add_test(tc, hash_of_a_large_file_samples_both_ends);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
