/* The megatron format: documents, splits, names of files, and every window against a plain model of the stream. */
#include <moe/random.h>

#include "core/data/megatron_writer.h"
#include "core/data/opened.h"

static data_config config(const char *const *train, uint64_t n, int64_t seq) {
    return (data_config){
        .base = scratch_dir, .train = train, .n_train = n, .seq_len = seq, .seed = 3, .format = DATA_MEGATRON};
}

START_TEST(every_integer_type_is_read) {
    static const int64_t firsts[] = {0, 215, 87, 32727, INT32_MAX - 40, INT32_MAX - 40, 0, 0, 65495};
    static const int32_t sizes[] = {10, 31};
    const char *name = "a";
    for (uint8_t code = 1; code <= 8; code++) {
        data_config cfg = config(&name, 1, 8);
        write_documents("a", code, sizes, 2, firsts[code]);
        if (code == CODE_F32 || code == CODE_F64) {
            refused(&cfg, MOE_E_DATA,
                    code == CODE_F32 ? "/a.idx: offset 17: elements are float32"
                                     : "/a.idx: offset 17: elements are float64");
            continue;
        }
        data_reader *r = opened(&cfg);
        ck_assert_int_eq(data_count_windows(r, DATA_TRAIN), 5);
        ck_assert_uint_eq(data_file_at(r, 0)->documents, 2);
        for (int64_t i = 0; i < 5; i++) {
            int32_t tokens[8], targets[8];
            ck_ok(data_fill(r, DATA_TRAIN, i, 1, tokens, targets, NULL, err));
            for (int64_t j = 0; j < 8; j++) {
                ck_assert_int_eq(tokens[j], firsts[code] + 8 * data_window_of(r, DATA_TRAIN, i) + j);
                ck_assert_int_eq(targets[j], tokens[j] + 1);
            }
        }
        data_close(r);
    }
}
END_TEST

/* [a b c] [d e f g] [h] [] [i j]: d is never the target of c where documents are kept apart; where they are not, the
 * stream runs on. */
START_TEST(C092_targets_stay_within_a_document) {
    static const int32_t sizes[] = {3, 4, 1, 0, 2};
    static const int32_t apart[8] = {1, 2, -1, 4, 5, 6, -1, -1}, on[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int32_t numbers[8] = {0, 0, 0, 1, 1, 1, 1, 2}, zeros[8] = {0};
    const char *name = "a";
    int32_t tokens[8], targets[8], docs[8];
    write_documents("a", CODE_U16, sizes, 5, 0);
    for (int documents = 0; documents < 2; documents++) {
        data_config cfg = config(&name, 1, 8);
        cfg.documents = documents;
        data_reader *r = opened(&cfg);
        ck_ok(data_fill(r, DATA_TRAIN, 0, 1, tokens, targets, docs, err));
        for (int i = 0; i < 8; i++) ck_assert_int_eq(tokens[i], i);
        ck_assert_mem_eq(targets, documents ? apart : on, sizeof targets);
        ck_assert_mem_eq(docs, documents ? numbers : zeros, sizeof docs);
        data_close(r);
        cfg.seq_len = 4; /* the window begins within a document, and its end is one's end */
        r = opened(&cfg);
        int64_t sample = data_window_of(r, DATA_TRAIN, 0) != 1;
        ck_ok(data_fill(r, DATA_TRAIN, sample, 1, tokens, targets, docs, err));
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(tokens[i], 4 + i);
            ck_assert_int_eq(targets[i], documents ? apart[4 + i] : on[4 + i]);
            ck_assert_int_eq(docs[i], documents && i == 3);
        }
        data_close(r);
    }
}
END_TEST

START_TEST(documents_of_one_token_have_nothing_to_learn) {
    static const int32_t sizes[] = {1, 1, 1, 1, 1, 1};
    const char *name = "a";
    write_documents("a", CODE_U16, sizes, 6, 0);
    data_config cfg = config(&name, 1, 2);
    data_close(opened(&cfg));
    cfg.documents = 1;
    refused(&cfg, MOE_E_ARG, "train: no document has two tokens");
}
END_TEST

