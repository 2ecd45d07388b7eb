/* Measure: what a trainer's device gives at most - multiply-adds, copies, products - and how long plain products take
 * there, in this process and now: the figures that others are fractions of. Between steps only. Operands hold one
 * ordinary number; they lie in the memory of the step where that is large enough, which a step writes anew anyway, and
 * else in memory of its own that is kept until measure_close. */
#ifndef CORE_TRAIN_MEASURE_H
#define CORE_TRAIN_MEASURE_H
#include "train/trainer.h"

typedef struct measure measure;

/* [main] t has memory (not plan_only) and outlives the measure. */
moe_status measure_open(measure **out, trainer *t, moe_err *err);
void measure_close(measure *m); /* NULL is nothing */

/* Threads or multiprocessors of the device that compute. */
uint32_t measure_threads(const measure *m);
/* Of the activations and weights that the trainer's products read: MOE_F32 or MOE_BF16. */
int32_t measure_dtype(const measure *m);

/* All below: [main] not while a step runs; the best of `tries`; 0 where the device lacks the operation. */
/* GFLOP/s of about `flop` fused multiply-adds (each two) in registers, all compute threads together (moe.fma/0): no
 * product of as much work is faster. */
moe_status measure_fma(measure *m, double flop, int tries, double *gflops, moe_err *err);
/* GB/s, read and written together, of a copy of so many bytes (moe.copy/0), a multiple of 4; streaming: past the
 * caches.
 */
moe_status measure_copy(measure *m, uint64_t bytes, int streaming, int tries, double *gbytes, moe_err *err);

/* Dense products of one role (moe.linear/0), one after another, each with operands of its own. */
typedef struct measure_product {
    int32_t role, dtype;          /* MOE_FPROP, MOE_DGRAD, MOE_WGRAD; of activations and weights (gradients: F32) */
    int64_t rows, n, k, matrices; /* M, N, K of moe.linear/0, all >= 1; how many products */
    int cold;                     /* 1: operands come from memory and not from a cache, as in a step; one try */
} measure_product;
/* Seconds of all of them together. */
moe_status measure_products(measure *m, const measure_product *p, int tries, double *seconds, moe_err *err);

/* GFLOP/s of the best product of side^3 in FP32 in any role: roles differ in how their operands lie. */
moe_status measure_peak(measure *m, int64_t side, int tries, double *gflops, moe_err *err);

#endif
