/* The file that eval reads. */
#include <inttypes.h>
#include <io/fs.h>
#include <io/safetensors.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

/* Largest B*S: what is read here is small beside what the model needs for it. */
enum { MAX_TOKENS = 1 << 28 };

static moe_status read_matrix(const char *path, const st_file *f, const st_tensor *t, void **data, moe_err *err) {
    int known = 0;
    st_whole_at(t->dtype, "01234567", 0, &known);
    if (!known || t->ndim != 2 || t->shape[0] < 1 || t->shape[1] < 1 || t->elements > MAX_TOKENS)
        return fs_fail(err, MOE_E_DATA, path,
                       "%s is %s of %d dimensions, %" PRId64 " x %" PRId64
                       "; want [B,S], at least 1 x 1, of whole numbers, at most 2^28 of them",
                       t->name, st_dtype_name(t->dtype), t->ndim, t->shape[0], t->shape[1]);
    *data = malloc((size_t)t->bytes);
    if (!*data) return moe_fail(err, MOE_E_NOMEM, "out of memory for %s of %s", t->name, path);
    return st_read(f, t, *data, t->bytes, err);
}

static moe_status take_tokens(const char *path, const st_file *f, int64_t vocab, eval_batch *b, moe_err *err) {
    const st_tensor *t = st_find(f, "tokens");
    void *data = NULL;
    int known = 0;
    if (!t) return fs_fail(err, MOE_E_DATA, path, "holds no tensor tokens [B,S]");
    moe_status status = read_matrix(path, f, t, &data, err);
    if (!status) b->tokens = malloc((size_t)t->elements * sizeof *b->tokens);
    if (!status && !b->tokens) status = moe_fail(err, MOE_E_NOMEM, "out of memory for the tokens of %s", path);
    b->rows = t->shape[0];
    b->seq = t->shape[1];
    for (int64_t i = 0; i < t->elements && !status; i++) {
        int64_t id = st_whole_at(t->dtype, data, i, &known);
        if (id < 0 || id >= vocab)
            status = fs_fail(err, MOE_E_DATA, path,
                             "tokens[%" PRId64 ",%" PRId64 "] = %" PRId64 " is outside of the vocabulary 0..%" PRId64,
                             i / b->seq, i % b->seq, id, vocab - 1);
        b->tokens[i] = (int32_t)id;
    }
    free(data);
    return status;
}

static moe_status take_mask(const char *path, const st_file *f, eval_batch *b, moe_err *err) {
    const st_tensor *t = st_find(f, "mask");
    void *data = NULL;
    int known = 0;
    if (!t) return MOE_OK;
    moe_status status = read_matrix(path, f, t, &data, err);
    if (!status && (t->shape[0] != b->rows || t->shape[1] != b->seq))
        status = fs_fail(err, MOE_E_DATA, path, "mask is %" PRId64 " x %" PRId64 ", tokens are %" PRId64 " x %" PRId64,
                         t->shape[0], t->shape[1], b->rows, b->seq);
    if (!status) b->mask = malloc((size_t)t->elements);
    if (!status && !b->mask) status = moe_fail(err, MOE_E_NOMEM, "out of memory for the mask of %s", path);
    for (int64_t i = 0; i < t->elements && !status; i++) {
        int64_t v = st_whole_at(t->dtype, data, i, &known);
        if (v != 0 && v != 1)
            status = fs_fail(err, MOE_E_DATA, path, "mask[%" PRId64 ",%" PRId64 "] = %" PRId64 " is neither 0 nor 1",
                             i / b->seq, i % b->seq, v);
        else
            b->mask[i] = (uint8_t)v;
    }
    free(data);
    return status;
}

moe_status eval_batch_read(const char *path, int64_t vocab, eval_batch *out, moe_err *err) {
    st_file *f = NULL;
    *out = (eval_batch){0};
    moe_status status = st_open(path, &f, err);
    if (status) return status;
    for (uint64_t i = 0; i < st_count(f) && !status; i++) {
        const char *name = st_at(f, i)->name;
        if (strcmp(name, "tokens") != 0 && strcmp(name, "mask") != 0)
            status = fs_fail(err, MOE_E_DATA, path, "holds %.120s; eval reads tokens and mask", name);
    }
    if (!status) status = take_tokens(path, f, vocab, out, err);
    if (!status) status = take_mask(path, f, out, err);
    st_close(f);
    if (status) eval_batch_free(out);
    return status;
}

void eval_batch_free(eval_batch *b) {
    free(b->tokens);
    free(b->mask);
    *b = (eval_batch){0};
}
