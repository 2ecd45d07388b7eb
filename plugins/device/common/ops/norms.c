/* Checks of moe.rmsnorm/0 and moe.head_norm/0; see ../ops.h. */
#include <math.h>

#include "../ops.h"

static moe_status check_eps(float eps, const char *op, moe_err *err) {
    if (eps >= 0.0f && !isinf(eps)) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: eps is %g", op, (double)eps);
}

/* things: "rows" or "segments", of which each is normalised by itself. */
static moe_status check_width(const char *op, const char *things, int64_t width, int64_t most, moe_err *err) {
    if (width >= 1 && width <= most) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %s of %lld elements, want 1..%lld", op, things, (long long)width,
                    (long long)most);
}

/* ---- moe.rmsnorm/0 ---- */
static const char rmsnorm[] = MOE_OP_RMSNORM;

/* The lists, and in[0], which gives T, h and the dtype. */
static moe_status check_first(const moe_op_args *a, uint32_t most_in, const char *name, moe_err *err) {
    moe_status s = op_want_lists(a, rmsnorm, 3, most_in, 2, 2, err);
    return s == MOE_OK ? op_want(&a->in[0], rmsnorm, name, OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err) : s;
}

moe_status op_check_rmsnorm(const moe_op_args *a, int64_t most, moe_err *err) {
    moe_status s = check_first(a, 3, "a", err);
    if (s != MOE_OK) return s;
    int32_t act = a->in[0].dtype;
    const int64_t *shape = a->in[0].shape; /* T, h */
    if (op_present(&a->in[1]) != op_present(&a->out[0]))
        return moe_fail(err, MOE_E_ARG, "%s: s is given exactly where b is", rmsnorm);
    if (op_present(&a->in[1])) s = op_want(&a->in[1], rmsnorm, "b", act, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->in[2], rmsnorm, "w", MOE_F32, 1, OP_SHAPE(shape[1]), err);
    if (s == MOE_OK && op_present(&a->out[0])) s = op_want(&a->out[0], rmsnorm, "s", act, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->out[1], rmsnorm, "y", act, 2, shape, err);
    if (s == MOE_OK) s = op_want_attr(a, rmsnorm, sizeof(moe_rmsnorm_attr), err);
    if (s == MOE_OK) s = check_width(rmsnorm, "rows", shape[1], most, err);
    return s == MOE_OK ? check_eps(((const moe_rmsnorm_attr *)a->attr)->eps, rmsnorm, err) : s;
}

moe_status op_check_rmsnorm_backward(const moe_op_args *a, int64_t most, moe_err *err) {
    moe_status s = check_first(a, 4, "dy", err);
    if (s != MOE_OK) return s;
    int32_t act = a->in[0].dtype;
    const int64_t *shape = a->in[0].shape; /* T, h */
    s = op_want(&a->in[1], rmsnorm, "s", act, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->in[2], rmsnorm, "w", MOE_F32, 1, OP_SHAPE(shape[1]), err);
    if (s == MOE_OK && op_optional(a->in, a->n_in, 3)) s = op_want(&a->in[3], rmsnorm, "dres", act, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->out[0], rmsnorm, "dx", act, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->out[1], rmsnorm, "dw", MOE_F32, 1, OP_SHAPE(shape[1]), err);
    return s == MOE_OK ? check_width(rmsnorm, "rows", shape[1], most, err) : s;
}

/* ---- moe.head_norm/0 ---- */
static const char head_norm[] = MOE_OP_HEAD_NORM;

static moe_status check_segments(const moe_op_args *a, int64_t row, int64_t most, moe_err *err) {
    moe_status s = op_want_attr(a, head_norm, sizeof(moe_head_norm_attr), err);
    if (s != MOE_OK) return s;
    const moe_head_norm_attr *at = a->attr;
    int64_t end;
    s = check_eps(at->eps, head_norm, err);
    if (s == MOE_OK) s = check_width(head_norm, "segments", at->width, most, err);
    if (s != MOE_OK) return s;
    if (at->first < 0 || at->segments < 1 || __builtin_mul_overflow(at->segments, at->width, &end) ||
        __builtin_add_overflow(end, at->first, &end) || end > row)
        return moe_fail(err, MOE_E_ARG, "%s: %lld segments of %lld elements from %lld on do not lie in rows of %lld",
                        head_norm, (long long)at->segments, (long long)at->width, (long long)at->first, (long long)row);
    return MOE_OK;
}

/* x, w and x in place; the gradient goes through the same tensors. */
static moe_status check_head_norm(const moe_op_args *a, const char *x, int64_t most, moe_err *err) {
    char output[32];
    moe_status s = op_want(&a->in[0], head_norm, x, OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = check_segments(a, a->in[0].shape[1], most, err);
    if (s != MOE_OK) return s;
    snprintf(output, sizeof output, "%s (output)", x);
    s = op_want(&a->in[1], head_norm, "w", MOE_F32, 1, OP_SHAPE(((const moe_head_norm_attr *)a->attr)->width), err);
    return s == MOE_OK ? op_want(&a->out[0], head_norm, output, a->in[0].dtype, 2, a->in[0].shape, err) : s;
}

moe_status op_check_head_norm(const moe_op_args *a, int64_t most, moe_err *err) {
    moe_status s = op_want_lists(a, head_norm, 2, 2, 1, 1, err);
    return s == MOE_OK ? check_head_norm(a, "x", most, err) : s;
}

moe_status op_check_head_norm_backward(const moe_op_args *a, int64_t most, moe_err *err) {
    moe_status s = op_want_lists(a, head_norm, 2, 2, 2, 2, err);
    if (s == MOE_OK) s = check_head_norm(a, "dx", most, err);
    return s == MOE_OK ? op_want(&a->out[1], head_norm, "dw", MOE_F32, 1, a->in[1].shape, err) : s;
}
