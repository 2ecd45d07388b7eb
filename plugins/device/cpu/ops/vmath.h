/* Functions of single floats that a compiler turns into vector code inside a plain loop (no branch, no table, no
 * libm), vectors of the instruction set's width, and reductions over them in an order that no compiler may change.
 * Each polynomial interpolates at the Chebyshev nodes of its interval and is rounded to FP32; error bounds are measured
 * by tests/plugins/device/ops/test_vmath.c. */
#ifndef CPU_OPS_VMATH_H
#define CPU_OPS_VMATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

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

/* e^x with relative error below 2e-7 for -87.3 <= x <= 88; exactly 0 below (and at -inf), infinity above 88.4; a NaN
 * stays one. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r (1 + r q(r)), q of degree 4 (within 1.1e-8).
 * vm_exp_negative is the same for x <= 0 (or a NaN), as a softmax has it, and cheaper. */
static inline float vm_exp_negative(float x) {
    const float least = -87.3365f;
    const float shift = 12583039.0f; /* 1.5 * 2^23 + 127: adding it leaves the nearest integer plus 127, the exponent of
                                        2^n, in the low mantissa bits */
    float shifted = x * 0x1.715476p+0f + shift;
    float n = shifted - shift;
    float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts, the first exact times any n */
    float q = 0x1.6d1106p-10f;
    q = q * r + 0x1.120b6cp-7f;
    q = q * r + 0x1.55551ap-5f;
    q = q * r + 0x1.5554dcp-3f;
    q = q * r + 0.5f;
    float p = (q * r + 1.0f) * r + 1.0f;
    float scale = vm_from_bits(vm_bits(shifted) << 23); /* 2^n */
    return x < least ? 0.0f : p * scale;
}
static inline float vm_exp(float x) {
    return x > 88.7f ? INFINITY : vm_exp_negative(x);
}

/* 1 / (1 + e^-x) */
static inline float vm_sigmoid(float x) {
    return 1.0f / (1.0f + vm_exp(-x));
}

/* x less its nearest number of quarter turns, which goes to *quarter, for |x| < 1e6. pi/2 comes in two floats: the
 * first difference is exact where multiplications are fused (both sides are multiples of 2^-23, or of a smaller x's
 * last place, and nearly equal). Elsewhere it is made in FP64. */
static inline float vm_take_quarters(float x, uint32_t *quarter) {
#if defined(__FMA__) || defined(__AVX512F__)
    const float shift = 12582912.0f; /* 1.5 * 2^23: the nearest integer in the low mantissa bits */
    float turns = __builtin_fmaf(x, 0x1.45f306p-1f, shift), n = turns - shift;
    *quarter = vm_bits(turns);
    return __builtin_fmaf(-n, -0x1.777a5cp-25f, __builtin_fmaf(-n, 0x1.921fb6p+0f, x));
#else
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    double turns = (double)x * 0.63661977236758134308 + shift, n = turns - shift;
    uint64_t bits;
    memcpy(&bits, &turns, sizeof bits);
    *quarter = (uint32_t)bits;
    return (float)(((double)x - n * 1.57079632679489655800) - n * 6.123233995736766e-17);
#endif
}

/* sin and cos of an angle in radians, absolute error below 1.5e-7 for |x| < 1e6 (positions times frequencies). */
static inline void vm_sincos(float x, float *sine, float *cosine) {
    uint32_t quarter;
    float r = vm_take_quarters(x, &quarter);
    float t = r * r;
    float s = ((-0x1.9ac9bp-13f * t + 0x1.110c28p-7f) * t - 0x1.555552p-3f) * (t * r) + r;
    float c = ((0x1.9bd89cp-16f * t - 0x1.6c12d2p-10f) * t + 0x1.555554p-5f) * (t * t) + (1.0f - 0.5f * t);
    uint32_t sb = vm_bits(s), cb = vm_bits(c), swap = 0u - (quarter & 1u); /* all ones in odd quarters */
    uint32_t s2 = (cb & swap) | (sb & ~swap), c2 = (sb & swap) | (cb & ~swap);
    *sine = vm_from_bits(s2 ^ ((quarter & 2u) << 30));
    *cosine = vm_from_bits(c2 ^ (((quarter + 1u) & 2u) << 30));
}

