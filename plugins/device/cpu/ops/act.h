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
#if defined(__AVX512F__) /* one instruction; compilers make three of the line below */
    return (vm_vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
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

/* BF16 of the lanes, as cpu_to_bf16. */
ACT_INLINE act_halves act_round(vm_vector v) {
#if defined(__AVX512F__) /* the same in 7 instructions of what compilers make in 12 */
    const __m512i odd = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29, 27, 25, 23,
                                         21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i u = (__m512i)v, last = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return (act_halves)_mm512_castsi512_si256(_mm512_permutexvar_epi16(odd, rounded)); /* the upper halves */
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
