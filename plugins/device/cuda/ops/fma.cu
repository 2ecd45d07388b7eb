/* moe.fma/0: what the arithmetic units can do at most, for measuring: a pack of four elements a thread, whose four
 * chains do not wait for each other. Memory: x read and y written once. */
#include "flat.cuh"

namespace {

struct rounds_of {
    const float *x;
    float *y;
    float factor, term;
    uint32_t rounds;

    template <int P>
    __device__ __forceinline__ void at(int64_t i) const {
        float v[P];
        act_read<P>(x + i, v);
#pragma unroll 8
        for (uint32_t r = 0; r < rounds; r++)
#pragma unroll
            for (int j = 0; j < P; j++) v[j] = fmaf(v[j], factor, term);
        act_write<P>(y + i, v);
    }
};

__global__ void __launch_bounds__(FLAT_THREADS) run(rounds_of call, flat_cut cut) {
    flat_visit(cut, flat_thread(), call);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_fma(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_fma_attr *at = static_cast<const moe_fma_attr *>(a->attr);
    const rounds_of call = {static_cast<const float *>(a->in[0].data), static_cast<float *>(a->out[0].data), at->factor,
                            at->term, at->rounds};
    const void *const all[] = {call.x, call.y};
    const flat_cut cut = flat_make(a->in[0].shape[0], all, 2, nullptr);
    if (cut.n == 0) return MOE_OK;
    KERNEL_LAUNCH(run, flat_blocks(cut), FLAT_THREADS, 0, cuda_stream(a), call, cut);
    return cuda_launched(MOE_OP_FMA, err);
}

}  // namespace

extern const moe_op cuda_op_fma = {sizeof(moe_op), 0, MOE_OP_FMA, sizes, forward, nullptr};
