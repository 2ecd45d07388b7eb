/* Argument checks with exact messages; see check.h. */
#include "check.h"

const char *op_dtype_name(int32_t dtype) {
    static const char *const names[] = {"F32", "BF16",   "F64",    "I32",      "I64",
                                        "U8",  "F8E4M3", "F8E5M2", "F4E2M1X2", "E8M0"};
    if (dtype == OP_ACT) return "F32 or BF16";
    if (dtype < 0 || dtype > MOE_E8M0) return "unknown dtype";
    return names[dtype];
}

int64_t op_elements(const moe_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* One bound "3" or a range "2..3". */
static void range_text(char text[32], uint32_t lo, uint32_t hi) {
    if (lo == hi)
        snprintf(text, 32, "%u", lo);
    else
        snprintf(text, 32, "%u..%u", lo, hi);
}

moe_status op_want_lists(const moe_op_args *a, const char *op, uint32_t in_min, uint32_t in_max, uint32_t out_min,
                         uint32_t out_max, moe_err *err) {
    char text[32];
    if (a->n_in < in_min || a->n_in > in_max) {
        range_text(text, in_min, in_max);
        return moe_fail(err, MOE_E_ARG, "%s: %u inputs, want %s", op, a->n_in, text);
    }
    if (a->n_out < out_min || a->n_out > out_max) {
        range_text(text, out_min, out_max);
        return moe_fail(err, MOE_E_ARG, "%s: %u outputs, want %s", op, a->n_out, text);
    }
    return MOE_OK;
}

/* "[2,*,4]" */
static void shape_text(char *text, size_t bytes, const int64_t *shape, int32_t ndim) {
    size_t at = (size_t)snprintf(text, bytes, "[");
    for (int32_t i = 0; i < ndim && at < bytes; i++) {
        if (shape[i] == OP_ANY)
            at += (size_t)snprintf(text + at, bytes - at, "%s*", i ? "," : "");
        else
            at += (size_t)snprintf(text + at, bytes - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    }
    if (at < bytes) snprintf(text + at, bytes - at, "]");
}

static int same_shape(const moe_tensor *t, int32_t ndim, const int64_t *shape) {
    if (t->ndim != ndim) return 0;
    for (int32_t i = 0; i < ndim; i++)
        if (t->shape[i] < 0 || (shape[i] != OP_ANY && shape[i] != t->shape[i])) return 0;
    return 1;
}

moe_status op_want(const moe_tensor *t, const char *op, const char *name, int32_t dtype, int32_t ndim,
                   const int64_t *shape, moe_err *err) {
    int dtype_ok = dtype == OP_ACT ? t->dtype == MOE_F32 || t->dtype == MOE_BF16 : t->dtype == dtype;
    if (dtype_ok && same_shape(t, ndim, shape)) return MOE_OK;
    if (t->ndim < 0 || t->ndim > 4) return moe_fail(err, MOE_E_ARG, "%s: %s has ndim %d", op, name, t->ndim);
    char is[104], want[104];
    shape_text(is, sizeof is, t->shape, t->ndim);
    shape_text(want, sizeof want, shape, ndim);
    return moe_fail(err, MOE_E_ARG, "%s: %s is %s %s, want %s %s", op, name, is, op_dtype_name(t->dtype), want,
                    op_dtype_name(dtype));
}

moe_status op_want_attr(const moe_op_args *a, const char *op, uint64_t bytes, moe_err *err) {
    if (!a->attr) return moe_fail(err, MOE_E_ARG, "%s: attr is NULL", op);
    uint32_t size = *(const uint32_t *)a->attr;
    if (size < bytes)
        return moe_fail(err, MOE_E_ARG, "%s: attr has size %u, want at least %llu", op, size,
                        (unsigned long long)bytes);
    return MOE_OK;
}

moe_status op_want_rows(const moe_op_args *a, const char *op, int64_t max, moe_err *err) {
    if (!a->rows) return moe_fail(err, MOE_E_ARG, "%s: rows is NULL", op);
    if (a->rows->max != max)
        return moe_fail(err, MOE_E_ARG, "%s: rows.max is %lld, the tensors have %lld rows", op, (long long)a->rows->max,
                        (long long)max);
    return MOE_OK;
}

moe_status op_want_absent(const moe_tensor *t, const char *op, const char *name, moe_err *err) {
    if (!t) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %s is given, which this device does not take", op, name);
}
