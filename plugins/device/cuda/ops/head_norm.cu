/* moe.head_norm/0: the lanes of a warp, or of a part of one, a segment. Memory in BF16, bytes an element of a segment:
 * forward 6 (x read, y and the kept copy written; the second pass over a segment finds it in the cache), backward 6.
 * Backward goes by runs of segments: each part of a warp sums dw over its segments in shared memory, the block adds
 * these, and runs.cuh the blocks, in an order that depends on sizes alone. */
#include "call.cuh"
#include "reduce.cuh"
#include "runs.cuh"

namespace {

enum { THREADS = 256, MOST_RUNS = 1024, LEAST_SEGMENTS = 64 };
const int64_t MOST_WIDTH = 16384; /* elements: dw of a segment in 64 KiB of shared memory */

struct segment_shape {
    int64_t all, row, first; /* segments of all rows; W; first element of a row's */
    int segments, width, lanes;
    float eps, share; /* share: 1 / width */
    /* Where segment number i begins in packed rows. */
    __device__ int64_t at(int64_t i) const {
        const int64_t t = quick_divide(i, (unsigned)segments);
        return t * row + first + (i - t * segments) * width;
    }
};

/* Over the lanes of a segment; all lanes of the warp take part. */
__device__ __forceinline__ float lanes_sum(float v, int lanes) {
    for (int i = lanes / 2; i; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* y may be x: a thread reads and writes its own elements. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS) norm(const T *x, const float *__restrict__ w, T *y, T *__restrict__ kept,
                                                float *__restrict__ inverse, segment_shape s) {
    const int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / s.lanes;
    const int lane = threadIdx.x & (s.lanes - 1), width = i < s.all ? s.width : 0, step = s.lanes * P;
    const int64_t at = s.at(i);
    float sum = 0, v[P], scale[P];
    for (int e = lane * P; e < width; e += step) {
        act_read<P>(x + at + e, v);
        act_write<P>(kept + i * s.width + e, v);
#pragma unroll
        for (int j = 0; j < P; j++) sum += v[j] * v[j];
    }
    const float r = rsqrtf(lanes_sum(sum, s.lanes) * s.share + s.eps);
    if (lane == 0 && width) inverse[i] = r;
    for (int e = lane * P; e < width; e += step) {
        act_read<P>(x + at + e, v);
        act_floats<P>(w + e, scale);
#pragma unroll
        for (int j = 0; j < P; j++) v[j] *= r * scale[j];
        act_write<P>(y + at + e, v);
    }
}

/* dx = r (g - x r mean(g x r)), g = w dy; part [run] = sum over the run's segments of dy x r. dx may be dy. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS)
    norm_backward(const T *dy, const float *__restrict__ w, const T *__restrict__ kept,
                  const float *__restrict__ inverse, T *dx, float *__restrict__ part, segment_shape s,
                  int64_t run_segments) {
    KERNEL_DYNAMIC(float, sums); /* [groups,width] */
    const int lane = threadIdx.x & (s.lanes - 1), group = threadIdx.x / (unsigned)s.lanes;
    const int groups = blockDim.x / (unsigned)s.lanes, step = s.lanes * P;
    const int64_t first = blockIdx.x * run_segments, end = first + run_segments < s.all ? first + run_segments : s.all;
    float *dw = sums + group * s.width;
    for (int e = lane * P; e < s.width; e += step)
#pragma unroll
        for (int j = 0; j < P; j++) dw[e + j] = 0;
    for (int64_t from = first; from < end; from += groups) {
        const int64_t i = from + group, at = s.at(i);
        const int width = i < end ? s.width : 0;
        const float r = width ? inverse[i] : 0.0f;
        float dot = 0, g[P], v[P], scale[P];
        for (int e = lane * P; e < width; e += step) {
            act_read<P>(dy + at + e, g);
            act_read<P>(kept + i * s.width + e, v);
            act_floats<P>(w + e, scale);
#pragma unroll
            for (int j = 0; j < P; j++) {
                dw[e + j] += g[j] * v[j] * r;
                dot += g[j] * scale[j] * v[j];
            }
        }
        const float mean = lanes_sum(dot, s.lanes) * r * s.share;
        for (int e = lane * P; e < width; e += step) {
            act_read<P>(dy + at + e, g);
            act_read<P>(kept + i * s.width + e, v);
            act_floats<P>(w + e, scale);
#pragma unroll
            for (int j = 0; j < P; j++) v[j] = r * (g[j] * scale[j] - v[j] * r * mean);
            act_write<P>(dx + at + e, v);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < s.width; e += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < groups; i++) sum += sums[i * s.width + e];
        part[blockIdx.x * (int64_t)s.width + e] = sum;
    }
}

int64_t segments_of(const moe_op_args *a) {
    return a->in[0].shape[0] * static_cast<const moe_head_norm_attr *>(a->attr)->segments;
}
int64_t run_segments(int64_t all) {
    const int64_t each = (all + MOST_RUNS - 1) / MOST_RUNS;
    return each < LEAST_SEGMENTS ? (int64_t)LEAST_SEGMENTS : each;
}

template <int P>
segment_shape shape_of(const moe_op_args *a) {
    const moe_head_norm_attr *at = static_cast<const moe_head_norm_attr *>(a->attr);
    segment_shape s = {segments_of(a), a->in[0].shape[1],      at->first, (int)at->segments, (int)at->width, 1,
                       at->eps,        1.0f / (float)at->width};
    while (s.lanes < WARP && s.lanes * P < s.width) s.lanes *= 2;
    return s;
}

/* What saved holds: the segments, then, aligned, their 1/rms. */
template <class T>
float *inverse_of(const moe_op_args *a, int64_t elements) {
    return reinterpret_cast<float *>(static_cast<char *>(a->saved) + (elements * (int64_t)sizeof(T) + 15) / 16 * 16);
}

template <class T, int P>
moe_status run(const moe_op_args *a, moe_err *err) {
    const segment_shape s = shape_of<P>(a);
    KERNEL_LAUNCH((norm<T, P>), cuda_blocks(s.all * s.lanes, THREADS), THREADS, 0, cuda_stream(a),
                  static_cast<const T *>(a->in[0].data), static_cast<const float *>(a->in[1].data),
                  static_cast<T *>(a->out[0].data), static_cast<T *>(a->saved), inverse_of<T>(a, s.all * s.width), s);
    return cuda_launched(MOE_OP_HEAD_NORM, err);
}

template <class T, int P>
moe_status run_backward(const moe_op_args *a, moe_err *err) {
    const segment_shape s = shape_of<P>(a);
    const int64_t each = run_segments(s.all);
    const unsigned runs = cuda_blocks(s.all, each);
    unsigned threads = THREADS; /* as many as 64 KiB of sums allow */
    while (threads > WARP && (int64_t)(threads / (unsigned)s.lanes) * s.width > MOST_WIDTH) threads /= 2;
    const size_t room = (size_t)(threads / (unsigned)s.lanes) * (size_t)s.width * sizeof(float);
    float *part = static_cast<float *>(a->workspace);
    KERNEL_LARGE_SHARED((norm_backward<T, P>), room);
    KERNEL_LAUNCH((norm_backward<T, P>), runs, threads, room, cuda_stream(a), static_cast<const T *>(a->in[0].data),
                  static_cast<const float *>(a->in[1].data), static_cast<const T *>(a->saved),
                  inverse_of<T>(a, s.all * s.width), static_cast<T *>(a->out[0].data), part, s, each);
    runs_add_all(part, runs, s.width, static_cast<float *>(a->out[1].data), cuda_stream(a));
    return cuda_launched(MOE_OP_HEAD_NORM, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_head_norm(a, MOST_WIDTH, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_HEAD_NORM, a->in[0].shape[1], "columns", err);
    if (s != MOE_OK) return s;
    const int64_t all = segments_of(a), width = static_cast<const moe_head_norm_attr *>(a->attr)->width;
    *saved = (uint64_t)((all * width * op_act_bytes(a->in[0].dtype) + 15) / 16 * 16) + (uint64_t)all * sizeof(float);
    *workspace = (uint64_t)cuda_blocks(all, run_segments(all)) * (uint64_t)width * sizeof(float);
    return MOE_OK;
}

/* What is in no segment passes: where the output is another buffer, it gets the whole rows first. */
moe_status pass(const moe_op_args *a, moe_err *err) {
    if (a->in[0].data == a->out[0].data) return MOE_OK;
    const size_t bytes = (size_t)(op_elements(&a->in[0]) * op_act_bytes(a->in[0].dtype));
    return cuda_status(cudaMemcpyAsync(a->out[0].data, a->in[0].data, bytes, cudaMemcpyDefault, cuda_stream(a)),
                       MOE_OP_HEAD_NORM, err);
}

bool packs_of(const moe_op_args *a) {
    const moe_head_norm_attr *at = static_cast<const moe_head_norm_attr *>(a->attr);
    return call_packs(a->in[0].dtype, a->in[0].shape[1] | at->first | at->width,
                      call_at(&a->in[0]) | call_at(&a->in[1]) | call_at(&a->out[0]));
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    const moe_status s = pass(a, err);
    return s == MOE_OK ? CALL_ACT(run, a->in[0].dtype, packs_of(a), a, err) : s;
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_head_norm_backward(a, MOST_WIDTH, err);
    if (s != MOE_OK || a->in[0].shape[0] == 0) return s;
    s = pass(a, err);
    return s == MOE_OK ? CALL_ACT(run_backward, a->in[0].dtype, packs_of(a), a, err) : s;
}

}  // namespace

extern const moe_op cuda_op_head_norm = {sizeof(moe_op), 0, MOE_OP_HEAD_NORM, sizes, forward, backward};
