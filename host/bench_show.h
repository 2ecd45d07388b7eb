/* bench's figures on paper: a table a recipe and number of threads, or an object a line, and a summary of several. */
#ifndef HOST_BENCH_SHOW_H
#define HOST_BENCH_SHOW_H
#include <stdio.h>

#include "bench_rows.h"

/* A recipe with a number of threads, and the medians over its runs. */
typedef struct bench_result {
    const char *recipe; /* as given */
    const char *device;
    uint32_t threads;    /* of a rank */
    int64_t runs, steps; /* behind the medians */
    bench_table table;
} bench_result;

void bench_show(const bench_result *r, FILE *to);
/* One object a line: name, value, unit; where there is one, peak and fraction; recipe, threads. */
void bench_show_json(const bench_result *r, FILE *to);
/* One line a result: what the step, the experts and the attention reach of the peak, and the experts beside those of
 * the first recipe. */
void bench_show_summary(const bench_result *results, size_t n, FILE *to);

#endif