/* ---- vectors of the instruction set's own width, at any float address ---- */
#if defined(__AVX512F__)
#define VM_LANES 16
#elif defined(__AVX2__)
#define VM_LANES 8
#else
#define VM_LANES 4
#endif
typedef float vm_vector __attribute__((vector_size(4 * VM_LANES), aligned(4), may_alias));
typedef int32_t vm_mask __attribute__((vector_size(4 * VM_LANES), aligned(4), may_alias));
typedef uint32_t vm_words __attribute__((vector_size(4 * VM_LANES), aligned(4), may_alias));

static inline vm_vector vm_load(const float *a) {
    return *(const vm_vector *)a;
}
static inline void vm_store(float *a, vm_vector v) {
    *(vm_vector *)a = v;
}

/* Sum of the lanes, by halves. */
static inline float vm_lanes(vm_vector v) {
#if VM_LANES == 16
    typedef float vm_f8 __attribute__((vector_size(32)));
    vm_f8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif VM_LANES == 8
    vm_vector a = v;
#endif
    typedef float vm_f4 __attribute__((vector_size(16)));
#if VM_LANES == 4
    vm_f4 b = v;
#else
    vm_f4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#endif
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* a > m ? a : m in each lane: a NaN in `a` is passed over. */
static inline vm_vector vm_larger(vm_vector a, vm_vector m) {
#if defined(__AVX512F__)
    return (vm_vector)_mm512_max_ps((__m512)a, (__m512)m);
#else
    vm_mask take = (vm_mask)(a > m);
    return (vm_vector)(((vm_mask)a & take) | ((vm_mask)m & ~take));
#endif
}

/* v, or `most` in the lanes above it; a NaN stays one. */
static inline vm_vector vm_at_most(vm_vector v, float most) {
    const vm_vector zero = {0}, m = zero + most;
#if defined(__AVX512F__)
    return (vm_vector)_mm512_min_ps((__m512)m, (__m512)v);
#else
    vm_mask take = (vm_mask)(v > m);
    return (vm_vector)(((vm_mask)m & take) | ((vm_mask)v & ~take));
#endif
}
/* v, or `least` in the lanes below it; a NaN stays one. */
static inline vm_vector vm_at_least(vm_vector v, float least) {
    return -vm_at_most(-v, -least);
}

/* e^x as p * scale for -87.3 <= x <= 88.7 in each lane; see vm_exp_negative. */
static inline void vm_exp_parts(vm_vector x, vm_vector *p, vm_vector *scale) {
    const float shift = 12583039.0f;
    vm_vector shifted = x * 0x1.715476p+0f + shift, n = shifted - shift;
    vm_vector r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    vm_vector q = r * 0x1.6d1106p-10f + 0x1.120b6cp-7f;
    q = q * r + 0x1.55551ap-5f;
    q = q * r + 0x1.5554dcp-3f;
    q = q * r + 0.5f;
    *p = (q * r + 1.0f) * r + 1.0f;
    *scale = (vm_vector)((vm_mask)shifted << 23);
}

/* vm_exp_negative of each lane. */
static inline vm_vector vm_exps_negative(vm_vector x) {
    vm_vector p, scale;
    vm_exp_parts(x, &p, &scale);
#if defined(__AVX512F__)
    __mmask16 keep = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3365f), _CMP_NLT_UQ);
    return (vm_vector)_mm512_maskz_mul_ps(keep, (__m512)p, (__m512)scale);
#else
    return (vm_vector)((vm_mask)(p * scale) & ~(vm_mask)(x < -87.3365f));
#endif
}

