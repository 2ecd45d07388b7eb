/* The operations of this device, once: X(name), one line each; ops/<name>.cu defines cuda_op_<name>. */
#ifndef DEVICE_CUDA_LIST_H
#define DEVICE_CUDA_LIST_H

/* clang-format off */
#define CUDA_OPS(X) \
    X(adamw) \
    X(add) \
    X(clip_coef) \
    X(copy) \
    X(count_valid) \
    X(cross_entropy) \
    X(cross_entropy_end) \
    X(cross_entropy_max) \
    X(cross_entropy_sum) \
    X(first_fault) \
    X(fma) \
    X(rmsnorm) \
    X(sgd) \
    X(sumsq)
/* clang-format on */

#endif
