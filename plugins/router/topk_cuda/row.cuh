/* What a warp does with the row of one token, in its own shared memory. Sums run in eight lanes as in ../topk/rows.c,
 * so that they have its bits; every lane gets the result. Functions are called by all lanes together; what one lane
 * writes others may read after them. */
#ifndef ROUTER_TOPK_CUDA_ROW_CUH
#define ROUTER_TOPK_CUDA_ROW_CUH
#include "call.cuh"

namespace {

typedef float row_f;
typedef bool row_mask;
#define ROW_FN __device__ __forceinline__
ROW_FN float row_splat(float a) {
    return a;
}
ROW_FN float row_pick(bool where, float yes, float no) {
    return where ? yes : no;
}
ROW_FN float row_power(float z, float magic) {
    return __uint_as_float((__float_as_uint(z) - __float_as_uint(magic) + 127u) << 23);
}
#include "elements.h"

struct row {
    float *x, *p, *q, *h;         /* [padded E] logits, scores, 1 - sigmoid, spare */
    float *top_x, *top_p, *top_q; /* [padded k] the same of the chosen */
    float *top_d;                 /* [padded k] backward: gradient of the weights */
    int32_t *ids;                 /* [k] the chosen */
    uint32_t *group;              /* [groups] their scores as keys; 0: kept */
    int lane;
};

__device__ __forceinline__ row row_of_warp(const route_call &c, unsigned char *room) {
    float *at = reinterpret_cast<float *>(room + (int)(threadIdx.x / WARP) * c.row_bytes);
    float *top = at + 4 * c.padded;
    return row{at,
               at + c.padded,
               at + 2 * c.padded,
               at + 3 * c.padded,
               top,
               top + c.k_padded,
               top + 2 * c.k_padded,
               top + 3 * c.k_padded,
               reinterpret_cast<int32_t *>(top + 4 * c.k_padded),
               reinterpret_cast<uint32_t *>(top + 5 * c.k_padded),
               (int)(threadIdx.x % WARP)};
}

/* The sum of value(i) over i < n, a multiple of eight. */
template <class F>
__device__ __forceinline__ float sum8(const row &r, int n, F value) {
    float sum = 0;
    for (int i = r.lane % 8; i < n; i += 8) sum += value(i);
#pragma unroll
    for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    return sum;
}

/* x = the token's logits, padded. False where one is not finite; *max: the largest. */
__device__ __forceinline__ bool load(const route_call &c, int64_t token, const row &r, float *max) {
    const float *in = c.logits + token * c.experts;
    unsigned bad = ~0u;
    float most = -INFINITY;
    __syncwarp();
    for (int e = r.lane; e < c.padded; e += WARP) {
        const float v = e < c.experts ? in[e] : -INFINITY;
        if (e < c.experts && !isfinite(v)) bad = (unsigned)e < bad ? (unsigned)e : bad;
        most = v > most ? v : most;
        r.x[e] = v;
    }
    bad = __reduce_min_sync(0xffffffffu, bad);
    *max = warp_max(most);
    __syncwarp();
    if (bad != ~0u && r.lane == 0) report(c, BAD_LOGIT, token, (int32_t)bad);
    return bad == ~0u;
}

/* ---- scores ---- */
/* p = scores of x [n] up to a factor (q = 1 - sigmoid); returns the sum of p. n is padded. */
__device__ __forceinline__ float score(const route_call &c, const row &r, const float *x, int n, float max, float *p,
                                       float *q) {
    const float unit = c.sigmoid ? row_unit(max) : 1.0f, m = max < 0 ? max : 0;
    for (int e = r.lane; e < n; e += WARP) {
        if (c.sigmoid)
            row_sigmoid_of(x[e], m, unit, &p[e], &q[e]);
        else
            p[e] = row_softmax_of(x[e], max);
    }
    __syncwarp();
    return sum8(r, n, [&](int i) { return p[i]; });
}
__device__ __forceinline__ float sum_softmax(const route_call &c, const row &r, float max) {
    return sum8(r, c.padded, [&](int i) { return row_softmax_of(r.x[i], max); });
}

/* top_p, top_q: the scores of the chosen, relative to the largest of them; returns the sum. */
__device__ __forceinline__ float score_chosen(const route_call &c, const row &r) {
    float most = -INFINITY;
    for (int j = r.lane; j < c.k_padded; j += WARP) {
        const float v = j < c.k ? r.x[r.ids[j]] : -INFINITY;
        most = v > most ? v : most;
        r.top_x[j] = v;
    }
    most = warp_max(most);
    __syncwarp();
    return score(c, r, r.top_x, c.k_padded, most, r.top_p, r.top_q);
}

/* share [padded E] += factor * p in units of 2^-ROW_SHARE_BITS: each term rounded once, sums exact. */
__device__ __forceinline__ void add_shares(const route_call &c, const row &r, float factor, word *share) {
    const double unit = (double)(INT64_C(1) << ROW_SHARE_BITS);
    for (int e = r.lane; e < c.experts; e += WARP) atomicAdd(&share[e], (word)llrint((double)(r.p[e] * factor) * unit));
}

/* ---- choice ---- */
/* Keys grow with their floats; -0 and 0 are one; never 0, which stands for a value that is out. */
__device__ __forceinline__ uint32_t key_of(float v) {
    const uint32_t bits = __float_as_uint(v + 0.0f), key = bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
    return key ? key : 1u;
}

/* The greatest key of this lane's, and where; the first of equal ones. */
struct candidate {
    uint32_t key;
    unsigned at;
};
__device__ __forceinline__ candidate best_of_lane(const uint32_t *key, int n, int lane) {
    candidate best = {0, ~0u};
    for (int i = lane; i < n; i += WARP)
        if (key[i] > best.key) best = candidate{key[i], (unsigned)i};
    return best;
}

/* The k greatest of key [n], the greatest first, ties to the lowest place: ids [k] (or NULL), and 0 in their place.
 * Each lane has the places of its own number, and looks through them again when one has been taken. */
__device__ __forceinline__ void take_top(const row &r, uint32_t *key, int n, int k, int32_t *ids) {
    candidate mine = best_of_lane(key, n, r.lane);
    for (int j = 0; j < k; j++) {
        const uint32_t most = __reduce_max_sync(0xffffffffu, mine.key);
        const unsigned at = __reduce_min_sync(0xffffffffu, mine.key == most ? mine.at : ~0u);
        if (ids && r.lane == 0) ids[j] = (int32_t)at;
        if (at % WARP != (unsigned)r.lane) continue;
        key[at] = 0;
        mine = best_of_lane(key, n, r.lane);
    }
    __syncwarp();
}

/* The score of group g of s: the sum of its best_of best. */
__device__ __forceinline__ float score_group(const route_call &c, const float *s, int g) {
    const float *v = s + g * c.per;
    if (c.best_of <= 2) {
        float best = -INFINITY, second = -INFINITY;
        for (int i = 0, at = g % c.per; i < c.per; i++, at = at + 1 < c.per ? at + 1 : 0) { /* lanes in other banks */
            second = fmaxf(second, fminf(v[at], best));
            best = fmaxf(best, v[at]);
        }
        return c.best_of == 2 ? best + second : best;
    }
    float sum = 0, last = INFINITY; /* each time the next of (value, place) in their order */
    for (int j = 0, at = -1; j < c.best_of; j++) {
        float next = -INFINITY;
        int place = -1;
        for (int i = 0; i < c.per; i++)
            if ((v[i] < last || (v[i] == last && i > at)) && (place < 0 || v[i] > next)) {
                next = v[i];
                place = i;
            }
        sum += last = next;
        at = place;
    }
    return sum;
}

/* Takes the experts of groups that are not kept out of key [E]. (DeepSeek-V2, arXiv 2405.04434, section 2.1.2) */
__device__ __forceinline__ void keep_groups(const route_call &c, const row &r, const float *s, uint32_t *key) {
    for (int g = r.lane; g < c.groups; g += WARP) r.group[g] = key_of(score_group(c, s, g));
    __syncwarp();
    take_top(r, r.group, c.groups, c.kept, nullptr);
    for (int e = r.lane; e < c.experts; e += WARP)
        if (r.group[e / c.per] != 0) key[e] = 0;
    __syncwarp();
}

/* ids [k] of the row: the k largest of the logits, or of score + bias. factor: of p, to make it a score. Uses q. */
__device__ __forceinline__ void choose(const route_call &c, const row &r, float factor) {
    uint32_t *key = reinterpret_cast<uint32_t *>(r.q);
    const float *s = r.x;
    if (c.bias) {
        for (int e = r.lane; e < c.experts; e += WARP) r.h[e] = r.p[e] * factor + c.bias[e];
        s = r.h;
    }
    for (int e = r.lane; e < c.experts; e += WARP) key[e] = key_of(s[e]);
    __syncwarp();
    if (c.kept) keep_groups(c, r, c.best_of > 1 && !c.bias ? r.p : s, key);
    take_top(r, key, c.experts, c.k, r.ids);
}

}  // namespace
#endif
