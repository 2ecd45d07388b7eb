/* Checks of moe.swiglu_prob/0; see ../ops.h. */
#include <math.h>

#include "../ops.h"

static const char op[] = MOE_OP_SWIGLU_PROB;

moe_swiglu_attr op_swiglu_attr(const moe_op_args *a) {
    const moe_swiglu_attr *at = a->attr;
    moe_swiglu_attr got = {.size = sizeof got};
    if (at && MOE_REACH(at, moe_swiglu_attr, alpha)) got.alpha = at->alpha;
    if (at && MOE_REACH(at, moe_swiglu_attr, limit)) got.limit = at->limit;
    return got;
}

static moe_status check_attr(const moe_op_args *a, moe_err *err) {
    const moe_swiglu_attr at = op_swiglu_attr(a);
    if (!(at.limit >= 0.0f)) return moe_fail(err, MOE_E_ARG, "%s: limit is %g, want at least 0", op, (double)at.limit);
    if (at.limit > 0.0f && !isfinite(at.alpha))
        return moe_fail(err, MOE_E_ARG, "%s: alpha is %g, want a number", op, (double)at.alpha);
    return MOE_OK;
}

/* z, a and p of either direction; rows where they are given. */
static moe_status check_rows(const moe_tensor *z, const moe_tensor *a, const char *a_name, const moe_tensor *p,
                             const moe_op_args *args, moe_err *err) {
    moe_status s = op_want(z, op, "z", OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    if (z->shape[1] % 2)
        return moe_fail(err, MOE_E_ARG, "%s: z has %lld columns, want an even number", op, (long long)z->shape[1]);
    s = op_want(a, op, a_name, z->dtype, 2, OP_SHAPE(z->shape[0], z->shape[1] / 2), err);
    if (s == MOE_OK && p) s = op_want(p, op, "p", MOE_F32, 1, OP_SHAPE(z->shape[0]), err);
    if (s == MOE_OK && args->rows) s = op_want_rows(args, op, z->shape[0], err);
    return s == MOE_OK ? check_attr(args, err) : s;
}

moe_status op_check_swiglu_prob(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 1, 2, 1, 1, err);
    return s == MOE_OK ? check_rows(&a->in[0], &a->out[0], "a", op_optional(a->in, a->n_in, 1), a, err) : s;
}

moe_status op_check_swiglu_prob_backward(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 2, 3, 1, 2, err);
    if (s != MOE_OK) return s;
    const moe_tensor *p = op_optional(a->in, a->n_in, 2), *dp = op_optional(a->out, a->n_out, 1);
    s = check_rows(&a->in[1], &a->in[0], "da", p, a, err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "dz", a->in[1].dtype, 2, a->in[1].shape, err);
    return s == MOE_OK && dp ? op_want(dp, op, "dp", MOE_F32, 1, OP_SHAPE(a->in[1].shape[0]), err) : s;
}
