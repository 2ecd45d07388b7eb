/* The second step of sums over many blocks: what each of them has left is added by one block, in an order that depends
 * on their number alone. */
#ifndef CUDA_OPS_SUM_PARTS_CUH
#define CUDA_OPS_SUM_PARTS_CUH
#include "../cuda.h"
#include "reduce.cuh"

namespace {

enum { SUM_PARTS_THREADS = 512 };

/* *sum += parts [n] */
__global__ void __launch_bounds__(SUM_PARTS_THREADS)
    sum_parts(const double *__restrict__ parts, int64_t n, double *__restrict__ sum) {
    KERNEL_SHARED(block_room<double>, room);
    double mine = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine += parts[i];
    const double all = block_sum(mine, room);
    if (threadIdx.x == 0) *sum += all;
}

void sum_parts_launch(const double *parts, int64_t n, double *sum, cudaStream_t stream) {
    const unsigned threads = n > WARP ? (unsigned)SUM_PARTS_THREADS : (unsigned)WARP;
    KERNEL_LAUNCH(sum_parts, 1, threads, 0, stream, parts, n, sum);
}

}  // namespace
#endif
