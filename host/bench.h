/* bench: what a recipe's step costs, beside what the machine gives in the same run. */
#ifndef HOST_BENCH_H
#define HOST_BENCH_H
#include <stdio.h>

#include "session.h"

typedef struct bench_options {
    int64_t steps; /* timed steps of each kind, >= 1; medians are shown */
    int json;      /* one object a line: name, value, unit, and where there is one peak (same run) and fraction */
} bench_options;

/* s: without data; its programs are TRAINER_TRAIN. Tokens are made up. Prints to `to`. [main] */
moe_status bench_run(session *s, const bench_options *o, FILE *to, moe_err *err);

#endif
