/* The operations of this device, once: X(name), one line each; ops/<name>.cu defines cuda_op_<name>. */
#ifndef DEVICE_CUDA_LIST_H
#define DEVICE_CUDA_LIST_H

/* clang-format off */
#define CUDA_OPS(X) \
    X(add) \
    X(bias) \
    X(capacity) \
    X(embed) \
    X(expert_rows) \
    X(head_norm) \
    X(jitter) \
    X(join) \
    X(mla_pack) \
    X(permute) \
    X(rmsnorm) \
    X(rope) \
    X(sigmoid) \
    X(swiglu_prob) \
    X(unpermute)
/* clang-format on */

#endif
