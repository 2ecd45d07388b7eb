/* Words by which blocks, GPUs and the host tell each other that something is done: who reads what another has put sees
 * all that this one, and whoever it has read from, wrote before. A word lies in device memory, in a peer's, or in host
 * memory that the device sees. */
#ifndef CUDA_SIGNAL_CUH
#define CUDA_SIGNAL_CUH
#include <stdint.h>

#include "kernel.h"

__device__ __forceinline__ uint32_t signal_get(const uint32_t *p) {
#if defined(__CUDACC__)
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#else
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}
__device__ __forceinline__ void signal_put(uint32_t *p, uint32_t v) {
#if defined(__CUDACC__)
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#else
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
#endif
}
/* Returns what was there. Among the blocks of one GPU. */
__device__ __forceinline__ uint32_t signal_add(uint32_t *p, uint32_t v) {
#if defined(__CUDACC__)
    uint32_t was;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(was) : "l"(p), "r"(v) : "memory");
    return was;
#else
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
#endif
}
#endif
