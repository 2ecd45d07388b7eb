/* moe.sumsq/0: FP64 sums of runs of a fixed length, a block a run, which one block then adds: the bits depend on n
 * alone. Memory: g read once. */
#include "flat.cuh"
#include "reduce.cuh"
#include "sum_parts.cuh"

namespace {

enum { RUN = 16384, ROUND = FLAT_THREADS * FLAT_PACK };

/* Elements [i, i + 4) of a run, 0 past the end; the same thread has the same elements in packs and one by one. */
template <bool PACKS>
__device__ __forceinline__ void load(const float *g, int64_t i, int64_t n, float v[FLAT_PACK]) {
    if (PACKS && i + FLAT_PACK <= n) {
        act_load(g + i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < FLAT_PACK; j++) v[j] = i + j < n ? g[i + j] : 0.0f;
}

template <bool PACKS>
__global__ void __launch_bounds__(FLAT_THREADS) sum_run(const float *__restrict__ g, int64_t n, double *parts) {
    KERNEL_SHARED(block_room<double>, room);
    const int64_t first = blockIdx.x * (int64_t)RUN + threadIdx.x * FLAT_PACK;
    double sum[2] = {0, 0};
#pragma unroll 4
    for (int at = 0; at < RUN; at += ROUND) {
        float v[FLAT_PACK];
        load<PACKS>(g, first + at, n, v);
#pragma unroll
        for (int j = 0; j < FLAT_PACK; j++) sum[j % 2] += (double)v[j] * (double)v[j];
    }
    const double all = block_sum(sum[0] + sum[1], room);
    if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_sumsq(a, err);
    if (s == MOE_OK) s = op_want_absent(op_optional(a->in, a->n_in, 1), MOE_OP_SUMSQ, "filled", err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = cuda_blocks(a->in[0].shape[0], RUN) * sizeof(double);
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const float *g = static_cast<const float *>(a->in[0].data);
    double *parts = static_cast<double *>(a->workspace);
    const int64_t n = a->in[0].shape[0];
    const unsigned runs = cuda_blocks(n, RUN);
    if (n == 0) return MOE_OK;
    if ((uintptr_t)g % 16 == 0)
        KERNEL_LAUNCH(sum_run<true>, runs, FLAT_THREADS, 0, cuda_stream(a), g, n, parts);
    else
        KERNEL_LAUNCH(sum_run<false>, runs, FLAT_THREADS, 0, cuda_stream(a), g, n, parts);
    sum_parts_launch(parts, runs, static_cast<double *>(a->out[0].data), cuda_stream(a));
    return cuda_launched(MOE_OP_SUMSQ, err);
}

}  // namespace

extern const moe_op cuda_op_sumsq = {sizeof(moe_op), 0, MOE_OP_SUMSQ, sizes, forward, nullptr};
