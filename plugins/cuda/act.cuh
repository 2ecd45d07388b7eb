/* Activations in kernels: elements of MOE_F32 or MOE_BF16, read as FP32 and written rounded to nearest even; and packs
 * of 16 bytes for memory-bound kernels. */
#ifndef CUDA_ACT_CUH
#define CUDA_ACT_CUH
#include <stdint.h>

#include "kernel.h"

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ float act_get(const float *p) {
    return *p;
}
__device__ __forceinline__ float act_get(const bf16 *p) {
    return __bfloat162float(*p);
}
__device__ __forceinline__ void act_put(float *p, float v) {
    *p = v;
}
__device__ __forceinline__ void act_put(bf16 *p, float v) {
    *p = __float2bfloat16_rn(v);
}

/* ACT_PACK<T>: elements of one 16-byte access. */
template <class T>
struct act_width {
    static constexpr int value = 16 / sizeof(T);
};
template <class T>
constexpr int ACT_PACK = act_width<T>::value;

/* 16 bytes of T as FP32. p is aligned to 16 bytes. */
__device__ __forceinline__ void act_load(const float *p, float v[4]) {
    const float4 x = *reinterpret_cast<const float4 *>(p);
    v[0] = x.x;
    v[1] = x.y;
    v[2] = x.z;
    v[3] = x.w;
}
__device__ __forceinline__ void act_load(const bf16 *p, float v[8]) {
    const uint4 x = *reinterpret_cast<const uint4 *>(p);
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* a BF16 is the upper half of an FP32 */
        v[2 * i] = __uint_as_float(word[i] << 16);
        v[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ void act_store(float *p, const float v[4]) {
    *reinterpret_cast<float4 *>(p) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void act_store(bf16 *p, const float v[8]) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        word[i] = *reinterpret_cast<const uint32_t *>(&two);
    }
    *reinterpret_cast<uint4 *>(p) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* P elements of T as FP32: one where P is 1, else a pack (P is ACT_PACK<T>, p aligned to 16 bytes). */
template <int P, class T>
__device__ __forceinline__ void act_read(const T *p, float v[P]) {
    if constexpr (P == 1)
        v[0] = act_get(p);
    else
        act_load(p, v);
}
template <int P, class T>
__device__ __forceinline__ void act_write(T *p, const float v[P]) {
    if constexpr (P == 1)
        act_put(p, v[0]);
    else
        act_store(p, v);
}
/* P floats that go with a pack of activations: 1, 4 or 8; p aligned to 16 bytes where it is not 1. */
template <int P>
__device__ __forceinline__ void act_floats(const float *p, float v[P]) {
    if constexpr (P == 1) {
        v[0] = *p;
    } else {
#pragma unroll
        for (int i = 0; i < P; i += 4) act_load(p + i, v + i);
    }
}
template <int P>
__device__ __forceinline__ void act_put_floats(float *p, const float v[P]) {
    if constexpr (P == 1) {
        *p = v[0];
    } else {
#pragma unroll
        for (int i = 0; i < P; i += 4) act_store(p + i, v + i);
    }
}

/* May rows of `width` elements at these addresses be read in packs of 16 bytes? */
template <class T>
static inline bool act_packs(int64_t width, const void *a, const void *b = nullptr, const void *c = nullptr,
                             const void *d = nullptr) {
    const uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return width % ACT_PACK<T> == 0 && all % 16 == 0;
}
#endif
