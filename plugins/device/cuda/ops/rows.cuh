/* Rows in expert order in kernels: whose a row is. The numbers are read on the device; what does not fit together is
 * told to the fault, and leads no kernel outside of its buffers. */
#ifndef CUDA_OPS_ROWS_CUH
#define CUDA_OPS_ROWS_CUH
#include "../cuda.h"
#include "fault.cuh"

namespace {

struct row_groups {
    const int64_t *offsets, *counts; /* [groups + 1], [groups]; NULL: one group, all rows valid */
    int groups;
    int64_t max; /* rows of the buffers */
};

inline row_groups row_groups_of(const moe_rows *rows, int64_t max) {
    return rows ? row_groups{rows->dev_offsets, rows->dev_counts, (int)rows->groups, max}
                : row_groups{nullptr, nullptr, 1, max};
}

/* Rows below this have an owner. */
__device__ __forceinline__ int64_t rows_end(const row_groups &g) {
    if (!g.offsets) return g.max;
    const int64_t end = g.offsets[g.groups];
    return end < g.max ? end : g.max;
}

/* The last group that begins at or before the row. */
__device__ __forceinline__ int rows_group(const row_groups &g, int64_t row) {
    int lo = 0, hi = g.groups;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        if (g.offsets[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Where the group's valid rows end. */
__device__ __forceinline__ int64_t rows_valid_end(const row_groups &g, int group) {
    if (!g.offsets) return g.max;
    const int64_t end = g.offsets[group] + g.counts[group];
    return end < g.max ? end : g.max;
}

/* Is the row, which is below rows_end, one of its group *group, or padding? */
__device__ __forceinline__ bool rows_valid(const row_groups &g, int64_t row, int *group) {
    *group = 0;
    if (!g.offsets) return true;
    *group = rows_group(g, row);
    return row < rows_valid_end(g, *group);
}

/* One block of a grid, all its threads: MOE_E_DATA with token -1 and the number of a group whose offsets and count do
 * not fit (groups: the last offset is beyond the buffers). */
__device__ __forceinline__ void rows_check(const row_groups &g, moe_fault *fault) {
    if (!g.offsets) return;
    for (int i = threadIdx.x; i < g.groups; i += blockDim.x) {
        const int64_t room = g.offsets[i + 1] - g.offsets[i], count = g.counts[i];
        if (count < 0 || room < 0 || count > room) fault_set(fault, MOE_E_DATA, -1, i);
    }
    if (threadIdx.x) return;
    if (g.offsets[0] != 0) fault_set(fault, MOE_E_DATA, -1, 0);
    if (g.offsets[g.groups] > g.max) fault_set(fault, MOE_E_DATA, -1, g.groups);
}

}  // namespace
#endif
