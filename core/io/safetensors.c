/* The dtype table and the strict reader of safetensors files; see safetensors.h. The header is parsed by Jansson and
 * its tree is kept: names and metadata of an open file point into it. */
#include "io/safetensors.h"

#include <jansson.h>
#include <moe/options.h>
#include <unistd.h>

#include "io/fs.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and is read in place"
#endif

static const struct {
    const char *name;
    uint64_t bits;
} st_dtypes[ST_DTYPE_COUNT] = {
    [MOE_F32] = {"F32", 32},       [MOE_BF16] = {"BF16", 16},     [MOE_F64] = {"F64", 64},
    [MOE_I32] = {"I32", 32},       [MOE_I64] = {"I64", 64},       [MOE_U8] = {"U8", 8},
    [MOE_F8E4M3] = {"F8_E4M3", 8}, [MOE_F8E5M2] = {"F8_E5M2", 8}, [MOE_F4E2M1X2] = {"F4", 4},
    [MOE_E8M0] = {"F8_E8M0", 8},   [ST_F16] = {"F16", 16},        [ST_BOOL] = {"BOOL", 8},
    [ST_I8] = {"I8", 8},           [ST_I16] = {"I16", 16},        [ST_U16] = {"U16", 16},
    [ST_U32] = {"U32", 32},        [ST_U64] = {"U64", 64},
};

const char *st_dtype_name(int32_t dtype) {
    return dtype >= 0 && dtype < ST_DTYPE_COUNT ? st_dtypes[dtype].name : NULL;
}

uint64_t st_dtype_bits(int32_t dtype) {
    return dtype >= 0 && dtype < ST_DTYPE_COUNT ? st_dtypes[dtype].bits : 0;
}

int64_t st_whole_at(int32_t dtype, const void *data, int64_t i, int *known) {
    const uint8_t *bytes = data;
    int32_t narrow;
    int64_t wide;
    *known = 1;
    switch (dtype) {
        case MOE_U8:
        case ST_BOOL:
            return bytes[i];
        case MOE_I32:
            memcpy(&narrow, bytes + i * 4, sizeof narrow);
            return narrow;
        case MOE_I64:
            memcpy(&wide, bytes + i * 8, sizeof wide);
            return wide;
        default:
            *known = 0;
            return 0;
    }
}

int32_t st_dtype_from_name(const char *name) {
    for (int32_t i = 0; i < ST_DTYPE_COUNT; i++)
        if (strcmp(st_dtypes[i].name, name) == 0) return i;
    return -1;
}

struct st_file {
    char *path;
    int fd;
    uint64_t size, data;       /* of the file; offset of the first data byte */
    uint64_t n;                /* tensors */
    json_t *root, *meta;       /* meta: borrowed from root, NULL when absent */
    st_tensor *tensors;        /* [n], in order of data */
    const st_tensor **by_name; /* [n], sorted */
};

/* ---- header bytes ---- */

static moe_status read_header(st_file *st, moe_err *err) {
    unsigned char prefix[8];
    uint64_t length = 0;
    if (st->size < 8)
        return fs_fail(err, MOE_E_DATA, st->path, "has %llu bytes, less than the 8 of a header length",
                       st->size + 0ull);
    moe_status s = fs_read_at(st->fd, st->path, 0, prefix, 8, err);
    if (s != MOE_OK) return s;
    for (int i = 0; i < 8; i++) length |= (uint64_t)prefix[i] << (8 * i);
    if (length > st->size - 8)
        return fs_fail(err, MOE_E_DATA, st->path, "offset 0: header length %llu, but only %llu bytes follow",
                       length + 0ull, st->size - 8 + 0ull);
    if (length > ST_HEADER_MAX)
        return fs_fail(err, MOE_E_DATA, st->path, "offset 0: header length %llu exceeds the limit of %u", length + 0ull,
                       ST_HEADER_MAX);
    char *text = malloc((size_t)length + 1);
    if (!text) return fs_fail(err, MOE_E_NOMEM, st->path, "no memory for a header of %llu bytes", length + 0ull);
    s = fs_read_at(st->fd, st->path, 8, text, length, err);
    if (s == MOE_OK) {
        json_error_t at;
        st->data = 8 + length;
        st->root = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &at);
        if (!st->root)
            s = fs_fail(err, MOE_E_DATA, st->path, "offset %lld: header: %s", 8ll + at.position, at.text);
        else if (text[0] != '{')
            s = fs_fail(err, MOE_E_DATA, st->path, "offset 8: header does not begin with '{'");
    }
    free(text);
    return s;
}

