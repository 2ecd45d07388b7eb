/* moe.rmsnorm/0: a block a row, which stays in shared memory between its two passes, so that a, b are read once and s,
 * y written once. Backward: the same, a block a run of rows; dw is summed inside of the block's rows, then over the
 * blocks in order, so that its bits depend on T alone. */
#include "../cuda.h"
#include "act.cuh"
#include "reduce.cuh"
#include "runs.cuh"

namespace {

enum { THREADS = 256, MOST_RUNS = 256 };
const int64_t MOST_WIDTH = 16384; /* elements: three rows of FP32 fit into the shared memory of a block */

template <class T, int P>
__global__ void __launch_bounds__(THREADS)
    norm(const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ w, T *__restrict__ s,
         T *__restrict__ y, float *__restrict__ inverse, int width, float share, float eps) {
    KERNEL_SHARED(block_room<float>, room);
    KERNEL_DYNAMIC(float, row);
    const int64_t at = blockIdx.x * (int64_t)width;
    float sum = 0;
    for (int i = threadIdx.x * P; i < width; i += THREADS * P) {
        float v[P];
        act_read<P>(a + at + i, v);
        if (b) {
            float more[P];
            act_read<P>(b + at + i, more);
#pragma unroll
            for (int j = 0; j < P; j++) v[j] += more[j];
            act_write<P>(s + at + i, v);
            if (sizeof(T) == 2) act_read<P>(s + at + i, v); /* what backward will see: rounded */
        }
#pragma unroll
        for (int j = 0; j < P; j++) {
            row[i + j] = v[j];
            sum += v[j] * v[j];
        }
    }
    const float scale = rsqrtf(block_sum(sum, room) * share + eps);
    if (threadIdx.x == 0) inverse[blockIdx.x] = scale;
    for (int i = threadIdx.x * P; i < width; i += THREADS * P) { /* each thread its own elements: no barrier */
        float v[P];
#pragma unroll
        for (int j = 0; j < P; j++) v[j] = row[i + j] * scale * w[i + j];
        act_write<P>(y + at + i, v);
    }
}

/* share: 1 / width. dx = dres + r (w dy - x r mean(w dy x r)); part [run] = sum over the run's rows of dy x r. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS)
    norm_backward(const T *__restrict__ dy, const T *__restrict__ x, const float *__restrict__ w, const T *dres, T *dx,
                  const float *__restrict__ inverse, float *__restrict__ part, int64_t rows, int width, float share,
                  int64_t run_rows) {
    KERNEL_SHARED(block_room<float>, room);
    KERNEL_DYNAMIC(float, dw);
    T *row_dy = reinterpret_cast<T *>(dw + width), *row_x = row_dy + width;
    const int64_t first = blockIdx.x * run_rows, end = first + run_rows < rows ? first + run_rows : rows;
    for (int i = threadIdx.x * P; i < width; i += THREADS * P)
#pragma unroll
        for (int j = 0; j < P; j++) dw[i + j] = 0;
    for (int64_t t = first; t < end; t++) {
        const float r = inverse[t];
        float dot = 0;
        for (int i = threadIdx.x * P; i < width; i += THREADS * P) {
            float g[P], v[P];
            act_read<P>(dy + t * width + i, g);
            act_read<P>(x + t * width + i, v);
            act_write<P>(row_dy + i, g);
            act_write<P>(row_x + i, v);
#pragma unroll
            for (int j = 0; j < P; j++) {
                dw[i + j] += g[j] * v[j] * r;
                dot += g[j] * w[i + j] * v[j];
            }
        }
        const float mean = block_sum(dot, room) * r * share;
        for (int i = threadIdx.x * P; i < width; i += THREADS * P) {
            float g[P], v[P], d[P] = {};
            act_read<P>(row_dy + i, g);
            act_read<P>(row_x + i, v);
            if (dres) act_read<P>(dres + t * width + i, d);
#pragma unroll
            for (int j = 0; j < P; j++) d[j] += r * (g[j] * w[i + j] - v[j] * r * mean);
            act_write<P>(dx + t * width + i, d);
        }
    }
    for (int i = threadIdx.x * P; i < width; i += THREADS * P)
#pragma unroll
        for (int j = 0; j < P; j++) part[blockIdx.x * (int64_t)width + i + j] = dw[i + j];
}

int64_t rows_a_run(int64_t rows) {
    return rows < MOST_RUNS ? 1 : (rows + MOST_RUNS - 1) / MOST_RUNS;
}

template <class T, int P>
moe_status run_forward(const moe_op_args *a, moe_err *err) {
    const bool sum = op_present(&a->in[1]);
    const int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1];
    const size_t room = (size_t)width * sizeof(float);
    KERNEL_LARGE_SHARED((norm<T, P>), room);
    KERNEL_LAUNCH((norm<T, P>), (unsigned)rows, THREADS, room, cuda_stream(a), static_cast<const T *>(a->in[0].data),
                  sum ? static_cast<const T *>(a->in[1].data) : nullptr, static_cast<const float *>(a->in[2].data),
                  static_cast<T *>(a->out[0].data), static_cast<T *>(a->out[1].data), static_cast<float *>(a->saved),
                  (int)width, 1.0f / (float)width, static_cast<const moe_rmsnorm_attr *>(a->attr)->eps);
    return cuda_launched(MOE_OP_RMSNORM, err);
}

template <class T, int P>
moe_status run_backward(const moe_op_args *a, moe_err *err) {
    const int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1], each = rows_a_run(rows);
    const unsigned runs = cuda_blocks(rows, each);
    const size_t room = (size_t)width * (sizeof(float) + 2 * sizeof(T));
    const moe_tensor *dres = op_optional(a->in, a->n_in, 3);
    float *part = static_cast<float *>(a->workspace), *dw = static_cast<float *>(a->out[1].data);
    KERNEL_LARGE_SHARED((norm_backward<T, P>), room);
    KERNEL_LAUNCH((norm_backward<T, P>), runs, THREADS, room, cuda_stream(a), static_cast<const T *>(a->in[0].data),
                  static_cast<const T *>(a->in[1].data), static_cast<const float *>(a->in[2].data),
                  dres ? static_cast<const T *>(dres->data) : nullptr, static_cast<T *>(a->out[0].data),
                  static_cast<const float *>(a->saved), part, rows, (int)width, 1.0f / (float)width, each);
    runs_add_all(part, runs, width, dw, cuda_stream(a));
    return cuda_launched(MOE_OP_RMSNORM, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    const moe_status s = op_check_rmsnorm(a, MOST_WIDTH, err);
    if (s != MOE_OK) return s;
    const int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1];
    *saved = (uint64_t)rows * sizeof(float);
    *workspace = (uint64_t)cuda_blocks(rows, rows_a_run(rows)) * (uint64_t)width * sizeof(float);
    return MOE_OK;
}

template <class T>
bool packs(const moe_op_args *a) {
    uintptr_t all = 0;
    for (uint32_t i = 0; i < a->n_in; i++) all |= (uintptr_t)a->in[i].data;
    for (uint32_t i = 0; i < a->n_out; i++) all |= (uintptr_t)a->out[i].data;
    return all % 16 == 0 && a->in[0].shape[1] % ACT_PACK<T> == 0;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    if (a->in[0].dtype == MOE_F32)
        return packs<float>(a) ? run_forward<float, 4>(a, err) : run_forward<float, 1>(a, err);
    return packs<bf16>(a) ? run_forward<bf16, 8>(a, err) : run_forward<bf16, 1>(a, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = op_check_rmsnorm_backward(a, MOST_WIDTH, err);
    if (s != MOE_OK || a->in[0].shape[0] == 0) return s;
    if (a->in[0].dtype == MOE_F32)
        return packs<float>(a) ? run_backward<float, 4>(a, err) : run_backward<float, 1>(a, err);
    return packs<bf16>(a) ? run_backward<bf16, 8>(a, err) : run_backward<bf16, 1>(a, err);
}

}  // namespace

extern const moe_op cuda_op_rmsnorm = {sizeof(moe_op), 0, MOE_OP_RMSNORM, sizes, forward, backward};
