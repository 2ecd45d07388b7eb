/* moe.copy/0: what the memory moves, for measuring. Plain: the runtime's own copy. Streaming: packs of 16 bytes that
 * leave the caches first. Memory: x read and y written once. */
#include "flat.cuh"

namespace {

/* Bits, not numbers: a NaN keeps its payload. */
struct stream_of {
    const uint32_t *x;
    uint32_t *y;

    template <int P>
    __device__ __forceinline__ void at(int64_t i) const {
        if constexpr (P == 1)
            __stcs(y + i, __ldcs(x + i));
        else
            __stcs(reinterpret_cast<uint4 *>(y + i), __ldcs(reinterpret_cast<const uint4 *>(x + i)));
    }
};

__global__ void __launch_bounds__(FLAT_THREADS) run(stream_of call, flat_cut cut) {
    flat_visit(cut, flat_thread(), call);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_copy(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const int64_t n = a->in[0].shape[0];
    if (n == 0) return MOE_OK;
    if (!static_cast<const moe_copy_attr *>(a->attr)->streaming)
        return cuda_status(cudaMemcpyAsync(a->out[0].data, a->in[0].data, (size_t)n * sizeof(float), cudaMemcpyDefault,
                                           cuda_stream(a)),
                           MOE_OP_COPY, err);
    const stream_of call = {static_cast<const uint32_t *>(a->in[0].data), static_cast<uint32_t *>(a->out[0].data)};
    const void *const all[] = {call.x, call.y};
    const flat_cut cut = flat_make(n, all, 2, nullptr);
    KERNEL_LAUNCH(run, flat_blocks(cut), FLAT_THREADS, 0, cuda_stream(a), call, cut);
    return cuda_launched(MOE_OP_COPY, err);
}

}  // namespace

extern const moe_op cuda_op_copy = {sizeof(moe_op), 0, MOE_OP_COPY, sizes, forward, nullptr};
