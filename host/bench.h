/* bench: what a recipe's step costs, beside what the machine gives in the same run. The way of a figure: one run of a
 * recipe is measured here (bench.c: trainers, steps, peaks), its rows with their fractions are formed, and the medians
 * over several runs taken, in bench_rows.c; bench_show.c prints them. cmd_bench.c runs the recipes in turn. */
#ifndef HOST_BENCH_H
#define HOST_BENCH_H
#include "bench_parts.h"
#include "session.h"

/* What one run of a recipe measured, all of rank 0. Its two passes: [0] steps that end with the gradients, [1] with the
 * optimiser. Times of steps, parts and plain products are medians over the timed steps of a pass; a peak is the best of
 * the whole run, because on a shared machine a moment says little. An asynchronous device does not tell the times of
 * parts: those are NaN. */
typedef struct bench_sample {
    char device[96];                       /* for people */
    uint32_t threads;                      /* compute threads of a rank */
    int64_t tokens;                        /* of a step, all ranks */
    double fma, peak;                      /* GFLOP/s; 0 = the device lacks the operation, as below */
    double copy[2];                        /* GB/s, read and written together: plain, past the caches */
    double step[2], part[2][BENCH_PARTS];  /* seconds */
    uint64_t nodes[BENCH_PARTS];           /* of [0], but of [1] for BENCH_UPDATE; so are bytes */
    uint64_t bytes[BENCH_PARTS];           /* that the nodes move at least (trainer_span) */
    double experts[BENCH_ROLES];           /* seconds of the experts' products in a step of [0], by role */
    double plain[BENCH_ROLES], plain_flop; /* the same as plain products (below): seconds, FLOP of a role */
    trainer_memory memory;                 /* with the optimiser */
    int stopped;                           /* 1: SIGINT or SIGTERM came; nothing else is set */
} bench_sample;
/* Plain products: of one layer's experts, as many weight matrices as can be in use, min(E, T k) for T tokens a
 * microbatch, each times the rows it has when all have the same, T k / min(E, T k) rounded up, dense, one after the
 * other, from memory. */

/* Opens made-up tokens for s (opened without data; programs become TRAINER_TRAIN) and checks that its step can be
 * built and fits, so that a series of runs does not fail in the middle. [main] */
moe_status bench_prepare(session *s, moe_err *err);
/* One run with so many timed steps a pass, >= 1. [main] */
moe_status bench_run(session *s, int64_t steps, bench_sample *out, moe_err *err);
/* Of n >= 1 numbers, which it sorts. */
double bench_median(double *v, int64_t n);

#endif
