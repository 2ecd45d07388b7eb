/* moe.sigmoid/0, in packs of 16 bytes. Memory: forward 8 bytes an element, backward 12. */
#include "call.cuh"
#include "gate.cuh"

namespace {

enum { THREADS = 256 };

/* y NULL: out = sigmoid(in); else out = in y (1 - y). out may be in. */
template <int P>
__global__ void __launch_bounds__(THREADS) squash(const float *in, const float *y, float *out, int64_t n) {
    const int64_t at = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * P;
    if (at >= n) return;
    float v[P], s[P];
    act_floats<P>(in + at, v);
    if (y) act_floats<P>(y + at, s);
#pragma unroll
    for (int j = 0; j < P; j++) v[j] = y ? v[j] * s[j] * (1.0f - s[j]) : gate_sigmoid(v[j]);
    act_put_floats<P>(out + at, v);
}

moe_status run(const moe_op_args *a, const float *y, moe_err *err) {
    const float *in = static_cast<const float *>(a->in[0].data);
    float *out = static_cast<float *>(a->out[0].data);
    const int64_t n = op_elements(&a->in[0]);
    if (n == 0) return MOE_OK;
    if (act_packs<float>(n, in, y, out))
        KERNEL_LAUNCH(squash<4>, cuda_blocks(n / 4, THREADS), THREADS, 0, cuda_stream(a), in, y, out, n);
    else
        KERNEL_LAUNCH(squash<1>, cuda_blocks(n, THREADS), THREADS, 0, cuda_stream(a), in, y, out, n);
    return cuda_launched(MOE_OP_SIGMOID, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_sigmoid(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    return run(a, nullptr, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = op_check_sigmoid_backward(a, err);
    return s == MOE_OK ? run(a, static_cast<const float *>(a->in[1].data), err) : s;
}

}  // namespace

extern const moe_op cuda_op_sigmoid = {sizeof(moe_op), 0, MOE_OP_SIGMOID, sizes, forward, backward};
