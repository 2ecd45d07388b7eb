/* Sums over rows in parts: each block of rows sums into a part of its own, and the parts are added in order. Blocks
 * depend on the rows alone, so that no sum depends on the number of threads. */
#ifndef CPU_OPS_PARTS_H
#define CPU_OPS_PARTS_H
#include "args.h"

enum { PARTS_MOST = 64, PARTS_LEAST_ROWS = 32, PARTS_COLUMNS = 1024 };

/* Rows of one part: at most PARTS_MOST parts. */
static inline int64_t parts_rows(int64_t rows) {
    int64_t block = cpu_blocks(rows, PARTS_MOST);
    return block < PARTS_LEAST_ROWS ? PARTS_LEAST_ROWS : block;
}

typedef struct parts_sum {
    const float *parts; /* [n_parts, width] */
    float *out;         /* [width] */
    int64_t n_parts, width;
} parts_sum;

static inline void parts_add_columns(void *arg, int64_t piece, cpu_worker *w) {
    const parts_sum *s = arg;
    (void)w;
    int64_t from = piece * PARTS_COLUMNS, n = cpu_min(s->width - from, PARTS_COLUMNS);
    float *restrict out = s->out + from; /* [n] */
    for (int64_t p = 0; p < s->n_parts; p++) {
        const float *restrict part = s->parts + cpu_row_at(p, s->width) + from; /* [n] */
        for (int64_t i = 0; i < n; i++) out[i] += part[i];
    }
}

/* out += the parts, in order. */
static inline void parts_add(cpu_device *dev, parts_sum sum) {
    cpu_run(dev, cpu_blocks(sum.width, PARTS_COLUMNS), parts_add_columns, &sum);
}
#endif
