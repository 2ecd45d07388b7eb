/* The index parser: what it takes, and that it refuses every damaged index with place and reason. */
#include <moe/random.h>

#include "core/data/megatron_writer.h"
#include "data/element.h"
#include "data/idx.h"

/* 5 sequences of uint16, 20 tokens, 3 documents. Sizes lie at 34, pointers at 54, documents at 94, the end is 126. */
static const int32_t sizes[5] = {4, 6, 1, 7, 2};
static const int64_t documents[4] = {0, 2, 3, 5};
enum { SIZES = 34, POINTERS = 54, DOCUMENTS = 94, END = 126, BIN = 40 };

/* Parses from memory of just that size, so that a sanitizer sees each byte too far. */
static moe_status parse(const image *im, uint64_t bin_bytes, idx_view *v, moe_err *err) {
    uint8_t *copy = malloc(im->n ? im->n : 1);
    memcpy(copy, im->bytes, im->n);
    moe_status s = idx_parse(copy, im->n, bin_bytes, "x.idx", v, err);
    for (uint64_t d = 0; s == MOE_OK && d < v->n_documents; d++) { /* whatever is accepted can be used */
        uint64_t start = idx_start(v, d), end = idx_start(v, d + 1);
        ck_assert(start <= end && end <= v->n_tokens && end - start <= v->longest);
        if (start < end) {
            uint64_t after = idx_after(v, start);
            ck_assert(after >= 1 && after <= v->n_documents);
            ck_assert(idx_start(v, after - 1) <= start && start < idx_start(v, after));
        }
    }
    free(copy);
    return s;
}

static image sound(void) {
    image im;
    image_index(&im, CODE_U16, sizes, 5, documents, 4);
    return im;
}

START_TEST(finds_documents) {
    static const int32_t s[6] = {0, 3, 2, 0, 5, 0};
    static const int64_t d[7] = {0, 0, 1, 3, 3, 5, 6}; /* [] [empty] [3 2] [] [empty 5] [empty] */
    static const uint64_t starts[7] = {0, 0, 0, 5, 5, 10, 10}, after[10] = {3, 3, 3, 3, 3, 5, 5, 5, 5, 5};
    image im;
    idx_view v;
    image_index(&im, CODE_I32, s, 6, d, 7);
    ck_ok(idx_parse(im.bytes, im.n, 40, "x.idx", &v, err));
    ck_assert_uint_eq(v.n_sequences, 6);
    ck_assert_uint_eq(v.n_documents, 6);
    ck_assert_uint_eq(v.n_tokens, 10);
    ck_assert_uint_eq(v.longest, 5);
    for (uint64_t i = 0; i < 7; i++) ck_assert_uint_eq(idx_start(&v, i), starts[i]);
    for (uint64_t i = 0; i < 10; i++) ck_assert_uint_eq(idx_after(&v, i), after[i]);
}
END_TEST

START_TEST(takes_integers_and_refuses_floats_by_name) {
    static const int elements[] = {-1,          ELEMENT_U8, ELEMENT_I8, ELEMENT_I16, ELEMENT_I32,
                                   ELEMENT_I64, -1,         -1,         ELEMENT_U16};
    for (uint8_t code = 1; code <= 8; code++) {
        image im;
        idx_view v;
        image_index(&im, code, sizes, 5, documents, 4);
        if (code == CODE_F64 || code == CODE_F32) {
            ck_fails(parse(&im, 20 * code_bytes[code], &v, err), MOE_E_DATA,
                     code == CODE_F64 ? "offset 17: elements are float64" : "offset 17: elements are float32");
            continue;
        }
        ck_ok(parse(&im, 20 * code_bytes[code], &v, err));
        ck_assert_int_eq(v.element, elements[code]);
        ck_assert_uint_eq(element_bytes(v.element), code_bytes[code]);
        ck_assert_uint_eq(v.n_tokens, 20);
        ck_assert_uint_eq(v.n_documents, 3);
        ck_assert_uint_eq(v.longest, 10);
    }
}
END_TEST

