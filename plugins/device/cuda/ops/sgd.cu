/* moe.sgd/0: one pass over flat FP32 tensors, a pack a thread. Memory: grad and w read, w written once, 12 bytes an
 * element, and 2 more for the BF16 copy. */
#include "flat.cuh"

namespace {

struct sgd {
    const float *grad;
    float *w;
    bf16 *copy; /* or NULL */
    float coef, lr, decay;

    template <int P>
    __device__ __forceinline__ void at(int64_t i) const {
        float g[P], x[P];
        act_read<P>(grad + i, g);
        act_read<P>(w + i, x);
#pragma unroll
        for (int j = 0; j < P; j++) x[j] -= lr * (coef * g[j] + decay * x[j]);
        act_write<P>(w + i, x);
        if (copy) flat_round<P>(copy + i, x);
    }
};

/* hyper [4] = {lr, c1, c2, 0}, stats [2] = {norm, coef} */
__global__ void __launch_bounds__(FLAT_THREADS)
    step(sgd call, const float *__restrict__ hyper, const float *__restrict__ stats, flat_cut cut) {
    call.coef = stats[1];
    if (isnan(call.coef)) return; /* the gradient is not finite: the step is skipped */
    call.lr = hyper[0];
    flat_visit(cut, flat_thread(), call);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_sgd(a, err);
    if (s == MOE_OK) s = op_want_absent(op_optional(a->in, a->n_in, 3), MOE_OP_SGD, "filled", err);
    return op_sizes_none(s, saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_tensor *copy = op_optional(a->out, a->n_out, 1);
    sgd call = {};
    call.grad = static_cast<const float *>(a->in[0].data);
    call.w = static_cast<float *>(a->out[0].data);
    call.copy = copy ? static_cast<bf16 *>(copy->data) : nullptr;
    call.decay = static_cast<const moe_adamw_attr *>(a->attr)->weight_decay;
    const void *const all[] = {call.grad, call.w};
    const flat_cut cut = flat_make(a->in[0].shape[0], all, 2, call.copy);
    if (cut.n == 0) return MOE_OK;
    KERNEL_LAUNCH(step, flat_blocks(cut), FLAT_THREADS, 0, cuda_stream(a), call,
                  static_cast<const float *>(a->in[1].data), static_cast<const float *>(a->in[2].data), cut);
    return cuda_launched(MOE_OP_SGD, err);
}

}  // namespace

extern const moe_op cuda_op_sgd = {sizeof(moe_op), 0, MOE_OP_SGD, sizes, forward, nullptr};
