/* moe.permute/0: a block a row, which ends at once past the last offset. Memory: x read once a copy (from the cache
 * where a token goes to several experts), y written once: in BF16 2h + 2kh bytes a token. */
#include "call.cuh"
#include "rows.cuh"

namespace {

struct permute_shape {
    int width;     /* units */
    unsigned k;    /* slots of a token */
    int64_t slots; /* T k */
    row_groups rows;
};

template <class U>
__global__ void __launch_bounds__(ROW_THREADS)
    permute(const U *__restrict__ x, const int64_t *__restrict__ row_slot, const float *__restrict__ slot_scalar,
            U *__restrict__ y, float *__restrict__ row_scalar, permute_shape s, moe_fault *fault) {
    const int64_t row = blockIdx.x;
    if (row == 0) rows_check(s.rows, fault);
    if (row >= rows_end(s.rows)) return;
    int64_t slot = row_slot[row];
    if (slot < -1 || slot >= s.slots) {
        if (threadIdx.x == 0) fault_set(fault, MOE_E_DATA, row, slot);
        slot = -1;
    }
    row_copy(y + row * s.width, slot < 0 ? nullptr : x + quick_divide(slot, s.k) * s.width, s.width);
    if (row_scalar && threadIdx.x == 0) row_scalar[row] = slot < 0 ? 0.0f : slot_scalar[slot];
}

template <class U>
moe_status run(const moe_op_args *a, moe_err *err) {
    const int64_t width = a->in[0].shape[1] * op_act_bytes(a->in[0].dtype) / (int64_t)sizeof(U);
    const unsigned k = static_cast<const moe_permute_attr *>(a->attr)->k;
    const permute_shape shape = {(int)width, k, a->in[0].shape[0] * k, row_groups_of(a->rows, a->in[1].shape[0])};
    KERNEL_LAUNCH(permute<U>, cuda_blocks(a->in[1].shape[0], 1), row_threads(width), 0, cuda_stream(a),
                  static_cast<const U *>(a->in[0].data), static_cast<const int64_t *>(a->in[1].data),
                  call_data<const float>(op_optional(a->in, a->n_in, 2)), static_cast<U *>(a->out[0].data),
                  call_data<float>(op_optional(a->out, a->n_out, 1)), shape, static_cast<moe_fault *>(a->fault));
    return cuda_launched(MOE_OP_PERMUTE, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_permute(a, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_PERMUTE, a->in[0].shape[1], "columns", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_PERMUTE, a->in[1].shape[0], "rows", err);
    return op_sizes_none(s, saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const bool packs = call_packs(a->in[0].dtype, a->in[0].shape[1], call_at(&a->in[0]) | call_at(&a->out[0]));
    return CALL_COPY(run, a->in[0].dtype, packs, a, err);
}

}  // namespace

extern const moe_op cuda_op_permute = {sizeof(moe_op), 0, MOE_OP_PERMUTE, sizes, forward, nullptr};
