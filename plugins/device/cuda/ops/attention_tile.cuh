/* What attention's kernels are made of: which tiles meet, loads of tiles, masks, stores. P: see attention_math.cuh. */
#ifndef CUDA_ATTENTION_TILE_CUH
#define CUDA_ATTENTION_TILE_CUH
#include <float.h>

#include "attention.cuh"
#include "attention_math.cuh"

/* ---- which block does what ---- */
/* Tile, sequence and head of a block of a grid of tiles x batch x heads blocks. The blocks of one tile begin one after
 * another, the heads of a group side by side, so that they find keys and values in the L2 cache. */
struct attention_place {
    int tile, sequence, head;
    int64_t token; /* first of the sequence */
};
__device__ __forceinline__ attention_place attention_here(const attention_call &c, int heads) {
    const int slices = c.batch * heads, slice = (int)blockIdx.x % slices;
    attention_place p;
    p.tile = (int)blockIdx.x / slices;
    p.sequence = slice / heads;
    p.head = slice % heads;
    p.token = (int64_t)p.sequence * c.seq;
    return p;
}

/* Tensors of one sequence: element 0 of a head's row 0. */
template <class T>
__device__ __forceinline__ T *attention_query(const attention_call &c, T *qkv, int64_t token, int head) {
    return qkv + token * c.width + (int64_t)head * c.dim;
}
template <class T>
__device__ __forceinline__ T *attention_key(const attention_call &c, T *qkv, int64_t token, int kv_head) {
    return qkv + token * c.width + ((int64_t)c.heads + kv_head) * c.dim;
}
template <class T>
__device__ __forceinline__ T *attention_value(const attention_call &c, T *qkv, int64_t token, int kv_head) {
    return qkv + token * c.width + ((int64_t)c.heads + c.kv_heads) * c.dim + (int64_t)kv_head * c.v_dim;
}
template <class T>
__device__ __forceinline__ T *attention_out(const attention_call &c, T *o, int64_t token, int head) {
    return o + token * c.o_width + (int64_t)head * c.v_dim;
}
/* Where lse and dot of a head's query 0 are. */
__device__ __forceinline__ int64_t attention_row(const attention_call &c, const attention_place &at, int head) {
    return ((int64_t)at.sequence * c.heads + head) * c.seq;
}

/* ---- documents ---- */
/* Of the n tokens from `first` on; all the same where there are no numbers. first, n: multiples of ATTENTION_RUN. */
__device__ __forceinline__ attention_range attention_docs(const attention_call &c, int sequence, int first, int n) {
    attention_range all = {0, 0, 0, 0};
    if (!c.ranges) return all;
    const attention_range *r = c.ranges + (int64_t)sequence * c.runs;
    all = r[first / ATTENTION_RUN];
    for (int i = first / ATTENTION_RUN + 1; i < (first + n) / ATTENTION_RUN && i < c.runs; i++) {
        all.lo = min(all.lo, r[i].lo);
        all.hi = max(all.hi, r[i].hi);
        all.padding |= r[i].padding;
    }
    return all;
}
/* No token of the one has a number of the other's. */
__device__ __forceinline__ bool attention_apart(const attention_range &a, const attention_range &b) {
    return a.lo > a.hi || b.lo > b.hi || a.lo > b.hi || b.lo > a.hi;
}
__device__ __forceinline__ bool attention_mixed(const attention_range &a, const attention_range &b) {
    return a.padding || b.padding || a.lo != a.hi || b.lo != b.hi || a.lo != b.lo;
}
/* The first tile of COLS from j on, below end, that is not apart from `own`; or end. */
template <int COLS>
__device__ __forceinline__ int attention_next(const attention_call &c, int sequence, const attention_range &own, int j,
                                              int end) {
    if (!c.ranges) return j;
    while (j < end && attention_apart(own, attention_docs(c, sequence, j * COLS, COLS))) j++;
    return j;
}

/* ---- loads and stores ---- */
/* to [N,W] (rows of W + PAD) = n rows of `width` elements, zeros around; rows of padding too, since whatever lies there
 * would meet a weight of 0, and 0 times NaN is NaN. doc: of row 0, or NULL. Asynchronous, in the open group of copies.
 */
template <class P, int N, int W>
__device__ __forceinline__ void attention_load(typename P::T *to, const typename P::T *from, int64_t stride, int n,
                                               int width, const int32_t *doc, bool packs) {
    constexpr int each = ACT_PACK<typename P::T>, across = W / each;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < N * across; i += P::THREADS) {
        const int row = i / across, at = i % across * each;
        const bool there = row < n && at < width && !(doc && doc[row] == ATTENTION_PADDING);
        const typename P::T *source = from + (there ? row * stride + at : 0);
        typename P::T *target = to + row * (W + P::PAD) + at;
        if (packs)
            tile_copy_async(target, source, there);
        else
            for (int e = 0; e < each; e++) act_put(target + e, there && at + e < width ? act_get(source + e) : 0.0f);
    }
}

