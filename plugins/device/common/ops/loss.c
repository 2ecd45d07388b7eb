/* Checks of moe.cross_entropy/0, of its three calls on a part of the vocabulary, and of moe.count_valid/0; see
 * ../ops.h. */
#include "../ops.h"

/* The loss and the gradient; the divisor is in[i]. */
static moe_status check_end(const moe_op_args *a, const char *op, uint32_t i, moe_err *err) {
    const moe_tensor *divisor = op_optional(a->in, a->n_in, i), *dlogits = op_optional(a->out, a->n_out, 1);
    moe_status s = MOE_OK;
    if (divisor) s = op_want(divisor, op, "divisor", MOE_I64, 1, OP_SHAPE(1), err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "loss", MOE_F64, 1, OP_SHAPE(1), err);
    return s == MOE_OK && dlogits ? op_want(dlogits, op, "dlogits", a->in[0].dtype, 2, a->in[0].shape, err) : s;
}

/* What all begin with. */
static moe_status check_logits(const moe_op_args *a, const char *op, moe_err *err) {
    moe_status s = op_want(&a->in[0], op, "logits", OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    return s == MOE_OK ? op_want(&a->in[1], op, "targets", MOE_I32, 1, a->in[0].shape, err) : s;
}

moe_status op_check_cross_entropy(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_CROSS_ENTROPY;
    moe_status s = op_want_lists(a, op, 2, 3, 1, 2, err);
    if (s == MOE_OK) s = check_logits(a, op, err);
    return s == MOE_OK ? check_end(a, op, 2, err) : s;
}

/* ---- a part of the vocabulary ---- */
/* The lists (one output and, of the last call, an optional one), logits, targets, and the part. */
static moe_status check_part(const moe_op_args *a, const char *op, uint32_t least_in, uint32_t optional, moe_err *err) {
    moe_vocabulary_attr part;
    moe_status s = op_want_lists(a, op, least_in, least_in + optional, 1, 1 + optional, err);
    if (s == MOE_OK) s = check_logits(a, op, err);
    if (s == MOE_OK && a->attr) s = op_want_attr(a, op, sizeof part, err);
    return s == MOE_OK ? op_vocabulary(a->attr, op, a->in[0].shape[1], &part, err) : s;
}

/* The largest logit of each row, and the two sums. */
static moe_status check_largest(const moe_op_args *a, const moe_tensor *t, const char *op, moe_err *err) {
    return op_want(t, op, "largest", MOE_F32, 1, a->in[0].shape, err);
}
static moe_status check_sums(const moe_op_args *a, const moe_tensor *t, const char *op, moe_err *err) {
    return op_want(t, op, "sums", MOE_F64, 2, OP_SHAPE(a->in[0].shape[0], 2), err);
}

moe_status op_check_cross_entropy_max(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_CROSS_ENTROPY_MAX;
    moe_status s = check_part(a, op, 2, 0, err);
    return s == MOE_OK ? check_largest(a, &a->out[0], op, err) : s;
}

moe_status op_check_cross_entropy_sum(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_CROSS_ENTROPY_SUM;
    moe_status s = check_part(a, op, 3, 0, err);
    if (s == MOE_OK) s = check_largest(a, &a->in[2], op, err);
    return s == MOE_OK ? check_sums(a, &a->out[0], op, err) : s;
}

moe_status op_check_cross_entropy_end(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_CROSS_ENTROPY_END;
    moe_status s = check_part(a, op, 4, 1, err);
    if (s == MOE_OK) s = check_largest(a, &a->in[2], op, err);
    if (s == MOE_OK) s = check_sums(a, &a->in[3], op, err);
    return s == MOE_OK ? check_end(a, op, 4, err) : s;
}

/* ---- moe.count_valid/0 ---- */
moe_status op_check_count_valid(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_COUNT_VALID;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "targets", MOE_I32, 1, OP_SHAPE(OP_ANY), err);
    return s == MOE_OK ? op_want(&a->out[0], op, "count", MOE_I64, 1, OP_SHAPE(1), err) : s;
}
