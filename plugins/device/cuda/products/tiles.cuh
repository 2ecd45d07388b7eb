/* What our own product kernels share: which tile of out a block has, and of whose rows. A block has one tile; the grid
 * has one for every tile that can be, and blocks whose tile is none end at once. Padding rows of operands are not read;
 * those of out are written as if they were 0. */
#ifndef CUDA_PRODUCTS_TILES_CUH
#define CUDA_PRODUCTS_TILES_CUH
#include "fault.cuh"
#include "products.h"

namespace {

/* What a kernel is given. */
struct tile_args {
    const void *a, *b;
    void *out;
    int64_t m; /* rows of the buffers */
    int n, k, accumulate, groups;
    const int64_t *offsets, *counts; /* [groups + 1], [groups] or NULL; offsets NULL: one group, all rows */
    moe_fault *fault;
};

inline tile_args tile_product_of(const cuda_product *p) {
    tile_args t = {p->a, p->b, p->out, p->m, (int)p->n, (int)p->k, p->accumulate != 0, 1, nullptr, nullptr, nullptr};
    if (!p->rows) return t;
    t.groups = (int)p->rows->groups;
    t.offsets = p->rows->dev_offsets;
    t.counts = p->rows->dev_counts;
    t.fault = static_cast<moe_fault *>(p->fault);
    return t;
}

/* A block's tile of out [.,columns], with all the depth there is: a(r,d) lies at a[r * lda + d], or at a[d * lda + r]
 * in MOE_WGRAD; b(d,c) at b[c * ldb + d] in MOE_FPROP, else at b[d * ldb + c]. */
struct tile_job {
    int64_t a, b, out; /* element (0,0) of the tile */
    int64_t depth;
    int lda, ldb, ldo;
    int rows, kept, columns; /* rows of a that are there; rows of out, columns that are written */
};

/* One block: the rows' numbers fit together. */
__device__ __forceinline__ void tile_check(const tile_args &p) {
    if (!p.offsets) return;
    for (int g = (int)threadIdx.x; g < p.groups; g += (int)blockDim.x) {
        const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
        if (end < begin || end > p.m)
            fault_set(p.fault, MOE_E_OVERFLOW, g, end);
        else if (begin < 0 || (p.counts && (p.counts[g] < 0 || p.counts[g] > end - begin)))
            fault_set(p.fault, MOE_E_DATA, g, p.counts ? p.counts[g] : begin);
    }
}

/* Rows [*begin, *valid) of a group have numbers, up to *end they are padding; all lie in the buffers. */
__device__ __forceinline__ void tile_rows(const tile_args &p, int group, int64_t *begin, int64_t *valid, int64_t *end) {
    *begin = 0;
    *valid = *end = p.m;
    if (!p.offsets) return;
    *begin = p.offsets[group];
    if (p.offsets[group + 1] < *end) *end = p.offsets[group + 1];
    if (*begin < 0 || *end < *begin) *begin = *end = 0;
    *valid = *end;
    if (p.counts && p.counts[group] < *end - *begin) *valid = *begin + (p.counts[group] > 0 ? p.counts[group] : 0);
}

/* Tile t of a group's rows is number begin / EDGE + group + t of all: these grow from group to group, whatever the
 * lengths. The number of them. */
inline int64_t tile_slots(const tile_args &p, int edge) {
    return p.offsets ? p.m / edge + p.groups : (p.m + edge - 1) / edge;
}
template <int EDGE>
__device__ __forceinline__ int64_t tile_slot(const tile_args &p, int group) {
    if (!p.offsets) return 0;
    const int64_t begin = p.offsets[group];
    return (begin > 0 ? begin : 0) / EDGE + group;
}
template <int EDGE>
__device__ __forceinline__ int tile_group(const tile_args &p, int64_t slot) {
    int lo = 0, hi = p.groups;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        if (tile_slot<EDGE>(p, mid) <= slot)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

__device__ __forceinline__ int tile_least(int64_t n, int most) {
    return n < most ? (int)n : most;
}

/* False: the block has none. */
template <int ROLE, int R, int C>
__device__ __forceinline__ bool tile_find(const tile_args &p, tile_job *j) {
    const int width = ROLE == MOE_FPROP ? p.n : p.k, strips = (width + C - 1) / C;
    const int column = (int)blockIdx.x % strips * C, slot = (int)blockIdx.x / strips; /* in 32 bits */
    int64_t begin, valid, end;
    j->lda = ROLE == MOE_FPROP ? p.k : p.n;
    j->ldb = p.k;
    j->ldo = width;
    j->columns = tile_least(width - column, C);
    if (ROLE == MOE_WGRAD) {
        const int heights = (p.n + R - 1) / R, group = slot / heights, row = slot % heights * R;
        tile_rows(p, group, &begin, &valid, &end);
        j->a = begin * p.n + row;
        j->b = begin * p.k + column;
        j->out = ((int64_t)group * p.n + row) * p.k + column;
        j->depth = valid - begin;
        j->rows = j->kept = tile_least(p.n - row, R);
        return true;
    }
    const int group = tile_group<R>(p, slot);
    tile_rows(p, group, &begin, &valid, &end);
    const int64_t row = begin + (slot - tile_slot<R>(p, group)) * R, weights = (int64_t)group * p.n * p.k;
    if (row < 0 || row >= end) return false;
    j->a = row * j->lda;
    j->b = weights + (ROLE == MOE_FPROP ? (int64_t)column * p.k : column);
    j->out = row * width + column;
    j->depth = row < valid ? (ROLE == MOE_FPROP ? p.k : p.n) : 0; /* padding alone: zeros */
    j->rows = row < valid ? tile_least(valid - row, R) : 0;
    j->kept = tile_least(end - row, R);
    return true;
}

/* Blocks of a grid: strips of columns times slots (MOE_WGRAD: groups times strips of n). */
inline int64_t tile_blocks(const tile_args &p, int32_t role, int r, int c) {
    const int64_t width = role == MOE_FPROP ? p.n : p.k, strips = (width + c - 1) / c;
    return strips * (role == MOE_WGRAD ? (int64_t)p.groups * ((p.n + r - 1) / r) : tile_slots(p, r));
}

}  // namespace

/* tiles_bf16.cu: BF16 operands, by tensor cores. */
moe_status tiles_bf16_run(const cuda_product *p, const char *op, moe_err *err);
#endif
