/* Errors of the CUDA runtime as statuses. C and C++. */
#ifndef CUDA_STATUS_H
#define CUDA_STATUS_H
#include <cuda_runtime_api.h>
#include <moe/options.h>

/* MOE_OK, or MOE_E_NOMEM / MOE_E_DEVICE: "WHAT: an illegal memory access was encountered (cudaErrorIllegalAddress)".
 * [any] */
static inline moe_status cuda_status(cudaError_t error, const char *what, moe_err *err) {
    if (error == cudaSuccess) return MOE_OK;
    return moe_fail(err, error == cudaErrorMemoryAllocation ? MOE_E_NOMEM : MOE_E_DEVICE, "%s: %s (%s)", what,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}
/* After a launch: what it did wrong itself (too many threads, too much shared memory). What a kernel does later is told
 * by the next wait. */
static inline moe_status cuda_launched(const char *what, moe_err *err) {
    return cuda_status(cudaGetLastError(), what, err);
}
#endif
