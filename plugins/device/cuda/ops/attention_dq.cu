/* moe.attention/0 backward, queries: a block owns a tile of queries of one head and meets its keys once more:
 * s = q k^T, p = e^(s - lse), dp = do v^T, ds = p (dp - rowsum(do o)), dq += ds k. Tiles with most keys begin first.
 * While one tile of keys and values is worked on, the next one comes. */
#include "attention_tile.cuh"

namespace {

template <class T, int D, int DV>
struct dq_shape {
    typedef f32_math<D, DV, (D <= 128 ? 4 : 2), 32> math;
};
template <int D, int DV>
struct dq_shape<bf16, D, DV> {
    typedef bf16_math<D, DV, (D <= 64 ? 2 : 1), (D == 96 || D == 128 ? 64 : 32)> math;
};

template <class P>
struct dq_room {
    typename P::T q[P::ROWS * (P::D + P::PAD)], grad_o[P::ROWS * (P::DV + P::PAD)];
    typename P::T k[2][P::COLS * (P::D + P::PAD)], v[2][P::COLS * (P::DV + P::PAD)];
    typename P::T p[P::ROOM ? P::ROOM : 16];
};

/* dp becomes ds. lse, dot: of the thread's rows. */
template <class P>
__device__ __forceinline__ void differentiate(typename P::template sum<P::COLS> &s,
                                              typename P::template sum<P::COLS> &dp, const float *lse, const float *dot,
                                              float scale2) {
#pragma unroll
    for (int i = 0; i < P::OWN; i++)
#pragma unroll
        for (int j = 0; j < P::template sum<P::COLS>::OWN; j++)
            dp.at(i, j) = attention_exp2(fmaf(s.at(i, j), scale2, -lse[i])) * (dp.at(i, j) - dot[i]);
}

template <class P>
__global__ void __launch_bounds__(P::THREADS, 1) differentiate_queries(const attention_call c) {
    KERNEL_DYNAMIC(dq_room<P>, room);
    attention_queries<P> block;
    block.begin(c);
    const attention_place &here = block.here;
    block.load_queries(c, room->q);
    block.load_grad(c, room->grad_o);
    auto load = [&](int j, int half) {
        if (j < block.end) block.load_keys(c, room->k[half], j);
        if (j < block.end) block.load_values(c, room->v[half], j);
        tile_copy_commit();
    };
    load(block.from, 0);
    float lse[P::OWN], dot[P::OWN];
    const int64_t row = attention_row(c, here, here.head) + block.first;
#pragma unroll
    for (int i = 0; i < P::OWN; i++) {
        lse[i] = P::row(i) < block.n ? c.lse[row + P::row(i)] : INFINITY;
        dot[i] = P::row(i) < block.n ? c.dot[row + P::row(i)] : 0.0f;
    }
    typename P::template sum<P::D> dq;
    attention_zero<P, P::D>(dq);
    for (int half = 0, next, j = block.from; j < block.end; half ^= 1, j = next) {
        const attention_meeting<P, false> meeting = block.meet(c, j);
        next = block.next(c, j + 1);
        tile_copy_wait<0>();
        __syncthreads(); /* this half is there; nobody needs the other one any more */
        load(next, half ^ 1);
        if (!meeting.seen(c)) continue;
        typename P::template sum<P::COLS> s, dp;
        attention_zero<P, P::COLS>(s);
        P::template add_scores<P::D, P::COLS>(s, room->q, room->k[half]);
        if (meeting.masks(c)) meeting.mask(c, block.docs, s);
        attention_zero<P, P::COLS>(dp);
        P::template add_scores<P::DV, P::COLS>(dp, room->grad_o, room->v[half]);
        differentiate<P>(s, dp, lse, dot, c.scale2);
        P::template add_rows<P::COLS, P::D>(dq, dp, room->k[half], room->p);
    }
    tile_copy_wait<0>();
    attention_scale<P, P::D>(dq, c.scale);
    attention_store<P, P::D>(
        dq, room->q, attention_query(c, static_cast<typename P::T *>(c.dqkv), here.token + block.first, here.head),
        c.width, block.n, c.dim, c.packs);
}

struct dq_kernel {
    template <class T, int D, int DV>
    static void launch(const attention_call &c, cudaStream_t stream) {
        typedef typename dq_shape<T, D, DV>::math P;
        static_assert(sizeof(dq_room<P>) <= ATTENTION_MOST_SHARED, "a block fits");
        KERNEL_LARGE_SHARED(differentiate_queries<P>, sizeof(dq_room<P>));
        KERNEL_LAUNCH(differentiate_queries<P>, attention_blocks(c, c.heads, P::ROWS), P::THREADS, sizeof(dq_room<P>),
                      stream, c);
    }
};

}  // namespace

void attention_run_dq(const attention_call &c, int32_t dtype, cudaStream_t stream) {
    attention_launch<dq_kernel>(c, dtype, stream);
}
