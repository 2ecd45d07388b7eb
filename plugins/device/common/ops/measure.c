/* Checks of what measures a device: moe.fma/0 and moe.copy/0; see ../ops.h. */
#include "../ops.h"

/* x and y, flat, and an attribute struct that reaches `bytes`. */
static moe_status check_flat(const moe_op_args *a, const char *op, uint64_t bytes, moe_err *err) {
    moe_status s = op_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "x", MOE_F32, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "y", MOE_F32, 1, a->in[0].shape, err);
    return s == MOE_OK ? op_want_attr(a, op, bytes, err) : s;
}

moe_status op_check_fma(const moe_op_args *a, moe_err *err) {
    return check_flat(a, MOE_OP_FMA, sizeof(moe_fma_attr), err);
}

moe_status op_check_copy(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_COPY;
    moe_status s = check_flat(a, op, sizeof(moe_copy_attr), err);
    if (s != MOE_OK) return s;
    uint32_t streaming = ((const moe_copy_attr *)a->attr)->streaming;
    if (streaming > 1) return moe_fail(err, MOE_E_ARG, "%s: streaming is %u, want 0 or 1", op, streaming);
    return MOE_OK;
}
