/* moe.clip_coef/0: from the sum of squares to the norm and the factor of every gradient. */
#include "args.h"

static const char op[] = MOE_OP_CLIP_COEF;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_clip_coef(a, err), saved, workspace);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)dev;
    (void)err;
    double max_norm = (double)((const moe_clip_attr *)a->attr)->max_norm;
    double norm = sqrt(*(const double *)a->in[0].data), coef = 1.0;
    float *stats = a->out[0].data; /* [2] */
    stats[0] = (float)norm;
    if (max_norm > 0.0 && norm > max_norm) coef = max_norm / norm;
    stats[1] = isfinite(stats[0]) ? (float)coef : NAN;
    return MOE_OK;
}

const moe_op CPU_OP(clip_coef) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
