/* The rows of bench's table: named figures with their fractions, formed within one run (bench_rows), and the medians of
 * them over several runs (bench_rows_median). In order:
 *   fma, peak, copy                   what the machine gives: multiply-adds in registers, the best 2048^3 FP32 product
 *                                     (fraction of fma), a copy in memory
 *   copy.streaming                    the same past the caches: what memory gives at most, no denominator
 *   step, step_with_optimizer         model FLOPs a second; fraction of peak (of all ranks)
 *   tokens                            of step
 *   PART.time                         of every part of bench_parts.h; fraction of the step
 *   projections, attention, experts, dense, head      model FLOPs a second; fraction of peak. experts: products and
 *                                     activation
 *   cross_entropy, norms, rope, update                bytes moved at least, a second; fraction of copy
 *   moe.overhead                      routing and activation: their time beside their own and the experts' products'
 *   experts.fprop, .dgrad, .wgrad     products alone; fraction of the rate of plain products (bench.h)
 *   memory.weights, .params, .arena   bytes of a rank: weights as they are read; with masters, gradients and moments;
 *                                     the memory of the step
 *   experts.vs_first                  experts beside the first recipe's of the same run and number of threads */
#ifndef HOST_BENCH_ROWS_H
#define HOST_BENCH_ROWS_H
#include "bench.h"

enum { BENCH_MAX_ROWS = 64, BENCH_MAX_RUNS = 100 };

typedef struct bench_row {
    char name[40];
    const char *unit;
    double value;          /* NaN: no such figure (nothing of it in the model, or it took no time that could be seen) */
    double peak, fraction; /* what it is a fraction of, in the same unit, and value / peak; NaN: of nothing */
} bench_row;

typedef struct bench_table {
    int n;
    bench_row row[BENCH_MAX_ROWS];
} bench_table;

/* s: whose run it was. All runs of a session have the same rows. */
void bench_rows(const session *s, const bench_sample *sample, bench_table *out);
/* Appends experts.vs_first. first: rows of the same run of the first recipe. */
void bench_rows_compare(bench_table *t, const bench_table *first);
/* Medians of value, peak and fraction, each by itself, over n in 1..BENCH_MAX_RUNS runs that have the figure. */
void bench_rows_median(const bench_table *runs, int64_t n, bench_table *out);
/* NULL where there is no row of this name with a value. */
const bench_row *bench_rows_find(const bench_table *t, const char *name);

#endif
