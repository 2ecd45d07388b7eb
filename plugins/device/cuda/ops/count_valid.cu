/* moe.count_valid/0: integers, so that the order in which blocks add does not matter. Memory: 4 bytes a target. */
#include "../cuda.h"
#include "reduce.cuh"

namespace {

enum { THREADS = 256, EACH = 16 };

__global__ void __launch_bounds__(THREADS) count_run(const int32_t *__restrict__ targets, int64_t n, int64_t *count) {
    const int64_t first = blockIdx.x * (int64_t)(THREADS * EACH) + threadIdx.x;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * THREADS;
        mine += at < n && targets[at] >= 0;
    }
    mine = warp_sum(mine);
    if (threadIdx.x % WARP == 0 && mine)
        atomicAdd(reinterpret_cast<unsigned long long *>(count), (unsigned long long)mine);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_count_valid(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const int64_t n = a->in[0].shape[0];
    if (n == 0) return MOE_OK;
    KERNEL_LAUNCH(count_run, cuda_blocks(n, THREADS * EACH), THREADS, 0, cuda_stream(a),
                  static_cast<const int32_t *>(a->in[0].data), n, static_cast<int64_t *>(a->out[0].data));
    return cuda_launched(MOE_OP_COUNT_VALID, err);
}

}  // namespace

extern const moe_op cuda_op_count_valid = {sizeof(moe_op), 0, MOE_OP_COUNT_VALID, sizes, forward, nullptr};
