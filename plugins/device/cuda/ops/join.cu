/* moe.join/0: a block a row of one of the matrices. Memory: x read once, y written once: 2 accesses an element. */
#include "call.cuh"

namespace {

template <class U>
__global__ void __launch_bounds__(ROW_THREADS)
    join(const U *__restrict__ x, U *__restrict__ y, int parts, int tokens, int width) {
    const int part = (int)(blockIdx.x / (unsigned)tokens), token = (int)(blockIdx.x % (unsigned)tokens);
    row_copy(y + ((int64_t)token * parts + part) * width, x + ((int64_t)part * tokens + token) * width, width);
}

template <class U>
moe_status run(const moe_op_args *a, moe_err *err) {
    const int64_t *shape = a->in[0].shape; /* n, T, w */
    const int64_t width = shape[2] * op_act_bytes(a->in[0].dtype) / (int64_t)sizeof(U);
    KERNEL_LAUNCH(join<U>, cuda_blocks(shape[0] * shape[1], 1), row_threads(width), 0, cuda_stream(a),
                  static_cast<const U *>(a->in[0].data), static_cast<U *>(a->out[0].data), (int)shape[0], (int)shape[1],
                  (int)width);
    return cuda_launched(MOE_OP_JOIN, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_join(a, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_JOIN, a->in[0].shape[2], "columns", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_JOIN, a->in[0].shape[0] * a->in[0].shape[1], "rows", err);
    return op_sizes_none(s, saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (op_elements(&a->in[0]) == 0) return MOE_OK;
    const bool packs = call_packs(a->in[0].dtype, a->in[0].shape[2], call_at(&a->in[0]) | call_at(&a->out[0]));
    return CALL_COPY(run, a->in[0].dtype, packs, a, err);
}

}  // namespace

extern const moe_op cuda_op_join = {sizeof(moe_op), 0, MOE_OP_JOIN, sizes, forward, nullptr};
