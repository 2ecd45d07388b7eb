/* Checks of the gradient's norm and of the optimiser's step: moe.sumsq/0, moe.clip_coef/0, moe.adamw/0, moe.sgd/0; see
 * ../ops.h. */
#include "../ops.h"

/* Blocks of the gradient, which is the first input. */
static moe_status check_filled(const moe_op_args *a, const char *op, const moe_tensor *filled, moe_err *err) {
    moe_status s = filled ? op_want(filled, op, "filled", MOE_I32, 1, OP_SHAPE(OP_ANY), err) : MOE_OK;
    if (s != MOE_OK || !filled) return s;
    int64_t groups = filled->shape[0], n = a->in[0].shape[0];
    if (groups >= 1 && n % groups == 0) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: filled has %lld blocks, the gradient %lld elements", op, (long long)groups,
                    (long long)n);
}

moe_status op_check_sumsq(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_SUMSQ;
    moe_status s = op_want_lists(a, op, 1, 2, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "g", MOE_F32, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = check_filled(a, op, op_optional(a->in, a->n_in, 1), err);
    return s == MOE_OK ? op_want(&a->out[0], op, "sum", MOE_F64, 1, OP_SHAPE(1), err) : s;
}

moe_status op_check_clip_coef(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_CLIP_COEF;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "sum", MOE_F64, 1, OP_SHAPE(1), err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "stats", MOE_F32, 1, OP_SHAPE(2), err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_clip_attr), err);
    if (s != MOE_OK) return s;
    float max_norm = ((const moe_clip_attr *)a->attr)->max_norm;
    if (!(max_norm >= 0.0f)) return moe_fail(err, MOE_E_ARG, "%s: max_norm is %g, want >= 0", op, (double)max_norm);
    return MOE_OK;
}

moe_status op_check_first_fault(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_FIRST_FAULT;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "faults", MOE_I64, 2, OP_SHAPE(OP_ANY, 4), err);
    return s == MOE_OK ? op_want(&a->out[0], op, "first", MOE_I64, 1, OP_SHAPE(4), err) : s;
}

/* ---- steps ---- */
/* What a step reads; what it updates, `names` in out[0 .. n - 1]; and the copy after them. */
static moe_status check_step(const moe_op_args *a, const char *op, const char *const *names, uint32_t n, moe_err *err) {
    moe_status s = op_want(&a->in[0], op, "grad", MOE_F32, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->in[1], op, "hyper", MOE_F32, 1, OP_SHAPE(4), err);
    if (s == MOE_OK) s = op_want(&a->in[2], op, "stats", MOE_F32, 1, OP_SHAPE(2), err);
    for (uint32_t i = 0; s == MOE_OK && i < n; i++)
        s = op_want(&a->out[i], op, names[i], MOE_F32, 1, a->in[0].shape, err);
    if (s == MOE_OK) s = check_filled(a, op, op_optional(a->in, a->n_in, 3), err);
    const moe_tensor *copy = op_optional(a->out, a->n_out, n);
    return s == MOE_OK && copy ? op_want(copy, op, "copy", MOE_BF16, 1, a->in[0].shape, err) : s;
}

static moe_status check_adamw(const moe_adamw_attr *at, moe_err *err) {
    static const char op[] = MOE_OP_ADAMW;
    if (!(at->beta1 >= 0.0f && at->beta1 < 1.0f) || !(at->beta2 >= 0.0f && at->beta2 < 1.0f))
        return moe_fail(err, MOE_E_ARG, "%s: betas are %g and %g, want 0 <= beta < 1", op, (double)at->beta1,
                        (double)at->beta2);
    if (!(at->eps >= 0.0f)) return moe_fail(err, MOE_E_ARG, "%s: eps is %g, want >= 0", op, (double)at->eps);
    return MOE_OK;
}

moe_status op_check_adamw(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_ADAMW;
    static const char *const names[] = {"w", "m", "v"};
    moe_status s = op_want_lists(a, op, 3, 4, 3, 4, err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_adamw_attr), err);
    if (s == MOE_OK) s = check_adamw(a->attr, err);
    return s == MOE_OK ? check_step(a, op, names, 3, err) : s;
}

moe_status op_check_sgd(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_SGD;
    static const char *const names[] = {"w"};
    moe_status s = op_want_lists(a, op, 3, 4, 1, 2, err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_adamw_attr), err);
    return s == MOE_OK ? check_step(a, op, names, 1, err) : s;
}
