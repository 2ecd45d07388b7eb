/* Index (.idx) of a Megatron-LM data set, version 1, as megatron/core/datasets/indexed_dataset.py of Megatron-LM writes
 * it. All numbers little-endian, nothing aligned:
 *   offset 0   "MMIDIDX\0\0"
 *   9          uint64 version = 1
 *   17         uint8 element type of the .bin: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32,
 *              8 uint16
 *   18         uint64 n_sequences
 *   26         uint64 entries of the document index = documents + 1
 *   34         int32 sizes[n_sequences]         tokens of each sequence
 *   then       int64 pointers[n_sequences]      byte offset of each in the .bin: the sum of those before
 *   then       int64 documents[documents + 1]   first sequence of each document: 0, ..., n_sequences
 * A file with one int8 a sequence more holds the modes of a multimodal set, which is refused. Sequences follow each
 * other without gaps, so the .bin is one array of tokens and the index says where documents part. */
#ifndef CORE_DATA_IDX_H
#define CORE_DATA_IDX_H
#include <moe/base.h>
#include <stdint.h>

#define IDX_HEADER 34u

typedef struct idx_view {
    int32_t element;                             /* ELEMENT_* */
    uint64_t n_sequences, n_documents, n_tokens; /* each >= 1; n_tokens * element size = size of the .bin */
    uint64_t longest;                            /* tokens of the longest document */
    const uint8_t *sizes, *pointers, *documents; /* in the parsed bytes */
} idx_view;

/* Checks every byte of bytes[n] (the whole .idx) against the format, itself and the size of its .bin, and fills *out
 * (which borrows bytes) on success. path: the file's name, for errors. Never reads outside bytes, whatever they are.
 * MOE_E_DATA with offset and reason. A document without a sequence and a sequence without a token are legal: the
 * original tools write them. Any thread. */
moe_status idx_parse(const void *bytes, uint64_t n, uint64_t bin_bytes, const char *path, idx_view *out, moe_err *err);

/* First token of document d; n_tokens for d = n_documents. */
uint64_t idx_start(const idx_view *v, uint64_t d);
/* The least d in 1..n_documents with idx_start(d) > token; token < n_tokens. */
uint64_t idx_after(const idx_view *v, uint64_t token);
#endif
