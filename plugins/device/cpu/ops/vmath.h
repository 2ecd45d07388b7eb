/* Functions of single floats that a compiler turns into vector code inside a plain loop (no branch, no table, no
 * libm), and reductions over fixed lanes, so that their order does not depend on the compiler's choice of width.
 * Each polynomial interpolates at the Chebyshev nodes of its interval and is rounded to FP32; error bounds are measured
 * by tests/plugins/device/ops/test_vmath.c. */
#ifndef CPU_OPS_VMATH_H
#define CPU_OPS_VMATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>

/* In front of a loop whose outputs may be the very same memory as its inputs, element for element. */
#if defined(__clang__)
#define CPU_IN_PLACE _Pragma("clang loop vectorize(assume_safety)")
#else
#define CPU_IN_PLACE _Pragma("GCC ivdep")
#endif

static inline float vm_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t vm_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* e^x with relative error below 2e-7 for -87.3 <= x <= 88; exactly 0 below (and at -inf), infinity above 88.37; a NaN
 * stays one. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q of degree 4 (within 1.1e-8). */
static inline float vm_exp(float x) {
    const float least = -87.3365f, most = 88.7f;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits */
    float c = x < least ? least : x;
    c = c > most ? most : c;
    float shifted = c * 0x1.715476p+0f + shift;
    float n = shifted - shift;
    float r = (c - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts, the first exact times any n */
    float q = 0x1.6d1106p-10f;
    q = q * r + 0x1.120b6cp-7f;
    q = q * r + 0x1.55551ap-5f;
    q = q * r + 0x1.5554dcp-3f;
    q = q * r + 0.5f;
    float p = q * (r * r) + r + 1.0f;
    float scale = vm_from_bits((vm_bits(shifted) + 127u) << 23); /* 2^n */
    return x < least ? 0.0f : p * scale;
}

/* 1 / (1 + e^-x) */
static inline float vm_sigmoid(float x) {
    return 1.0f / (1.0f + vm_exp(-x));
}

/* sin and cos of an angle in radians, absolute error below 1.5e-7 for |x| < 1e6 (positions times frequencies). The
 * quarter turn is taken off in FP64, where it is exact enough; the rest lies within pi/4. */
static inline void vm_sincos(float x, float *sine, float *cosine) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    double turns = (double)x * 0.63661977236758134308 + shift;
    int64_t quarter_bits;
    memcpy(&quarter_bits, &turns, sizeof quarter_bits);
    double n = turns - shift;
    float r = (float)(((double)x - n * 1.57079632679489655800) - n * 6.123233995736766e-17);
    uint32_t quarter = (uint32_t)quarter_bits & 3u;
    float t = r * r;
    float s = ((-0x1.9ac9bp-13f * t + 0x1.110c28p-7f) * t - 0x1.555552p-3f) * (t * r) + r;
    float c = ((0x1.9bd89cp-16f * t - 0x1.6c12d2p-10f) * t + 0x1.555554p-5f) * (t * t) + (1.0f - 0.5f * t);
    uint32_t sb = vm_bits(s), cb = vm_bits(c), swap = 0u - (quarter & 1u); /* all ones in odd quarters */
    uint32_t s2 = (cb & swap) | (sb & ~swap), c2 = (sb & swap) | (cb & ~swap);
    *sine = vm_from_bits(s2 ^ ((quarter & 2u) << 30));
    *cosine = vm_from_bits(c2 ^ (((quarter + 1u) & 2u) << 30));
}

/* ---- reductions: 16 lanes, then the lanes in order, then the rest in order ---- */
#define VM_LANES 16
typedef float vm_f16 __attribute__((vector_size(64), aligned(4), may_alias)); /* any float address */
typedef double vm_d8 __attribute__((vector_size(64), aligned(8), may_alias));

static inline float vm_lanes(const float lane[VM_LANES]) {
    float s = 0.0f;
    for (int l = 0; l < VM_LANES; l++) s += lane[l];
    return s;
}

/* sum of a[i] */
static inline float vm_sum(const float *a, int64_t n) {
    float lane[VM_LANES];
    vm_f16 acc = {0};
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES) acc += *(const vm_f16 *)(a + i);
    memcpy(lane, &acc, sizeof lane);
    float s = vm_lanes(lane);
    for (; i < n; i++) s += a[i];
    return s;
}

/* sum of a[i] * b[i] */
static inline float vm_dot(const float *a, const float *b, int64_t n) {
    float lane[VM_LANES];
    vm_f16 acc = {0};
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES) acc += *(const vm_f16 *)(a + i) * *(const vm_f16 *)(b + i);
    memcpy(lane, &acc, sizeof lane);
    float s = vm_lanes(lane);
    for (; i < n; i++) s += a[i] * b[i];
    return s;
}

/* largest a[i], at least `from`; NaNs are passed over */
static inline float vm_max(const float *a, int64_t n, float from) {
    float lane[VM_LANES];
    for (int l = 0; l < VM_LANES; l++) lane[l] = from;
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES)
        for (int l = 0; l < VM_LANES; l++) lane[l] = a[i + l] > lane[l] ? a[i + l] : lane[l];
    float m = from;
    for (int l = 0; l < VM_LANES; l++) m = lane[l] > m ? lane[l] : m;
    for (; i < n; i++) m = a[i] > m ? a[i] : m;
    return m;
}

/* a[i] = e^(a[i] - shift); returns their sum. to may be a. */
static inline float vm_exp_sum(float *to, const float *a, int64_t n, float shift) {
    CPU_IN_PLACE
    for (int64_t i = 0; i < n; i++) to[i] = vm_exp(a[i] - shift);
    return vm_sum(to, n);
}
#endif
