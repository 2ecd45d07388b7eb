/* Products of BF16 by tensor cores (mma.sync): a block has 128 x 128 of out, its 8 warps 64 x 32 each, and three steps
 * of 32 depth in shared memory, of which two are on their way while the third is multiplied. Operands lie there as in
 * memory; the loads of tile.cuh turn those that are stored across. */
#include "tile.cuh"
#include "tiles.cuh"

namespace {

enum { R = 128, C = 128, D = 32, THREADS = 256, STAGES = 3, WARP_R = 64, WARP_C = 32, WARPS_ACROSS = C / WARP_C };
enum { ROW_INSIDE = R + TILE_PAD, DEPTH_INSIDE = D + TILE_PAD }; /* elements of a row in shared memory */
enum { OPERAND = R * DEPTH_INSIDE > D *ROW_INSIDE ? R *DEPTH_INSIDE : D *ROW_INSIDE };
enum { SHARED_BYTES = STAGES * 2 * OPERAND * 2 };
static_assert(R == C, "one loader");

/* OUTER rows of INNER elements from `from`; what lies outside of outer and inner becomes 0. PACKS: 16 bytes at once. */
template <int OUTER, int INNER, bool PACKS>
__device__ __forceinline__ void load(bf16 *to, const bf16 *from, int64_t ld, int outer, int inner) {
#pragma unroll
    for (int i = 0; i < OUTER * INNER / 8 / THREADS; i++) {
        const int at = (int)threadIdx.x + i * THREADS, row = at / (INNER / 8), column = at % (INNER / 8) * 8;
        bf16 *pack = to + row * (INNER + TILE_PAD) + column;
        const bf16 *source = from + row * ld + column;
        if (PACKS) {
            const bool there = row < outer && column < inner;
            tile_copy_async(pack, there ? source : from, there);
        } else {
            for (int k = 0; k < 8; k++)
                pack[k] = row < outer && column + k < inner ? source[k] : __float2bfloat16_rn(0.0f);
        }
    }
}
/* A tile [R,D] of an operand that lies with the depth inside of its rows, or across. */
template <bool INSIDE, bool PACKS>
__device__ __forceinline__ void load_operand(bf16 *to, const bf16 *from, int64_t ld, int rows, int depth) {
    if constexpr (INSIDE)
        load<R, D, PACKS>(to, from, ld, rows, depth);
    else
        load<D, R, PACKS>(to, from, ld, depth, rows);
}

typedef float warp_sums[WARP_R / 16][WARP_C / 8][4];

/* The warp's sums += its part of the products of one step, from row and column on. */
template <bool A_INSIDE, bool B_INSIDE>
__device__ __forceinline__ void multiply(const bf16 *a, const bf16 *b, int row, int column, warp_sums &sum) {
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t fb[WARP_C / 16][4];
#pragma unroll
        for (int j = 0; j < WARP_C / 16; j++) {
            if constexpr (B_INSIDE)
                tile_load_b(fb[j], b + (column + 16 * j) * DEPTH_INSIDE + d, DEPTH_INSIDE);
            else
                tile_load_b_trans(fb[j], b + d * ROW_INSIDE + column + 16 * j, ROW_INSIDE);
        }
#pragma unroll
        for (int i = 0; i < WARP_R / 16; i++) {
            uint32_t fa[4];
            if constexpr (A_INSIDE)
                tile_load_a(fa, a + (row + 16 * i) * DEPTH_INSIDE + d, DEPTH_INSIDE);
            else
                tile_load_a_trans(fa, a + d * ROW_INSIDE + row + 16 * i, ROW_INSIDE);
#pragma unroll
            for (int j = 0; j < WARP_C / 8; j++) tile_mma_bf16(sum[i][j], fa, fb[j / 2] + j % 2 * 2);
        }
    }
}

/* Two neighbours of a row of out. */
template <bool PACKS, class Out>
__device__ __forceinline__ void put(Out *to, float left, float right, int columns, bool accumulate) {
    if (columns <= 0) return;
    if (accumulate) {
        left += act_get(to);
        if (columns > 1) right += act_get(to + 1);
    }
    if constexpr (PACKS && sizeof(Out) == 2) { /* widths are even */
        *reinterpret_cast<uint32_t *>(to) = tile_pack(left, right);
    } else if constexpr (PACKS) {
        *reinterpret_cast<float2 *>(to) = make_float2(left, right);
    } else {
        act_put(to, left);
        if (columns > 1) act_put(to + 1, right);
    }
}