/* ---- e^x for a softmax whose results are rounded to BF16: the cheapest, where products are fused ---- */
/* x y - z with one rounding, whatever else a compiler does with x y; not so where not VM_FUSES. */
#if VM_LANES == 16
enum { VM_FUSES = 1 };
static inline vm_vector vm_fused(vm_vector x, float y, vm_vector z) {
    return (vm_vector)_mm512_fmsub_ps((__m512)x, _mm512_set1_ps(y), (__m512)z);
}
#elif VM_LANES == 8 && defined(__FMA__)
enum { VM_FUSES = 1 };
static inline vm_vector vm_fused(vm_vector x, float y, vm_vector z) {
    return (vm_vector)_mm256_fmsub_ps((__m256)x, _mm256_set1_ps(y), (__m256)z);
}
#else
enum { VM_FUSES = 0 };
static inline vm_vector vm_fused(vm_vector x, float y, vm_vector z) {
    return x * y - z;
}
#endif
enum { VM_GROUP = 4 }; /* vectors that go through each step together */
#define VM_EACH _Pragma("GCC unroll 4") for (int v = 0; v < VM_GROUP; v++)
#define VM_LOG2E 0x1.715476p+0f /* log2 e, less 1.4e-8 of it */

#if defined(__AVX512F__)
/* 2^(k/32), less what (n 32 + k) << 18 adds to its bits besides n to the exponent. */
static const uint32_t vm_roots[32] = {
    0x3f800000u, 0x3f7ecd87u, 0x3f7daac3u, 0x3f7c980fu, 0x3f7b95c2u, 0x3f7aa43au, 0x3f79c3d3u, 0x3f78f4f0u,
    0x3f7837f0u, 0x3f778d3au, 0x3f76f532u, 0x3f767043u, 0x3f75fed7u, 0x3f75a15bu, 0x3f75583fu, 0x3f7523f6u,
    0x3f7504f3u, 0x3f74fbafu, 0x3f7508a4u, 0x3f752c4du, 0x3f75672au, 0x3f75b9beu, 0x3f76248cu, 0x3f76a81eu,
    0x3f7744fdu, 0x3f77fbb8u, 0x3f78ccdfu, 0x3f79b907u, 0x3f7ac0c7u, 0x3f7be4bau, 0x3f7d257du, 0x3f7e83b3u};
#endif

/* x = 2^(VM_LOG2E x) for |x| <= 80 where VM_FUSES, with relative error below 2e-7. What VM_LOG2E lacks makes a softmax
 * that of logits times 1 - 1.4e-8. 2^r = 1 + r q(r) for |r| <= 1/2, q of degree 4 (by Remez, 1.1e-7); with AVX-512 for
 * |r| <= 1/64, q of degree 1 (5.4e-8), and the rest from a table that fits in two registers. */
static inline __attribute__((always_inline)) void vm_powers(vm_vector x[VM_GROUP]) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: leaves the nearest integer in the low bits */
    vm_vector shifted[VM_GROUP], r[VM_GROUP], q[VM_GROUP];
#if defined(__AVX512F__)
    const float turn = 32 * VM_LOG2E;
    const __m512i low = _mm512_loadu_si512(vm_roots), high = _mm512_loadu_si512(vm_roots + 16);
    VM_EACH shifted[v] = x[v] * turn + shift;
    VM_EACH r[v] = shifted[v] - shift;
    VM_EACH r[v] = vm_fused(x[v], turn, r[v]);
    VM_EACH q[v] = r[v] * 0x1.ebfcccp-13f + 0x1.62e584p-6f;
    VM_EACH x[v] =
        (vm_vector)((vm_words)_mm512_permutex2var_epi32(low, (__m512i)shifted[v], high) + ((vm_words)shifted[v] << 18));
    VM_EACH q[v] = q[v] * r[v];
    VM_EACH x[v] = q[v] * x[v] + x[v];
#else
    const float turn = VM_LOG2E;
    VM_EACH shifted[v] = x[v] * turn + shift;
    VM_EACH r[v] = shifted[v] - shift;
    VM_EACH r[v] = vm_fused(x[v], turn, r[v]);
    VM_EACH q[v] = r[v] * 0x1.5bba14p-10f + 0x1.3cea88p-7f;
    VM_EACH q[v] = q[v] * r[v] + 0x1.c6b752p-5f;
    VM_EACH q[v] = q[v] * r[v] + 0x1.ebf9bcp-3f;
    VM_EACH q[v] = q[v] * r[v] + 0x1.62e42ap-1f;
    VM_EACH q[v] = q[v] * r[v] + 1.0f;
    VM_EACH x[v] = (vm_vector)((vm_words)q[v] + ((vm_words)shifted[v] << 23));