/* Borders at 0 10 14 30 31 50 of 50 tokens. */
START_TEST(validation_is_cut_at_the_nearest_document) {
    static const int32_t sizes[] = {10, 4, 16, 1, 19};
    static const struct {
        double fraction;
        uint64_t train;
    } rows[] = {{0, 50},   {0.01, 50}, {0.18, 50}, {0.19, 50}, {0.2, 31},  {0.38, 31}, {0.4, 30},
                {0.6, 14}, {0.56, 14}, {0.57, 14}, {0.76, 10}, {0.88, 10}, {0.92, 0},  {0.98, 0}};
    const char *name = "a";
    write_documents("a", CODE_U16, sizes, 5, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        data_config cfg = config(&name, 1, 4);
        cfg.valid_fraction = rows[i].fraction;
        if (rows[i].train == 0) {
            refused(&cfg, MOE_E_ARG, "train: found 0 tokens, but one window of sequence length 4 needs 5");
            continue;
        }
        if (rows[i].train == 50 && i > 0) {
            refused(&cfg, MOE_E_ARG, "valid: found 0 tokens, but one window of sequence length 4 needs 5");
            continue;
        }
        data_reader *r = opened(&cfg);
        ck_assert_msg(data_file_at(r, 0)->train == rows[i].train, "%g: %lu", rows[i].fraction,
                      (unsigned long)data_file_at(r, 0)->train);
        ck_assert_uint_eq(data_count_tokens(r, DATA_VALID), 50 - rows[i].train);
        int32_t tokens[4], targets[4];
        for (int64_t w = 0; w < data_count_windows(r, DATA_TRAIN); w++) {
            ck_ok(data_fill(r, DATA_TRAIN, w, 1, tokens, targets, NULL, err));
            for (int j = 0; j < 4; j++)
                ck_assert((uint64_t)tokens[j] < rows[i].train && targets[j] < (int)rows[i].train);
        }
        for (int64_t w = 0; w < data_count_windows(r, DATA_VALID); w++) {
            ck_ok(data_fill(r, DATA_VALID, w, 1, tokens, targets, NULL, err));
            for (int j = 0; j < 4; j++) ck_assert_int_eq(tokens[j], (int)rows[i].train + w * 4 + j);
        }
        data_close(r);
    }
}
END_TEST

