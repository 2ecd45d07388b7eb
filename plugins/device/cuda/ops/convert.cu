/* moe.convert/0: eight elements a thread, or one where 16-byte accesses do not fit. Memory: x read once, y written
 * once. */
#include "call.cuh"

namespace {

enum { THREADS = 256 };

template <class X, class Y>
__global__ void __launch_bounds__(THREADS)
    convert(const X *__restrict__ x, Y *__restrict__ y, int64_t packs, int64_t n) {
    constexpr int P = ACT_PACK<bf16>;
    const int64_t thread = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    float v[P];
    if (thread < packs) {
        pack_get<P>(x + thread * P, v);
        pack_put<P>(y + thread * P, v);
    } else if (packs * P + (thread - packs) < n) { /* what is left, or all where packs do not fit */
        const int64_t i = packs * P + (thread - packs);
        pack_get<1>(x + i, v);
        pack_put<1>(y + i, v);
    }
}

template <class X, class Y>
moe_status run(const moe_op_args *a, int64_t n, moe_err *err) {
    const int64_t packs = (call_at(&a->in[0]) | call_at(&a->out[0])) % 16 ? 0 : n / ACT_PACK<bf16>;
    KERNEL_LAUNCH((convert<X, Y>), cuda_blocks(packs + (n - packs * ACT_PACK<bf16>), THREADS), THREADS, 0,
                  cuda_stream(a), static_cast<const X *>(a->in[0].data), static_cast<Y *>(a->out[0].data), packs, n);
    return cuda_launched(MOE_OP_CONVERT, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_convert(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_tensor *x = &a->in[0], *y = &a->out[0];
    const int64_t n = op_elements(x);
    if (n == 0) return MOE_OK;
    if (x->dtype == y->dtype)
        return cuda_status(
            cudaMemcpyAsync(y->data, x->data, (size_t)(n * op_act_bytes(x->dtype)), cudaMemcpyDefault, cuda_stream(a)),
            MOE_OP_CONVERT, err);
    return x->dtype == MOE_F32 ? run<float, bf16>(a, n, err) : run<bf16, float>(a, n, err);
}

}  // namespace

extern const moe_op cuda_op_convert = {sizeof(moe_op), 0, MOE_OP_CONVERT, sizes, forward, nullptr};
