/* The CUDA runtime on a CPU: streams are worker threads, device memory is memory of the process, and a launch runs its
 * grid's blocks on a few threads (launch.cpp). The functions themselves are declared by <cuda_runtime_api.h>; here is
 * what the other parts of the double (cuBLASLt, NCCL) need. One device is as good as another: there are
 * MOE_DOUBLE_DEVICES of them (8).
 *
 * Environment, for tests: MOE_DOUBLE_DELAY_US: every command of a stream begins that much later, so that a host that
 * does not wait reads old data. MOE_DOUBLE_FAIL="cudaMalloc 3": the third call of that function fails.
 * MOE_DOUBLE_WAITS=FILE: at its end the process writes there how often the host has waited for a stream, an event or a
 * device. */
#ifndef CUDA_DOUBLE_RUNTIME_H
#define CUDA_DOUBLE_RUNTIME_H
#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include <functional>
extern "C" {
#endif

/* Runs fn(arg) in stream order, on the stream's thread. The default stream (NULL) is one a device. arg is fn's. [any]
 */
cudaError_t double_enqueue(cudaStream_t stream, void (*fn)(void *), void *arg);
/* The commands of streams go on failing with this error, as after an illegal address: cudaGetLastError and every wait
 * tell it. [any] */
void double_poison(cudaError_t error);
/* True for the nth call of `function` when MOE_DOUBLE_FAIL says so. [any] */
int double_fails(const char *function);

#ifdef __cplusplus
}

namespace cuda_double {

/* A grid in stream order. together: every block has a thread of its own, so that blocks may wait for each other. */
void launch(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            bool together);
/* Runs a grid now, on the calling thread and the pool. */
void run_grid(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes, bool together);
/* Notes an error for cudaGetLastError and returns it. */
cudaError_t note(cudaError_t error);

}  // namespace cuda_double
#endif
#endif