START_TEST(C098_id_outside_the_vocabulary_names_the_bin) {
    static const int32_t sizes[] = {9};
    static const int64_t documents[] = {0, 1}, tokens_u[] = {0, 1, 2, 65535, 4, 5, 6, 7, 8},
                         tokens_i[] = {0, 1, 2, 512, 4, 5, 6, 7, 8}, tokens_m[] = {0, 1, 2, 3, 4, 5, 6, 7, -1};
    const char *name = "a";
    data_config cfg = config(&name, 1, 8);
    cfg.vocab = 512;
    static const struct {
        uint8_t code;
        const int64_t *tokens;
        const char *text;
    } rows[] = {{CODE_U16, tokens_u, "/a.bin: offset 6: token id 65535 (uint16) is not in 0..511"},
                {CODE_I16, tokens_m, "/a.bin: offset 16: token id -1 (int16) is not in 0..511"},
                {CODE_I32, tokens_i, "/a.bin: offset 12: token id 512 (int32) is not in 0..511"},
                {CODE_I64, tokens_m, "/a.bin: offset 64: token id -1 (int64) is not in 0..511"},
                {CODE_I8, tokens_m, "/a.bin: offset 8: token id -1 (int8) is not in 0..511"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t tokens[8], targets[8];
        write_megatron("a", rows[i].code, sizes, 1, documents, 2, rows[i].tokens, 0);
        data_reader *r = opened(&cfg);
        ck_fails(data_fill(r, DATA_TRAIN, 0, 1, tokens, targets, NULL, err), MOE_E_DATA, rows[i].text);
        data_close(r);
    }
}
END_TEST

START_TEST(names_go_with_and_without_endings) {
    static const int32_t sizes[] = {20};
    static const struct {
        const char *pattern;
        uint64_t files;
    } rows[] = {{"web_a", 1},        {"web_a.bin", 1}, {"web_a.idx", 1}, {"web_*", 2},
                {"web_*.bin", 2},    {"web_*.idx", 2}, {"web_?.*", 2},   {"link", 1},
                {"sub/../web_b", 1}, {"web_[ab]", 2},  {"sub", 1}};
    write_documents("web_a", CODE_U16, sizes, 1, 0);
    write_documents("web_b", CODE_U16, sizes, 1, 100);
    write_documents("sub", CODE_U16, sizes, 1, 100); /* beside a directory of this name */
    ck_assert_int_eq(mkdir(scratch_path("sub"), 0700), 0);
    ck_assert_int_eq(symlink("web_a.bin", scratch_path("link.bin")), 0); /* each of the two has its own real name */
    ck_assert_int_eq(symlink("web_a.idx", scratch_path("link.idx")), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        data_config cfg = config(&rows[i].pattern, 1, 8);
        data_reader *r = opened(&cfg);
        ck_assert_msg(data_count_files(r) == rows[i].files, "%s: %lu files", rows[i].pattern,
                      (unsigned long)data_count_files(r));
        ck_assert_uint_eq(data_count_tokens(r, DATA_TRAIN), 20 * rows[i].files);
        data_close(r);
    }
    static const char *const all[] = {"web_a", "link.bin", "web_a.idx", "web_*"};
    data_config cfg = config(all, 4, 8);
    data_reader *r = opened(&cfg);
    ck_assert_uint_eq(data_count_files(r), 2); /* each once */
    data_close(r);
}
END_TEST

START_TEST(incomplete_sets_are_refused) {
    static const int32_t sizes[] = {20};
    const char *pattern = "a";
    data_config cfg = config(&pattern, 1, 8);
    refused(&cfg, MOE_E_ARG, "train: no file matches 'a'");
    write_documents("a", CODE_U16, sizes, 1, 0);
    ck_assert_int_eq(rename(scratch_path("a.bin"), scratch_path("kept")), 0);
    refused(&cfg, MOE_E_IO, "/a.idx: has no .bin file beside it");
    ck_assert_int_eq(symlink("nowhere", scratch_path("a.bin")), 0);
    refused(&cfg, MOE_E_IO, "/a.bin: cannot open: No such file");
    ck_assert_int_eq(unlink(scratch_path("a.bin")), 0);
    scratch_save("a.bin", "", 0);
    refused(&cfg, MOE_E_DATA, "/a.bin: offset 0: has no token");
    scratch_save("a.bin", "123", 3);
    refused(&cfg, MOE_E_DATA,
            "/a.idx: offset 34: sequence 0 of 20 tokens at byte 0 ends past the .bin file of 3 bytes");
    ck_assert_int_eq(rename(scratch_path("kept"), scratch_path("a.bin")), 0);
    data_close(opened(&cfg));
    scratch_save("a.idx", "", 0);
    refused(&cfg, MOE_E_DATA, "/a.idx: ends at offset 0 within its header");
    ck_assert_int_eq(unlink(scratch_path("a.idx")), 0);
    refused(&cfg, MOE_E_IO, "/a.bin: has no .idx file beside it");
    scratch_save("a.txt", "x", 1);
    pattern = "a.*";
    refused(&cfg, MOE_E_IO, "/a.bin: has no .idx file beside it");
    pattern = "a.txt";
    refused(&cfg, MOE_E_ARG, "/a.txt: is neither a .bin nor an .idx file");
}
END_TEST

START_TEST(a_set_cut_in_use_is_an_error_and_no_crash) {
    static const int32_t sizes[] = {100, 19900};
    const char *name = "a";
    int32_t tokens[8], targets[8];
    for (int which = 0; which < 2; which++) {
        write_documents("a", CODE_U16, sizes, 2, 0);
        data_config cfg = config(&name, 1, 8);
        cfg.documents = 1;
        data_reader *r = opened(&cfg);
        ck_ok(data_fill(r, DATA_TRAIN, 0, 1, tokens, targets, NULL, err));
        ck_assert_int_eq(truncate(scratch_path(which ? "a.idx" : "a.bin"), 30), 0);
        ck_fails(data_fill(r, DATA_TRAIN, 0, 1, tokens, targets, NULL, err), MOE_E_DATA,
                 which ? "/a.idx: was cut from " : "/a.bin: was cut from 40000 to 30 bytes while in use");
        data_close(r);
    }
}
END_TEST

START_TEST(hash_sees_the_index) {
    static const int32_t one[] = {20}, two[] = {12, 8}, other[] = {8, 12};
    uint64_t hashes[3];
    const char *name = "a";
    for (int i = 0; i < 3; i++) {
        write_documents("a", CODE_U16, i == 0 ? one : i == 1 ? two : other, i ? 2 : 1, 0);
        data_config cfg = config(&name, 1, 8);
        data_reader *r = opened(&cfg);
        hashes[i] = data_hash(r);
        data_close(r);
    }
    ck_assert(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
}
END_TEST

/* ---- every window against a plain model ---- */
enum { FILES = 4, MOST = 2048 };
typedef struct model {
    int32_t token[MOST], file[MOST], document[MOST]; /* of a stream, position by position */
    int64_t n;
} model;

/* Writes a set of random documents, sequences in them, some empty; its tokens go to the end of the model. */
static void grow(model *m, const char *name, int32_t file, moe_random_key key) {
    int32_t sizes[40];
    int64_t documents[400], tokens[MOST];
    size_t n = 0, n_documents = 0, n_tokens = 0;
    while (n < 30 && n_documents < 99) {
        documents[n_documents] = (int64_t)n;
        uint32_t sequences = moe_random_words(key, n_documents, 1).v[0] % 3;
        for (uint32_t q = 0; q < sequences; q++, n++) {
            sizes[n] = (int32_t)(moe_random_words(key, n, 2).v[0] % 14);
            for (int32_t t = 0; t < sizes[n]; t++, n_tokens++, m->n++) {
                ck_assert_int_lt(m->n, MOST);
                tokens[n_tokens] = m->token[m->n] = (int32_t)(moe_random_words(key, n_tokens, 3).v[0] % 1000);
                m->file[m->n] = file;
                m->document[m->n] = (int32_t)(file * 100 + (int32_t)n_documents);
            }
        }
        n_documents++;
    }
    documents[n_documents] = (int64_t)n;
    write_megatron(name, file % 2 ? CODE_I32 : CODE_U16, sizes, n, documents, n_documents + 1, tokens, 0);
}

static void check_window(const model *m, int64_t window, int64_t S, int documents, const int32_t *tokens,
                         const int32_t *targets, const int32_t *docs) {
    const int32_t *part = documents ? m->document : m->file;
    int32_t number = 0;
    for (int64_t j = 0; j < S; j++) {
        int64_t at = window * S + j;
        ck_assert_int_lt(at + 1, m->n);
        ck_assert_int_eq(tokens[j], m->token[at]);
        ck_assert_int_eq(targets[j], part[at + 1] == part[at] ? m->token[at + 1] : -1);
        if (documents && j > 0) number += part[at] != part[at - 1];
        ck_assert_int_eq(docs[j], number);
    }
}

/* No window skipped or read twice in an epoch, each as the model has it, in slices of several ranks. */
START_TEST(C097_every_window_is_that_of_the_stream) {
    static model streams[FILES];
    static const char *const names[FILES] = {"a", "b", "c", "d"};
    static const double weights[FILES] = {4, 1, 2, 3};
    for (uint64_t round = 0; round < 16; round++) {
        int documents = round & 1, weighted = round >> 1 & 1;
        int64_t S = 1 + (int64_t)round * 3;
        memset(streams, 0, sizeof streams);
        for (int32_t f = 0; f < FILES; f++)
            grow(&streams[weighted ? f : 0], names[f], f, moe_random_key_make(round, MOE_RANDOM_DATA, names[f]));
        data_config cfg = config(names, FILES, S);
        cfg.documents = documents;
        cfg.weights = weights;
        cfg.n_weights = weighted ? FILES : 0;
        cfg.vocab = 1000;
        data_reader *r = opened(&cfg);
        int64_t windows = data_count_windows(r, DATA_TRAIN), base[FILES + 1] = {0};
        for (int k = 0; k < FILES; k++) base[k + 1] = base[k] + (streams[k].n ? (streams[k].n - 1) / S : 0);
        ck_assert_int_eq(windows, base[FILES]);
        static char seen[MOST];
        static int32_t tokens[4 * MOST], targets[4 * MOST], docs[4 * MOST];
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < windows; i += 4) {
            int64_t n = windows - i < 4 ? windows - i : 4; /* a batch over ranks */
            ck_ok(data_fill(r, DATA_TRAIN, i, n, tokens, targets, docs, err));
            for (int64_t q = 0; q < n; q++) {
                int64_t window = data_window_of(r, DATA_TRAIN, i + q);
                uint64_t k = data_source_of(r, DATA_TRAIN, i + q);
                check_window(&streams[k], window - base[k], S, documents, tokens + q * S, targets + q * S,
                             docs + q * S);
                if (!weighted) ck_assert_int_eq(seen[window]++, 0);
            }
        }
        data_close(r);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("data_megatron");
    TCase *tc = tcase_create("megatron");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, every_integer_type_is_read);
    tcase_add_test(tc, C092_targets_stay_within_a_document);
    tcase_add_test(tc, documents_of_one_token_have_nothing_to_learn);
    tcase_add_test(tc, validation_is_cut_at_the_nearest_document);
    tcase_add_test(tc, C098_id_outside_the_vocabulary_names_the_bin);
    tcase_add_test(tc, names_go_with_and_without_endings);
    tcase_add_test(tc, incomplete_sets_are_refused);
    tcase_add_test(tc, a_set_cut_in_use_is_an_error_and_no_crash);
    tcase_add_test(tc, hash_sees_the_index);
    tcase_add_test(tc, C097_every_window_is_that_of_the_stream);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
