/* What the two halves of bench_cpu_ops share: bench_ops.c measures moe.attention/0, bench_memory.c the operations that
 * the memory limits. */
#ifndef BENCH_OPS_H
#define BENCH_OPS_H
#include <time.h>

#include "ot.h"

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of one call; fails the Check test when it fails. */
static inline double bench_call(ot *t, device_open_step step, const moe_op_args *args) {
    moe_err err = {.size = sizeof err};
    double at = bench_now();
    ot_want_msg(device_open_run_step(&t->dev, step, args, &err) == MOE_OK, "%s", err.msg);
    return bench_now() - at;
}

/* Prints the speed of moe.fma/0, then a line for each operation of the parts whose name contains `only`: time, GB/s of
 * its operands (what is read and what is written, each once), and that as a part of moe.copy/0, which runs in turn with
 * it. All compute threads of t->dev. */
void bench_memory(ot *t, const char *only);
#endif
