/* moe.attention/0 on CUDA, after Dao et al. (arXiv 2205.14135, 2307.08691): what its files share.
 *
 *   attention.cu          the record: checks, sizes, launches; what is small: documents of runs, rowsum(do o), dsinks
 *   attention_forward.cu  o and log-sum-exp: a block owns a tile of queries of one head and streams over tiles of keys
 *   attention_dkv.cu      dk, dv: a block owns a tile of keys and streams over the queries of all heads of its group
 *   attention_dq.cu       dq: a block owns a tile of queries again and computes the scores once more. So no two blocks
 *                         write to one place: no atomics, the same bits always
 *   attention_tile.cuh    what the three kernels are made of: loads, masks, stores
 *   attention_math.cuh    the products of tiles: by tensor cores in BF16, by FMA in FP32
 *
 * Scores are kept in units of log 2: p = 2^(s scale2 - lse), scale2 = scale * log2(e).
 * Memory traffic: q, o and their gradients once; k and v once a tile of queries (from the L2 cache, mostly). */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH
#include "../cuda.h"
#include "act.cuh"

enum { ATTENTION_MOST_DIM = 256, ATTENTION_PADDING = -1, ATTENTION_RUN = 32 };

/* The numbers of ATTENTION_RUN tokens: least and largest, lo > hi where all are padding; is some of them padding? */
struct alignas(16) attention_range {
    int32_t lo, hi, padding, unused;
};

/* A call, as kernels get it. Pointers are device memory; batch * seq tokens. */
struct attention_call {
    const void *qkv, *grad_o;        /* [T,width], [T,o_width] act */
    void *o, *dqkv;                  /* [T,o_width], [T,width] act */
    const float *sinks;              /* [heads], or NULL */
    const int32_t *doc;              /* [T], or NULL */
    float *dsinks;                   /* [heads], or NULL */
    float *lse;                      /* saved: [batch,heads,seq] log2 of the sum, the sink's share too; INFINITY for a
                                      * query that sees nothing, so that its p is 0 */
    attention_range *ranges;         /* saved: [batch,runs], or NULL where doc is */
    float *dot;                      /* workspace: [batch,heads,seq] rowsum(do o) */
    float *sink_parts;               /* workspace: [heads,batch,parts] */
    int64_t width, o_width;          /* of a packed row, of a row of o */
    int batch, seq, heads, kv_heads; /* seq below 2^30 */
    int dim, v_dim, window;          /* window: 1 .. seq */
    int runs, parts;                 /* of a sequence */
    float scale, scale2;
    float masked; /* the score of a pair that is not seen: minus infinity times the sign of scale */
    bool packs;   /* heads begin at multiples of 16 bytes */
};

/* Enqueue; launch errors stay for cuda_launched. c is copied. */
void attention_run_forward(const attention_call &c, int32_t dtype, cudaStream_t stream);
void attention_run_dkv(const attention_call &c, int32_t dtype, cudaStream_t stream);
void attention_run_dq(const attention_call &c, int32_t dtype, cudaStream_t stream);

/* The widths of query-key and of value heads that kernels are built for, smallest first; others are padded with zeros
 * to the first that holds them. */
#define ATTENTION_DIMS(X) X(32, 32) X(64, 64) X(96, 96) X(128, 128) X(192, 128) X(256, 256)

#endif