/* ---- one tensor's entry ---- */

static moe_status tensor_fail(const st_file *st, const st_tensor *t, moe_err *err, const char *text) {
    return fs_fail(err, MOE_E_DATA, st->path, "header: tensor '%.100s': %s", t->name, text);
}

static moe_status parse_shape(const st_file *st, st_tensor *t, const json_t *shape, moe_err *err) {
    if (!json_is_array(shape)) return tensor_fail(st, t, err, "shape is not an array");
    size_t ndim = json_array_size(shape);
    if (ndim > ST_NDIM_MAX)
        return fs_fail(err, MOE_E_UNSUPPORTED, st->path, "header: tensor '%.100s' has %zu dimensions, more than %d",
                       t->name, ndim, ST_NDIM_MAX);
    t->ndim = (int32_t)ndim;
    t->elements = 1;
    for (size_t i = 0; i < ST_NDIM_MAX; i++) {
        t->shape[i] = 1;
        if (i >= ndim) continue;
        const json_t *entry = json_array_get(shape, i);
        if (!json_is_integer(entry) || json_integer_value(entry) < 0)
            return tensor_fail(st, t, err, "shape has an entry that is not a non-negative integer");
        t->shape[i] = (int64_t)json_integer_value(entry);
        if (__builtin_mul_overflow(t->elements, t->shape[i], &t->elements))
            return tensor_fail(st, t, err, "the product of its shape overflows");
    }
    return MOE_OK;
}

/* Needs dtype and shape. Whether tensors meet without holes is the caller's to check, over all of them. */
static moe_status parse_offsets(const st_file *st, st_tensor *t, const json_t *offsets, moe_err *err) {
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    uint64_t bits, room = st->size - st->data;
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < 0)
        return tensor_fail(st, t, err, "data_offsets is not a pair of non-negative integers");
    uint64_t begin = (uint64_t)json_integer_value(first), end = (uint64_t)json_integer_value(last);
    if (begin > end || end > room)
        return fs_fail(err, MOE_E_DATA, st->path,
                       "header: tensor '%.100s': data_offsets [%llu, %llu] are not a range in %llu bytes of data",
                       t->name, begin + 0ull, end + 0ull, room + 0ull);
    if (__builtin_mul_overflow((uint64_t)t->elements, st_dtypes[t->dtype].bits, &bits))
        return tensor_fail(st, t, err, "its size in bits overflows");
    if (bits % 8) return tensor_fail(st, t, err, "its size is not a whole number of bytes");
    if (bits / 8 != end - begin)
        return fs_fail(err, MOE_E_DATA, st->path,
                       "header: tensor '%.100s': dtype and shape give %llu bytes, data_offsets %llu", t->name,
                       bits / 8 + 0ull, end - begin + 0ull);
    t->offset = st->data + begin;
    t->bytes = end - begin;
    return MOE_OK;
}

static moe_status parse_tensor(const st_file *st, st_tensor *t, const json_t *entry, moe_err *err) {
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_object_size(entry) != 3 || !dtype || !shape || !offsets)
        return tensor_fail(st, t, err, "is not an object of exactly dtype, shape and data_offsets");
    if (!json_is_string(dtype)) return tensor_fail(st, t, err, "dtype is not a string");
    t->dtype = st_dtype_from_name(json_string_value(dtype));
    if (t->dtype < 0)
        return fs_fail(err, MOE_E_UNSUPPORTED, st->path, "header: tensor '%.100s' has unknown dtype '%.40s'", t->name,
                       json_string_value(dtype));
    moe_status s = parse_shape(st, t, shape, err);
    return s == MOE_OK ? parse_offsets(st, t, offsets, err) : s;
}

/* ---- all tensors ---- */

static moe_status check_meta(const st_file *st, moe_err *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(st->meta)) return fs_fail(err, MOE_E_DATA, st->path, "header: __metadata__ is not an object");
    json_object_foreach(st->meta, key, value) {
        if (!json_is_string(value))
            return fs_fail(err, MOE_E_DATA, st->path, "header: __metadata__ '%.100s' is not a string", key);
    }
    return MOE_OK;
}

static int by_offset(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty ones first */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const st_tensor *const *)a)->name, (*(const st_tensor *const *)b)->name);
}

