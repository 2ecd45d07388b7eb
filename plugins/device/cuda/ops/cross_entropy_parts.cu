/* moe.cross_entropy_max/0, _sum/0, _end/0: the cross-entropy of a rank's part of the vocabulary; a block a row. Memory:
 * max and sum read the logits once each, end reads and writes them once: 8 bytes a logit in BF16 all together. */
#include "loss.cuh"
#include "sum_parts.cuh"

namespace {

template <class T>
struct part {
    const T *logits;        /* [T,V] */
    T *dlogits;             /* [T,V] or NULL; may be logits */
    const int32_t *targets; /* [T] */
    const int64_t *divisor; /* or NULL */
    float *largest;         /* [T] */
    double *sums, *parts;   /* [T,2]: sum of exponentials, the target's logit; [T] loss of each row */
    moe_fault *fault;
    int64_t first, whole;
    int width, even;
};

/* ---- the largest logit ---- */
template <class T>
struct greatest {
    const T *l;
    float largest;
    template <int P>
    __device__ __forceinline__ void at(int i) {
        float v[P];
        act_read<P>(l + i, v);
#pragma unroll
        for (int j = 0; j < P; j++) largest = fmaxf(largest, v[j]);
    }
};

template <class T>
__global__ void __launch_bounds__(LOSS_THREADS) find_largest(const part<T> c) {
    KERNEL_SHARED(block_room<float>, room);
    const int64_t row = blockIdx.x, at = row * c.width;
    if (loss_target(c.targets, row, c.whole, c.fault) < 0) {
        if (threadIdx.x == 0) c.largest[row] = 0;
        return;
    }
    greatest<T> seen = {c.logits + at, -INFINITY};
    loss_visit(loss_cut(c.logits + at, c.width, true), seen);
    const float all = block_max(seen.largest, room);
    if (threadIdx.x == 0) c.largest[row] = all;
}

/* ---- the sum of exponentials, and the target's logit ---- */
template <class T>
struct exponentials {
    const T *l;
    float largest, sum;
    template <int P>
    __device__ __forceinline__ void at(int i) {
        float v[P];
        act_read<P>(l + i, v);
#pragma unroll
        for (int j = 0; j < P; j++) sum += loss_exp(v[j], largest);
    }
};

template <class T>
__global__ void __launch_bounds__(LOSS_THREADS) sum_rows(const part<T> c) {
    KERNEL_SHARED(block_room<double>, room);
    const int64_t row = blockIdx.x, at = row * c.width;
    const int64_t target = loss_target(c.targets, row, c.whole, c.fault), own = target - c.first;
    exponentials<T> seen = {c.logits + at, c.largest[row], 0.0f};
    if (target >= 0) loss_visit(loss_cut(c.logits + at, c.width, true), seen);
    const double sum = block_sum((double)seen.sum, room);
    if (threadIdx.x) return;
    c.sums[2 * row] = sum;
    c.sums[2 * row + 1] = target >= 0 && own >= 0 && own < c.width ? (double)act_get(c.logits + at + own) : 0.0;
}

/* ---- loss and gradient ---- */
template <class T>
__global__ void __launch_bounds__(LOSS_THREADS) end_rows(const part<T> c) {
    const int64_t row = blockIdx.x, at = row * c.width;
    const int64_t target = loss_target(c.targets, row, c.whole, c.fault), own = target - c.first;
    const loss_row<T> cut = loss_cut(c.logits + at, c.width, c.even);
    if (target < 0) {
        loss_nothing<T> none = {c.dlogits + at};
        if (c.dlogits) loss_visit(cut, none);
        if (threadIdx.x == 0) c.parts[row] = 0;
        return;
    }
    const float largest = c.largest[row], inverse = loss_inverse(c.divisor, row, target, c.fault);
    const double sum = c.sums[2 * row];
    if (threadIdx.x == 0) c.parts[row] = (double)largest + log(sum) - c.sums[2 * row + 1];
    if (!c.dlogits) return;
    loss_gradient<T> gradient = {c.logits + at, c.dlogits + at,
                                 largest,       (float)((double)inverse / sum),
                                 inverse,       own >= 0 && own < c.width ? (int)own : -1};
    loss_visit(cut, gradient);
}

/* ---- calls ---- */
template <class T>
part<T> begin(const moe_op_args *a) {
    const moe_vocabulary_attr *attr = static_cast<const moe_vocabulary_attr *>(a->attr);
    part<T> c = {};
    c.logits = static_cast<const T *>(a->in[0].data);
    c.targets = static_cast<const int32_t *>(a->in[1].data);
    c.fault = static_cast<moe_fault *>(a->fault);
    c.width = (int)a->in[0].shape[1];
    c.first = attr ? attr->first : 0;
    c.whole = attr ? attr->whole : c.width;
    return c;
}

template <class T>
moe_status run_max(const moe_op_args *a, moe_err *err) {
    part<T> c = begin<T>(a);
    c.largest = static_cast<float *>(a->out[0].data);
    KERNEL_LAUNCH(find_largest<T>, (unsigned)a->in[0].shape[0], loss_threads(c.width), 0, cuda_stream(a), c);
    return cuda_launched(MOE_OP_CROSS_ENTROPY_MAX, err);
}

template <class T>
moe_status run_sum(const moe_op_args *a, moe_err *err) {
    part<T> c = begin<T>(a);
    c.largest = static_cast<float *>(a->in[2].data);
    c.sums = static_cast<double *>(a->out[0].data);
    KERNEL_LAUNCH(sum_rows<T>, (unsigned)a->in[0].shape[0], loss_threads(c.width), 0, cuda_stream(a), c);
    return cuda_launched(MOE_OP_CROSS_ENTROPY_SUM, err);
}

template <class T>
moe_status run_end(const moe_op_args *a, moe_err *err) {
    const moe_tensor *divisor = op_optional(a->in, a->n_in, 4), *dlogits = op_optional(a->out, a->n_out, 1);
    part<T> c = begin<T>(a);
    c.largest = static_cast<float *>(a->in[2].data);
    c.sums = static_cast<double *>(a->in[3].data);
    c.divisor = divisor ? static_cast<const int64_t *>(divisor->data) : nullptr;
    c.dlogits = dlogits ? static_cast<T *>(dlogits->data) : nullptr;
    c.parts = static_cast<double *>(a->workspace);
    c.even = loss_even(c.logits, c.dlogits);
    KERNEL_LAUNCH(end_rows<T>, (unsigned)a->in[0].shape[0], loss_threads(c.width), 0, cuda_stream(a), c);
    sum_parts_launch(c.parts, a->in[0].shape[0], static_cast<double *>(a->out[0].data), cuda_stream(a));
    return cuda_launched(MOE_OP_CROSS_ENTROPY_END, err);
}

moe_status sizes(const char *op, moe_status checked, const moe_op_args *a, uint64_t rows_bytes, uint64_t *saved,
                 uint64_t *workspace, moe_err *err) {
    const moe_status s = checked == MOE_OK ? loss_check_width(op, a, err) : checked;
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = (uint64_t)a->in[0].shape[0] * rows_bytes;
    return MOE_OK;
}

moe_status sizes_max(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return sizes(MOE_OP_CROSS_ENTROPY_MAX, op_check_cross_entropy_max(a, err), a, 0, saved, workspace, err);
}
moe_status sizes_sum(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return sizes(MOE_OP_CROSS_ENTROPY_SUM, op_check_cross_entropy_sum(a, err), a, 0, saved, workspace, err);
}
moe_status sizes_end(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return sizes(MOE_OP_CROSS_ENTROPY_END, op_check_cross_entropy_end(a, err), a, sizeof(double), saved, workspace,
                 err);
}

template <moe_status (*F32)(const moe_op_args *, moe_err *), moe_status (*BF16)(const moe_op_args *, moe_err *)>
moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    return a->in[0].dtype == MOE_F32 ? F32(a, err) : BF16(a, err);
}

}  // namespace

extern const moe_op cuda_op_cross_entropy_max = {
    sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY_MAX, sizes_max, forward<run_max<float>, run_max<bf16>>, nullptr};
extern const moe_op cuda_op_cross_entropy_sum = {
    sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY_SUM, sizes_sum, forward<run_sum<float>, run_sum<bf16>>, nullptr};
extern const moe_op cuda_op_cross_entropy_end = {
    sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY_END, sizes_end, forward<run_end<float>, run_end<bf16>>, nullptr};
