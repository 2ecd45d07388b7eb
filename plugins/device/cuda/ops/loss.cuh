/* What the two forms of the cross-entropy share (cross_entropy.cu of a whole vocabulary, cross_entropy_parts.cu of
 * parts): a block has a row, and goes through it in packs from its first border of 16 bytes on, whatever the width. */
#ifndef CUDA_OPS_LOSS_CUH
#define CUDA_OPS_LOSS_CUH
#include "../cuda.h"
#include "act.cuh"
#include "fault.cuh"
#include "reduce.cuh"

namespace {

const int64_t LOSS_MOST_WIDTH = 1 << 30; /* words, so that places in a row are of 32 bits */
enum { LOSS_THREADS = 1024 };            /* of a block at most */

/* The same for a width always, since it decides in which order a row is summed. */
unsigned loss_threads(int64_t width) {
    return width > 16384 ? LOSS_THREADS : width > 2048 ? 512 : 128;
}

moe_status loss_check_width(const char *op, const moe_op_args *a, moe_err *err) {
    const int64_t width = a->in[0].shape[1];
    if (width <= LOSS_MOST_WIDTH) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: rows of %lld logits, want at most %lld", op, (long long)width,
                    (long long)LOSS_MOST_WIDTH);
}

/* Do logits and their gradient (NULL: none) begin equally far from a border? */
bool loss_even(const void *logits, const void *dlogits) {
    return !dlogits || (uintptr_t)logits % 16 == (uintptr_t)dlogits % 16;
}

/* A row [width] in packs: elements [head, head + P * packs), the others one by one. */
template <class T>
struct loss_row {
    int width, head, packs;
};
template <class T>
__device__ __forceinline__ loss_row<T> loss_cut(const T *row, int width, bool even) {
    const int head = (int)((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
    if (!even || width < head + ACT_PACK<T>) return loss_row<T>{width, 0, 0};
    return loss_row<T>{width, head, (width - head) / ACT_PACK<T>};
}
/* Calls each.template at<P>(i) for this thread's elements [i, i + P). */
template <class T, class F>
__device__ __forceinline__ void loss_visit(const loss_row<T> &r, F &each) {
    constexpr int P = ACT_PACK<T>;
    for (int i = threadIdx.x; i < r.packs; i += blockDim.x) each.template at<P>(r.head + i * P);
    for (int i = threadIdx.x; i < r.width - r.packs * P; i += blockDim.x)
        each.template at<1>(i < r.head ? i : i + r.packs * P);
}

/* The target of a row, or -1; one outside of [-1, words) is reported and taken for -1. */
__device__ __forceinline__ int64_t loss_target(const int32_t *targets, int64_t row, int64_t words, moe_fault *fault) {
    const int64_t target = targets[row];
    if (target >= -1 && target < words) return target;
    if (threadIdx.x == 0) fault_set(fault, MOE_E_DATA, row, target);
    return -1;
}

/* 1 / divisor (NULL: 1). One that cannot be, in a row that has a target, is reported. */
__device__ __forceinline__ float loss_inverse(const int64_t *divisor, int64_t row, int64_t target, moe_fault *fault) {
    const int64_t d = divisor ? *divisor : 1;
    if (d > 0) return (float)(1.0 / (double)d);
    if (threadIdx.x == 0) fault_set(fault, MOE_E_DATA, row, target);
    return 0.0f;
}

/* e^(l - largest). The difference first: a logit times log2(e) would keep fewer digits of it. */
__device__ __forceinline__ float loss_exp(float l, float largest) {
    return __expf(l - largest);
}

/* d = e^(l - largest) * scale, less `inverse` at `own` (outside of the row: nowhere). d may be l. */
template <class T>
struct loss_gradient {
    const T *l;
    T *d;
    float largest, scale, inverse;
    int own;

    template <int P>
    __device__ __forceinline__ void at(int i) {
        float v[P];
        act_read<P>(l + i, v);
#pragma unroll
        for (int j = 0; j < P; j++) {
            v[j] = loss_exp(v[j], largest) * scale;
            if (i + j == own) v[j] -= inverse;
        }
        act_write<P>(d + i, v);
    }
};
/* d = 0, the gradient of a row that is not valid */
template <class T>
struct loss_nothing {
    T *d;
    template <int P>
    __device__ __forceinline__ void at(int i) {
        const float v[P] = {};
        act_write<P>(d + i, v);
    }
};

}  // namespace
#endif