template <bool PACKS, class Out>
__device__ __forceinline__ void store(const tile_job &j, Out *out, int row, int column, const warp_sums &sum,
                                      bool accumulate) {
    const int lane = (int)tile_lane();
    row += lane / 4;
    column += 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < WARP_R / 16; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row + 16 * i + 8 * half;
            if (r >= j.kept) continue;
#pragma unroll
            for (int k = 0; k < WARP_C / 8; k++)
                put<PACKS>(out + (int64_t)r * j.ldo + column + 8 * k, sum[i][k][2 * half], sum[i][k][2 * half + 1],
                           j.columns - column - 8 * k, accumulate);
        }
}

template <int ROLE, bool PACKS, class Out>
__global__ void __launch_bounds__(THREADS, PACKS ? 2 : 1) product(tile_args p) {
    constexpr bool a_inside = ROLE != MOE_WGRAD, b_inside = ROLE == MOE_FPROP;
    KERNEL_DYNAMIC(bf16, room);
    tile_job j;
    if (blockIdx.x == 0) tile_check(p);
    if (!tile_find<ROLE, R, C>(p, &j)) return;
    const bf16 *a = static_cast<const bf16 *>(p.a) + j.a, *b = static_cast<const bf16 *>(p.b) + j.b;
    const int64_t step_a = D * (a_inside ? INT64_C(1) : j.lda), step_b = D * (b_inside ? INT64_C(1) : j.ldb);
    const int steps = (int)((j.depth + D - 1) / D);
    const int warp = (int)threadIdx.x / 32, row = warp / WARPS_ACROSS * WARP_R, column = warp % WARPS_ACROSS * WARP_C;
    const bool busy = row < j.rows && column < j.columns;
    warp_sums sum = {};
    auto fetch = [&](int step) { /* one group of copies, whatever is there */
                                 bf16 *to = room + step % STAGES * (2 * OPERAND);
                                 const int depth = tile_least(j.depth - (int64_t)step * D, D);
                                 if (step < steps) {
                                     load_operand<a_inside, PACKS>(to, a + step * step_a, j.lda, j.rows, depth);
                                     load_operand<b_inside, PACKS>(to + OPERAND, b + step * step_b, j.ldb, j.columns,
                                                                   depth);
                                 }
                                 tile_copy_commit();
    };
    for (int step = 0; step < STAGES - 1; step++) fetch(step);
    for (int step = 0; step < steps; step++) {
        tile_copy_wait<STAGES - 2>();
        __syncthreads(); /* this step is there, and all are done with the last one */
        fetch(step + STAGES - 1);
        const bf16 *from = room + step % STAGES * (2 * OPERAND);
        if (busy) multiply<a_inside, b_inside>(from, from + OPERAND, row, column, sum);
    }
    store<PACKS>(j, static_cast<Out *>(p.out) + j.out, row, column, sum, p.accumulate != 0);
}

template <int ROLE, bool PACKS, class Out>
moe_status launch(const cuda_product *p, const char *op, moe_err *err) {
    const tile_args t = tile_product_of(p);
    KERNEL_LARGE_SHARED((product<ROLE, PACKS, Out>), SHARED_BYTES);
    KERNEL_LAUNCH((product<ROLE, PACKS, Out>), cuda_blocks(tile_blocks(t, ROLE, R, C), 1), THREADS, SHARED_BYTES,
                  p->stream, t);
    return cuda_launched(op, err);
}

template <int ROLE, class Out>
moe_status run(const cuda_product *p, const char *op, moe_err *err) {
    const uintptr_t at = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->out;
    return (p->n | p->k) % 8 == 0 && at % 16 == 0 ? launch<ROLE, true, Out>(p, op, err)
                                                  : launch<ROLE, false, Out>(p, op, err);
}

}  // namespace

moe_status tiles_bf16_run(const cuda_product *p, const char *op, moe_err *err) {
    if (p->role == MOE_WGRAD) return run<MOE_WGRAD, float>(p, op, err);
    if (p->role == MOE_FPROP)
        return p->out_dtype == MOE_BF16 ? run<MOE_FPROP, bf16>(p, op, err) : run<MOE_FPROP, float>(p, op, err);
    return p->out_dtype == MOE_BF16 ? run<MOE_DGRAD, bf16>(p, op, err) : run<MOE_DGRAD, float>(p, op, err);
}
