/* moe.cross_entropy/0: a block a row, which it reads twice: for the largest logit and the sum of exponentials together
 * (Milakov & Gimelshein, arXiv 1805.02867), and for the gradient. Memory: 6 bytes a logit in BF16, 12 in FP32, where
 * the caches do not keep the row; half of the reads where there is no gradient. Losses of rows are added in order. */
#include "loss.cuh"
#include "sum_parts.cuh"

namespace {

/* sum of e^(l - largest) over what a thread has seen. A new largest scales the sum; -INFINITY: nothing seen yet. */
template <class T>
struct online {
    const T *l;
    float largest, sum;

    template <int P>
    __device__ __forceinline__ void at(int i) {
        float v[P], most = largest;
        act_read<P>(l + i, v);
#pragma unroll
        for (int j = 0; j < P; j++) most = fmaxf(most, v[j]);
        if (most > largest) {
            sum *= loss_exp(largest, most);
            largest = most;
        }
        const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
        for (int j = 0; j < P; j++) sum += loss_exp(v[j], base);
    }
};

template <class T>
struct call {
    const T *logits; /* [T,V] */
    T *dlogits;      /* [T,V] or NULL; may be logits */
    const int32_t *targets;
    const int64_t *divisor; /* or NULL */
    double *parts;          /* [T] loss of each row */
    moe_fault *fault;
    int width, even;
};

template <class T>
__global__ void __launch_bounds__(LOSS_THREADS) lose(const call<T> c) {
    KERNEL_SHARED(block_room<float>, most);
    KERNEL_SHARED(block_room<double>, room);
    const int64_t row = blockIdx.x, at = row * c.width;
    const int64_t target = loss_target(c.targets, row, c.width, c.fault);
    const loss_row<T> cut = loss_cut(c.logits + at, c.width, c.even);
    if (target < 0) {
        loss_nothing<T> none = {c.dlogits + at};
        if (c.dlogits) loss_visit(cut, none);
        if (threadIdx.x == 0) c.parts[row] = 0;
        return;
    }
    const float own = act_get(c.logits + at + target);
    online<T> seen = {c.logits + at, -INFINITY, 0.0f};
    loss_visit(cut, seen);
    const float largest = block_max(seen.largest, most);
    const float share = seen.largest == -INFINITY ? 0.0f : loss_exp(seen.largest, largest);
    const double sum = block_sum((double)seen.sum * (double)share, room); /* behind it, nobody reads the row's target */
    if (threadIdx.x == 0) c.parts[row] = (double)largest + log(sum) - (double)own;
    const float inverse = loss_inverse(c.divisor, row, target, c.fault);
    if (!c.dlogits) return;
    loss_gradient<T> gradient = {c.logits + at, c.dlogits + at, largest, (float)((double)inverse / sum),
                                 inverse,       (int)target};
    loss_visit(cut, gradient);
}

template <class T>
moe_status run(const moe_op_args *a, moe_err *err) {
    const moe_tensor *divisor = op_optional(a->in, a->n_in, 2), *dlogits = op_optional(a->out, a->n_out, 1);
    const int64_t rows = a->in[0].shape[0];
    call<T> c = {};
    c.logits = static_cast<const T *>(a->in[0].data);
    c.dlogits = dlogits ? static_cast<T *>(dlogits->data) : nullptr;
    c.targets = static_cast<const int32_t *>(a->in[1].data);
    c.divisor = divisor ? static_cast<const int64_t *>(divisor->data) : nullptr;
    c.parts = static_cast<double *>(a->workspace);
    c.fault = static_cast<moe_fault *>(a->fault);
    c.width = (int)a->in[0].shape[1];
    c.even = loss_even(c.logits, c.dlogits);
    KERNEL_LAUNCH(lose<T>, (unsigned)rows, loss_threads(c.width), 0, cuda_stream(a), c);
    sum_parts_launch(c.parts, rows, static_cast<double *>(a->out[0].data), cuda_stream(a));
    return cuda_launched(MOE_OP_CROSS_ENTROPY, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_cross_entropy(a, err);
    if (s == MOE_OK) s = loss_check_width(MOE_OP_CROSS_ENTROPY, a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = (uint64_t)a->in[0].shape[0] * sizeof(double);
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    return a->in[0].dtype == MOE_F32 ? run<float>(a, err) : run<bf16>(a, err);
}

}  // namespace

extern const moe_op cuda_op_cross_entropy = {sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY, sizes, forward, nullptr};
