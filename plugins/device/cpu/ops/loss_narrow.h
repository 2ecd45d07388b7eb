/* BF16 rows of moe.cross_entropy/0 whose logits all lie within NARROW_MOST of 0, as in training almost all do: e^l
 * needs no largest logit taken off then, and no exponential overflows or underflows, so that nothing is asked of single
 * elements. A row is read once, and whether it is such a row is found on the way. Its exponentials lie in FP32 until
 * their sum is known, those of each ACT_PAIRS elements in the order of act_pair (even ones, odd ones). */
#ifndef CPU_OPS_LOSS_NARROW_H
#define CPU_OPS_LOSS_NARROW_H
#include "act.h"

#define NARROW_MOST 64.0f /* 2^32 exponentials of it are below FP32's end; see vm_powers */
enum {
    NARROW_MOST_BITS = 0x4280,          /* NARROW_MOST as BF16 */
    NARROW_GROUP = VM_GROUP * VM_LANES, /* elements at a time */
    NARROW_COLUMNS = 16 * NARROW_GROUP, /* that are summed in FP32 */
    NARROW_AHEAD = 8192                 /* between the one that is read and the one that is asked for */
};

/* ---- the farthest from 0 among the elements seen. BF16s of one sign are ordered as integers are; infinities and NaNs
 * come last. ---- */
typedef uint16_t narrow_halves __attribute__((vector_size(4 * VM_LANES), aligned(2), may_alias));
typedef int16_t narrow_signed __attribute__((vector_size(4 * VM_LANES), aligned(2), may_alias));
typedef struct narrow_far {
    narrow_signed up;   /* the largest as signed integers: of the positive ones */
    narrow_halves down; /* the largest as unsigned ones: of the negative ones */
} narrow_far;

ACT_INLINE void narrow_see(narrow_far *f, narrow_halves x) {
#if defined(__AVX512BW__)
    f->up = (narrow_signed)_mm512_max_epi16((__m512i)f->up, (__m512i)x);
    f->down = (narrow_halves)_mm512_max_epu16((__m512i)f->down, (__m512i)x);
#else
    narrow_halves up = (narrow_halves)((narrow_signed)x > f->up), down = (narrow_halves)(x > f->down);
    f->up = (narrow_signed)((x & up) | ((narrow_halves)f->up & ~up));
    f->down = (x & down) | (f->down & ~down);
#endif
}
/* Are all within NARROW_MOST of 0? */
ACT_INLINE int narrow_fits(const narrow_far *f) {
    int out = 0;
    for (int i = 0; i < ACT_PAIRS; i++) out |= f->up[i] > NARROW_MOST_BITS || f->down[i] > (0x8000 | NARROW_MOST_BITS);
    return !out;
}

/* ---- the row ---- */
/* e [NARROW_GROUP] = x = 2^(VM_LOG2E row) */
ACT_INLINE void narrow_exp(const uint16_t *row, float *e, vm_vector x[VM_GROUP], narrow_far *far) {
    for (int v = 0; v < VM_GROUP; v += 2) {
        act_pair p = act_load_pair(row + v * VM_LANES);
        narrow_see(far, *(const narrow_halves *)(row + v * VM_LANES));
        x[v] = p.even;
        x[v + 1] = p.odd;
    }
    vm_powers(x);
    VM_EACH vm_store(e + v * VM_LANES, x[v]);
}

/* Where that of element i is. */
static inline float narrow_find(const float *e, int64_t i) {
    int64_t j = i % ACT_PAIRS;
    return e[i - j + j % 2 * VM_LANES + j / 2];
}

/* e [n, rounded up to NARROW_GROUP] = 2^(VM_LOG2E row), and their sum. Returns 0 where they are not to be used. behind:
 * elements after the row that will be read soon. */
static inline int narrow_exponentials(const uint16_t *row, int64_t behind, float *e, int64_t n, double *total) {
    const int64_t ahead = cpu_min(behind, NARROW_AHEAD);
    narrow_far far = {0};
    vm_vector x[VM_GROUP];
    double sum = 0.0;
    int64_t i = 0;
    while (i + NARROW_GROUP <= n) {
        int64_t last = cpu_min(n, i + NARROW_COLUMNS) - NARROW_GROUP;
        vm_vector s0 = {0}, s1 = {0};
        for (; i <= last; i += NARROW_GROUP) {
            act_fetch(row + i + ahead, NARROW_GROUP * 2);
            narrow_exp(row + i, e + i, x, &far);
            s0 += x[0] + x[1];
            s1 += x[2] + x[3];
        }
        sum += (double)vm_lanes(s0 + s1);
    }
    if (i < n) {
        uint16_t rest[NARROW_GROUP] = {0};
        memcpy(rest, row + i, (size_t)(n - i) * 2);
        narrow_exp(rest, e + i, x, &far);
        for (; i < n; i++) sum += (double)narrow_find(e, i);
    }
    *total = sum;
    return narrow_fits(&far);
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
