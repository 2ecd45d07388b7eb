/* Parser of Megatron-LM indices; see idx.h. Works on memory alone, so a fuzzer can drive it. */
#include "data/idx.h"

#include <inttypes.h>
#include <string.h>

#include "data/element.h"
#include "io/fs.h"

static const uint8_t magic[9] = "MMIDIDX\0"; /* and the NUL of the literal */

static uint64_t size_at(const idx_view *v, uint64_t i) {
    return load_le(v->sizes + 4 * i, 4);
}
static uint64_t pointer_at(const idx_view *v, uint64_t i) {
    return load_le(v->pointers + 8 * i, 8);
}
static uint64_t document_at(const idx_view *v, uint64_t i) {
    return load_le(v->documents + 8 * i, 8);
}

uint64_t idx_start(const idx_view *v, uint64_t d) {
    uint64_t sequence = document_at(v, d);
    return sequence < v->n_sequences ? pointer_at(v, sequence) / element_bytes(v->element) : v->n_tokens;
}

uint64_t idx_after(const idx_view *v, uint64_t token) {
    uint64_t low = 0, high = v->n_documents; /* start(low) <= token < start(high) */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (idx_start(v, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* By code of the format; element -1: not a type of tokens. */
static const struct {
    const char *name;
    int32_t element;
} types[] = {{"none", -1},           {"uint8", ELEMENT_U8},  {"int8", ELEMENT_I8},
             {"int16", ELEMENT_I16}, {"int32", ELEMENT_I32}, {"int64", ELEMENT_I64},
             {"float64", -1},        {"float32", -1},        {"uint16", ELEMENT_U16}};

static moe_status parse_header(const uint8_t *at, uint64_t n, const char *path, idx_view *v, moe_err *err) {
    if (n < IDX_HEADER)
        return fs_fail(err, MOE_E_DATA, path, "ends at offset %" PRIu64 " within its header of %u bytes", n,
                       IDX_HEADER);
    if (memcmp(at, magic, sizeof magic) != 0)
        return fs_fail(err, MOE_E_DATA, path, "offset 0: does not begin with MMIDIDX: not a Megatron index");
    uint64_t version = load_le(at + 9, 8);
    if (version != 1) return fs_fail(err, MOE_E_DATA, path, "offset 9: version %" PRIu64 ", not 1", version);
    uint8_t code = at[17];
    if (code == 0 || code >= sizeof types / sizeof types[0])
        return fs_fail(err, MOE_E_DATA, path, "offset 17: element type %u is not in 1..8", code);
    if (types[code].element < 0)
        return fs_fail(err, MOE_E_DATA, path, "offset 17: elements are %s, and token ids are integers",
                       types[code].name);
    v->element = types[code].element;
    return MOE_OK;
}

/* Counts, and the arrays that they must fill exactly. */
static moe_status parse_counts(const uint8_t *at, uint64_t n, const char *path, idx_view *v, moe_err *err) {
    uint64_t sequences = load_le(at + 18, 8), entries = load_le(at + 26, 8), room = n - IDX_HEADER;
    if (sequences == 0) return fs_fail(err, MOE_E_DATA, path, "offset 18: has no sequence");
    if (sequences > room / 12)
        return fs_fail(err, MOE_E_DATA, path,
                       "offset 18: %" PRIu64 " sequences do not fit in the %" PRIu64 " bytes after the header",
                       sequences, room);
    if (entries < 2)
        return fs_fail(err, MOE_E_DATA, path, "offset 26: a document index of %" PRIu64 " entries has no document",
                       entries);
    room -= 12 * sequences;
    if (entries > room / 8)
        return fs_fail(err, MOE_E_DATA, path,
                       "offset 26: a document index of %" PRIu64 " entries does not fit in the %" PRIu64
                       " bytes after the sequences",
                       entries, room);
    room -= 8 * entries;
    if (room == sequences)
        return fs_fail(err, MOE_E_DATA, path,
                       "offset %" PRIu64 ": has modes of sequences: multimodal data cannot be read", n - room);
    if (room > 0)
        return fs_fail(err, MOE_E_DATA, path, "offset %" PRIu64 ": %" PRIu64 " bytes too many after the document index",
                       n - room, room);
    v->n_sequences = sequences;
    v->n_documents = entries - 1;
    v->sizes = at + IDX_HEADER;
    v->pointers = v->sizes + 4 * sequences;
    v->documents = v->pointers + 8 * sequences;
    return MOE_OK;
}

/* The pointer of sequence i, where byte `expected` of the .bin is due; offset: its own place in the index. */
static moe_status check_pointer(const idx_view *v, uint64_t i, uint64_t expected, uint64_t bin_bytes, uint64_t offset,
                                const char *path, moe_err *err) {
    uint64_t pointer = pointer_at(v, i);
    if (pointer == expected) return MOE_OK;
    const char *why = "does not follow from the sizes before it";
    if (pointer >> 63)
        why = "is negative";
    else if (pointer > bin_bytes)
        why = "is past the end of the .bin file";
    else if (pointer % element_bytes(v->element))
        why = "is not a multiple of the element size";
    return fs_fail(err, MOE_E_DATA, path,
                   "offset %" PRIu64 ": pointer %" PRId64 " of sequence %" PRIu64 " %s; %" PRIu64 " is due", offset,
                   (int64_t)pointer, i, why, expected);
}

static moe_status check_sequences(idx_view *v, uint64_t bin_bytes, const char *path, moe_err *err) {
    uint64_t at = 0, bytes = element_bytes(v->element);
    uint64_t sizes = IDX_HEADER, pointers = sizes + 4 * v->n_sequences;
    for (uint64_t i = 0; i < v->n_sequences; i++) {
        int32_t size = (int32_t)size_at(v, i);
        if (size < 0)
            return fs_fail(err, MOE_E_DATA, path,
                           "offset %" PRIu64 ": size %" PRId32 " of sequence %" PRIu64 " is negative", sizes + 4 * i,
                           size, i);
        moe_status s = check_pointer(v, i, at, bin_bytes, pointers + 8 * i, path, err);
        if (s != MOE_OK) return s;
        if ((uint64_t)size > (bin_bytes - at) / bytes)
            return fs_fail(err, MOE_E_DATA, path,
                           "offset %" PRIu64 ": sequence %" PRIu64 " of %" PRId32 " tokens at byte %" PRIu64
                           " ends past the .bin file of %" PRIu64 " bytes",
                           sizes + 4 * i, i, size, at, bin_bytes);
        at += (uint64_t)size * bytes;
    }
    if (at == 0) return fs_fail(err, MOE_E_DATA, path, "offset %u: has no token", IDX_HEADER);
    if (at != bin_bytes)
        return fs_fail(err, MOE_E_DATA, path,
                       "offset %u: its sequences have %" PRIu64 " bytes, the .bin file has %" PRIu64
                       ": they are not of one data set",
                       IDX_HEADER, at, bin_bytes);
    v->n_tokens = at / bytes;
    return MOE_OK;
}

static moe_status check_documents(idx_view *v, const char *path, moe_err *err) {
    uint64_t last = 0, start = 0, offset = IDX_HEADER + 12 * v->n_sequences;
    for (uint64_t d = 0; d <= v->n_documents; d++) {
        uint64_t entry = document_at(v, d);
        const char *why = NULL;
        if (d == 0 && entry != 0)
            why = "is the first and not 0";
        else if (entry > v->n_sequences)
            why = "is not a number of a sequence";
        else if (entry < last)
            why = "is less than the one before";
        else if (d == v->n_documents && entry != v->n_sequences)
            why = "is the last and not the number of sequences";
        if (why)
            return fs_fail(err, MOE_E_DATA, path,
                           "offset %" PRIu64 ": entry %" PRIu64 " of the document index, %" PRId64 ", %s (%" PRIu64
                           " sequences)",
                           offset + 8 * d, d, (int64_t)entry, why, v->n_sequences);
        last = entry;
        uint64_t next = idx_start(v, d);
        if (next - start > v->longest) v->longest = next - start;
        start = next;
    }
    return MOE_OK;
}

moe_status idx_parse(const void *bytes, uint64_t n, uint64_t bin_bytes, const char *path, idx_view *out, moe_err *err) {
    idx_view v = {0};
    moe_status s = parse_header(bytes, n, path, &v, err);
    if (s == MOE_OK) s = parse_counts(bytes, n, path, &v, err);
    if (s == MOE_OK) s = check_sequences(&v, bin_bytes, path, err);
    if (s == MOE_OK) s = check_documents(&v, path, err);
    if (s == MOE_OK) *out = v;
    return s;
}
