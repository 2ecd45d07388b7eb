/* Tensors of safetensors files: typed, checked against what the plugin takes, none left unread; and the results. */
#include <inttypes.h>
#include <io/fs.h>
#include <model/params.h>
#include <moe/options.h>
#include <string.h>

#include "tryout.h"

uint64_t tryout_bytes(int32_t dtype, int64_t elements) {
    return (uint64_t)elements * st_dtype_bits(dtype) / 8;
}

void tryout_narrow(const float *in, int32_t dtype, void *out, int64_t count) {
    if (dtype == MOE_BF16)
        params_round_bf16(in, out, count);
    else
        memcpy(out, in, (size_t)count * sizeof *in);
}

void tryout_widen(const void *in, int32_t dtype, float *out, int64_t count) {
    if (dtype != MOE_BF16) {
        memcpy(out, in, (size_t)count * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, (const char *)in + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

/* ---- reading ---- */
static const st_tensor *find(tryout *t, const char *name) {
    for (uint64_t i = 0; i < st_count(t->file); i++) {
        if (strcmp(st_at(t->file, i)->name, name) != 0) continue;
        t->seen[i] = 1;
        return st_at(t->file, i);
    }
    return NULL;
}

int32_t tryout_file_dtype(const tryout *t, const char *name) {
    const st_tensor *x = st_find(t->file, name);
    return x ? x->dtype : -1;
}

static const char *shape_text(char *out, size_t bytes, const int64_t *shape, int32_t ndim) {
    size_t used = (size_t)snprintf(out, bytes, "[");
    for (int32_t i = 0; i < ndim && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%" PRId64, i ? "," : "", shape[i]);
    if (used < bytes) snprintf(out + used, bytes - used, "]");
    return out;
}

/* Looks the tensor up and reads its bytes; *raw NULL where it is absent and may be. */
static moe_status read_raw(tryout *t, const char *name, const char *dims, int32_t ndim, int flags, const st_tensor **x,
                           void **raw, moe_err *err) {
    char shape[160];
    *raw = NULL;
    *x = find(t, name);
    if (!*x && (flags & TRYOUT_OPTIONAL)) return MOE_OK;
    if (!*x) return fs_fail(err, MOE_E_DATA, t->in, "holds no tensor %s %s", name, dims);
    if ((*x)->ndim != ndim)
        return fs_fail(err, MOE_E_DATA, t->in, "%s is %s; want %s", name,
                       shape_text(shape, sizeof shape, (*x)->shape, (*x)->ndim), dims);
    *raw = arena_alloc(&t->memory, (*x)->bytes + 1);
    if (!*raw) return moe_fail(err, MOE_E_NOMEM, "out of memory for %s of %s", name, t->in);
    return st_read(t->file, *x, *raw, (*x)->bytes, err);
}

static moe_status make(tryout *t, const st_tensor *x, int32_t dtype, tryout_tensor *out, moe_err *err) {
    *out = (tryout_tensor){.name = x->name, .dtype = dtype, .ndim = x->ndim, .elements = x->elements};
    for (int i = 0; i < 4; i++) out->shape[i] = x->shape[i];
    out->data = arena_alloc(&t->memory, tryout_bytes(dtype, x->elements) + 1);
    return out->data ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %s of %s", x->name, t->in);
}

moe_status tryout_read_real(tryout *t, const char *name, const char *dims, int32_t ndim, int flags, tryout_tensor *out,
                            moe_err *err) {
    const st_tensor *x = NULL;
    void *raw = NULL;
    *out = (tryout_tensor){.name = NULL};
    moe_status status = read_raw(t, name, dims, ndim, flags, &x, &raw, err);
    if (status || !raw) return status;
    if (x->dtype != MOE_F32 && x->dtype != MOE_BF16)
        return fs_fail(err, MOE_E_DATA, t->in, "%s is %s; want F32 or BF16", name, st_dtype_name(x->dtype));
    status = make(t, x, MOE_F32, out, err);
    if (!status) tryout_widen(raw, x->dtype, out->data, x->elements);
    return status;
}

static void put_number(const tryout_tensor *x, int64_t i, int64_t value) {
    if (x->dtype == MOE_U8)
        ((uint8_t *)x->data)[i] = (uint8_t)value;
    else if (x->dtype == MOE_I32)
        ((int32_t *)x->data)[i] = (int32_t)value;
    else
        ((int64_t *)x->data)[i] = value;
}

static moe_status refuse_number(const tryout *t, const st_tensor *x, int64_t i, int64_t value, int64_t lo, int64_t hi,
                                moe_err *err) {
    char at[64];
    if (x->ndim == 2)
        snprintf(at, sizeof at, "%" PRId64 ",%" PRId64, i / x->shape[1], i % x->shape[1]);
    else
        snprintf(at, sizeof at, "%" PRId64, i);
    return fs_fail(err, MOE_E_DATA, t->in, "%s[%s] = %" PRId64 " is outside of %" PRId64 "..%" PRId64, x->name, at,
                   value, lo, hi);
}

moe_status tryout_read_whole(tryout *t, const char *name, const char *dims, int32_t ndim, int flags, int32_t dtype,
                             int64_t lo, int64_t hi, tryout_tensor *out, moe_err *err) {
    const st_tensor *x = NULL;
    void *raw = NULL;
    int known = 0;
    *out = (tryout_tensor){.name = NULL};
    moe_status status = read_raw(t, name, dims, ndim, flags, &x, &raw, err);
    if (status || !raw) return status;
    st_whole_at(x->dtype, "01234567", 0, &known);
    if (!known)
        return fs_fail(err, MOE_E_DATA, t->in, "%s is %s; want whole numbers: I32, I64, U8 or BOOL", name,
                       st_dtype_name(x->dtype));
    status = make(t, x, dtype, out, err);
    for (int64_t i = 0; i < x->elements && !status; i++) {
        int64_t value = st_whole_at(x->dtype, raw, i, &known);
        if (value < lo || value > hi)
            status = refuse_number(t, x, i, value, lo, hi, err);
        else
            put_number(out, i, value);
    }
    return status;
}

moe_status tryout_check_shape(const tryout *t, const tryout_tensor *x, int64_t a, int64_t b, int64_t c, moe_err *err) {
    const int64_t want[] = {a, b, c};
    char is[96], text[96];
    for (int i = 0; x->name && i < x->ndim; i++)
        if (x->shape[i] != want[i])
            return fs_fail(err, MOE_E_DATA, t->in, "%s is %s; the other tensors want %s", x->name,
                           shape_text(is, sizeof is, x->shape, x->ndim), shape_text(text, sizeof text, want, x->ndim));
    return MOE_OK;
}

moe_status tryout_refuse_rest(const tryout *t, const char *reads, moe_err *err) {
    for (uint64_t i = 0; i < st_count(t->file); i++)
        if (!t->seen[i])
            return fs_fail(err, MOE_E_DATA, t->in, "holds %.120s; this probe reads %s", st_at(t->file, i)->name, reads);
    return MOE_OK;
}

/* ---- results ---- */
moe_status tryout_give(tryout *t, const char *name, const tryout_tensor *x, moe_err *err) {
    tryout_tensor *r = arena_alloc(&t->memory, sizeof *r);
    char *copy = arena_printf(&t->memory, "%s", name);
    if (!r || !copy) return moe_fail(err, MOE_E_NOMEM, "out of memory for %s", name);
    *r = *x;
    r->name = copy;
    r->next = NULL;
    *t->last = r;
    t->last = &r->next;
    return MOE_OK;
}

moe_status tryout_write(const tryout *t, moe_err *err) {
    st_writer *w = NULL;
    moe_status status = st_writer_create(t->out, &w, err);
    for (const tryout_tensor *r = t->results; r && !status; r = r->next)
        status = st_writer_declare(w, r->name, r->dtype, r->ndim, r->shape, err);
    for (const tryout_tensor *r = t->results; r && !status; r = r->next)
        status = st_write(w, r->data, tryout_bytes(r->dtype, r->elements), err);
    if (!status) return st_writer_finish(w, err);
    st_writer_abort(w);
    return status;
}
