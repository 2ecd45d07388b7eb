/* Whole rows of a few KiB: copied, cleared, summed; past the caches where they will not be read again from there.
 * rows_kernel.c is compiled once for each instruction set; rows.c picks one at run time. */
#ifndef DISPATCHER_CROSS_ROWS_H
#define DISPATCHER_CROSS_ROWS_H
#include <stdint.h>

/* Movements of so many bytes do not stay in the caches. */
#define ROWS_LARGE_BYTES (INT64_C(16) << 20)

/* Rows to sum, in this order; those of [part, part_end) are summed by themselves first and rounded to the rows' type,
 * as if they had come as one row. `ahead` will be summed next: they are fetched meanwhile. */
typedef struct rows_list {
    const void *const *rows;  /* [n] of `count` elements */
    const void *const *ahead; /* [n_ahead] */
    int64_t n, n_ahead, part, part_end;
} rows_list;

/* past: by non-temporal stores; `done` before anybody else may read what they wrote. Any alignment, any size. */
typedef struct rows_kernel {
    void (*copy)(void *to, const void *from, int64_t bytes, int past);
    void (*zero)(void *to, int64_t bytes, int past);
    /* to = sum of the rows in FP32, rounded once where narrow (BF16; else F32); zeros where n is 0. */
    void (*sum)(void *to, const rows_list *list, int64_t count, int narrow, int past);
    void (*done)(void); /* orders this thread's stores before what follows */
} rows_kernel;

/* [any] The fastest that this machine runs. */
const rows_kernel *rows_pick(void);

extern const rows_kernel rows_kernel_base, rows_kernel_v3, rows_kernel_v4; /* the last two on x86-64 only */

#endif
