/* moe.unpermute/0: a block a token; every element is one FP32 sum over the slots in order. Memory: the rows of y that
 * have a slot read once, x written once: in BF16 2kh + 2h bytes a token, or + 4h where x is F32. */
#include "call.cuh"
#include "rows.cuh"

namespace {

template <class T, class X, int P>
__global__ void __launch_bounds__(ROW_THREADS)
    unpermute(const T *__restrict__ y, const int64_t *__restrict__ slot_row, const float *__restrict__ row_scalar,
              X *__restrict__ x, float *__restrict__ slot_scalar, int width, int k, row_groups groups,
              moe_fault *fault) {
    const int64_t token = blockIdx.x, end = rows_end(groups);
    const int64_t *rows = slot_row + token * k; /* [k] */
    if (token == 0) rows_check(groups, fault);
    for (int j = threadIdx.x; j < k; j += blockDim.x) {
        const bool there = rows[j] >= 0 && rows[j] < end;
        if (!there && rows[j] != -1) fault_set(fault, MOE_E_DATA, token, rows[j]);
        if (slot_scalar) slot_scalar[token * k + j] = there ? row_scalar[rows[j]] : 0.0f;
    }
    for (int i = threadIdx.x * P; i < width; i += blockDim.x * P) {
        float sum[P] = {};
#pragma unroll 4
        for (int j = 0; j < k; j++) {
            const int64_t row = rows[j];
            float v[P] = {};
            if (row >= 0 && row < end) {
                act_read<P>(y + row * width + i, v);
#pragma unroll
                for (int e = 0; e < P; e++) sum[e] += v[e];
            }
        }
        pack_put<P>(x + token * width + i, sum);
    }
}

template <class T, class X, int P>
moe_status run(const moe_op_args *a, moe_err *err) {
    const int64_t width = a->in[0].shape[1];
    KERNEL_LAUNCH((unpermute<T, X, P>), cuda_blocks(a->in[1].shape[0], 1), row_threads(width / P), 0, cuda_stream(a),
                  static_cast<const T *>(a->in[0].data), static_cast<const int64_t *>(a->in[1].data),
                  call_data<const float>(op_optional(a->in, a->n_in, 2)), static_cast<X *>(a->out[0].data),
                  call_data<float>(op_optional(a->out, a->n_out, 1)), (int)width, (int)a->in[1].shape[1],
                  row_groups_of(a->rows, a->in[0].shape[0]), static_cast<moe_fault *>(a->fault));
    return cuda_launched(MOE_OP_UNPERMUTE, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_unpermute(a, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_UNPERMUTE, a->in[0].shape[1], "columns", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_UNPERMUTE, a->in[1].shape[0], "tokens", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_UNPERMUTE, a->in[1].shape[1], "slots of a token", err);
    return op_sizes_none(s, saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[1].shape[0] == 0) return MOE_OK;
    const bool packs = call_packs(a->in[0].dtype, a->in[0].shape[1], call_at(&a->in[0]) | call_at(&a->out[0]));
    if (a->in[0].dtype == MOE_F32) return packs ? run<float, float, 4>(a, err) : run<float, float, 1>(a, err);
    if (a->out[0].dtype == MOE_F32) return packs ? run<bf16, float, 8>(a, err) : run<bf16, float, 1>(a, err);
    return packs ? run<bf16, bf16, 8>(a, err) : run<bf16, bf16, 1>(a, err);
}

}  // namespace

extern const moe_op cuda_op_unpermute = {sizeof(moe_op), 0, MOE_OP_UNPERMUTE, sizes, forward, nullptr};
