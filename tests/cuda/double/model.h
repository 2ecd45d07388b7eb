/* What a kernel source sees on a CPU in place of the CUDA compiler's builtins: see plugins/cuda/kernel.h. BF16 and FP8
 * conversions are the toolkit's own host code. Atomics are the machine's, sequentially consistent. */
#ifndef CUDA_DOUBLE_MODEL_H
#define CUDA_DOUBLE_MODEL_H
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "fibre.h"
#include "runtime.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (::cuda_double::here().thread)
#define blockIdx (::cuda_double::here().block)
#define blockDim (::cuda_double::here().block_dim)
#define gridDim (::cuda_double::here().grid_dim)

#define KERNEL_SHARED(type, name)      \
    static const char name##_site = 0; \
    type &name = *static_cast<type *>(::cuda_double::shared(&name##_site, sizeof(type)))
#define KERNEL_DYNAMIC(type, name) type *name = static_cast<type *>(::cuda_double::dynamic())
#define KERNEL_LAUNCH(kernel, grid, block, shared, stream, ...) \
    ::cuda_double::start(kernel, grid, block, shared, stream, false, __VA_ARGS__)
#define KERNEL_LAUNCH_ALL(kernel, grid, block, shared, stream, ...) \
    ::cuda_double::start(kernel, grid, block, shared, stream, true, __VA_ARGS__)
#define KERNEL_SPIN() ::cuda_double::yield()
#define KERNEL_LARGE_SHARED(kernel, bytes) ((void)(bytes))

namespace cuda_double {

template <class... P, class... A>
void start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, bool together,
           A... args) {
    std::tuple<P...> given(static_cast<P>(args)...);
    launch([kernel, given] { std::apply(kernel, given); }, grid, block, shared_bytes, stream, together);
}

struct shuffle {
    uint64_t value;
    unsigned from;
    DOUBLE_UNSEEN static void finish(void *const lanes[32], unsigned mask) {
        uint64_t all[32];
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1) all[i] = static_cast<shuffle *>(lanes[i])->value;
        for (int i = 0; i < 32; i++) {
            if (!(mask >> i & 1)) continue;
            shuffle *s = static_cast<shuffle *>(lanes[i]);
            if (mask >> s->from & 1) s->value = all[s->from]; /* from a lane that is not here: undefined, its own */
        }
    }
};
template <class T>
T shuffle_from(unsigned mask, T v, unsigned from) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a lane gives at most 8 bytes");
    shuffle s = {0, from & 31};
    memcpy(&s.value, &v, sizeof v);
    meet_warp(mask, &s, shuffle::finish);
    memcpy(&v, &s.value, sizeof v);
    return v;
}

struct ballot {
    unsigned value;
    DOUBLE_UNSEEN static void finish(void *const lanes[32], unsigned mask) {
        unsigned all = 0;
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1 && static_cast<ballot *>(lanes[i])->value) all |= 1u << i;
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1) static_cast<ballot *>(lanes[i])->value = all;
    }
};

struct match {
    uint64_t value;
    unsigned same;
    DOUBLE_UNSEEN static void finish(void *const lanes[32], unsigned mask) {
        for (int i = 0; i < 32; i++) {
            if (!(mask >> i & 1)) continue;
            match *m = static_cast<match *>(lanes[i]);
            m->same = 0;
            for (int j = 0; j < 32; j++)
                if (mask >> j & 1 && static_cast<match *>(lanes[j])->value == m->value) m->same |= 1u << j;
        }
    }
};

/* *p = change(*p), at once. Returns what was there. */
template <class T, class F>
T atomic_change(T *p, F change) {
    using word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
    static_assert(sizeof(T) == sizeof(word), "4 or 8 bytes");
    word *w = reinterpret_cast<word *>(p), was = __atomic_load_n(w, __ATOMIC_SEQ_CST), then;
    T before, after;
    do {
        memcpy(&before, &was, sizeof was);
        after = change(before);
        memcpy(&then, &after, sizeof then);
    } while (!__atomic_compare_exchange_n(w, &was, then, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}

}  // namespace cuda_double

static inline void __syncthreads() {
#if !defined(CUDA_DOUBLE_NO_BARRIERS) /* tests/cuda/caught */
    ::cuda_double::sync_block();
#endif
}
static inline int __syncthreads_or(int p) {
    return ::cuda_double::count_block(p) > 0;
}
static inline void __syncwarp(unsigned mask = ~0u) {
    ::cuda_double::meet_warp(mask, nullptr, nullptr);
}

template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    const unsigned me = ::cuda_double::lane();
    return ::cuda_double::shuffle_from(mask, v,
                                       (me & ~(unsigned)(width - 1)) | ((unsigned)from & (unsigned)(width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int flip, int = 32) {
    return ::cuda_double::shuffle_from(mask, v, ::cuda_double::lane() ^ (unsigned)flip);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const unsigned me = ::cuda_double::lane();
    return ::cuda_double::shuffle_from(mask, v, (me & (unsigned)(width - 1)) >= by ? me - by : me);
}
static inline unsigned __ballot_sync(unsigned mask, int p) {
    ::cuda_double::ballot b = {p != 0};
    ::cuda_double::meet_warp(mask, &b, ::cuda_double::ballot::finish);
    return b.value;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T v) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a lane gives at most 8 bytes");
    ::cuda_double::match m = {0, 0};
    memcpy(&m.value, &v, sizeof v);
    ::cuda_double::meet_warp(mask, &m, ::cuda_double::match::finish);
    return m.same;
}
static inline int __any_sync(unsigned mask, int p) {
    return __ballot_sync(mask, p) != 0;
}
static inline int __all_sync(unsigned mask, int p) {
    return __ballot_sync(mask, !p) == 0;
}

static inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
    for (int i = 16; i; i >>= 1) {
        const unsigned other = __shfl_xor_sync(mask, v, i);
        v = other > v ? other : v;
    }
    return v;
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v) {
    return ~__reduce_max_sync(mask, ~v);
}

template <class T>
T atomicAdd(T *p, std::common_type_t<T> v) {
    return ::cuda_double::atomic_change(p, [v](T x) { return (T)(x + v); });
}
template <class T>
T atomicMin(T *p, std::common_type_t<T> v) {
    return ::cuda_double::atomic_change(p, [v](T x) { return x < v ? x : v; });
}
template <class T>
T atomicExch(T *p, std::common_type_t<T> v) {
    return ::cuda_double::atomic_change(p, [v](T) { return v; });
}
template <class T>
T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> v) {
    return ::cuda_double::atomic_change(p, [expected, v](T x) { return x == expected ? v : x; });
}
static inline void __threadfence_system() {
    __sync_synchronize();
}
static inline void __nanosleep(unsigned) {
    ::cuda_double::yield();
}

template <class T>
T __ldcs(const T *p) {
    return *p;
}
template <class T>
void __stcs(T *p, T v) {
    *p = v;
}

static inline int __popc(unsigned v) {
    return __builtin_popcount(v);
}
static inline int __ffs(int v) {
    return __builtin_ffs(v);
}
static inline float __uint_as_float(unsigned v) {
    float f;
    memcpy(&f, &v, 4);
    return f;
}
static inline unsigned __float_as_uint(float f) {
    unsigned v;
    memcpy(&v, &f, 4);
    return v;
}
using std::isfinite;
using std::isinf;
using std::isnan;
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
/* glibc has functions of these names of its own. */
#define __expf expf
#define __logf logf
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
template <class T>
T min(T a, std::common_type_t<T> b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, std::common_type_t<T> b) {
    return a < b ? b : a;
}

#endif
