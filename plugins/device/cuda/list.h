/* The operations of this device, once: X(name), one line each; ops/<name>.cu defines cuda_op_<name>. */
#ifndef DEVICE_CUDA_LIST_H
#define DEVICE_CUDA_LIST_H

/* clang-format off */
#define CUDA_OPS(X) \
    X(adamw) \
    X(add) \
    X(attention) \
    X(bias) \
    X(capacity) \
    X(clip_coef) \
    X(convert) \
    X(copy) \
    X(count_valid) \
    X(cross_entropy) \
    X(cross_entropy_end) \
    X(cross_entropy_max) \
    X(cross_entropy_sum) \
    X(dispatch_plan) \
    X(dispatch_slots) \
    X(embed) \
    X(exchange_maps) \
    X(expert_counts) \
    X(expert_rows) \
    X(first_fault) \
    X(fma) \
    X(head_norm) \
    X(jitter) \
    X(join) \
    X(linear) \
    X(mla_pack) \
    X(permute) \
    X(rmsnorm) \
    X(rope) \
    X(router_linear) \
    X(sent) \
    X(sgd) \
    X(sigmoid) \
    X(sumsq) \
    X(swiglu_prob) \
    X(unpermute)
/* clang-format on */

#endif
