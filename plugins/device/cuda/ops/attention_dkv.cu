/* moe.attention/0 backward, keys and values: a block owns a tile of keys of one key-value head and meets the queries of
 * all heads of its group. Rows are keys here: s^T = k q^T, p^T = e^(s^T - lse), dv += p^T do, dp^T = v do^T,
 * ds^T = p^T (dp^T - rowsum(do o)), dk += ds^T q (Dao et al., arXiv 2307.08691, algorithm 2). Tiles with most queries
 * begin first. While one tile of queries is worked on, the next one comes. */
#include "attention_tile.cuh"

namespace {

enum { KEYS = 1, VALUES = 2 }; /* which gradients a kernel gives */

template <class T, int D, int DV>
struct dkv_shape {
    typedef f32_math<D, DV, (D <= 128 ? 4 : 2), 32> math;
    static constexpr bool apart = false;
};
/* Sums of dk and dv together are (D + DV) / 2 registers: above 128 they are made one after the other, without spills.
 */
template <int D, int DV>
struct dkv_shape<bf16, D, DV> {
    typedef bf16_math<D, DV, 1, (D <= 64 ? 64 : 32)> math;
    static constexpr bool apart = D + DV > 256;
};

template <class P>
struct dkv_room {
    typename P::T k[P::ROWS * (P::D + P::PAD)], v[P::ROWS * (P::DV + P::PAD)];
    typename P::T q[2][P::COLS * (P::D + P::PAD)], grad_o[2][P::COLS * (P::DV + P::PAD)];
    typename P::T p[P::ROOM ? P::ROOM : 16];
    float lse[2][P::COLS], dot[2][P::COLS];
};

/* The queries that a block meets, one after another: head by head of the group, each from tile `from` to `end`. */
template <class P>
struct dkv_walk {
    int head, tile, last, from, end;
    attention_range own;