/* One number of a sound index made wrong; or its length, or that of the .bin. */
typedef struct damage {
    size_t offset;
    uint32_t width;
    int64_t value;
    size_t length;
    uint64_t bin;
    const char *text;
} damage;

static const damage damages[] = {
    /* header */
    {0, 0, 0, 0, BIN, "ends at offset 0 within its header"},
    {0, 0, 0, 8, BIN, "ends at offset 8 within its header"},
    {0, 0, 0, 33, BIN, "ends at offset 33 within its header"},
    {0, 1, 'm', END, BIN, "offset 0: does not begin with MMIDIDX"},
    {8, 1, 1, END, BIN, "offset 0: does not begin with MMIDIDX"},
    {9, 8, 0, END, BIN, "offset 9: version 0, not 1"},
    {9, 8, 2, END, BIN, "offset 9: version 2, not 1"},
    {13, 1, 1, END, BIN, "offset 9: version 4294967297, not 1"},
    {17, 1, 0, END, BIN, "offset 17: element type 0 is not in 1..8"},
    {17, 1, 9, END, BIN, "offset 17: element type 9 is not in 1..8"},
    {17, 1, 255, END, BIN, "offset 17: element type 255 is not in 1..8"},
    {17, 1, CODE_F64, END, BIN, "offset 17: elements are float64"},
    {17, 1, CODE_F32, END, BIN, "offset 17: elements are float32"},
    /* counts */
    {18, 8, 0, END, BIN, "offset 18: has no sequence"},
    {18, 8, 8, END, BIN, "offset 18: 8 sequences do not fit in the 92 bytes"},
    {18, 8, -1, END, BIN, "offset 18: 18446744073709551615 sequences do not fit"},
    {18, 8, INT64_C(0x1555555555555556), END, BIN, "sequences do not fit"}, /* times 12: 8, by overflow */
    {18, 8, 4, END, BIN, "offset 114: 12 bytes too many after the document index"},
    {18, 8, 6, END, BIN, "offset 26: a document index of 4 entries does not fit in the 20 bytes"},
    {26, 8, 0, END, BIN, "offset 26: a document index of 0 entries has no document"},
    {26, 8, 1, END, BIN, "offset 26: a document index of 1 entries has no document"},
    {26, 8, 5, END, BIN, "offset 26: a document index of 5 entries does not fit in the 32 bytes"},
    {26, 8, 3, END, BIN, "offset 118: 8 bytes too many after the document index"},
    {26, 8, -1, END, BIN, "a document index of 18446744073709551615 entries does not fit"},
    {26, 8, INT64_C(1) << 61, END, BIN, "entries does not fit"}, /* times 8: 0, by overflow */
    {0, 0, 0, END - 1, BIN, "offset 26: a document index of 4 entries does not fit in the 31 bytes"},
    {0, 0, 0, DOCUMENTS, BIN, "offset 26: a document index of 4 entries does not fit in the 0 bytes"},
    {0, 0, 0, POINTERS, BIN, "offset 18: 5 sequences do not fit in the 20 bytes"},
    {0, 0, 0, 34, BIN, "offset 18: 5 sequences do not fit in the 0 bytes"},
    {0, 0, 0, END + 1, BIN, "offset 126: 1 bytes too many"},
    {0, 0, 0, END + 5, BIN, "offset 126: has modes of sequences: multimodal"},
    /* sizes and pointers */
    {SIZES, 4, -1, END, BIN, "offset 34: size -1 of sequence 0 is negative"},
    {SIZES + 16, 4, INT32_MIN, END, BIN, "offset 50: size -2147483648 of sequence 4 is negative"},
    {SIZES + 4, 4, 7, END, BIN, "offset 70: pointer 20 of sequence 2 does not follow from the sizes before it; 22 is"},
    {SIZES + 12, 4, INT32_MAX, END, BIN, "offset 46: sequence 3 of 2147483647 tokens at byte 22 ends past the .bin"},
    {SIZES + 16, 4, 3, END, BIN, "offset 50: sequence 4 of 3 tokens at byte 36 ends past the .bin file of 40 bytes"},
    {SIZES + 16, 4, 1, END, BIN, "offset 34: its sequences have 38 bytes, the .bin file has 40"},
    {POINTERS, 8, 2, END, BIN, "offset 54: pointer 2 of sequence 0 does not follow"},
    {POINTERS + 8, 8, 9, END, BIN,
     "offset 62: pointer 9 of sequence 1 is not a multiple of the element size; 8 is due"},
    {POINTERS + 8, 8, -8, END, BIN, "offset 62: pointer -8 of sequence 1 is negative"},
    {POINTERS + 32, 8, 42, END, BIN, "offset 86: pointer 42 of sequence 4 is past the end of the .bin file"},
    {POINTERS + 32, 8, INT64_MAX, END, BIN, "offset 86: pointer 9223372036854775807 of sequence 4 is past the end"},
    {POINTERS + 16, 8, 8, END, BIN, "offset 70: pointer 8 of sequence 2 does not follow"},
    {17, 1, CODE_I32, END, BIN, "offset 62: pointer 8 of sequence 1 does not follow from the sizes before it; 16"},
    /* the .bin */
    {0, 0, 0, END, 0, "offset 34: sequence 0 of 4 tokens at byte 0 ends past the .bin file of 0 bytes"},
    {0, 0, 0, END, BIN - 1, "ends past the .bin file of 39 bytes"},
    {0, 0, 0, END, BIN - 2, "ends past the .bin file of 38 bytes"},
    {0, 0, 0, END, BIN + 1, "its sequences have 40 bytes, the .bin file has 41"},
    {0, 0, 0, END, BIN + 2, "its sequences have 40 bytes, the .bin file has 42: they are not of one data set"},
    /* documents */
    {DOCUMENTS, 8, 1, END, BIN, "offset 94: entry 0 of the document index, 1, is the first and not 0"},
    {DOCUMENTS + 16, 8, 1, END, BIN, "offset 110: entry 2 of the document index, 1, is less than the one before"},
    {DOCUMENTS + 8, 8, 4, END, BIN, "offset 110: entry 2 of the document index, 3, is less than the one before"},
    {DOCUMENTS + 8, 8, 6, END, BIN, "offset 102: entry 1 of the document index, 6, is not a number of a sequence"},
    {DOCUMENTS + 8, 8, -1, END, BIN, "offset 102: entry 1 of the document index, -1, is not a number of a sequence"},
    {DOCUMENTS + 24, 8, 4, END, BIN, "offset 118: entry 3 of the document index, 4, is the last and not the number"},
    {DOCUMENTS + 24, 8, 6, END, BIN, "offset 118: entry 3 of the document index, 6, is not a number of a sequence"},
};