/* The format's rule: tensors tile the data, from its first byte to the last of the file. */
static moe_status check_tiling(const st_file *st, moe_err *err) {
    uint64_t at = st->data;
    for (uint64_t i = 0; i < st->n; i++) {
        const st_tensor *t = &st->tensors[i];
        if (t->offset != at)
            return fs_fail(err, MOE_E_DATA, st->path, "offset %llu: tensor '%.100s' %s at offset %llu", at + 0ull,
                           t->name, t->offset < at ? "overlaps the one before: it begins" : "leaves a hole: it begins",
                           t->offset + 0ull);
        at += t->bytes;
    }
    if (at != st->size)
        return fs_fail(err, MOE_E_DATA, st->path, "offset %llu: %llu bytes follow the last tensor", at + 0ull,
                       st->size - at + 0ull);
    return MOE_OK;
}

static moe_status parse_header(st_file *st, moe_err *err) {
    const char *key;
    json_t *entry;
    if (!json_is_object(st->root)) return fs_fail(err, MOE_E_DATA, st->path, "offset 8: header is not an object");
    size_t entries = json_object_size(st->root);
    st->tensors = calloc(entries + 1, sizeof *st->tensors);
    st->by_name = calloc(entries + 1, sizeof *st->by_name);
    if (!st->tensors || !st->by_name) return fs_fail(err, MOE_E_NOMEM, st->path, "no memory for %zu tensors", entries);
    json_object_foreach(st->root, key, entry) {
        moe_status s;
        if (strcmp(key, "__metadata__") == 0) {
            st->meta = entry;
            s = check_meta(st, err);
        } else {
            st_tensor *t = &st->tensors[st->n++];
            t->name = key;
            s = parse_tensor(st, t, entry, err);
        }
        if (s != MOE_OK) return s;
    }
    qsort(st->tensors, st->n, sizeof *st->tensors, by_offset);
    for (uint64_t i = 0; i < st->n; i++) st->by_name[i] = &st->tensors[i];
    qsort(st->by_name, st->n, sizeof *st->by_name, by_name);
    return check_tiling(st, err);
}

moe_status st_open(const char *path, st_file **out, moe_err *err) {
    st_file *st = calloc(1, sizeof *st);
    if (!st) return fs_fail(err, MOE_E_NOMEM, path, "no memory");
    st->fd = -1;
    st->path = strdup(path);
    moe_status s =
        st->path ? fs_open_read(path, &st->fd, &st->size, err) : fs_fail(err, MOE_E_NOMEM, path, "no memory");
    if (s == MOE_OK) s = read_header(st, err);
    if (s == MOE_OK) s = parse_header(st, err);
    if (s == MOE_OK)
        *out = st;
    else
        st_close(st);
    return s;
}

void st_close(st_file *st) {
    if (!st) return;
    if (st->fd >= 0) close(st->fd);
    json_decref(st->root);
    free(st->tensors);
    free(st->by_name);
    free(st->path);
    free(st);
}

/* ---- access ---- */

uint64_t st_count(const st_file *st) {
    return st->n;
}

const st_tensor *st_at(const st_file *st, uint64_t i) {
    return &st->tensors[i];
}

const st_tensor *st_find(const st_file *st, const char *name) {
    const st_tensor wanted = {.name = name}, *key = &wanted;
    const st_tensor *const *found = bsearch(&key, st->by_name, st->n, sizeof *st->by_name, by_name);
    return found ? *found : NULL;
}

const char *st_meta(const st_file *st, const char *key) {
    return json_string_value(json_object_get(st->meta, key));
}

moe_status st_read(const st_file *st, const st_tensor *t, void *out, uint64_t bytes, moe_err *err) {
    if (bytes != t->bytes)
        return fs_fail(err, MOE_E_ARG, st->path, "tensor '%.100s' has %llu bytes, the reader wants %llu", t->name,
                       t->bytes + 0ull, bytes + 0ull);
    return fs_read_at(st->fd, st->path, t->offset, out, bytes, err);
}

moe_status st_read_part(const st_file *st, const st_tensor *t, uint64_t begin, void *out, uint64_t bytes,
                        moe_err *err) {
    if (begin > t->bytes || bytes > t->bytes - begin)
        return fs_fail(err, MOE_E_ARG, st->path, "tensor '%.100s' has %llu bytes, the reader wants %llu from %llu",
                       t->name, t->bytes + 0ull, bytes + 0ull, begin + 0ull);
    return fs_read_at(st->fd, st->path, t->offset + begin, out, bytes, err);
}
