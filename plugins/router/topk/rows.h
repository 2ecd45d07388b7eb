/* Arithmetic over the row of one token. A row is n FP32 values in scratch, followed by minus infinity up to the next
 * multiple of eight (load does that). Every sum runs in eight lanes, so that a result depends on the values alone, not
 * on which of the two builds of rows.c made it. [any], no allocation. */
#ifndef ROUTER_TOPK_ROWS_H
#define ROUTER_TOPK_ROWS_H
#include <stdint.h>

#include "unit.h"

/* n rounded up to the eight lanes. */
static inline int64_t row_padded(int64_t n) {
    return (n + 7) & ~(int64_t)7;
}

typedef struct row_ops {
    /* x [padded n] = in [n], padded. Returns 0 when a value is NaN or infinite. max: the largest value. */
    int (*load)(const float *in, int64_t n, float *x, float *max);

    /* The k largest of x [n], largest first, ties to the lowest index: val [k], id [k]. 1 <= k <= n, no NaN. */
    void (*top)(const float *x, int64_t n, int64_t k, float *val, int32_t *id);

    /* e [padded n] = exp(x - max), 0 below exp(-88). Returns the sum. */
    float (*exp)(const float *x, int64_t n, float max, float *e);

    /* Sigmoid relative to the row's largest value, so that rows of tiny scores keep their ratios:
     * r [padded n] = sigmoid(x) / row_unit(max), q [padded n] = 1 - sigmoid(x). Returns the sum of r. */
    float (*sigmoid)(const float *x, int64_t n, float max, float *r, float *q);

    /* score [groups] = the largest, or the sum of the two largest (best_of = 2, per >= 2), of each group of `per`
     * values of x [groups * per] that follow each other. */
    void (*groups)(const float *x, int64_t per, int64_t groups, int64_t best_of, float *score);

    /* sum [padded n] += factor * p in units of 2^-ROW_SHARE_BITS, for 0 <= factor * p <= 1. Each term is rounded once
     * and the sums are exact, whatever their order. */
    void (*share)(const float *p, int64_t n, float factor, int64_t *sum);

    /* sum_i p_i g_i over padded n. */
    float (*dot)(const float *p, const float *g, int64_t n);

    /* Entropy -sum P log P of P = e / sum, for e, sum of exp, and r, q, sum of sigmoid. At least 0. */
    double (*exp_entropy)(const float *x, int64_t n, float max, const float *e, float sum);
    double (*sigmoid_entropy)(const float *x, int64_t n, float max, const float *r, const float *q, float sum);
} row_ops;

extern const row_ops row_ops_plain;
extern const row_ops row_ops_avx2; /* x86-64 builds only */

#endif
