/* moe.count_valid/0: how many tokens have a target; the divisor of the loss begins here. */
#include "args.h"

static const char op[] = MOE_OP_COUNT_VALID;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_count_valid(a, err), saved, workspace);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)dev;
    (void)err;
    const int32_t *targets = a->in[0].data; /* [T] */
    int64_t n = a->in[0].shape[0], count = 0;
    for (int64_t t = 0; t < n; t++) count += targets[t] >= 0;
    *(int64_t *)a->out[0].data += count;
    return MOE_OK;
}

const moe_op CPU_OP(count_valid) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
