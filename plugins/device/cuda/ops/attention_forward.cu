/* moe.attention/0 forward: o and log-sum-exp, by a running softmax over tiles of keys (Dao et al., arXiv 2307.08691,
 * algorithm 1). Tiles with most keys begin first. The next tile of keys comes while values are multiplied, values come
 * while scores are. */
#include "attention_tile.cuh"

namespace {

template <class T, int D, int DV>
struct forward_shape {
    typedef f32_math<D, DV, (D <= 128 ? 4 : 2), 32> math;
};
template <int D, int DV>
struct forward_shape<bf16, D, DV> {
    typedef bf16_math<D, DV, (DV <= 96 ? 2 : 1), (D == 96 || D == 256 ? 32 : 64)> math;
};

/* The running softmax of a thread's rows: largest score, the thread's share of the sum. */
template <class P>
struct running {
    float most[P::OWN], total[P::OWN];

    /* A sink is a score without a value. most is never minus infinity: what has not been seen yet weighs 0. */
    __device__ __forceinline__ void begin(const float *sink) {
        const float logit = sink ? *sink * 1.44269504f : 0.0f; /* log2(e) */
#pragma unroll
        for (int i = 0; i < P::OWN; i++) {
            most[i] = sink ? fmaxf(logit, -FLT_MAX) : -FLT_MAX;
            total[i] = sink && math_leads<P>() ? attention_exp2(logit - most[i]) : 0.0f;
        }
    }
    /* s becomes p; o is scaled to the new largest score. */
    __device__ __forceinline__ void add(typename P::template sum<P::COLS> &s, typename P::template sum<P::DV> &o,
                                        float scale2) {
#pragma unroll
        for (int i = 0; i < P::OWN; i++) {
            float largest = most[i];
#pragma unroll
            for (int j = 0; j < P::template sum<P::COLS>::OWN; j++) largest = fmaxf(largest, s.at(i, j) * scale2);
            largest = lanes_max<P::LANES>(largest);
            const float keep = attention_exp2(most[i] - largest);
            most[i] = largest;
            total[i] *= keep;
#pragma unroll
            for (int j = 0; j < P::template sum<P::COLS>::OWN; j++) {
                s.at(i, j) = attention_exp2(fmaf(s.at(i, j), scale2, -largest));
                total[i] += s.at(i, j);
            }
#pragma unroll
            for (int j = 0; j < P::template sum<P::DV>::OWN; j++) o.at(i, j) *= keep;
        }
    }
    /* o is divided by the sum; lse of the block's query 0. */
    __device__ __forceinline__ void end(typename P::template sum<P::DV> &o, float *lse, int n) {
#pragma unroll
        for (int i = 0; i < P::OWN; i++) {
            const float sum = lanes_sum<P::LANES>(total[i]), inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
            for (int j = 0; j < P::template sum<P::DV>::OWN; j++) o.at(i, j) *= inverse;
            if (math_leads<P>() && P::row(i) < n) lse[P::row(i)] = sum > 0.0f ? most[i] + log2f(sum) : INFINITY;
        }
    }
};

template <class P>
struct forward_room {
    typename P::T q[P::ROWS * (P::D + P::PAD)];
    typename P::T k[P::COLS * (P::D + P::PAD)], v[P::COLS * (P::DV + P::PAD)];
    typename P::T p[P::ROOM ? P::ROOM : 16];
};

template <class P, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS, BLOCKS) attend(const attention_call c) {
    KERNEL_DYNAMIC(forward_room<P>, room);
    attention_queries<P> block;
    block.begin(c);
    const attention_place &here = block.here;
    typename P::template sum<P::DV> o;
    running<P> softmax;
    attention_zero<P, P::DV>(o);
    softmax.begin(c.sinks ? c.sinks + here.head : nullptr);
    block.load_queries(c, room->q);
    if (block.from < block.end) block.load_keys(c, room->k, block.from);
    tile_copy_commit();
    for (int j = block.from, next; j < block.end; j = next) {
        const attention_meeting<P, false> meeting = block.meet(c, j);
        const bool seen = meeting.seen(c);
        next = block.next(c, j + 1);
        tile_copy_wait<0>();
        __syncthreads(); /* the keys are there; the last values are not needed any more */
        block.load_values(c, room->v, j);
        tile_copy_commit();
        typename P::template sum<P::COLS> s;
        attention_zero<P, P::COLS>(s);
        if (seen) P::template add_scores<P::D, P::COLS>(s, room->q, room->k);
        tile_copy_wait<0>();
        __syncthreads(); /* the values are there; the keys are not needed any more */
        if (next < block.end) block.load_keys(c, room->k, next);
        tile_copy_commit();
        if (!seen) continue;
        if (meeting.masks(c)) meeting.mask(c, block.docs, s);
        softmax.add(s, o, c.scale2);
        P::template add_rows<P::COLS, P::DV>(o, s, room->v, room->p);
    }
    softmax.end(o, c.lse + attention_row(c, here, here.head) + block.first, block.n);
    tile_copy_wait<0>();
    attention_store<P, P::DV>(o, room->q,
                              attention_out(c, static_cast<typename P::T *>(c.o), here.token + block.first, here.head),
                              c.o_width, block.n, c.v_dim, c.packs);
}

struct forward_kernel {
    template <class T, int D, int DV>
    static void launch(const attention_call &c, cudaStream_t stream) {
        typedef typename forward_shape<T, D, DV>::math P;
        constexpr int BLOCKS = sizeof(T) == 2 ? 2 : 1;
        static_assert(sizeof(forward_room<P>) * BLOCKS <= ATTENTION_MOST_SHARED, "BLOCKS fit on a multiprocessor");
        KERNEL_LARGE_SHARED((attend<P, BLOCKS>), sizeof(forward_room<P>));
        KERNEL_LAUNCH((attend<P, BLOCKS>), attention_blocks(c, c.heads, P::ROWS), P::THREADS, sizeof(forward_room<P>),
                      stream, c);
    }
};

}  // namespace

void attention_run_forward(const attention_call &c, int32_t dtype, cudaStream_t stream) {
    attention_launch<forward_kernel>(c, dtype, stream);
}
