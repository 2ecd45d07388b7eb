/* Errors in the data that a kernel finds: see moe_fault in <moe/device.h>. */
#ifndef CUDA_FAULT_CUH
#define CUDA_FAULT_CUH
#include <moe/device.h>

#include "kernel.h"

/* The first that writes is kept; fault NULL: nobody wants to know. */
__device__ __forceinline__ void fault_set(moe_fault *fault, int64_t code, int64_t token, int64_t value) {
    if (!fault) return;
    unsigned long long *first = reinterpret_cast<unsigned long long *>(&fault->code);
    if (atomicCAS(first, 0ull, (unsigned long long)code) != 0ull) return;
    fault->token = token;
    fault->value = value;
    fault->layer = -1;
}
#endif
