/* Act tensors (F32 or BF16) vector by vector: a row operation is written once, for a vector that holds `count` elements
 * (the rest of its lanes are zero and not stored), and compiled for both dtypes: `narrow` (BF16) and, in the main loop,
 * `count` are constants after inlining. Also what moves whole rows. */
#ifndef CPU_OPS_ACT_H
#define CPU_OPS_ACT_H
#include "args.h"
#include "vmath.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#define ACT_INLINE static inline __attribute__((always_inline))

typedef uint16_t act_halves __attribute__((vector_size(2 * VM_LANES), aligned(2), may_alias));
typedef uint32_t act_words __attribute__((vector_size(4 * VM_LANES), aligned(4), may_alias));

ACT_INLINE vm_vector act_widen(act_halves h) {
#if defined(__AVX512F__) /* one instruction; compilers make two or three of the line below */
    const __m512i from = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0,
                                          3, 0, 2, 0, 1, 0, 0, 0);
    return (vm_vector)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, from, _mm512_castsi256_si512((__m256i)h));
#else
    return (vm_vector)(__builtin_convertvector(h, act_words) << 16);
#endif
}

/* Elements [i, i + count) of a row as floats. */
ACT_INLINE vm_vector act_load(const void *row, int64_t i, int64_t count, int narrow) {
    if (narrow) {
        act_halves h = {0};
        if (count == VM_LANES)
            h = *(const act_halves *)((const uint16_t *)row + i);
        else
            memcpy(&h, (const uint16_t *)row + i, (size_t)count * 2);
        return act_widen(h);
    }
    vm_vector v = {0};
    if (count == VM_LANES) return vm_load((const float *)row + i);
    memcpy(&v, (const float *)row + i, (size_t)count * 4);
    return v;
}

/* BF16 of the lanes, as cpu_to_bf16. v: results of arithmetic, whose NaNs are quiet. */
ACT_INLINE act_halves act_round(vm_vector v) {
#if defined(__AVX512F__)
    /* Upper and lower halves first: then a vector half as wide does. Rounding adds one where low + 0x7fff + (the last
     * bit of high) does not fit in 16 bits; vpavgw has a 17th. */
    const __m512i upper = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29, 27, 25,
                                           23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m256i high = _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, (__m512i)v));
    __m256i low = _mm512_cvtepi32_epi16((__m512i)v);
    __m256i last = _mm256_ternarylogic_epi32(high, _mm256_set1_epi16(1), _mm256_set1_epi16(0x7ffe), 0xea); /* &, | */
    __m256i carry = _mm256_srai_epi16(_mm256_avg_epu16(low, last), 15);                                    /* -1, 0 */
    __mmask16 number = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_ORD_Q);
    return (act_halves)_mm256_mask_sub_epi16(high, number, high, carry);
#else
    act_words u = (act_words)v, high = u >> 16, nan = (act_words)(v != v);
    act_words rounded = (u + 0x7fffu + (high & 1u)) >> 16;
    return __builtin_convertvector((rounded & ~nan) | ((high | 0x40u) & nan), act_halves);
#endif
}

/* Stores `count` floats at element i of a row; returns them as stored. */
ACT_INLINE vm_vector act_store(void *row, int64_t i, int64_t count, vm_vector v, int narrow) {
    if (narrow) {
        act_halves h = act_round(v);
        if (count == VM_LANES)
            *(act_halves *)((uint16_t *)row + i) = h;
        else
            memcpy((uint16_t *)row + i, &h, (size_t)count * 2);
        return act_widen(h);
    }
    if (count == VM_LANES)
        vm_store((float *)row + i, v);
    else
        memcpy((float *)row + i, &v, (size_t)count * 4);
    return v;
}

/* ---- BF16 two at a time: a word holds two neighbours, so that neither has to move to another lane ---- */
enum { ACT_PAIRS = 2 * VM_LANES }; /* elements of a vector of words */

typedef struct act_pair {
    vm_vector even, odd; /* of the two elements of each word, the one at the lower address; the other */
} act_pair;

