/* moe.bias/0. Forward: a block a row. Memory: y read and written once, 4 bytes an element in BF16; b comes from the
 * cache. Backward: a block a run of rows and strip of columns sums p dy of each group in registers, 2 bytes an element
 * in BF16; where a run has rows of several groups, each has a part of its own. dp: each warp leaves its dot product of
 * a row, and these are added in order. Sums depend on N, W and the groups alone. */
#include "call.cuh"
#include "reduce.cuh"
#include "rows.cuh"
#include "runs.cuh"

namespace {

enum { MOST_RUNS = 256, THREADS = 256 };

/* ---- forward ---- */
/* y may be x. Padding passes: it is copied to another buffer, and past the last offset nothing is. */
template <class T, int P>
__global__ void __launch_bounds__(ROW_THREADS)
    add(const T *x, const float *__restrict__ b, const float *__restrict__ prob, T *y, int width, row_groups rows,
        moe_fault *fault) {
    const int64_t row = blockIdx.x;
    int group;
    if (row == 0) rows_check(rows, fault);
    if (row >= rows_end(rows)) return;
    x += row * width;
    y += row * width;
    if (!rows_valid(rows, row, &group)) {
        for (int i = threadIdx.x; i < width && x != y; i += blockDim.x) y[i] = x[i];
        return;
    }
    const float p = prob ? prob[row] : 1.0f;
    b += (int64_t)group * width;
    for (int i = threadIdx.x * P; i < width; i += blockDim.x * P) {
        float v[P], bias[P];
        act_read<P>(x + i, v);
        act_floats<P>(b + i, bias);
#pragma unroll
        for (int j = 0; j < P; j++) v[j] += p * bias[j];
        act_write<P>(y + i, v);
    }
}

template <class T, int P>
moe_status run(const moe_op_args *a, moe_err *err) {
    const int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1];
    KERNEL_LAUNCH((add<T, P>), cuda_blocks(rows, 1), row_threads(width / P), 0, cuda_stream(a),
                  static_cast<const T *>(a->in[0].data), static_cast<const float *>(a->in[1].data),
                  call_data<const float>(op_optional(a->in, a->n_in, 2)), static_cast<T *>(a->out[0].data), (int)width,
                  row_groups_of(a->rows, rows), static_cast<moe_fault *>(a->fault));
    return cuda_launched(MOE_OP_BIAS, err);
}

/* ---- backward ---- */
/* Run i's part of group g is number i + g: both only grow from row to row, so no two have the same.
 * dots? [N,strips * warps of a block] */
template <class T, int P>
__global__ void __launch_bounds__(THREADS)
    sum_run(const T *__restrict__ dy, const float *__restrict__ b, const float *__restrict__ prob,
            float *__restrict__ part, float *__restrict__ dots, int width, int each, row_groups rows,
            moe_fault *fault) {
    const int column = (int)(blockIdx.y * THREADS + threadIdx.x) * P;
    const int dots_a_row = (int)gridDim.y * (THREADS / WARP);
    const bool mine = column < width;
    int64_t row = blockIdx.x * each, end = rows_end(rows);
    if (row == 0 && blockIdx.y == 0) rows_check(rows, fault);
    if (row + each < end) end = row + each;
    for (int group = row < end && rows.offsets ? rows_group(rows, row) : 0; row < end; group++) {
        const int64_t valid = rows_valid_end(rows, group), stop = valid < end ? valid : end;
        const int64_t next = rows.offsets && group + 1 < rows.groups ? rows.offsets[group + 1] : end;
        float sum[P] = {}, bias[P] = {};
        if (dots && mine) act_floats<P>(b + (int64_t)group * width + column, bias);
        const bool any = row < stop;
#pragma unroll 1 /* unrolled it spills */
        for (; row < stop; row++) {
            const float p = prob ? prob[row] : 1.0f;
            float v[P] = {}, dot = 0;
            if (mine) act_read<P>(dy + row * width + column, v);
#pragma unroll
            for (int j = 0; j < P; j++) {
                sum[j] += p * v[j];
                dot += v[j] * bias[j];
            }
            if (!dots) continue;
            dot = warp_sum(dot);
            if (threadIdx.x % WARP == 0)
                dots[row * dots_a_row + blockIdx.y * (THREADS / WARP) + threadIdx.x / WARP] = dot;
        }
        if (any && mine) act_put_floats<P>(part + (blockIdx.x + (int64_t)group) * width + column, sum);
        row = next > row ? next : row;
        if (group + 1 >= rows.groups) break;
    }
}

