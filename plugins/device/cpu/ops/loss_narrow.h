/* BF16 rows of moe.cross_entropy/0 whose logits lie within NARROW_SPAN of each other, as in training almost all do: no
 * NaN, no infinity and no exponential that underflows, so that nothing is asked of single elements. A row is read as
 * BF16 three times, of which the caches serve two; between the passes its exponentials lie in FP32, those of each
 * ACT_PAIRS elements in the order of act_pair (even ones, odd ones). */
#ifndef CPU_OPS_LOSS_NARROW_H
#define CPU_OPS_LOSS_NARROW_H
#include "act.h"

#define NARROW_SPAN 86.0f /* of vm_exps_narrow */
enum { NARROW_GROUP = VM_GROUP * VM_LANES, NARROW_COLUMNS = 16 * NARROW_GROUP, NARROW_AHEAD = 8192 };
/* elements: at a time, of a sum in FP32, fetched ahead */

/* ---- largest and smallest logit of a row; a NaN in one of them where the row has one ---- */
typedef struct narrow_range {
    int64_t row; /* -1: of none */
    float largest, smallest;
} narrow_range;

/* Of row[n], n >= 1. BF16s of one sign are ordered as integers are. */
static inline narrow_range narrow_find_range(const uint16_t *row, int64_t n) {
    int16_t top = INT16_MIN; /* the largest, if it is positive */
    uint16_t least = UINT16_MAX, most = 0;
    for (int64_t i = 0; i < n; i++) {
        int16_t s = (int16_t)row[i];
        top = s > top ? s : top;
        least = row[i] < least ? row[i] : least;
        most = row[i] > most ? row[i] : most;
    }
    return (narrow_range){-1, cpu_from_bf16(top >= 0 ? (uint16_t)top : least),
                          cpu_from_bf16(most >= 0x8000u ? most : least)};
}

/* The same while another row is worked on, whose arithmetic leaves room for it: begin, see every NARROW_GROUP elements,
 * end. Where that needs instructions which the set lacks, all is left to the end. */
typedef struct narrow_watch {
#if defined(__AVX512BW__)
    __m512i top, least, most;
#else
    int none;
#endif
} narrow_watch;

ACT_INLINE narrow_watch narrow_begin(void) {
#if defined(__AVX512BW__)
    return (narrow_watch){_mm512_set1_epi16(INT16_MIN), _mm512_set1_epi16(-1), _mm512_setzero_si512()};
#else
    return (narrow_watch){0};
#endif
}
ACT_INLINE void narrow_see(narrow_watch *w, const uint16_t *part) {
#if defined(__AVX512BW__)
    for (int i = 0; i < NARROW_GROUP; i += 32) {
        __m512i x = _mm512_loadu_si512(part + i);
        w->top = _mm512_max_epi16(w->top, x);
        w->least = _mm512_min_epu16(w->least, x);
        w->most = _mm512_max_epu16(w->most, x);
    }
#else
    (void)w;
    (void)part;
#endif
}
/* row [n], of which all but `rest` elements at the end have been seen. */
static inline narrow_range narrow_end(const narrow_watch *w, const uint16_t *row, int64_t n, int64_t rest) {
#if defined(__AVX512BW__)
    uint16_t found[96 + NARROW_GROUP]; /* elements of the row, the largest and the smallest among them */
    if (rest == n) return narrow_find_range(row, n);
    _mm512_storeu_si512(found, w->top);
    _mm512_storeu_si512(found + 32, w->least);
    _mm512_storeu_si512(found + 64, w->most);
    memcpy(found + 96, row + n - rest, (size_t)rest * 2);
    return narrow_find_range(found, 96 + rest);
#else
    (void)w;
    (void)rest;
    return narrow_find_range(row, n);
#endif
}

/* ---- the row ---- */
/* e [NARROW_GROUP] = x = e^(row - largest) */
ACT_INLINE void narrow_exp(const uint16_t *row, float *e, float largest, vm_vector x[VM_GROUP]) {
    for (int v = 0; v < VM_GROUP; v += 2) {
        act_pair p = act_load_pair(row + v * VM_LANES);
        x[v] = p.even - largest;
        x[v + 1] = p.odd - largest;
    }
    vm_exps_narrow(x);
    VM_EACH vm_store(e + v * VM_LANES, x[v]);
}

/* Where that of element i is. */
static inline float narrow_find(const float *e, int64_t i) {
    int64_t j = i % ACT_PAIRS;
    return e[i - j + j % 2 * VM_LANES + j / 2];
}

/* What comes after a row. */
typedef struct narrow_next {
    const uint16_t *row; /* [n], or NULL; its range is found meanwhile */
    int64_t behind;      /* elements behind that row: NARROW_AHEAD of them are asked for before they are reached */
    narrow_range range;
} narrow_next;

/* e [n, rounded up to NARROW_GROUP] = e^(row - largest); returns their sum. */
static inline double narrow_exponentials(const uint16_t *row, float *e, int64_t n, float largest, narrow_next *next) {
    const uint16_t *other = next->row ? next->row : row;
    const int64_t ahead = next->row ? cpu_min(next->behind, NARROW_AHEAD) : 0;
    narrow_watch watch = narrow_begin();
    vm_vector x[VM_GROUP];
    double sum = 0.0;
    int64_t i = 0;
    while (i + NARROW_GROUP <= n) {
        int64_t last = cpu_min(n, i + NARROW_COLUMNS) - NARROW_GROUP;
        vm_vector s0 = {0}, s1 = {0};
        for (; i <= last; i += NARROW_GROUP) {
            act_fetch(other + i + ahead, NARROW_GROUP * 2);
            narrow_see(&watch, other + i);
            narrow_exp(row + i, e + i, largest, x);
            s0 += x[0] + x[1];
            s1 += x[2] + x[3];
        }
        sum += (double)vm_lanes(s0 + s1);
    }
    if (next->row) next->range = narrow_end(&watch, next->row, n, n - i);
    if (i == n) return sum;
    uint16_t rest[NARROW_GROUP] = {0};
    memcpy(rest, row + i, (size_t)(n - i) * 2);
    narrow_exp(rest, e + i, largest, x);
    for (; i < n; i++) sum += (double)narrow_find(e, i);
    return sum;
}

/* d [n] = e * scale */
static inline void narrow_scale(uint16_t *d, const float *e, float scale, int64_t n) {
    int64_t i = 0;
    for (; i + ACT_PAIRS <= n; i += ACT_PAIRS)
        act_store_pair(d + i, (act_pair){vm_load(e + i) * scale, vm_load(e + i + VM_LANES) * scale});
    if (i == n) return;
    uint16_t rest[ACT_PAIRS];
    act_store_pair(rest, (act_pair){vm_load(e + i) * scale, vm_load(e + i + VM_LANES) * scale});
    memcpy(d + i, rest, (size_t)(n - i) * 2);
}

#endif