/* n rows of `width` elements = x, through `room` [ROWS, W + PAD], which no thread reads any more after a barrier. */
template <class P, int W>
__device__ __forceinline__ void attention_store(typename P::template sum<W> &x, typename P::T *room, typename P::T *to,
                                                int64_t stride, int n, int width, bool packs) {
    constexpr int each = ACT_PACK<typename P::T>, across = W / each;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < P::OWN; i++)
#pragma unroll
        for (int j = 0; j < P::template sum<W>::OWN; j++)
            act_put(room + P::row(i) * (W + P::PAD) + P::col(j), x.at(i, j));
    __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < P::ROWS * across; i += P::THREADS) {
        const int row = i / across, at = i % across * each;
        if (row >= n || at >= width) continue;
        const typename P::T *source = room + row * (W + P::PAD) + at;
        typename P::T *target = to + row * stride + at;
        if (packs)
            *reinterpret_cast<uint4 *>(target) = *reinterpret_cast<const uint4 *>(source);
        else
            for (int e = 0; e < each && at + e < width; e++) target[e] = source[e];
    }
}

template <class P, int W>
__device__ __forceinline__ void attention_zero(typename P::template sum<W> &x) {
#pragma unroll
    for (int i = 0; i < P::OWN; i++)
#pragma unroll
        for (int j = 0; j < P::template sum<W>::OWN; j++) x.at(i, j) = 0.0f;
}
template <class P, int W>
__device__ __forceinline__ void attention_scale(typename P::template sum<W> &x, float by) {
#pragma unroll
    for (int i = 0; i < P::OWN; i++)
#pragma unroll
        for (int j = 0; j < P::template sum<W>::OWN; j++) x.at(i, j) *= by;
}

/* ---- what sees what ---- */
/* A meeting of the warp's own rows with a tile of columns; positions are those in the sequence. KEYS: the rows are keys
 * and the columns queries, else the other way. */
template <class P, bool KEYS>
struct attention_meeting {
    int row, col; /* first of the block's rows, of the columns */
    bool mixed;   /* documents differ, or there is padding */

    __device__ __forceinline__ int first_own() const { return row + P::first_row(); }
    /* Some pair of the warp's is in the causal triangle and in the window. */
    __device__ __forceinline__ bool seen(const attention_call &c) const {
        const int own = first_own(), query = KEYS ? col : own, key = KEYS ? own : col;
        const int queries = KEYS ? P::COLS : P::SPAN, keys = KEYS ? P::SPAN : P::COLS;
        return key < query + queries && query - (key + keys - 1) < c.window && query < c.seq && key < c.seq;
    }
    /* Some pair of it is not. */
    __device__ __forceinline__ bool masks(const attention_call &c) const {
        const int own = first_own(), query = KEYS ? col : own, key = KEYS ? own : col;
        const int queries = KEYS ? P::COLS : P::SPAN, keys = KEYS ? P::SPAN : P::COLS;
        return key + keys - 1 > query || query + queries - 1 - key >= c.window || mixed;
    }
    /* Scores of pairs that are not seen become c.masked. docs: of the sequence's token 0; NULL only where not mixed. */
    __device__ __forceinline__ void mask(const attention_call &c, const int32_t *docs,
                                         typename P::template sum<P::COLS> &s) const {
#pragma unroll
        for (int j = 0; j < P::template sum<P::COLS>::OWN; j++)
#pragma unroll
            for (int i = 0; i < P::OWN; i++) {
                const int ahead = (row + P::row(i) - col - P::col(j)) * (KEYS ? -1 : 1);
                if ((unsigned)ahead >= (unsigned)c.window) s.at(i, j) = c.masked;
            }
        if (mixed) mask_documents(c, docs, s);
    }
    __device__ __forceinline__ void mask_documents(const attention_call &c, const int32_t *docs,
                                                   typename P::template sum<P::COLS> &s) const {
        int own[P::OWN];
#pragma unroll
        for (int i = 0; i < P::OWN; i++) own[i] = row + P::row(i) < c.seq ? docs[row + P::row(i)] : ATTENTION_PADDING;
#pragma unroll
        for (int j = 0; j < P::template sum<P::COLS>::OWN; j++) {
            const int other = col + P::col(j), number = other < c.seq ? docs[other] : ATTENTION_PADDING;
#pragma unroll
            for (int i = 0; i < P::OWN; i++)
                if (own[i] != number || number == ATTENTION_PADDING) s.at(i, j) = c.masked;
        }
    }
};