static void check_damage(const damage *d) {
    image im = sound();
    idx_view v, untouched;
    ck_assert_uint_eq(im.n, END);
    ck_ok(parse(&im, BIN, &v, err));
    memset(&v, 0x5a, sizeof v);
    untouched = v;
    image_patch(&im, d->offset, d->width, d->value);
    memset(im.bytes + END, 0, 16);
    im.n = d->length;
    ck_fails(parse(&im, d->bin, &v, err), MOE_E_DATA, d->text);
    ck_fails(parse(&im, d->bin, &v, err), MOE_E_DATA, "x.idx: ");
    ck_assert_mem_eq(&v, &untouched, sizeof v);
}

START_TEST(damage_is_refused_with_place_and_reason) {
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) check_damage(&damages[i]);
}
END_TEST

START_TEST(a_set_without_tokens_is_refused) {
    static const int32_t none[2] = {0, 0};
    static const int64_t two[3] = {0, 1, 2};
    image im;
    idx_view v;
    image_index(&im, CODE_U16, none, 2, two, 3);
    ck_fails(parse(&im, 0, &v, err), MOE_E_DATA, "offset 34: has no token");
}
END_TEST

START_TEST(every_cut_is_refused) {
    for (size_t n = 0; n < END; n++) {
        image im = sound();
        idx_view v;
        im.n = n;
        ck_fails(parse(&im, BIN, &v, err), MOE_E_DATA, "x.idx: ");
    }
}
END_TEST

