/* What operations read besides their tensors' shapes: integers that index something, and rows in expert order. Nothing
 * is indexed by a number that has not passed one of these checks. */
#ifndef CPU_OPS_ARGS_H
#define CPU_OPS_ARGS_H
#include "ops.h"

/* Elements that a piece of an element-wise loop should touch: some microseconds of work. */
#define CPU_PIECE_ELEMENTS INT64_C(16384)

/* Rows of `width` elements in a piece: about CPU_PIECE_ELEMENTS, at least 1. */
static inline int64_t cpu_piece_rows(int64_t width) {
    return width >= CPU_PIECE_ELEMENTS || width <= 0 ? 1 : CPU_PIECE_ELEMENTS / width;
}

/* Where row `row` of a matrix begins, in elements. The product is formed in 64 bits. */
static inline int64_t cpu_row_at(int64_t row, int64_t width) {
    return row * width;
}

/* ---- integers in range: the index of the first v[i] outside [lo, hi), or -1 ---- */
static inline int64_t cpu_find_i32(const int32_t *v, int64_t n, int64_t lo, int64_t hi) {
    for (int64_t i = 0; i < n; i += 1024) {
        int64_t end = cpu_min(n, i + 1024);
        int bad = 0;
        for (int64_t j = i; j < end; j++) bad |= (v[j] < lo) | (v[j] >= hi);
        for (int64_t j = i; bad && j < end; j++)
            if (v[j] < lo || v[j] >= hi) return j;
    }
    return -1;
}
static inline int64_t cpu_find_i64(const int64_t *v, int64_t n, int64_t lo, int64_t hi) {
    for (int64_t i = 0; i < n; i += 1024) {
        int64_t end = cpu_min(n, i + 1024);
        int bad = 0;
        for (int64_t j = i; j < end; j++) bad |= (v[j] < lo) | (v[j] >= hi);
        for (int64_t j = i; bad && j < end; j++)
            if (v[j] < lo || v[j] >= hi) return j;
    }
    return -1;
}

/* ---- rows in expert order ---- */
/* Reads offsets and counts and refuses (MOE_E_DATA) what would lead outside `max` rows. *total = dev_offsets[groups].
 */
static inline moe_status cpu_rows_read(const moe_rows *rows, const char *op, int64_t *total, moe_err *err) {
    const int64_t *at = rows->dev_offsets, *count = rows->dev_counts;
    if (at[0] != 0) return moe_fail(err, MOE_E_DATA, "%s: offsets[0] is %lld, want 0", op, (long long)at[0]);
    for (uint32_t g = 0; g < rows->groups; g++) {
        if (count[g] < 0 || at[g + 1] < at[g] || count[g] > at[g + 1] - at[g])
            return moe_fail(err, MOE_E_DATA, "%s: group %u has offsets %lld..%lld and count %lld", op, g,
                            (long long)at[g], (long long)at[g + 1], (long long)count[g]);
    }
    if (at[rows->groups] > rows->max)
        return moe_fail(err, MOE_E_DATA, "%s: offsets[%u] is %lld, the buffers have %lld rows", op, rows->groups,
                        (long long)at[rows->groups], (long long)rows->max);
    *total = at[rows->groups];
    return MOE_OK;
}

/* The run of rows that begins at `row`, all valid or all padding, cut at `end`: returns where it ends and whether it is
 * valid. rows NULL: everything is valid. row < end <= dev_offsets[groups]. */
static inline int64_t cpu_rows_run(const moe_rows *rows, int64_t row, int64_t end, int *valid) {
    *valid = 1;
    if (!rows) return end;
    uint32_t lo = 0, hi = rows->groups; /* the last group that begins at or before row */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (rows->dev_offsets[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    int64_t pad = rows->dev_offsets[lo] + rows->dev_counts[lo];
    *valid = row < pad;
    return cpu_min(end, *valid ? pad : rows->dev_offsets[lo + 1]);
}
#endif
