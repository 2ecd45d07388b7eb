/* What every kernel source (.cu) includes: the execution model. nvcc compiles the source for the GPU; a C++ compiler
 * compiles the same source for the CPU against tests/cuda/double/model.h, where every CUDA thread is a fibre and every
 * resident block a thread. What differs between the two is behind these macros:
 *
 *   KERNEL_SHARED(type, name)    one object in the block's shared memory; not initialised
 *   KERNEL_DYNAMIC(type, name)   type *name: the shared memory asked for at launch, aligned to 16 bytes
 *   KERNEL_LAUNCH(kernel, grid, block, shared_bytes, stream, args...)       a template in parentheses: (k<float, 4>)
 *   KERNEL_LAUNCH_ALL(...)       the same, cooperative: all blocks are resident, so that they may wait for each other
 *   KERNEL_SPIN()                in every loop that waits for another thread's write
 *   KERNEL_LARGE_SHARED(kernel, bytes)  before a launch with more than 48 KiB of dynamic shared memory
 *
 * Kernels use no inline PTX outside of tile functions that have a body for the CPU too. */
#ifndef CUDA_KERNEL_H
#define CUDA_KERNEL_H

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define KERNEL_SHARED(type, name) __shared__ type name
#define KERNEL_DYNAMIC(type, name)                              \
    extern __shared__ __align__(16) unsigned char kernel_dyn[]; \
    type *name = reinterpret_cast<type *>(kernel_dyn)
#define KERNEL_LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define KERNEL_LAUNCH_ALL(kernel, grid, block, shared, stream, ...) \
    kernel_launch_all(kernel, grid, block, shared, stream, __VA_ARGS__)
#define KERNEL_SPIN() __nanosleep(20)
#define KERNEL_LARGE_SHARED(kernel, bytes) \
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))

template <class... P, class... A>
static inline void kernel_launch_all(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                     A... args) {
    cudaLaunchAttribute all = {};
    all.id = cudaLaunchAttributeCooperative;
    all.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &all;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...); /* its error is cudaGetLastError's too */
}
#else
#include "model.h"
#endif

#endif
