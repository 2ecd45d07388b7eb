/* One call of route or route_bwd on the device: its numbers, its workspace, and how it ends. A unit is what a balance
 * loss is formed over: one sequence, or all tokens of the call. Where there are more units than the workspace has room
 * for, a call makes its launches for some of them after the other. */
#ifndef ROUTER_TOPK_CUDA_CALL_CUH
#define ROUTER_TOPK_CUDA_CALL_CUH
#include "args.h"
#include "fault.cuh"
#include "reduce.cuh"
#include "status.h"
#include "topk_cuda.h"
#include "unit.h"

namespace {

typedef unsigned long long word; /* as atomics have it */

/* Errors in the data by their kind, the first kind goes first: token << 32 | value, the least; NONE: none. */
enum { BAD_BIAS, BAD_BATCH, BAD_ID, BAD_LOGIT, BADS };
const word NONE = ~0ull;

struct route_call {
    int experts, padded, k, k_padded, groups, kept, per, best_of, row_bytes;
    int sigmoid, relative, global; /* relative: weights are shares of the chosen scores alone */
    float scale;
    double aux_coef, z_coef;
    uint32_t layer;
    int measure, counted; /* forward: z, entropy and shares are wanted, counts are; backward: shares are */
    int64_t tokens, unit; /* T, tokens a unit */

    const float *logits;    /* [T,E] */
    const uint8_t *mask;    /* [T] or NULL */
    const float *bias;      /* [E] or NULL */
    int32_t *ids;           /* [T,k] */
    float *weights;         /* [T,k] */
    const float *d_weights; /* [T,k] */
    float *d_logits;        /* [T,E] */
    const int64_t *divisor; /* [1], or NULL: no loss is in the gradient */
    const int64_t *batch;   /* [E] choices in the global batch, or NULL */
    int64_t *counts;        /* [E] += or NULL */
    double *losses;         /* [3] += or NULL */
    moe_fault *fault;

    word *bad;           /* [BADS] */
    word *count, *share; /* [units, padded] choices; sums of scores, in units of 2^-ROW_SHARE_BITS */
    double *part;        /* [blocks, 2] each block's sums of lse^2 and of entropy */
    float *load;         /* [units, padded] backward: d loss / d normalised score */

