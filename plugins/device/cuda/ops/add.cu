/* moe.add/0: y += x, in packs of 16 bytes. Memory: x and y read once, y written once. */
#include "../cuda.h"
#include "act.cuh"

namespace {

enum { THREADS = 256 };

template <class T>
__global__ void __launch_bounds__(THREADS) add(const T *__restrict__ x, T *__restrict__ y, int64_t packs, int64_t n) {
    constexpr int P = ACT_PACK<T>;
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (i < packs) {
        float a[P], b[P];
        act_load(x + i * P, a);
        act_load(y + i * P, b);
#pragma unroll
        for (int j = 0; j < P; j++) b[j] += a[j];
        act_store(y + i * P, b);
    } else if (packs * P + (i - packs) < n) { /* what is left, or all where packs do not fit */
        const int64_t at = packs * P + (i - packs);
        act_put(y + at, act_get(y + at) + act_get(x + at));
    }
}

template <class T>
moe_status run(const moe_op_args *a, moe_err *err) {
    const T *x = static_cast<const T *>(a->in[0].data);
    T *y = static_cast<T *>(a->out[0].data);
    const int64_t n = op_elements(&a->in[0]), packs = act_packs<T>(0, x, y) ? n / ACT_PACK<T> : 0;
    if (n == 0) return MOE_OK;
    const int64_t threads = packs + (n - packs * ACT_PACK<T>);
    KERNEL_LAUNCH(add<T>, cuda_blocks(threads, THREADS), THREADS, 0, cuda_stream(a), x, y, packs, n);
    return cuda_launched(MOE_OP_ADD, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    const moe_status s = op_check_add(a, err);
    if (s == MOE_OK) *saved = *workspace = 0;
    return s;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    return a->in[0].dtype == MOE_F32 ? run<float>(a, err) : run<bf16>(a, err);
}

}  // namespace

extern const moe_op cuda_op_add = {sizeof(moe_op), 0, MOE_OP_ADD, sizes, forward, nullptr};