/* Tiles [from, end) of COLS keys that the queries [first, first + n) may see. */
template <int COLS>
__device__ __forceinline__ void attention_key_tiles(const attention_call &c, int first, int n, int *from, int *end) {
    const int least = first - c.window + 1, most = min(first + n, c.seq);
    *from = least > 0 ? least / COLS : 0;
    *end = (most + COLS - 1) / COLS;
}

/* ---- a block of queries ---- */
/* What forward and dq share: a tile of queries of one head and the tiles of keys that it meets, `from` to end. */
template <class P>
struct attention_queries {
    typedef typename P::T T;
    attention_place here;
    int first, n, from, end; /* queries [first, first + n) of the sequence */
    const int32_t *docs;     /* of the sequence, or NULL */
    const T *k, *v;          /* of the sequence */
    attention_range own;

    __device__ __forceinline__ void begin(const attention_call &c) {
        here = attention_here(c, c.heads);
        here.tile = (int)gridDim.x / (c.batch * c.heads) - 1 - here.tile; /* the last queries see most: they begin */
        first = here.tile * P::ROWS;
        n = min(P::ROWS, c.seq - first);
        docs = c.doc ? c.doc + here.token : nullptr;
        const int kv_head = here.head / (c.heads / c.kv_heads);
        k = attention_key(c, static_cast<const T *>(c.qkv), here.token, kv_head);
        v = attention_value(c, static_cast<const T *>(c.qkv), here.token, kv_head);
        own = attention_docs(c, here.sequence, first, P::ROWS);
        attention_key_tiles<P::COLS>(c, first, P::ROWS, &from, &end);
        from = next(c, from);
    }
    /* The first tile from j on that it meets. */
    __device__ __forceinline__ int next(const attention_call &c, int j) const {
        return attention_next<P::COLS>(c, here.sequence, own, j, end);
    }
    __device__ __forceinline__ attention_meeting<P, false> meet(const attention_call &c, int j) const {
        const int at = j * P::COLS;
        return {first, at, attention_mixed(own, attention_docs(c, here.sequence, at, P::COLS))};
    }
    /* All loads of a tile: asynchronous, in the open group of copies. */
    __device__ __forceinline__ void load_queries(const attention_call &c, T *to) const {
        attention_load<P, P::ROWS, P::D>(
            to, attention_query(c, static_cast<const T *>(c.qkv), here.token + first, here.head), c.width, n, c.dim,
            docs ? docs + first : nullptr, c.packs);
    }
    __device__ __forceinline__ void load_grad(const attention_call &c, T *to) const {
        attention_load<P, P::ROWS, P::DV>(
            to, attention_out(c, static_cast<const T *>(c.grad_o), here.token + first, here.head), c.o_width, n,
            c.v_dim, docs ? docs + first : nullptr, c.packs);
    }
    __device__ __forceinline__ void load_keys(const attention_call &c, T *to, int j) const {
        const int at = j * P::COLS;
        attention_load<P, P::COLS, P::D>(to, k + at * c.width, c.width, c.seq - at, c.dim, docs ? docs + at : nullptr,
                                         c.packs);
    }
    __device__ __forceinline__ void load_values(const attention_call &c, T *to, int j) const {
        const int at = j * P::COLS;
        attention_load<P, P::COLS, P::DV>(to, v + at * c.width, c.width, c.seq - at, c.v_dim,
                                          docs ? docs + at : nullptr, c.packs);
    }
};

/* ---- host ---- */
enum { ATTENTION_MOST_SHARED = 227 * 1024 }; /* of a block, sm_90 and sm_100 */

/* Blocks of a grid of `slices` (batch x heads) x tiles of `rows`. */
static inline unsigned attention_blocks(const attention_call &c, int heads, int rows) {
    return (unsigned)((int64_t)c.batch * heads * ((c.seq + rows - 1) / rows));
}
/* KERNEL::launch<T, D, DV>(c, stream) of the first widths that hold the call's heads. */
template <class KERNEL, class T>
static void attention_launch_width(const attention_call &c, cudaStream_t stream) {
#define TRY(D, DV) \
    if (c.dim <= D && c.v_dim <= DV) return KERNEL::template launch<T, D, DV>(c, stream);
    ATTENTION_DIMS(TRY)
#undef TRY
}
template <class KERNEL>
static void attention_launch(const attention_call &c, int32_t dtype, cudaStream_t stream) {
    if (dtype == MOE_F32)
        attention_launch_width<KERNEL, float>(c, stream);
    else
        attention_launch_width<KERNEL, bf16>(c, stream);
}
#endif
