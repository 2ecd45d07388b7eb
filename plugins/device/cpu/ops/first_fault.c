/* moe.first_fault/0: which of the calls of a step was the first to report an error in its data. */
#include "args.h"

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_first_fault(a, err);
    if (s == MOE_OK) *saved = *workspace = 0;
    return s;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)dev;
    (void)err;
    const moe_fault *faults = a->in[0].data; /* [n] */
    int64_t *first = a->out[0].data;         /* [4] */
    int64_t n = a->in[0].shape[0], i = 0;
    while (i < n && !faults[i].code) i++;
    memset(first, 0, 4 * sizeof *first);
    if (i == n) return MOE_OK;
    first[0] = faults[i].code;
    first[1] = faults[i].token;
    first[2] = faults[i].value;
    first[3] = i;
    return MOE_OK;
}

const moe_op CPU_OP(first_fault) = {sizeof(moe_op), 0, MOE_OP_FIRST_FAULT, sizes, forward, NULL};