/* The parts of a group: of the runs that have rows of it. */
struct bias_span {
    row_groups rows;
    int64_t each, runs;
    __device__ void operator()(int group, int64_t *from, int64_t *to) const {
        const int64_t begin = rows.offsets ? rows.offsets[group] : 0, end = rows_valid_end(rows, group);
        *from = *to = group;
        if (begin < 0 || begin >= end) return;
        *from = group + begin / each;
        *to = group + (end - 1) / each + 1;
    }
};

__global__ void __launch_bounds__(THREADS)
    add_dots(const float *__restrict__ dots, int dots_a_row, row_groups rows, float *__restrict__ dp) {
    const int64_t row = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    int group;
    if (row >= rows_end(rows) || !rows_valid(rows, row, &group)) return;
    float sum = 0;
    for (int i = 0; i < dots_a_row; i++) sum += dots[row * dots_a_row + i];
    dp[row] += sum;
}

int64_t rows_a_run(int64_t rows) {
    return rows < MOST_RUNS ? 1 : (rows + MOST_RUNS - 1) / MOST_RUNS;
}

template <class T, int P>
moe_status run_backward(const moe_op_args *a, moe_err *err) {
    const int64_t n = a->in[0].shape[0], width = a->in[0].shape[1], each = rows_a_run(n);
    const row_groups rows = row_groups_of(a->rows, n);
    const unsigned runs = cuda_blocks(n, each), strips = cuda_blocks(width, THREADS * P);
    const moe_tensor *p = op_optional(a->in, a->n_in, 2);
    float *dots = p ? static_cast<float *>(a->workspace) : nullptr, *part = static_cast<float *>(a->workspace);
    const int dots_a_row = (int)strips * (THREADS / WARP);
    if (p) part += n * dots_a_row; /* a multiple of 16 bytes */
    KERNEL_LAUNCH((sum_run<T, P>), dim3(runs, strips), THREADS, 0, cuda_stream(a),
                  static_cast<const T *>(a->in[0].data), static_cast<const float *>(a->in[1].data),
                  call_data<const float>(p), part, dots, (int)width, each, rows, static_cast<moe_fault *>(a->fault));
    runs_add_groups(part, bias_span{rows, each, (int64_t)runs}, rows.groups, width,
                    static_cast<float *>(a->out[0].data), cuda_stream(a));
    if (p && n > 0)
        KERNEL_LAUNCH(add_dots, cuda_blocks(n, THREADS), THREADS, 0, cuda_stream(a), dots, dots_a_row, rows,
                      static_cast<float *>(a->out[1].data));
    return cuda_launched(MOE_OP_BIAS, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_bias(a, err);
    const int64_t rows = s == MOE_OK ? a->in[0].shape[0] : 0, width = s == MOE_OK ? a->in[0].shape[1] : 0;
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_BIAS, width, "columns", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_BIAS, rows, "rows", err);
    if (s != MOE_OK) return s;
    const int64_t groups = a->rows ? a->rows->groups : 1;
    const int64_t dots = (int64_t)cuda_blocks(width, THREADS) * (THREADS / WARP); /* of a row, without packs */
    *saved = 0;
    *workspace = (uint64_t)((cuda_blocks(rows, rows_a_run(rows)) + groups - 1) * width) * sizeof(float);
    if (op_optional(a->in, a->n_in, 2)) *workspace += (uint64_t)(rows * dots) * sizeof(float);
    return MOE_OK;
}

bool packs_of(const moe_op_args *a, const moe_tensor *out) {
    return call_packs(a->in[0].dtype, a->in[0].shape[1], call_at(&a->in[0]) | call_at(&a->in[1]) | call_at(out));
}
bool idle(const moe_op_args *a) {
    return a->in[0].shape[1] == 0 || (!a->rows && a->in[0].shape[0] == 0);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (idle(a)) return MOE_OK;
    return CALL_ACT(run, a->in[0].dtype, packs_of(a, &a->out[0]), a, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = op_check_bias_backward(a, err);
    if (s != MOE_OK || idle(a)) return s;
    return CALL_ACT(run_backward, a->in[0].dtype, packs_of(a, &a->in[0]), a, err);
}

}  // namespace

extern const moe_op cuda_op_bias = {sizeof(moe_op), 0, MOE_OP_BIAS, sizes, forward, backward};
