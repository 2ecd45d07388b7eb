/* Reductions over a warp and over a block, in a fixed order, so that every run gives the same bits. All threads of the
 * warp, or of the block, take part and get the result. */
#ifndef CUDA_REDUCE_CUH
#define CUDA_REDUCE_CUH
#include "kernel.h"

enum { WARP = 32 };

template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int i = WARP / 2; i; i >>= 1) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}
template <class T>
__device__ __forceinline__ T warp_max(T v) {
#pragma unroll
    for (int i = WARP / 2; i; i >>= 1) {
        const T other = __shfl_xor_sync(0xffffffffu, v, i);
        v = other > v ? other : v;
    }
    return v;
}

/* A block's reductions need one of these in shared memory (KERNEL_SHARED(block_room<float>, room)); between two that
 * use the same room the functions see to the barrier themselves. blockDim.x is a multiple of 32, y and z are 1. */
template <class T>
struct block_room {
    T part[WARP];
};
template <class T>
__device__ __forceinline__ T block_sum(T v, block_room<T> &room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    v = warp_sum(v);
    __syncthreads(); /* whoever still reads what the room held */
    if (lane == 0) room.part[warp] = v;
    __syncthreads();
    return warp_sum(lane < warps ? room.part[lane] : T(0));
}
template <class T>
__device__ __forceinline__ T block_max(T v, block_room<T> &room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    v = warp_max(v);
    __syncthreads();
    if (lane == 0) room.part[warp] = v;
    __syncthreads();
    return warp_max(room.part[lane < warps ? lane : 0]);
}
/* The sum of v over the threads before this one, in order of their numbers; *sum: over all threads. */
template <class T>
__device__ __forceinline__ T block_before(T v, block_room<T> &room, T *sum) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    T upto = v;
#pragma unroll
    for (int i = 1; i < WARP; i *= 2) {
        const T left = __shfl_up_sync(0xffffffffu, upto, (unsigned)i);
        if (lane >= i) upto += left;
    }
    __syncthreads();
    if (lane == WARP - 1) room.part[warp] = upto;
    __syncthreads();
    T before = 0, all = 0;
    for (int i = 0; i < warps; i++) {
        if (i < warp) before += room.part[i];
        all += room.part[i];
    }
    *sum = all;
    return before + upto - v;
}
#endif
