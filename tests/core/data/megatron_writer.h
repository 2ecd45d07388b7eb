/* Writes Megatron-LM data sets (.bin and .idx, core/data/idx.h) of every element type, sound ones and, by patching the
 * image of an index, damaged ones. After core/io/scratch.h. */
#ifndef TESTS_CORE_DATA_MEGATRON_WRITER_H
#define TESTS_CORE_DATA_MEGATRON_WRITER_H
#include <stdint.h>

#include "core/io/scratch.h"

enum { CODE_U8 = 1, CODE_I8, CODE_I16, CODE_I32, CODE_I64, CODE_F64, CODE_F32, CODE_U16 };
static const uint32_t code_bytes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};

typedef struct image {
    uint8_t bytes[1 << 16];
    size_t n;
} image;

/* The lowest `width` bytes of value at an offset, lowest first. */
static inline void image_patch(image *im, size_t offset, uint32_t width, int64_t value) {
    ck_assert_uint_le(offset + width, sizeof im->bytes);
    for (uint32_t i = 0; i < width; i++) im->bytes[offset + i] = (uint8_t)((uint64_t)value >> 8 * i);
}

static inline void image_put(image *im, uint32_t width, int64_t value) {
    image_patch(im, im->n, width, value);
    im->n += width;
}

/* sizes[n]: tokens of each sequence; documents[entries]: first sequence of each document, and n. */
static inline void image_index(image *im, uint8_t code, const int32_t *sizes, size_t n, const int64_t *documents,
                               size_t entries) {
    int64_t pointer = 0;
    memcpy(im->bytes, "MMIDIDX\0", 9);
    im->n = 9;
    image_put(im, 8, 1);
    image_put(im, 1, code);
    image_put(im, 8, (int64_t)n);
    image_put(im, 8, (int64_t)entries);
    for (size_t i = 0; i < n; i++) image_put(im, 4, sizes[i]);
    for (size_t i = 0; i < n; pointer += sizes[i++] * (int64_t)code_bytes[code]) image_put(im, 8, pointer);
    for (size_t i = 0; i < entries; i++) image_put(im, 8, documents[i]);
}

/* name.bin and name.idx, token i is tokens[i], or first + i with tokens NULL. */
static inline void write_megatron(const char *name, uint8_t code, const int32_t *sizes, size_t n,
                                  const int64_t *documents, size_t entries, const int64_t *tokens, int64_t first) {
    static image im;
    char file[64];
    image_index(&im, code, sizes, n, documents, entries);
    snprintf(file, sizeof file, "%s.idx", name);
    scratch_save(file, im.bytes, im.n);
    im.n = 0;
    int64_t total = 0;
    for (size_t i = 0; i < n; i++) total += sizes[i];
    for (int64_t i = 0; i < total; i++) image_put(&im, code_bytes[code], tokens ? tokens[i] : first + i);
    snprintf(file, sizeof file, "%s.bin", name);
    scratch_save(file, im.bytes, im.n);
}

/* Documents of one sequence each: sizes[n]. */
static inline void write_documents(const char *name, uint8_t code, const int32_t *sizes, size_t n, int64_t first) {
    int64_t documents[512];
    ck_assert_uint_lt(n, 512);
    for (size_t i = 0; i <= n; i++) documents[i] = (int64_t)i;
    write_megatron(name, code, sizes, n, documents, n + 1, NULL, first);
}
#endif
