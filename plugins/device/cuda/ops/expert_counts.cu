/* moe.expert_counts/0: blocks count in shared memory and add their counts to the row; sums of integers, which do not
 * depend on an order. One block ends it: the number of tokens, and no choices at all where an id was wrong. Memory: 4
 * bytes a choice. */
#include "../cuda.h"
#include "fault.cuh"

namespace {

enum { THREADS = 256, EACH = 16, MOST_EXPERTS = 6144 /* counters of a block lie in shared memory */ };

__global__ void __launch_bounds__(THREADS)
    count(const int32_t *__restrict__ ids, int64_t n, int k, int experts, unsigned long long *__restrict__ row,
          int *__restrict__ broken, moe_fault *fault) {
    KERNEL_DYNAMIC(unsigned, mine); /* [E] */
    for (int e = threadIdx.x; e < experts; e += THREADS) mine[e] = 0;
    __syncthreads();
    const int64_t begin = blockIdx.x * (int64_t)(THREADS * EACH), left = n - begin;
    const int end = left < THREADS * EACH ? (int)left : THREADS * EACH;
    for (int j = threadIdx.x; j < end; j += THREADS) {
        const int64_t i = begin + j;
        const int e = ids[i];
        if (e == -1) continue;
        bool good = e >= 0 && e < experts;
        for (int64_t other = i - i % k; good && other < i; other++) good = ids[other] != e;
        if (good) {
            atomicAdd(&mine[e], 1u);
        } else {
            atomicExch(broken, 1);
            fault_set(fault, MOE_E_DATA, i / k, e);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS)
        if (mine[e]) atomicAdd(&row[e], (unsigned long long)mine[e]);
}

__global__ void __launch_bounds__(THREADS)
    finish(int64_t *__restrict__ row, int experts, int64_t tokens, const int *__restrict__ broken) {
    if (threadIdx.x == 0) row[experts] = tokens;
    for (int e = threadIdx.x; *broken && e < experts; e += THREADS) row[e] = 0;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    const moe_status s = op_check_expert_counts(a, err);
    if (s != MOE_OK) return s;
    const uint32_t experts = static_cast<const moe_expert_counts_attr *>(a->attr)->n_experts;
    if (experts > MOST_EXPERTS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %u experts, device/cuda takes %d", MOE_OP_EXPERT_COUNTS, experts,
                        MOST_EXPERTS);
    *saved = 0;
    *workspace = sizeof(int); /* broken */
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const int experts = (int)static_cast<const moe_expert_counts_attr *>(a->attr)->n_experts;
    const int64_t tokens = a->in[0].shape[0], k = a->in[0].shape[1];
    int64_t *row = static_cast<int64_t *>(a->out[0].data);
    int *broken = static_cast<int *>(a->workspace);
    const cudaStream_t stream = cuda_stream(a);
    moe_status s =
        cuda_status(cudaMemsetAsync(row, 0, (size_t)experts * sizeof *row, stream), MOE_OP_EXPERT_COUNTS, err);
    if (s == MOE_OK) s = cuda_status(cudaMemsetAsync(broken, 0, sizeof *broken, stream), MOE_OP_EXPERT_COUNTS, err);
    if (s != MOE_OK) return s;
    if (tokens * k > 0)
        KERNEL_LAUNCH(count, cuda_blocks(tokens * k, THREADS * EACH), THREADS, (size_t)experts * sizeof(unsigned),
                      stream, static_cast<const int32_t *>(a->in[0].data), tokens * k, (int)k, experts,
                      reinterpret_cast<unsigned long long *>(row), broken, static_cast<moe_fault *>(a->fault));
    KERNEL_LAUNCH(finish, 1, THREADS, 0, stream, row, experts, tokens, broken);
    return cuda_launched(MOE_OP_EXPERT_COUNTS, err);
}

}  // namespace

extern const moe_op cuda_op_expert_counts = {sizeof(moe_op), 0, MOE_OP_EXPERT_COUNTS, sizes, forward, nullptr};
