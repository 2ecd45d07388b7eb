/* Router "topk" for CUDA, backward: a warp a token. Memory: 8 bytes a logit (read, and the gradient written) and 8 a
 * choice. Before it, where the balance loss is in the gradient, the choices of each unit are counted and become the
 * loss's slope by each score; which experts were chosen, groups included, is constant in the gradient. */
#include "row.cuh"

namespace {

/* The ids of the row's token, checked: one out of range would be an index. */
__device__ __forceinline__ bool get_ids(const route_call &c, int64_t token, const row &r) {
    bool good = true;
    __syncwarp();
    for (int j = r.lane; j < c.k; j += WARP) {
        const int32_t id = c.ids[token * c.k + j];
        r.ids[j] = id;
        r.top_d[j] = c.d_weights[token * c.k + j];
        if (id >= 0 && id < c.experts) continue;
        good = false;
        report(c, BAD_ID, token, id);
    }
    return __all_sync(0xffffffffu, good);
}

/* d row += the main loss through the shares of the chosen: w = s p, dl_j = s p_j (dw_j - sum_i p_i dw_i), and for
 * sigmoid times d log(sigmoid) / dl = 1 - sigmoid. */
__device__ __forceinline__ void pull_relative(const route_call &c, const row &r, float *d) {
    const float sum = score_chosen(c, r);
    float dot = 0;
    for (int j = 0; j < c.k; j++) dot += r.top_p[j] * r.top_d[j];
    dot /= sum;
    for (int j = r.lane; j < c.k; j += WARP) {
        const float slope = c.sigmoid ? r.top_q[j] : 1.0f;
        d[r.ids[j]] += c.scale * (r.top_p[j] / sum) * (r.top_d[j] - dot) * slope;
    }
}

/* With h_e = dloss/dP_e: dl_e = P_e (h_e - sum P h) + P_e 2 z lse. d is where h was. */
__device__ __forceinline__ void pull_softmax(const route_call &c, const row &r, float max, double z_scale,
                                             word *share) {
    if (!c.relative)
        for (int j = r.lane; j < c.k; j += WARP) r.h[r.ids[j]] += c.scale * r.top_d[j];
    const float sum = score(c, r, r.x, c.padded, max, r.p, r.q), each = 1.0f / sum;
    const float dot = sum8(r, c.padded, [&](int i) { return r.p[i] * r.h[i]; });
    const float shift = (float)(z_scale * ((double)max + log((double)sum))) - dot * each;
    __syncwarp();
    for (int e = r.lane; e < c.experts; e += WARP) r.h[e] = r.p[e] * each * (r.h[e] + shift);
    if (c.measure) add_shares(c, r, each, share);
}

/* P = s / sum s: dl_e = P_e (h_e - sum P h) (1 - s_e), and the log-sum-exp through its own softmax. */
__device__ __forceinline__ void pull_sigmoid(const route_call &c, const row &r, float max, double z_scale,
                                             word *share) {
    const float each = 1.0f / score(c, r, r.x, c.padded, max, r.p, r.q);
    const float dot = sum8(r, c.padded, [&](int i) { return r.p[i] * r.h[i]; }) * each;
    __syncwarp();
    for (int e = r.lane; e < c.experts; e += WARP) r.h[e] = r.p[e] * each * (r.h[e] - dot) * r.q[e];
    if (c.measure) add_shares(c, r, each, share);
    if (z_scale > 0) {
        const float sum = sum_softmax(c, r, max);
        const float part = (float)(z_scale * ((double)max + log((double)sum)) / (double)sum);
        for (int e = r.lane; e < c.experts; e += WARP) r.h[e] += part * row_softmax_of(r.x[e], max);
    }
    if (c.relative) return;
    const float unit = row_unit(max) * c.scale;
    __syncwarp();
    for (int j = r.lane; j < c.k; j += WARP) {
        const int id = r.ids[j];
        r.h[id] += r.top_d[j] * unit * r.p[id] * r.q[id];
    }
}

/* load [E]: of the token's unit. The gradient is made in h. */
__device__ void pull_token(const route_call &c, int64_t token, const row &r, const float *load_of_unit, double z_scale,
                           word *share) {
    float max = 0;
    float *d = c.d_logits + token * c.experts;
    const bool good = token_live(c, token) && load(c, token, r, &max) && get_ids(c, token, r);
    for (int e = r.lane; e < c.padded; e += WARP) r.h[e] = good && c.aux_coef > 0 ? load_of_unit[e] : 0.0f;
    __syncwarp();
    if (good) {
        const bool whole = c.aux_coef > 0 || c.z_coef > 0 || !c.relative; /* else only the chosen matter */
        if (whole && c.sigmoid) pull_sigmoid(c, r, max, z_scale, share);
        if (whole && !c.sigmoid) pull_softmax(c, r, max, z_scale, share);
        __syncwarp();
        if (c.relative) pull_relative(c, r, r.h);
        __syncwarp();
    }
    for (int e = r.lane; e < c.experts; e += WARP) d[e] = r.h[e];
}

__global__ void __launch_bounds__(4 * WARP) pull_tokens(const route_call c) {
    KERNEL_DYNAMIC(unsigned char, room);
    word *share = reinterpret_cast<word *>(room);
    const token_range range = tokens_of_block(c);
    const row r = row_of_warp(c, room + c.padded * (int)sizeof(word));
    const int64_t divisor = c.divisor ? *c.divisor : 1;
    const double z_scale = c.z_coef > 0 ? 2 * c.z_coef / (double)(divisor > 0 ? divisor : 1) : 0;
    if (c.measure) clear_shares(c, share);
    for (int64_t token = range.begin + threadIdx.x / WARP; token < range.end; token += blockDim.x / WARP) {
        if (divisor <= 0 && r.lane == 0 && token_live(c, token)) report(c, BAD_BATCH, 0, (int32_t)divisor);
        pull_token(c, token, r, c.load + range.unit * (int64_t)c.padded, z_scale, share);
    }
    if (c.measure) give_shares(c, share, range.unit);
}

/* ---- the balance loss ---- */
enum { COUNT_THREADS = 256, LOAD_THREADS = 256 };

/* A thread a token: the choices of its unit. */
__global__ void __launch_bounds__(COUNT_THREADS) count_choices(const route_call c) {
    const int64_t i = blockIdx.x * (int64_t)COUNT_THREADS + threadIdx.x, token = c.first * c.unit + i;
    if (i >= c.units * c.unit || !token_live(c, token)) return;
    word *count = c.count + i / c.unit * c.padded;
    for (int j = 0; j < c.k; j++) {
        const int32_t id = c.ids[token * c.k + j];
        if (id >= 0 && id < c.experts) atomicAdd(&count[id], (word)1);
    }
}

/* The counts of the global batch, k for each of its tokens: then the balance loss is at least 1 where it should be. */
__device__ __forceinline__ void check_batch(const route_call &c, int64_t divisor, block_room<double> &room) {
    double sum = 0; /* exact below 2^53 choices */
    for (int e = threadIdx.x; e < c.experts; e += LOAD_THREADS) {
        sum += (double)c.batch[e];
        if (c.batch[e] < 0 || c.batch[e] > divisor) report(c, BAD_BATCH, 0, e);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0 && sum != (double)c.k * (double)divisor) report(c, BAD_BATCH, 0, 0);
}

/* A block a unit: load_e = d loss / d P_te = aux_coef / divisor * slope * n_e, zero in the padding. */
__global__ void __launch_bounds__(LOAD_THREADS) spread_load(const route_call c) {
    KERNEL_SHARED(block_room<double>, room);
    const word *count = c.count + blockIdx.x * (int64_t)c.padded;
    const int64_t divisor = *c.divisor;
    if (c.batch) check_batch(c, divisor, room);
    const double by = (double)(divisor > 0 ? divisor : 1);
    double tokens = by;
    if (!c.batch) {
        const int64_t live = count_tokens(c, count);
        tokens = (double)(live > 0 ? live : 1);
    }
    const double factor = c.aux_coef / by * topk_slope(c.experts, c.k, tokens);
    for (int e = threadIdx.x; e < c.padded; e += LOAD_THREADS) {
        const double n = e >= c.experts ? 0.0 : c.batch ? (double)c.batch[e] : (double)(int64_t)count[e];
        c.load[blockIdx.x * (int64_t)c.padded + e] = (float)(factor * n);
    }
}

/* One warp. */
__global__ void end_backward(const route_call c) {
    const double weight = c.measure ? weigh_shares(c, c.batch, c.share) : 0;
    if (threadIdx.x || tell_bad(c) || !c.measure) return;
    const int64_t divisor = *c.divisor; /* 0: no token is live anywhere */
    c.losses[TOPK_AUX] += topk_slope(c.experts, c.k, (double)(divisor > 0 ? divisor : 1)) * weight;
}

}  // namespace

