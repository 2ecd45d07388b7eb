/* moe.clip_coef/0: from the sum of squares to the norm and the factor of every gradient; one thread. */
#include <cmath>

#include "../cuda.h"
#include "kernel.h"

namespace {

__global__ void clip(const double *sum, double max_norm, const moe_fault *first, float *stats) {
    const double norm = sqrt(*sum);
    double coef = max_norm > 0.0 && norm > max_norm ? max_norm / norm : 1.0;
    if (!isfinite((float)norm) || (first && first->code)) coef = NAN;
    stats[0] = (float)norm;
    stats[1] = (float)coef;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_clip_coef(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_fault *first = MOE_REACH(a, moe_op_args, fault) ? static_cast<const moe_fault *>(a->fault) : nullptr;
    KERNEL_LAUNCH(clip, 1, 1, 0, cuda_stream(a), static_cast<const double *>(a->in[0].data),
                  (double)static_cast<const moe_clip_attr *>(a->attr)->max_norm, first,
                  static_cast<float *>(a->out[0].data));
    return cuda_launched(MOE_OP_CLIP_COEF, err);
}

}  // namespace

extern const moe_op cuda_op_clip_coef = {sizeof(moe_op), 0, MOE_OP_CLIP_COEF, sizes, forward, nullptr};