/* Elements [0, ACT_PAIRS) at `from`. */
ACT_INLINE act_pair act_load_pair(const uint16_t *from) {
    act_words w = *(const act_words *)from, low = w << 16, high = w & 0xffff0000u;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (act_pair){(vm_vector)high, (vm_vector)low};
#else
    return (act_pair){(vm_vector)low, (vm_vector)high};
#endif
}
/* Stores numbers: no NaN. */
ACT_INLINE void act_store_pair(uint16_t *to, act_pair p) {
    act_words e = (act_words)p.even, o = (act_words)p.odd;
#if defined(__AVX512F__) /* as act_round */
    const __m512i lower = _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44,
                                           12, 42, 10, 40, 8, 38, 6, 36, 4, 34, 2, 32, 0);
    const __m512i upper = _mm512_set_epi16(63, 31, 61, 29, 59, 27, 57, 25, 55, 23, 53, 21, 51, 19, 49, 17, 47, 15, 45,
                                           13, 43, 11, 41, 9, 39, 7, 37, 5, 35, 3, 33, 1);
    __m512i high = _mm512_permutex2var_epi16((__m512i)e, upper, (__m512i)o);
    __m512i low = _mm512_permutex2var_epi16((__m512i)e, lower, (__m512i)o);
    __m512i last = _mm512_ternarylogic_epi32(high, _mm512_set1_epi16(1), _mm512_set1_epi16(0x7ffe), 0xea);
    __m512i carry = _mm512_srai_epi16(_mm512_avg_epu16(low, last), 15);
    _mm512_storeu_si512(to, _mm512_sub_epi16(high, carry));
#else
    e += 0x7fffu + ((e >> 16) & 1u);
    o += 0x7fffu + ((o >> 16) & 1u);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    *(act_words *)to = (o >> 16) | (e & 0xffff0000u);
#else
    *(act_words *)to = (e >> 16) | (o & 0xffff0000u);
#endif
#endif
}

/* BF16 of n floats. */
static inline void act_round_n(uint16_t *to, const float *from, int64_t n) {
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES) act_store(to, i, VM_LANES, vm_load(from + i), 1);
    if (i < n) act_store(to, i, n - i, act_load(from, i, n - i, 0), 1);
}

/* Copies elements [i, i + count) bit by bit; returns them as floats. */
ACT_INLINE vm_vector act_keep(void *to, const void *row, int64_t i, int64_t count, int narrow) {
    if (!narrow) return act_store(to, i, count, act_load(row, i, count, 0), 0);
    act_halves h = {0};
    if (count == VM_LANES) {
        h = *(const act_halves *)((const uint16_t *)row + i);
        *(act_halves *)((uint16_t *)to + i) = h;
    } else {
        memcpy(&h, (const uint16_t *)row + i, (size_t)count * 2);
        memcpy((uint16_t *)to + i, &h, (size_t)count * 2);
    }
    return act_widen(h);
}

/* Element i of a tensor's data. */
ACT_INLINE void *act_at(const moe_tensor *t, int64_t i, int narrow) {
    return (char *)t->data + i * (narrow ? 2 : 4);
}

/* ---- whole rows ---- */
enum { ACT_LINE = 64 }; /* bytes that a cache fetches at once */

/* Asks for bytes that will be read soon: for rows that do not follow each other in memory, which no hardware foresees.
 * Measured on rows with a gap: up to three times the speed of waiting for them. */
ACT_INLINE void act_fetch(const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += ACT_LINE) __builtin_prefetch((const char *)from + i, 0, 2);
}

/* A tensor of so many bytes is not taken to be in a cache when it is read again. */
#define ACT_LARGE_BYTES (INT64_C(16) << 20)

/* Copies a row of a few KiB, for which some C libraries take a slow way. past: past the caches, for tensors of
 * ACT_LARGE_BYTES; act_copied then before the piece ends. */
static inline void act_copy(void *restrict to, const void *restrict from, int64_t bytes, int past) {
    typedef char line __attribute__((vector_size(16), aligned(1), may_alias));
    char *y = to;
    const char *x = from;
    int64_t i = 0;
#if defined(__SSE2__)
    if (past && (uintptr_t)y % 16 == 0)
        for (; i + ACT_LINE <= bytes; i += ACT_LINE)
            for (int64_t j = i; j < i + ACT_LINE; j += 16)
                _mm_stream_si128((__m128i *)(void *)(y + j), _mm_loadu_si128((const __m128i *)(const void *)(x + j)));
#else
    (void)past;
#endif
    for (; i + 16 <= bytes; i += 16) *(line *)(y + i) = *(const line *)(x + i);
    for (; i < bytes; i++) y[i] = x[i];
}
/* The same for zeros. */
static inline void act_zero(void *to, int64_t bytes, int past) {
    char *y = to;
    int64_t i = 0;
#if defined(__SSE2__)
    if (past && (uintptr_t)y % 16 == 0)
        for (; i + 16 <= bytes; i += 16) _mm_stream_si128((__m128i *)(void *)(y + i), _mm_setzero_si128());
#else
    (void)past;
#endif
    memset(y + i, 0, (size_t)(bytes - i));
}
/* Orders what act_copy and act_zero have sent past the caches before what follows. */
static inline void act_copied(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
#endif
