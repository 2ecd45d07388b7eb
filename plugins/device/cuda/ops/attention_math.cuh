/* Products of tiles in shared memory for attention's kernels, in two kinds with one interface:
 *   bf16_math  tensor cores, a warp owns 16 M rows; 4 warps
 *   f32_math   FMA in FP32, a thread owns R rows x every 16th column; 256 threads
 * A block owns ROWS rows and meets tiles of COLS columns. `sum<W>` is [ROWS, W] spread over the block's threads: a
 * thread's at(i, j) is the element in row(i), column col(j). A tile [n, W] in shared memory has rows of W + PAD. All
 * rows that a warp reads and writes as left operand are its own. */
#ifndef CUDA_ATTENTION_MATH_CUH
#define CUDA_ATTENTION_MATH_CUH
#include "tile.cuh"

/* 2^x; what is below 2^-126 is 0. */
__device__ __forceinline__ float attention_exp2(float x) {
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* One element of the largest and the sum over LANES neighbouring lanes. */
template <int LANES>
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    return v;
}
template <int LANES>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

template <int D_, int DV_, int M, int COLS_>
struct bf16_math {
    typedef bf16 T;
    static constexpr int D = D_, DV = DV_, COLS = COLS_, WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * M * WARPS;
    static constexpr int PAD = TILE_PAD, OWN = 2 * M; /* rows of a thread */
    static constexpr int SPAN = 16 * M;               /* rows of a warp, from first_row() on */
    static constexpr int LANES = 4;                   /* that share a row */
    static constexpr int ROOM = 0;                    /* elements of T that add_rows needs */

    template <int W>
    struct sum {
        static constexpr int OWN = W / 4; /* columns of a thread */
        float x[M][W / 8][4];
        __device__ __forceinline__ float &at(int i, int j) { return x[i / 2][j / 2][i % 2 * 2 + j % 2]; }
    };
    static __device__ __forceinline__ int first_row() { return (int)threadIdx.x / 32 * SPAN; }
    static __device__ __forceinline__ int row(int i) { return first_row() + i * 8 + (int)threadIdx.x % 32 / 4; }
    static __device__ __forceinline__ int col(int j) { return j / 2 * 8 + (int)threadIdx.x % 4 * 2 + j % 2; }

    /* s += a b^T; a [ROWS,K], b [W,K] */
    template <int K, int W>
    static __device__ __forceinline__ void add_scores(sum<W> &s, const T *a, const T *b) {
        constexpr int stride = K + PAD;
        a += first_row() * stride;
#pragma unroll 2
        for (int k = 0; k < K; k += 16) {
            uint32_t fa[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) tile_load_a(fa[m], a + m * 16 * stride + k, stride);
#pragma unroll
            for (int n = 0; n < W / 16; n++) {
                uint32_t fb[4];
                tile_load_b(fb, b + n * 16 * stride + k, stride);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    tile_mma_bf16(s.x[m][2 * n], fa[m], fb);
                    tile_mma_bf16(s.x[m][2 * n + 1], fa[m], fb + 2);
                }
            }
        }
    }

    /* o += p b, p rounded to BF16; b [K,W] */
    template <int K, int W>
    static __device__ __forceinline__ void add_rows(sum<W> &o, const sum<K> &p, const T *b, T *) {
        constexpr int stride = W + PAD;
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            uint32_t fa[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) tile_pack_a(fa[m], p.x[m][2 * k], p.x[m][2 * k + 1]);
#pragma unroll
            for (int n = 0; n < W / 16; n++) {
                uint32_t fb[4];
                tile_load_b_trans(fb, b + k * 16 * stride + n * 16, stride);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    tile_mma_bf16(o.x[m][2 * n], fa[m], fb);
                    tile_mma_bf16(o.x[m][2 * n + 1], fa[m], fb + 2);
                }
            }
        }
    }
};

template <int D_, int DV_, int R, int COLS_>
struct f32_math {
    typedef float T;
    static constexpr int D = D_, DV = DV_, COLS = COLS_, THREADS = 256, ROWS = 16 * R;
    static constexpr int PAD = 4, OWN = R;
    static constexpr int SPAN = ROWS;
    static constexpr int LANES = 16;
    static constexpr int ROOM = ROWS * (COLS + PAD);

    template <int W>
    struct sum {
        static constexpr int OWN = W / 16;
        float x[R][W / 16];
        __device__ __forceinline__ float &at(int i, int j) { return x[i][j]; }
    };
    static __device__ __forceinline__ int first_row() { return 0; }
    static __device__ __forceinline__ int row(int i) { return (int)threadIdx.x / 16 + 16 * i; }
    static __device__ __forceinline__ int col(int j) { return (int)threadIdx.x % 16 + 16 * j; }

    template <int K, int W>
    static __device__ __forceinline__ void add_scores(sum<W> &s, const T *a, const T *b) {
        constexpr int stride = K + PAD;
        a += row(0) * stride;
        b += col(0) * stride;
#pragma unroll 2
        for (int k = 0; k < K; k += 4) {
            float fa[R][4];
#pragma unroll
            for (int i = 0; i < R; i++) act_load(a + i * 16 * stride + k, fa[i]);
#pragma unroll
            for (int j = 0; j < W / 16; j++) {
                float fb[4];
                act_load(b + j * 16 * stride + k, fb);
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s.x[i][j] += fa[i][e] * fb[e];
            }
        }
    }

    /* p goes through `room`, each warp's own rows of it. */
    template <int K, int W>
    static __device__ __forceinline__ void add_rows(sum<W> &o, const sum<K> &p, const T *b, T *room) {
        constexpr int stride = W + PAD, p_stride = K + PAD;
        room += row(0) * p_stride;
        b += col(0);
        __syncwarp(); /* who still reads what the room held */
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < K / 16; j++) room[i * 16 * p_stride + col(j)] = p.x[i][j];
        __syncwarp();
#pragma unroll 1
        for (int k = 0; k < K; k += 4) {
            float fa[R][4];
#pragma unroll
            for (int i = 0; i < R; i++) act_load(room + i * 16 * p_stride + k, fa[i]);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int j = 0; j < W / 16; j++) {
                    const float fb = b[(k + e) * stride + j * 16];
#pragma unroll
                    for (int i = 0; i < R; i++) o.x[i][j] += fa[i][e] * fb;
                }
        }
    }
};

/* Which lanes' numbers are column 0. */
template <class P>
__device__ __forceinline__ bool math_leads() {
    return P::col(0) == 0;
}
#endif
