/* moe.adamw/0: one pass over flat FP32 tensors, a pack a thread. Memory: grad, w, m, v read and w, m, v written once,
 * 28 bytes an element, and 2 more for the BF16 copy. */
#include "flat.cuh"

namespace {

struct adamw {
    const float *grad;
    float *w, *m, *v;
    bf16 *copy; /* or NULL */
    float coef, lr, inv_c1, inv_c2, beta1, beta2, eps, decay;

    template <int P>
    __device__ __forceinline__ void at(int64_t i) const {
        float g[P], a[P], b[P], x[P];
        act_read<P>(grad + i, g);
        act_read<P>(m + i, a);
        act_read<P>(v + i, b);
        act_read<P>(w + i, x);
#pragma unroll
        for (int j = 0; j < P; j++) {
            const float c = coef * g[j];
            a[j] = beta1 * a[j] + (1.0f - beta1) * c;
            b[j] = beta2 * b[j] + (1.0f - beta2) * (c * c);
            x[j] -= lr * (a[j] * inv_c1 / (sqrtf(b[j] * inv_c2) + eps) + decay * x[j]);
        }
        act_write<P>(m + i, a);
        act_write<P>(v + i, b);
        act_write<P>(w + i, x);
        if (copy) flat_round<P>(copy + i, x);
    }
};

/* hyper [4] = {lr, c1, c2, 0}, stats [2] = {norm, coef} */
__global__ void __launch_bounds__(FLAT_THREADS)
    step(adamw call, const float *__restrict__ hyper, const float *__restrict__ stats, flat_cut cut) {
    call.coef = stats[1];
    if (isnan(call.coef)) return; /* the gradient is not finite: the step is skipped */
    call.lr = hyper[0];
    call.inv_c1 = __frcp_rn(hyper[1]);
    call.inv_c2 = __frcp_rn(hyper[2]);
    flat_visit(cut, flat_thread(), call);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_adamw(a, err);
    if (s == MOE_OK) s = op_want_absent(op_optional(a->in, a->n_in, 3), MOE_OP_ADAMW, "filled", err);
    return op_sizes_none(s, saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_adamw_attr *at = static_cast<const moe_adamw_attr *>(a->attr);
    const moe_tensor *copy = op_optional(a->out, a->n_out, 3);
    adamw call = {};
    call.grad = static_cast<const float *>(a->in[0].data);
    call.w = static_cast<float *>(a->out[0].data);
    call.m = static_cast<float *>(a->out[1].data);
    call.v = static_cast<float *>(a->out[2].data);
    call.copy = copy ? static_cast<bf16 *>(copy->data) : nullptr;
    call.beta1 = at->beta1;
    call.beta2 = at->beta2;
    call.eps = at->eps;
    call.decay = at->weight_decay;
    const void *const all[] = {call.grad, call.w, call.m, call.v};
    const flat_cut cut = flat_make(a->in[0].shape[0], all, 4, call.copy);
    if (cut.n == 0) return MOE_OK;
    KERNEL_LAUNCH(step, flat_blocks(cut), FLAT_THREADS, 0, cuda_stream(a), call,
                  static_cast<const float *>(a->in[1].data), static_cast<const float *>(a->in[2].data), cut);
    return cuda_launched(MOE_OP_ADAMW, err);
}

}  // namespace

extern const moe_op cuda_op_adamw = {sizeof(moe_op), 0, MOE_OP_ADAMW, sizes, forward, nullptr};
