/* Products by our own kernels, for what cuBLASLt does not take: groups whose rows only the device knows, operands of
 * two dtypes, addresses and widths that do not suit it. Here: which kernel, and the one for FP32, plain multiplications
 * and additions, 4 x 4 sums a thread. tiles_bf16.cu: BF16. Each sum is formed by one thread in order of depth, so its
 * bits depend on the sizes alone. */
#include "act.cuh"
#include "tiles.cuh"

namespace {

enum { R = 64, C = 64, D = 16, THREADS = 256, EACH = 4 }; /* a tile, and rows and columns of it a thread sums */
enum { LOADS = R * D / THREADS };
static_assert(R == C, "one loader");

struct stage {
    float a[D][R + 4], b[D][C + 4]; /* rows stay aligned to 16 bytes */
};

/* Element i of a thread's share of a tile [R,D]: neighbouring threads read neighbouring numbers. */
template <bool DEPTH_INSIDE>
__device__ __forceinline__ void place(int i, int *r, int *d) {
    const int at = (int)threadIdx.x + i * THREADS;
    *r = DEPTH_INSIDE ? at / D : at % R;
    *d = DEPTH_INSIDE ? at % D : at / R;
}

/* v = this thread's share of the tile at `from`; outside of rows and depth: 0. */
template <bool DEPTH_INSIDE, class T>
__device__ __forceinline__ void load(float v[LOADS], const T *__restrict__ from, int64_t ld, int rows, int depth) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int r, d;
        place<DEPTH_INSIDE>(i, &r, &d);
        v[i] = r < rows && d < depth ? act_get(from + (DEPTH_INSIDE ? r * ld + d : d * ld + r)) : 0.0f;
    }
}
template <bool DEPTH_INSIDE>
__device__ __forceinline__ void keep(float (*to)[R + 4], const float v[LOADS]) {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int r, d;
        place<DEPTH_INSIDE>(i, &r, &d);
        to[d][r] = v[i];
    }
}

__device__ __forceinline__ void multiply(const stage &s, int row, int column, float sum[EACH][EACH]) {
#pragma unroll
    for (int d = 0; d < D; d++) {
        float a[EACH], b[EACH];
        act_load(&s.a[d][row], a);
        act_load(&s.b[d][column], b);
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++) sum[i][j] += a[i] * b[j];
    }
}

/* The next tiles are on their way into registers while these are multiplied. */
template <int ROLE, class A, class B, class Out>
__global__ void __launch_bounds__(THREADS, 2) product(tile_args p) {
    constexpr bool a_inside = ROLE != MOE_WGRAD, b_inside = ROLE == MOE_FPROP;
    struct two {
        stage of[2];
    };
    KERNEL_SHARED(two, room);
    tile_job j;
    if (blockIdx.x == 0) tile_check(p);
    if (!tile_find<ROLE, R, C>(p, &j)) return;
    const A *a = static_cast<const A *>(p.a) + j.a;
    const B *b = static_cast<const B *>(p.b) + j.b;
    const int64_t step_a = D * (a_inside ? INT64_C(1) : j.lda), step_b = D * (b_inside ? INT64_C(1) : j.ldb);
    const int row = (int)threadIdx.x / (C / EACH) * EACH, column = (int)threadIdx.x % (C / EACH) * EACH;
    float sum[EACH][EACH] = {}, next_a[LOADS], next_b[LOADS];
    int now = 0;
    load<a_inside>(next_a, a, j.lda, j.rows, tile_least(j.depth, D));
    load<b_inside>(next_b, b, j.ldb, j.columns, tile_least(j.depth, D));
    for (int64_t left = j.depth; left > 0; left -= D) {
        keep<a_inside>(room.of[now].a, next_a);
        keep<b_inside>(room.of[now].b, next_b);
        __syncthreads();
        if (left > D) {
            a += step_a;
            b += step_b;
            load<a_inside>(next_a, a, j.lda, j.rows, tile_least(left - D, D));
            load<b_inside>(next_b, b, j.ldb, j.columns, tile_least(left - D, D));
        }
        multiply(room.of[now], row, column, sum);
        now ^= 1; /* the other one was last read before the barrier that all have passed */
    }
    Out *out = static_cast<Out *>(p.out) + j.out;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (row + i >= j.kept || column + k >= j.columns) continue;
            Out *to = out + (int64_t)(row + i) * j.ldo + column + k;
            act_put(to, p.accumulate ? act_get(to) + sum[i][k] : sum[i][k]);
        }
}

template <int ROLE, class A, class B, class Out>
moe_status run(const cuda_product *p, const char *op, moe_err *err) {
    const tile_args t = tile_product_of(p);
    KERNEL_LAUNCH((product<ROLE, A, B, Out>), cuda_blocks(tile_blocks(t, ROLE, R, C), 1), THREADS, 0, p->stream, t);
    return cuda_launched(op, err);
}

/* Which of a, b, out are BF16. */
enum { A_BF16 = 1, B_BF16 = 2, OUT_BF16 = 4 };
int dtypes_of(const cuda_product *p) {
    return (p->a_dtype == MOE_BF16 ? A_BF16 : 0) | (p->b_dtype == MOE_BF16 ? B_BF16 : 0) |
           (p->out_dtype == MOE_BF16 ? OUT_BF16 : 0);
}

}  // namespace

moe_status cuda_tiles_run(const cuda_product *p, const char *op, moe_err *err) {
    const int dtypes = dtypes_of(p);
    if (dtypes == (A_BF16 | B_BF16) || dtypes == (A_BF16 | B_BF16 | OUT_BF16)) return tiles_bf16_run(p, op, err);
    if (p->role == MOE_FPROP && dtypes == 0) return run<MOE_FPROP, float, float, float>(p, op, err);
    if (p->role == MOE_DGRAD && dtypes == 0) return run<MOE_DGRAD, float, float, float>(p, op, err);
    if (p->role == MOE_WGRAD && dtypes == 0) return run<MOE_WGRAD, float, float, float>(p, op, err);
    if (p->role == MOE_FPROP && dtypes == A_BF16) return run<MOE_FPROP, bf16, float, float>(p, op, err);
    if (p->role == MOE_DGRAD && dtypes == OUT_BF16) return run<MOE_DGRAD, float, float, bf16>(p, op, err);
    if (p->role == MOE_WGRAD && dtypes == B_BF16) return run<MOE_WGRAD, float, bf16, float>(p, op, err);
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: products of role %d with dtypes %s, %s and %s", op, p->role,
                    op_dtype_name(p->a_dtype), op_dtype_name(p->b_dtype), op_dtype_name(p->out_dtype));
}