    __device__ __forceinline__ void begin(const attention_call &c, const attention_place &here, int first) {
        const int group = c.heads / c.kv_heads;
        const int64_t most = (int64_t)first + P::ROWS - 1 + c.window; /* queries below it see a key */
        own = attention_docs(c, here.sequence, first, P::ROWS);
        from = first / P::COLS;
        end = (int)((min(most, (int64_t)c.seq) + P::COLS - 1) / P::COLS);
        head = here.head * group;
        last = head + group;
        from = tile = attention_next<P::COLS>(c, here.sequence, own, from, end);
        if (from >= end) head = last;
    }
    __device__ __forceinline__ bool more() const { return head < last; }
    __device__ __forceinline__ void step(const attention_call &c, int sequence) {
        tile = attention_next<P::COLS>(c, sequence, own, tile + 1, end);
        if (tile < end) return;
        tile = from;
        head++;
    }
};

/* The queries where the walk stands, if any, their gradients and figures, into one of the two halves: a group of
 * copies.
 */
template <class P>
__device__ __forceinline__ void load_queries(const attention_call &c, const attention_place &here,
                                             const dkv_walk<P> &walk, dkv_room<P> *room, int half) {
    typedef typename P::T T;
    if (!walk.more()) return tile_copy_commit();
    const int head = walk.head, at = walk.tile * P::COLS;
    const int64_t token = here.token + at, row = attention_row(c, here, head) + at;
    const int32_t *docs = c.doc ? c.doc + token : nullptr;
    const int n = c.seq - at;
    attention_load<P, P::COLS, P::D>(room->q[half], attention_query(c, static_cast<const T *>(c.qkv), token, head),
                                     c.width, n, c.dim, docs, c.packs);
    attention_load<P, P::COLS, P::DV>(room->grad_o[half],
                                      attention_out(c, static_cast<const T *>(c.grad_o), token, head), c.o_width, n,
                                      c.v_dim, docs, c.packs);
    tile_copy_commit();
    if ((int)threadIdx.x < P::COLS) {
        const int i = (int)threadIdx.x;
        room->lse[half][i] = i < n ? c.lse[row + i] : INFINITY;
        room->dot[half][i] = i < n ? c.dot[row + i] : 0.0f;
    }
}

/* s becomes p, dp becomes ds. */
template <class P>
__device__ __forceinline__ void differentiate(typename P::template sum<P::COLS> &s,
                                              typename P::template sum<P::COLS> &dp, const float *lse, const float *dot,
                                              float scale2) {
#pragma unroll
    for (int j = 0; j < P::template sum<P::COLS>::OWN; j++) {
        const float less = lse[P::col(j)], mean = dot[P::col(j)];
#pragma unroll
        for (int i = 0; i < P::OWN; i++) {
            s.at(i, j) = attention_exp2(fmaf(s.at(i, j), scale2, -less));
            dp.at(i, j) = s.at(i, j) * (dp.at(i, j) - mean);
        }
    }
}

/* The block's own keys, and values where dp is wanted. */
template <class P, int WANT>
__device__ __forceinline__ void load_own(const attention_call &c, const attention_place &here, dkv_room<P> *room) {
    typedef typename P::T T;
    const int first = here.tile * P::ROWS, n = c.seq - first;
    const int64_t token = here.token + first;
    const int32_t *docs = c.doc ? c.doc + token : nullptr;
    const T *qkv = static_cast<const T *>(c.qkv);
    attention_load<P, P::ROWS, P::D>(room->k, attention_key(c, qkv, token, here.head), c.width, n, c.dim, docs,
                                     c.packs);
    if (WANT & KEYS)
        attention_load<P, P::ROWS, P::DV>(room->v, attention_value(c, qkv, token, here.head), c.width, n, c.v_dim, docs,
                                          c.packs);
}

template <class P, int WANT>
__global__ void __launch_bounds__(P::THREADS, 1) differentiate_keys(const attention_call c) {
    typedef typename P::T T;
    constexpr int KEY_WIDTH = WANT & KEYS ? P::D : 16, VALUE_WIDTH = WANT & VALUES ? P::DV : 16;
    KERNEL_DYNAMIC(dkv_room<P>, room);
    const attention_place here = attention_here(c, c.kv_heads);
    const int first = here.tile * P::ROWS, n = min(P::ROWS, c.seq - first);
    typename P::template sum<KEY_WIDTH> dk;
    typename P::template sum<VALUE_WIDTH> dv;
    attention_zero<P, KEY_WIDTH>(dk);
    attention_zero<P, VALUE_WIDTH>(dv);
    load_own<P, WANT>(c, here, room);
    dkv_walk<P> walk;
    walk.begin(c, here, first);
    load_queries(c, here, walk, room, 0);
    for (int half = 0; walk.more(); half ^= 1) {
        const int at = walk.tile * P::COLS;
        const bool mixed = attention_mixed(walk.own, attention_docs(c, here.sequence, at, P::COLS));
        const attention_meeting<P, true> meeting = {first, at, mixed};
        tile_copy_wait<0>();
        __syncthreads(); /* this half is there; nobody needs the other one any more */
        walk.step(c, here.sequence);
        load_queries(c, here, walk, room, half ^ 1);
        if (!meeting.seen(c)) continue;
        typename P::template sum<P::COLS> s, dp;
        attention_zero<P, P::COLS>(s);
        P::template add_scores<P::D, P::COLS>(s, room->k, room->q[half]);
        if (meeting.masks(c)) meeting.mask(c, c.doc ? c.doc + here.token : nullptr, s);
        attention_zero<P, P::COLS>(dp);
        if (WANT & KEYS) P::template add_scores<P::DV, P::COLS>(dp, room->v, room->grad_o[half]);
        differentiate<P>(s, dp, room->lse[half], room->dot[half], c.scale2);
        if constexpr (WANT & VALUES) P::template add_rows<P::COLS, P::DV>(dv, s, room->grad_o[half], room->p);
        if constexpr (WANT & KEYS) P::template add_rows<P::COLS, P::D>(dk, dp, room->q[half], room->p);
    }
    tile_copy_wait<0>();
    T *dqkv = static_cast<T *>(c.dqkv), *to_k = attention_key(c, dqkv, here.token + first, here.head);
    T *to_v = attention_value(c, dqkv, here.token + first, here.head);
    attention_scale<P, KEY_WIDTH>(dk, c.scale);
    if constexpr (WANT & KEYS) attention_store<P, P::D>(dk, room->k, to_k, c.width, n, c.dim, c.packs);
    if constexpr (WANT & VALUES) attention_store<P, P::DV>(dv, room->v, to_v, c.width, n, c.v_dim, c.packs);
}

template <class P, int WANT>
void launch_one(const attention_call &c, cudaStream_t stream) {
    static_assert(sizeof(dkv_room<P>) <= ATTENTION_MOST_SHARED, "a block fits");
    KERNEL_LARGE_SHARED((differentiate_keys<P, WANT>), sizeof(dkv_room<P>));
    KERNEL_LAUNCH((differentiate_keys<P, WANT>), attention_blocks(c, c.kv_heads, P::ROWS), P::THREADS,
                  sizeof(dkv_room<P>), stream, c);
}

struct dkv_kernel {
    template <class T, int D, int DV>
    static void launch(const attention_call &c, cudaStream_t stream) {
        typedef dkv_shape<T, D, DV> shape;
        if constexpr (shape::apart) {
            launch_one<typename shape::math, VALUES>(c, stream);
            launch_one<typename shape::math, KEYS>(c, stream);
        } else {
            launch_one<typename shape::math, KEYS | VALUES>(c, stream);
        }
    }
};

}  // namespace

void attention_run_dkv(const attention_call &c, int32_t dtype, cudaStream_t stream) {
    attention_launch<dkv_kernel>(c, dtype, stream);
}