#endif
}

/* vm_sigmoid of each lane. Both ends are cut where the result has long been 0 or 1, so that no lane needs a choice. */
static inline vm_vector vm_sigmoids(vm_vector x) {
    vm_vector p, scale;
    vm_exp_parts(vm_at_most(-vm_at_most(x, 87.0f), 88.7f), &p, &scale);
    return 1.0f / (p * scale + 1.0f);
}

/* ---- reductions: four vectors side by side, their sum, its lanes, then the rest in order ---- */
#define VM_STEP (4 * VM_LANES) /* so many chains that an addition does not wait for the one before */

/* sum of a[i] */
static inline float vm_sum(const float *a, int64_t n) {
    vm_vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + VM_STEP <= n; i += VM_STEP) {
        s0 += vm_load(a + i);
        s1 += vm_load(a + i + VM_LANES);
        s2 += vm_load(a + i + 2 * VM_LANES);
        s3 += vm_load(a + i + 3 * VM_LANES);
    }
    for (; i + VM_LANES <= n; i += VM_LANES) s0 += vm_load(a + i);
    float s = vm_lanes((s0 + s1) + (s2 + s3));
    for (; i < n; i++) s += a[i];
    return s;
}

/* sum of a[i] * b[i] */
static inline float vm_dot(const float *a, const float *b, int64_t n) {
    vm_vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + VM_STEP <= n; i += VM_STEP) {
        s0 += vm_load(a + i) * vm_load(b + i);
        s1 += vm_load(a + i + VM_LANES) * vm_load(b + i + VM_LANES);
        s2 += vm_load(a + i + 2 * VM_LANES) * vm_load(b + i + 2 * VM_LANES);
        s3 += vm_load(a + i + 3 * VM_LANES) * vm_load(b + i + 3 * VM_LANES);
    }
    for (; i + VM_LANES <= n; i += VM_LANES) s0 += vm_load(a + i) * vm_load(b + i);
    float s = vm_lanes((s0 + s1) + (s2 + s3));
    for (; i < n; i++) s += a[i] * b[i];
    return s;
}

/* largest a[i], at least `from`; NaNs are passed over */
static inline float vm_max(const float *a, int64_t n, float from) {
    const vm_vector zero = {0};
    vm_vector m0 = zero + from, m1 = m0, m2 = m0, m3 = m0;
    int64_t i = 0;
    for (; i + VM_STEP <= n; i += VM_STEP) {
        m0 = vm_larger(vm_load(a + i), m0);
        m1 = vm_larger(vm_load(a + i + VM_LANES), m1);
        m2 = vm_larger(vm_load(a + i + 2 * VM_LANES), m2);
        m3 = vm_larger(vm_load(a + i + 3 * VM_LANES), m3);
    }
    for (; i + VM_LANES <= n; i += VM_LANES) m0 = vm_larger(vm_load(a + i), m0);
    m0 = vm_larger(vm_larger(m0, m1), vm_larger(m2, m3));
    float m = from;
    for (int l = 0; l < VM_LANES; l++) m = m0[l] > m ? m0[l] : m;
    for (; i < n; i++) m = a[i] > m ? a[i] : m;
    return m;
}

/* to[i] = e^(a[i] - shift), shift at least the largest a[i]; returns their sum. to may be a. */
static inline float vm_exp_sum(float *to, const float *a, int64_t n, float shift) {
    vm_vector s0 = {0}, s1 = {0};
    int64_t i = 0;
    for (; i + 2 * VM_LANES <= n; i += 2 * VM_LANES) {
        vm_vector e0 = vm_exps_negative(vm_load(a + i) - shift);
        vm_vector e1 = vm_exps_negative(vm_load(a + i + VM_LANES) - shift);
        vm_store(to + i, e0);
        vm_store(to + i + VM_LANES, e1);
        s0 += e0;
        s1 += e1;
    }
    float s = vm_lanes(s0 + s1);
    for (; i < n; i++) s += to[i] = vm_exp_negative(a[i] - shift);
    return s;
}
#endif