    int64_t first; /* unit, of this launch */
    int units;     /* of this launch */
    int blocks;    /* that take the tokens of a unit */
};

/* ---- on the host ---- */
inline char *cut(char **at, uint64_t bytes) {
    char *here = *at;
    *at += (bytes + 63) & ~(uint64_t)63;
    return here;
}

/* What both directions have, of checked arguments. */
inline route_call open_call(const topk_cuda *s, const moe_route_args *a) {
    const topk *t = &s->t;
    const uint64_t cells = (uint64_t)s->units * (uint64_t)s->padded;
    char *at = static_cast<char *>(a->workspace);
    route_call c = {};
    c.experts = (int)t->experts;
    c.padded = s->padded;
    c.k = (int)t->k;
    c.k_padded = s->k_padded;
    c.groups = t->kept ? (int)t->groups : 0;
    c.kept = (int)t->kept;
    c.per = (int)t->per;
    c.best_of = (int)t->best_of;
    c.row_bytes = s->row_bytes;
    c.sigmoid = t->sigmoid;
    c.relative = t->after || t->renormalise;
    c.global = t->aux_scope == TOPK_AUX_GLOBAL;
    c.scale = t->scale;
    c.aux_coef = t->aux_coef;
    c.z_coef = t->z_coef;
    c.layer = t->layer;
    c.tokens = a->logits->shape[0];
    c.unit = t->aux_scope == TOPK_AUX_SEQUENCE ? a->seq_len : c.tokens;
    c.logits = static_cast<const float *>(a->logits->data);
    c.mask = router_absent(a->mask) ? nullptr : static_cast<const uint8_t *>(a->mask->data);
    c.ids = static_cast<int32_t *>(a->expert_ids->data);
    c.fault = MOE_REACH(a, moe_route_args, fault) ? static_cast<moe_fault *>(a->fault) : nullptr;
    c.bad = reinterpret_cast<word *>(cut(&at, BADS * sizeof(word)));
    c.count = reinterpret_cast<word *>(cut(&at, cells * sizeof(word)));
    c.share = reinterpret_cast<word *>(cut(&at, cells * sizeof(word)));
    c.part = reinterpret_cast<double *>(cut(&at, (uint64_t)t->max_tokens * 2 * sizeof(double)));
    c.load = reinterpret_cast<float *>(cut(&at, cells * sizeof(float)));
    return c;
}

/* Calls launch(c) for all units, `most` at a time, with count and share of them zero, and bad as NONE before. */
template <class F>
moe_status for_units(route_call c, int most, cudaStream_t stream, const char *what, moe_err *err, F launch) {
    const int64_t units = c.unit ? c.tokens / c.unit : 0;
    moe_status s = cuda_status(cudaMemsetAsync(c.bad, 0xff, BADS * sizeof(word), stream), what, err);
    c.blocks = (int)((c.unit + TOPK_BLOCK_TOKENS - 1) / TOPK_BLOCK_TOKENS);
    for (c.first = 0; s == MOE_OK && c.first < units; c.first += c.units) {
        c.units = (int)(units - c.first < most ? units - c.first : most);
        const size_t bytes = (size_t)c.units * (size_t)c.padded * sizeof(word);
        s = cuda_status(cudaMemsetAsync(c.count, 0, bytes, stream), what, err);
        if (s == MOE_OK && c.measure) s = cuda_status(cudaMemsetAsync(c.share, 0, bytes, stream), what, err);
        if (s == MOE_OK) launch(c);
        if (s == MOE_OK) s = cuda_launched(what, err);
    }
    return s;
}

/* Shared memory of a block of tokens, and its launch. */
template <class K>
void launch_tokens(K kernel, const topk_cuda *s, const route_call &c, cudaStream_t stream) {
    const int bytes = c.padded * (int)sizeof(word) + s->warps * s->row_bytes;
    KERNEL_LARGE_SHARED(kernel, bytes);
    KERNEL_LAUNCH(kernel, (unsigned)(c.units * c.blocks), (unsigned)(s->warps * WARP), (size_t)bytes, stream, c);
}

/* ---- on the device ---- */
/* Padding takes no part in anything. */
__device__ __forceinline__ bool token_live(const route_call &c, int64_t token) {
    return !c.mask || c.mask[token] != 0;
}

__device__ __forceinline__ void report(const route_call &c, int kind, int64_t token, int32_t value) {
    atomicMin(&c.bad[kind], (word)token << 32 | (uint32_t)value);
}

/* By one thread, after all others: true where there was an error, which is then in the fault. */
__device__ __forceinline__ bool tell_bad(const route_call &c) {
    int kind = 0;
    while (kind < BADS && c.bad[kind] == NONE) kind++;
    if (kind == BADS) return false;
    if (!c.fault || c.fault->code) return true;
    const word seen = c.bad[kind];
    fault_set(c.fault, MOE_E_DATA, kind < BAD_ID ? -1 : (int64_t)(seen >> 32), (int32_t)(uint32_t)seen);
    c.fault->layer = c.layer;
    return true;
}

/* The tokens of a block, and its unit in the launch. */
struct token_range {
    int64_t begin, end;
    int unit;
};
__device__ __forceinline__ token_range tokens_of_block(const route_call &c) {
    const int unit = (int)blockIdx.x / c.blocks, part = (int)blockIdx.x % c.blocks;
    const int64_t first = (c.first + unit) * c.unit, begin = first + (int64_t)part * TOPK_BLOCK_TOKENS;
    const int64_t end = begin + TOPK_BLOCK_TOKENS, last = first + c.unit;
    return token_range{begin, end < last ? end : last, unit};
}

/* The shares of a block's tokens, [padded] in its shared memory: from zero, and to the unit's. All threads. */
__device__ __forceinline__ void clear_shares(const route_call &c, word *share) {
    for (int e = threadIdx.x; e < c.padded; e += blockDim.x) share[e] = 0;
    __syncthreads();
}
__device__ __forceinline__ void give_shares(const route_call &c, const word *share, int unit) {
    __syncthreads();
    for (int e = threadIdx.x; e < c.padded; e += blockDim.x)
        if (share[e]) atomicAdd(&c.share[unit * (int64_t)c.padded + e], share[e]);
}

/* By a warp: sum_e n_e sum_t P_te of a unit, its counts n [E]. */
template <class N>
__device__ __forceinline__ double weigh_shares(const route_call &c, const N *n, const word *share) {
    double sum = 0;
    for (int e = threadIdx.x % WARP; e < c.experts; e += WARP) sum += (double)(int64_t)n[e] * (double)share[e];
    return ldexp(warp_sum(sum), -ROW_SHARE_BITS);
}
/* By a warp: the live tokens of a unit, each of which has k choices. */
__device__ __forceinline__ int64_t count_tokens(const route_call &c, const word *count) {
    int64_t sum = 0;
    for (int e = threadIdx.x % WARP; e < c.experts; e += WARP) sum += (int64_t)count[e];
    return warp_sum(sum) / c.k;
}

}  // namespace
#endif