/* Numbers overwritten at random: refused, or usable; parse() looks, and the sanitizers. */
START_TEST(random_damage_does_no_harm) {
    moe_random_key key = moe_random_key_make(1, MOE_RANDOM_DATA, "damage");
    static const int64_t values[] = {0, 1, 2, 3, 4, 5, 6, 8, 20, 40, -1, INT32_MAX, INT64_MAX, INT64_MIN};
    int accepted = 0;
    for (uint64_t round = 0; round < 5000; round++) {
        image im = sound();
        idx_view v;
        moe_err err;
        for (uint64_t change = 0; change <= round % 3; change++) {
            moe_random_block r = moe_random_words(key, round, change);
            uint32_t width = 1u << r.v[0] % 4;
            image_patch(&im, r.v[1] % (END - 8), width, values[r.v[2] % (sizeof values / sizeof *values)]);
            if (r.v[3] % 8 == 0) im.n = r.v[3] / 8 % (END + 8);
        }
        accepted += parse(&im, BIN, &v, &err) == MOE_OK;
    }
    ck_assert_int_gt(accepted, 30); /* some changes change nothing, or only move a document */
    ck_assert_int_lt(accepted, 3000);
}
END_TEST

/* Sets of 2 and of 3 one-sequence documents, merged: 0 1 2 3 4 5. The faults seen elsewhere: indices of the second set
 * not moved, moved by one too few, its 0 kept. */
START_TEST(C096_merged_document_index) {
    static const int32_t five[5] = {4, 6, 1, 7, 2};
    static const struct {
        int64_t entries[7];
        size_t n;
        const char *text;
    } rows[] = {
        {{0, 1, 2, 3, 4, 5}, 6, NULL},
        {{0, 1, 2, 1, 2, 3}, 6, "entry 3 of the document index, 1, is less than the one before"},
        {{0, 1, 2, 2, 3, 4}, 6, "entry 5 of the document index, 4, is the last and not the number of sequences"},
        {{0, 1, 2, 0, 1, 2, 3}, 7, "entry 3 of the document index, 0, is less than the one before"},
        {{1, 2, 3, 4, 5}, 5, "entry 0 of the document index, 1, is the first and not 0"},
        {{0, 1, 2, 3, 4, 6}, 6, "entry 5 of the document index, 6, is not a number of a sequence"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        image im;
        idx_view v;
        image_index(&im, CODE_U16, five, 5, rows[i].entries, rows[i].n);
        if (rows[i].text) {
            ck_fails(parse(&im, BIN, &v, err), MOE_E_DATA, rows[i].text);
            continue;
        }
        ck_ok(parse(&im, BIN, &v, err));
        ck_assert_uint_eq(v.n_documents, 5);
        ck_assert_uint_eq(v.n_sequences, 5);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("data_idx");
    TCase *tc = tcase_create("idx");
    tcase_add_test(tc, finds_documents);
    tcase_add_test(tc, takes_integers_and_refuses_floats_by_name);
    tcase_add_test(tc, damage_is_refused_with_place_and_reason);
    tcase_add_test(tc, a_set_without_tokens_is_refused);
    tcase_add_test(tc, every_cut_is_refused);
    tcase_add_test(tc, random_damage_does_no_harm);
    tcase_add_test(tc, C096_merged_document_index);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
