/* moe.dispatch_plan/0: a block an ep rank adds up what its experts were chosen and scans their rows; only where these
 * are too many and some are to be dropped, one thread goes through the experts in turn (common/plan.h). Then a thread
 * an expert shares its rows among the members. Memory: the counts of all members are read twice, two numbers written
 * for each. */
#include "../../common/plan.h"
#include "../cuda.h"
#include "fault.cuh"
#include "reduce.cuh"

namespace {

enum { THREADS = 256, SHARES = 64 };

struct plan_io {
    plan_group g;
    moe_dispatch_plan_attr at;
    const int64_t *all; /* [M,S] */
    int64_t stride;     /* S */
    int64_t *kept, *first, *all_offsets, *offsets, *counts, *tokens;
    int64_t *take; /* [E]: workspace, and one more: not 0 where an ep rank has too many rows, or a count is none */
    int64_t most;  /* no count is larger: sums over all fit in 64 bits */
};

/* There are no rows at all, then. */
__device__ __forceinline__ void refuse(const plan_io &p, moe_fault *fault, int64_t code, int64_t token, int64_t value) {
    atomicExch(reinterpret_cast<unsigned long long *>(p.take + p.g.experts), 1ull);
    fault_set(fault, code, token, value);
}

/* Choices of expert e by all members. What an exchange that was ended has left are no counts. */
__device__ int64_t chosen_of(const plan_io &p, int64_t e, moe_fault *fault) {
    int64_t sum = 0;
    for (int64_t m = 0; m < p.g.members; m++) {
        const int64_t n = p.all[m * p.stride + e];
        if (n < 0 || n > p.most) {
            refuse(p, fault, MOE_E_DATA, -1, n);
            return 0;
        }
        sum += n;
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS) take(plan_io p, moe_fault *fault) {
    KERNEL_SHARED(block_room<int64_t>, room);
    const int64_t groups = p.g.groups;
    int64_t *mine = p.take + blockIdx.x * groups, *offsets = p.all_offsets + blockIdx.x * (groups + 1), needed = 0;
    for (int64_t from = 0; from < groups; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        const int64_t chosen = i < groups ? chosen_of(p, blockIdx.x * groups + i, fault) : 0;
        const int64_t rows = i < groups ? plan_align(plan_most(chosen, p.at.min_rows), p.at.align) : 0;
        int64_t sum;
        const int64_t before = block_before(rows, room, &sum);
        if (i < groups) {
            mine[i] = chosen;
            offsets[i] = needed + before;
        }
        needed += sum;
    }
    __syncthreads(); /* the first thread goes over what the others have written */
    if (threadIdx.x) return;
    offsets[groups] = needed;
    if (needed <= p.at.limit) return;
    if (p.at.overflow == MOE_OVERFLOW_DROP) {
        plan_take(&p.g, &p.at, mine, offsets);
        return;
    }
    refuse(p, fault, MOE_E_OVERFLOW, blockIdx.x, needed);
}

__global__ void __launch_bounds__(SHARES) share(plan_io p) {
    const int64_t groups = p.g.groups, own = p.at.ep_rank, e = blockIdx.x * (int64_t)SHARES + threadIdx.x;
    const bool none = p.take[p.g.experts] != 0;
    if (e < p.g.members) p.tokens[e] = p.all[e * p.stride + p.g.experts];
    if (e <= groups) p.offsets[e] = none ? 0 : p.all_offsets[own * (groups + 1) + e];
    if (e < groups) p.counts[e] = none ? 0 : p.take[own * groups + e];
    if (e >= p.g.experts) return;
    if (none) {
        for (int64_t m = 0; m < p.g.members; m++) p.kept[m * p.g.experts + e] = p.first[m * p.g.experts + e] = 0;
        return;
    }
    const int64_t ep = e / groups;
    plan_share(&p.g, p.all, p.stride, e, p.all_offsets[ep * (groups + 1) + e % groups], p.take[e], p.kept, p.first);
}

__global__ void __launch_bounds__(THREADS) clear(plan_io p) {
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (p.take[p.g.experts] && i < p.g.ep_size * (p.g.groups + 1)) p.all_offsets[i] = 0;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    const moe_status s = op_check_dispatch_plan(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = 8 * (1 + (uint64_t) static_cast<const moe_dispatch_plan_attr *>(a->attr)->n_experts);
    return MOE_OK;
}

int64_t *numbers(const moe_op_args *a, int i) {
    return static_cast<int64_t *>(a->out[i].data);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_dispatch_plan_attr *at = static_cast<const moe_dispatch_plan_attr *>(a->attr);
    const plan_io p = {plan_group_of(a->in[0].shape[0], at->n_experts, at->ep_size),
                       *at,
                       static_cast<const int64_t *>(a->in[0].data),
                       a->in[0].shape[1],
                       numbers(a, 0),
                       numbers(a, 1),
                       numbers(a, 2),
                       numbers(a, 3),
                       numbers(a, 4),
                       numbers(a, 5),
                       static_cast<int64_t *>(a->workspace),
                       INT64_MAX / 4 / (a->in[0].shape[0] * at->n_experts)};
    const cudaStream_t stream = cuda_stream(a);
    const moe_status s =
        cuda_status(cudaMemsetAsync(p.take + p.g.experts, 0, sizeof *p.take, stream), MOE_OP_DISPATCH_PLAN, err);
    if (s != MOE_OK) return s;
    const int64_t most = plan_most(plan_most(p.g.experts, p.g.groups + 1), p.g.members);
    KERNEL_LAUNCH(take, cuda_blocks(p.g.ep_size, 1), THREADS, 0, stream, p, static_cast<moe_fault *>(a->fault));
    KERNEL_LAUNCH(share, cuda_blocks(most, SHARES), SHARES, 0, stream, p);
    KERNEL_LAUNCH(clear, cuda_blocks(p.g.ep_size * (p.g.groups + 1), THREADS), THREADS, 0, stream, p);
    return cuda_launched(MOE_OP_DISPATCH_PLAN, err);
}

}  // namespace

extern const moe_op cuda_op_dispatch_plan = {sizeof(moe_op), 0, MOE_OP_DISPATCH_PLAN, sizes, forward, nullptr};
