/* What launchers of row operations share: which kernel fits the dtype and the addresses, and copies of rows. */
#ifndef CUDA_OPS_CALL_CUH
#define CUDA_OPS_CALL_CUH
#include "../cuda.h"
#include "act.cuh"

/* run<T, P>(...) by the act dtype: in packs of 16 bytes where `packs`, else element by element. */
#define CALL_ACT(run, dtype, packs, ...)                                                      \
    ((dtype) == MOE_F32 ? ((packs) ? run<float, 4>(__VA_ARGS__) : run<float, 1>(__VA_ARGS__)) \
                        : ((packs) ? run<bf16, ACT_PACK<bf16>>(__VA_ARGS__) : run<bf16, 1>(__VA_ARGS__)))
/* run<U>(...): rows that are only moved, in units of 16, 4 or 2 bytes. */
#define CALL_COPY(run, dtype, packs, ...) \
    ((packs) ? run<uint4>(__VA_ARGS__) : (dtype) == MOE_F32 ? run<uint32_t>(__VA_ARGS__) : run<uint16_t>(__VA_ARGS__))

namespace {

enum { ROW_THREADS = 256 }; /* of a block at most that works on one row */

template <class T>
T *call_data(const moe_tensor *t) { /* NULL where it is absent */
    return t ? static_cast<T *>(t->data) : nullptr;
}

/* Do packs of 16 bytes fit rows of this many elements, at every address of `addresses` (or-ed together)? Several widths
 * are or-ed too: all are multiples of a power of two exactly where that is. */
inline bool call_packs(int32_t dtype, int64_t widths, uintptr_t addresses) {
    return (widths * op_act_bytes(dtype)) % 16 == 0 && addresses % 16 == 0;
}
inline uintptr_t call_at(const moe_tensor *t) {
    return (uintptr_t)t->data;
}

/* Threads of a block for a row of n units. */
inline unsigned row_threads(int64_t n) {
    return n >= ROW_THREADS ? (unsigned)ROW_THREADS : n < 32 ? 32u : (unsigned)(n + 31) / 32 * 32;
}

/* a / b, in 32 bits where that is enough. a >= 0 */
__device__ __forceinline__ int64_t quick_divide(int64_t a, uint32_t b) {
    return a >> 32 ? a / b : (int64_t)((uint32_t)a / b);
}

/* The block's threads copy n units; from NULL: zeros. */
template <class U>
__device__ __forceinline__ void row_copy(U *__restrict__ to, const U *__restrict__ from, int n) {
    if (from) {
#pragma unroll 4
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
    } else {
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = U{};
    }
}

/* P elements of one dtype as FP32 where those of the other are P to 16 bytes: a pack of BF16 is two of FP32. */
template <int P>
__device__ __forceinline__ void pack_get(const float *p, float v[P]) {
    act_floats<P>(p, v);
}
template <int P>
__device__ __forceinline__ void pack_get(const bf16 *p, float v[P]) {
    act_read<P>(p, v);
}
template <int P>
__device__ __forceinline__ void pack_put(float *p, const float v[P]) {
    act_put_floats<P>(p, v);
}
template <int P>
__device__ __forceinline__ void pack_put(bf16 *p, const float v[P]) {
    act_write<P>(p, v);
}

}  // namespace
#endif
