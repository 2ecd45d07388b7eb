/* Flat tensors in packs of four floats: what the optimiser and the measures go through. A tensor may begin at any
 * float; where all of a call begin equally far from a border of 16 bytes, only the ends are read one by one. */
#ifndef CUDA_OPS_FLAT_CUH
#define CUDA_OPS_FLAT_CUH
#include "../cuda.h"
#include "act.cuh"

enum { FLAT_THREADS = 256, FLAT_PACK = 4 };

typedef struct flat_cut {
    int64_t n, packs, head; /* elements; packs from element `head` on */
} flat_cut;

/* p [n_pointers]: FP32 tensors of n elements (NULL: absent); half: BF16, or NULL. */
static inline flat_cut flat_make(int64_t n, const void *const *p, int n_pointers, const void *half) {
    const int64_t head = (int64_t)((16 - (uintptr_t)p[0] % 16) % 16 / 4);
    bool even = !half || ((uintptr_t)half + 2 * (uintptr_t)head) % 8 == 0;
    for (int i = 1; i < n_pointers; i++) even = even && (!p[i] || (uintptr_t)p[i] % 16 == (uintptr_t)p[0] % 16);
    if (!even || n < head + FLAT_PACK) return flat_cut{n, 0, 0};
    return flat_cut{n, (n - head) / FLAT_PACK, head};
}
/* Threads: one a pack, and one an element that is in none. */
static inline unsigned flat_blocks(const flat_cut &cut) {
    return cuda_blocks(cut.packs + (cut.n - FLAT_PACK * cut.packs), FLAT_THREADS);
}

/* Calls each.template at<P>(i) for the elements [i, i + P) of thread number `thread`. */
template <class F>
__device__ __forceinline__ void flat_visit(const flat_cut &cut, int64_t thread, const F &each) {
    if (thread < cut.packs) {
        each.template at<FLAT_PACK>(cut.head + thread * FLAT_PACK);
        return;
    }
    const int64_t rest = thread - cut.packs, at = rest < cut.head ? rest : rest + FLAT_PACK * cut.packs;
    if (at < cut.n) each.template at<1>(at);
}
/* P elements, rounded; p is aligned to P of them. */
template <int P>
__device__ __forceinline__ void flat_round(bf16 *p, const float v[P]) {
    if constexpr (P == 1) {
        act_put(p, v[0]);
    } else {
        static_assert(P == 4, "8 bytes");
        const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]), high = __floats2bfloat162_rn(v[2], v[3]);
        *reinterpret_cast<uint2 *>(p) =
            make_uint2(*reinterpret_cast<const uint32_t *>(&low), *reinterpret_cast<const uint32_t *>(&high));
    }
}
__device__ __forceinline__ int64_t flat_thread() {
    return blockIdx.x * (int64_t)FLAT_THREADS + threadIdx.x;
}
#endif