extern "C" moe_status topk_cuda_route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    const topk_cuda *s = static_cast<const topk_cuda *>(self);
    moe_status checked = topk_check_backward(&s->t, a, err);
    if (checked != MOE_OK || a->logits->shape[0] == 0) return checked;
    route_call c = open_call(s, a);
    c.d_weights = static_cast<const float *>(a->d_weights->data);
    c.d_logits = static_cast<float *>(a->d_logits->data);
    const bool balance = c.aux_coef > 0;
    if (balance || c.z_coef > 0) {
        checked = topk_check_divisor(&s->t, a, err);
        if (checked != MOE_OK) return checked;
        c.divisor = static_cast<const int64_t *>(a->divisor->data);
    }
    if (c.global) {
        c.batch = static_cast<const int64_t *>(a->batch_counts->data);
        c.losses = router_absent(a->losses) ? nullptr : static_cast<double *>(a->losses->data);
        c.measure = c.losses != nullptr;
    }
    if (!balance) c.unit = c.tokens;
    const cudaStream_t stream = static_cast<cudaStream_t>(a->stream);
    return for_units(c, s->units, stream, "route_bwd", err, [&](const route_call &now) {
        const int64_t tokens = now.units * now.unit;
        const unsigned blocks = (unsigned)((tokens + COUNT_THREADS - 1) / COUNT_THREADS);
        if (balance && !now.batch) KERNEL_LAUNCH(count_choices, blocks, COUNT_THREADS, 0, stream, now);
        if (balance) KERNEL_LAUNCH(spread_load, (unsigned)now.units, LOAD_THREADS, 0, stream, now);
        launch_tokens(pull_tokens, s, now, stream);
        KERNEL_LAUNCH(end_backward, 1, WARP, 0, stream, now);
    });
}
