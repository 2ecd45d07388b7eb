/* Checks of the operations element by element, moe.sigmoid/0, moe.add/0 and moe.jitter/0, and of moe.join/0; see
 * ../ops.h. */
#include "../ops.h"

static moe_status check_ndim(const moe_tensor *t, const char *op, const char *name, moe_err *err) {
    if (t->ndim >= 1 && t->ndim <= 4) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: %s has ndim %d", op, name, t->ndim);
}

/* ---- moe.sigmoid/0 ---- */
static const char sigmoid[] = MOE_OP_SIGMOID;

/* in[0] is F32, of any shape; another tensor is like it. */
static moe_status check_first(const moe_op_args *a, const char *name, moe_err *err) {
    moe_status s = check_ndim(&a->in[0], sigmoid, name, err);
    return s == MOE_OK ? op_want(&a->in[0], sigmoid, name, MOE_F32, a->in[0].ndim, a->in[0].shape, err) : s;
}
static moe_status check_like(const moe_op_args *a, const moe_tensor *t, const char *name, moe_err *err) {
    return op_want(t, sigmoid, name, MOE_F32, a->in[0].ndim, a->in[0].shape, err);
}

moe_status op_check_sigmoid(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, sigmoid, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = check_first(a, "x", err);
    return s == MOE_OK ? check_like(a, &a->out[0], "y", err) : s;
}

moe_status op_check_sigmoid_backward(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, sigmoid, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = check_first(a, "dy", err);
    if (s == MOE_OK) s = check_like(a, &a->in[1], "y", err);
    return s == MOE_OK ? check_like(a, &a->out[0], "dx", err) : s;
}

/* ---- moe.add/0 ---- */
moe_status op_check_add(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_ADD;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = check_ndim(&a->in[0], op, "x", err);
    if (s != MOE_OK) return s;
    const moe_tensor *x = &a->in[0];
    s = op_want(x, op, "x", OP_ACT, x->ndim, x->shape, err);
    return s == MOE_OK ? op_want(&a->out[0], op, "y", x->dtype, x->ndim, x->shape, err) : s;
}

/* ---- moe.join/0 ---- */
moe_status op_check_join(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_JOIN;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "x", OP_ACT, 3, OP_SHAPE(OP_ANY, OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    const int64_t *shape = a->in[0].shape; /* n, T, w */
    return op_want(&a->out[0], op, "y", a->in[0].dtype, 2, OP_SHAPE(shape[1], shape[0] * shape[2]), err);
}

/* ---- moe.jitter/0 ---- */
static moe_status check_jitter(const moe_op_args *a, const char *in, const char *out, moe_err *err) {
    static const char op[] = MOE_OP_JITTER;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_jitter_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, in, OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, out, a->in[0].dtype, 2, a->in[0].shape, err);
    if (s != MOE_OK) return s;
    const moe_jitter_attr *at = a->attr;
    if (!(at->eps >= 0.0f && at->eps < 1.0f))
        return moe_fail(err, MOE_E_ARG, "%s: eps is %g, want at least 0 and below 1", op, (double)at->eps);
    if (at->first_token < 0)
        return moe_fail(err, MOE_E_ARG, "%s: first_token is %lld, want at least 0", op, (long long)at->first_token);
    return MOE_OK;
}

moe_status op_check_jitter(const moe_op_args *a, moe_err *err) {
    return check_jitter(a, "x", "y", err);
}

moe_status op_check_jitter_backward(const moe_op_args *a, moe_err *err) {
    return check_jitter(a, "dy", "dx", err);
}
