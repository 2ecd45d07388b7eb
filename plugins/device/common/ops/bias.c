/* Checks of moe.bias/0; see ../ops.h. */
#include "../ops.h"

static const char op[] = MOE_OP_BIAS;

/* y (or dy), b and p. */
static moe_status check_rows(const moe_op_args *a, const char *y, moe_err *err) {
    const moe_tensor *p = op_optional(a->in, a->n_in, 2);
    moe_status s = op_want(&a->in[0], op, y, OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1];
    if (a->rows) {
        s = op_want_rows(a, op, rows, err);
        if (s == MOE_OK && a->rows->groups < 1) s = moe_fail(err, MOE_E_ARG, "%s: rows of 0 groups", op);
        if (s == MOE_OK) s = op_want(&a->in[1], op, "b", MOE_F32, 2, OP_SHAPE(a->rows->groups, width), err);
    } else {
        s = op_want(&a->in[1], op, "b", MOE_F32, 1, OP_SHAPE(width), err);
    }
    return s == MOE_OK && p ? op_want(p, op, "p", MOE_F32, 1, OP_SHAPE(rows), err) : s;
}

moe_status op_check_bias(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 2, 3, 1, 1, err);
    if (s == MOE_OK) s = check_rows(a, "y", err);
    return s == MOE_OK ? op_want(&a->out[0], op, "y (output)", a->in[0].dtype, 2, a->in[0].shape, err) : s;
}

moe_status op_check_bias_backward(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 2, 3, 1, 2, err);
    if (s == MOE_OK) s = check_rows(a, "dy", err);
    if (s != MOE_OK) return s;
    const moe_tensor *p = op_optional(a->in, a->n_in, 2), *dp = op_optional(a->out, a->n_out, 1);
    if (!p != !dp) return moe_fail(err, MOE_E_ARG, "%s: dp is given exactly where p is", op);
    s = op_want(&a->out[0], op, "db", MOE_F32, a->in[1].ndim, a->in[1].shape, err);
    return s == MOE_OK && dp ? op_want(dp, op, "dp", MOE_F32, 1, p->shape, err) : s;
}
