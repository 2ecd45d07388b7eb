/* Router "topk" for CUDA, forward: a warp a token. Memory: 4 bytes a logit and 8 a choice; what is measured stays in
 * shared memory until a block ends. The last launch makes losses and counts of what the blocks have left. */
#include "row.cuh"

namespace {

struct measured {
    double z, entropy; /* sums over a warp's tokens */
};

/* The token's part of each loss: P_e for the balance loss, lse^2, -sum P log P, with P the scores over their sum. */
__device__ __forceinline__ void measure(const route_call &c, const row &r, float max, float sum, word *share,
                                        measured *m) {
    const double log_sum = log((double)sum);
    float dot;
    if (!c.global) add_shares(c, r, 1.0f / sum, share);
    if (c.sigmoid) {
        const float least = max < 0 ? max : 0;
        dot = sum8(r, c.padded, [&](int i) { return r.p[i] * row_sigmoid_log(r.x[i], least, r.p[i], r.q[i]); });
    } else {
        dot = sum8(r, c.padded, [&](int i) { return r.p[i] * row_clamp(r.x[i] - max); });
    }
    m->entropy += fmax(log_sum - (double)dot / (double)sum, 0.0); /* rounding may leave -1e-8 */
    const double lse = (double)max + (c.sigmoid ? log((double)sum_softmax(c, r, max)) : log_sum);
    m->z += lse * lse;
}

__device__ __forceinline__ void choose_none(const route_call &c, int64_t token, int lane) {
    for (int j = lane; j < c.k; j += WARP) {
        c.ids[token * c.k + j] = -1;
        c.weights[token * c.k + j] = 0;
    }
}

/* Weights never see the bias: softmax p_e = exp(l_e) / sum, sigmoid p_e = 1 / (1 + exp(-l_e)); w_j = scale p_j, or
 * scale p_j / sum of the chosen. count [E]: of the unit. */
__device__ void route_token(const route_call &c, int64_t token, const row &r, word *share, word *count, measured *m) {
    float max = 0, factor = 1;
    if (!token_live(c, token) || !load(c, token, r, &max)) {
        choose_none(c, token, r.lane);
        return;
    }
    if (c.bias || c.best_of > 1 || c.measure || !c.relative) {
        const float sum = score(c, r, r.x, c.padded, max, r.p, r.q);
        factor = c.sigmoid ? row_unit(max) : 1.0f / sum;
        if (c.measure) measure(c, r, max, sum, share, m);
        __syncwarp(); /* choose writes where q was */
    }
    choose(c, r, factor);
    const float each = c.relative ? c.scale / score_chosen(c, r) : 0.0f;
    for (int j = r.lane; j < c.k; j += WARP) {
        const int id = r.ids[j];
        c.ids[token * c.k + j] = id;
        c.weights[token * c.k + j] = c.relative ? r.top_p[j] * each : r.p[id] * factor * c.scale;
        if (c.counted) atomicAdd(&count[id], (word)1);
    }
}

struct measured_by_warps {
    measured warp[4];
};

__global__ void __launch_bounds__(4 * WARP) route_tokens(const route_call c) {
    KERNEL_DYNAMIC(unsigned char, room);
    KERNEL_SHARED(measured_by_warps, sums);
    word *share = reinterpret_cast<word *>(room);
    const token_range range = tokens_of_block(c);
    const row r = row_of_warp(c, room + c.padded * (int)sizeof(word));
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    measured m = {0, 0};
    if (c.measure) clear_shares(c, share);
    if (c.bias && blockIdx.x == 0)
        for (int e = threadIdx.x; e < c.experts; e += blockDim.x)
            if (!isfinite(c.bias[e])) report(c, BAD_BIAS, 0, e);
    for (int64_t token = range.begin + warp; token < range.end; token += warps)
        route_token(c, token, r, share, c.count + range.unit * (int64_t)c.padded, &m);
    if (!c.measure) return;
    if (r.lane == 0) sums.warp[warp] = m;
    give_shares(c, share, range.unit);
    if (threadIdx.x) return;
    for (int w = 1; w < warps; w++) {
        m.z += sums.warp[w].z;
        m.entropy += sums.warp[w].entropy;
    }
    c.part[2 * (int64_t)blockIdx.x] = m.z;
    c.part[2 * (int64_t)blockIdx.x + 1] = m.entropy;
}

enum { END_THREADS = 256 };

/* One block: warps take the units of the launch, threads the blocks' sums and the experts' counts. */
__global__ void __launch_bounds__(END_THREADS) end_route(const route_call c) {
    KERNEL_SHARED(block_room<double>, room);
    KERNEL_SHARED(int, bad);
    if (threadIdx.x == 0) bad = tell_bad(c);
    __syncthreads();
    if (bad) return;
    double sum[TOPK_LOSSES] = {};
    for (int u = threadIdx.x / WARP; c.measure && !c.global && u < c.units; u += END_THREADS / WARP) {
        const word *count = c.count + u * (int64_t)c.padded, *share = c.share + u * (int64_t)c.padded;
        const int64_t tokens = count_tokens(c, count);
        const double weight = weigh_shares(c, count, share);
        if (tokens > 0 && threadIdx.x % WARP == 0) sum[TOPK_AUX] += topk_slope(c.experts, c.k, (double)tokens) * weight;
    }
    for (int64_t i = threadIdx.x; c.measure && i < (int64_t)c.units * c.blocks; i += END_THREADS) {
        sum[TOPK_Z] += c.part[2 * i];
        sum[TOPK_ENTROPY] += c.part[2 * i + 1];
    }
    for (int l = 0; c.measure && l < TOPK_LOSSES; l++) {
        const double all = block_sum(sum[l], room);
        if (threadIdx.x == 0) c.losses[l] += all;
    }
    for (int e = threadIdx.x; c.counts && e < c.experts; e += END_THREADS) {
        word total = 0;
        for (int u = 0; u < c.units; u++) total += c.count[u * (int64_t)c.padded + e];
        c.counts[e] += (int64_t)total;
    }
}

}  // namespace

extern "C" moe_status topk_cuda_route(const void *self, const moe_route_args *a, moe_err *err) {
    const topk_cuda *s = static_cast<const topk_cuda *>(self);
    const moe_status checked = topk_check_route(&s->t, a, err);
    if (checked != MOE_OK || a->logits->shape[0] == 0) return checked;
    route_call c = open_call(s, a);
    c.bias = s->t.bias ? static_cast<const float *>(a->state->data) : nullptr;
    c.weights = static_cast<float *>(a->weights->data);
    c.counts = router_absent(a->counts) ? nullptr : static_cast<int64_t *>(a->counts->data);
    c.losses = router_absent(a->losses) ? nullptr : static_cast<double *>(a->losses->data);
    c.measure = c.losses != nullptr;
    c.counted = c.counts || c.measure;
    if (!c.measure) c.unit = c.tokens; /* units are of the balance loss */
    const cudaStream_t stream = static_cast<cudaStream_t>(a->stream);
    return for_units(c, s->units, stream, "route", err, [&](const route_call &now) {
        launch_tokens(route_tokens, s, now, stream);
        KERNEL_LAUNCH(end_route, 1, END_THREADS, 0, stream, now);
    });
}
