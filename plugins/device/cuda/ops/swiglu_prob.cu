/* moe.swiglu_prob/0: a block a row, which ends at once past the last offset; padding rows are cleared. Memory in BF16,
 * bytes an element of a: forward 6, backward 10 (da and both halves of z read once, dz written over z). */
#include "call.cuh"
#include "gate.cuh"
#include "reduce.cuh"
#include "rows.cuh"

namespace {

struct gate_shape {
    int width; /* f */
    float alpha, limit;
    row_groups rows;
};

/* What the formula needs of an element: up is what takes part of it, slope the derivative of swish by the gate, s (1 +
 * alpha gate (1 - s)) with s = sigmoid(alpha gate). Both are 0 in what was cut, for its own gradient. */
struct gate_part {
    float up, swish, slope, up_slope;
};

template <bool CUT>
__device__ __forceinline__ gate_part gate_of(float gate, float up, const gate_shape &s) {
    if constexpr (!CUT) {
        const float sigmoid = gate_sigmoid(gate);
        return {up, gate * sigmoid, sigmoid * (1.0f + gate * (1.0f - sigmoid)), 1.0f};
    }
    const bool gate_cut = gate > s.limit, up_cut = up > s.limit || up < -s.limit; /* a NaN is not cut */
    const float g = gate_cut ? s.limit : gate, u = up > s.limit ? s.limit : up < -s.limit ? -s.limit : up;
    const float sigmoid = gate_sigmoid(s.alpha * g);
    return {u + 1.0f, g * sigmoid, gate_cut ? 0.0f : sigmoid * (1.0f + s.alpha * g * (1.0f - sigmoid)),
            up_cut ? 0.0f : 1.0f};
}

template <class T, int P, bool CUT>
__global__ void __launch_bounds__(ROW_THREADS) activate(const T *__restrict__ z, const float *__restrict__ prob,
                                                        T *__restrict__ a, gate_shape s, moe_fault *fault) {
    const int64_t row = blockIdx.x;
    int group;
    if (row == 0) rows_check(s.rows, fault);
    if (row >= rows_end(s.rows)) return;
    const bool valid = rows_valid(s.rows, row, &group);
    const float p = prob && valid ? prob[row] : 1.0f;
    z += row * 2 * s.width;
    a += row * s.width;
    for (int i = threadIdx.x * P; i < s.width; i += blockDim.x * P) {
        float gate[P], up[P], v[P] = {};
        if (valid) {
            act_read<P>(z + i, gate);
            act_read<P>(z + s.width + i, up);
#pragma unroll
            for (int j = 0; j < P; j++) {
                const gate_part g = gate_of<CUT>(gate[j], up[j], s);
                v[j] = p * (g.swish * g.up);
            }
        }
        act_write<P>(a + i, v);
    }
}

/* dz may lie over z: a thread reads and writes its own elements. */
template <class T, int P, bool CUT>
__global__ void __launch_bounds__(ROW_THREADS)
    activate_backward(const T *__restrict__ da, const T *z, const float *__restrict__ prob, T *dz,
                      float *__restrict__ dp, gate_shape s, moe_fault *fault) {
    KERNEL_SHARED(block_room<float>, room);
    const int64_t row = blockIdx.x;
    int group;
    if (row == 0) rows_check(s.rows, fault);
    if (row >= rows_end(s.rows)) return;
    const bool valid = rows_valid(s.rows, row, &group);
    const float p = prob && valid ? prob[row] : 1.0f;
    z += row * 2 * s.width;
    dz += row * 2 * s.width;
    da += row * s.width;
    float dot = 0;
    for (int i = threadIdx.x * P; i < s.width; i += blockDim.x * P) {
        float gate[P] = {}, up[P] = {}, d[P];
        if (valid) {
            act_read<P>(z + i, gate);
            act_read<P>(z + s.width + i, up);
            act_read<P>(da + i, d);
#pragma unroll
            for (int j = 0; j < P; j++) {
                const gate_part g = gate_of<CUT>(gate[j], up[j], s);
                dot += d[j] * g.swish * g.up;
                gate[j] = p * d[j] * g.up * g.slope;
                up[j] = p * d[j] * g.swish;
                if (CUT && g.up_slope == 0.0f) up[j] = 0.0f;
                if (CUT && g.slope == 0.0f) gate[j] = 0.0f;
            }
        }
        act_write<P>(dz + i, gate);
        act_write<P>(dz + s.width + i, up);
    }
    if (!dp) return;
    dot = block_sum(dot, room);
    if (threadIdx.x == 0) dp[row] = dot;
}

gate_shape shape_of(const moe_op_args *a, const moe_tensor *z) {
    const moe_swiglu_attr at = op_swiglu_attr(a);
    return {(int)(z->shape[1] / 2), at.alpha, at.limit, row_groups_of(a->rows, z->shape[0])};
}

template <class T, int P>
moe_status run(const moe_op_args *a, moe_err *err) {
    const gate_shape s = shape_of(a, &a->in[0]);
    const unsigned blocks = cuda_blocks(a->in[0].shape[0], 1), threads = row_threads(s.width / P);
    const T *z = static_cast<const T *>(a->in[0].data);
    const float *p = call_data<const float>(op_optional(a->in, a->n_in, 1));
    T *out = static_cast<T *>(a->out[0].data);
    moe_fault *fault = static_cast<moe_fault *>(a->fault);
    if (s.limit > 0.0f)
        KERNEL_LAUNCH((activate<T, P, true>), blocks, threads, 0, cuda_stream(a), z, p, out, s, fault);
    else
        KERNEL_LAUNCH((activate<T, P, false>), blocks, threads, 0, cuda_stream(a), z, p, out, s, fault);
    return cuda_launched(MOE_OP_SWIGLU_PROB, err);
}

template <class T, int P>
moe_status run_backward(const moe_op_args *a, moe_err *err) {
    const gate_shape s = shape_of(a, &a->in[1]);
    const unsigned blocks = cuda_blocks(a->in[1].shape[0], 1), threads = row_threads(s.width / P);
    const T *da = static_cast<const T *>(a->in[0].data), *z = static_cast<const T *>(a->in[1].data);
    const float *p = call_data<const float>(op_optional(a->in, a->n_in, 2));
    T *dz = static_cast<T *>(a->out[0].data);
    float *dp = call_data<float>(op_optional(a->out, a->n_out, 1));
    moe_fault *fault = static_cast<moe_fault *>(a->fault);
    if (s.limit > 0.0f)
        KERNEL_LAUNCH((activate_backward<T, P, true>), blocks, threads, 0, cuda_stream(a), da, z, p, dz, dp, s, fault);
    else
        KERNEL_LAUNCH((activate_backward<T, P, false>), blocks, threads, 0, cuda_stream(a), da, z, p, dz, dp, s, fault);
    return cuda_launched(MOE_OP_SWIGLU_PROB, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_swiglu_prob(a, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_SWIGLU_PROB, a->in[0].shape[1], "columns", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_SWIGLU_PROB, a->in[0].shape[0], "rows", err);
    return op_sizes_none(s, saved, workspace);
}

/* Without rows in expert order there is nothing to check in no rows. */
bool idle(const moe_op_args *a, const moe_tensor *z) {
    return !a->rows && z->shape[0] == 0;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (idle(a, &a->in[0])) return MOE_OK;
    const bool packs = call_packs(a->in[0].dtype, a->in[0].shape[1] / 2, call_at(&a->in[0]) | call_at(&a->out[0]));
    return CALL_ACT(run, a->in[0].dtype, packs, a, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = op_check_swiglu_prob_backward(a, err);
    if (s != MOE_OK || idle(a, &a->in[1])) return s;
    const bool packs = call_packs(a->in[1].dtype, a->in[1].shape[1] / 2,
                                  call_at(&a->in[0]) | call_at(&a->in[1]) | call_at(&a->out[0]));
    return CALL_ACT(run_backward, a->in[1].dtype, packs, a, err);
}

}  // namespace

extern const moe_op cuda_op_swiglu_prob = {sizeof(moe_op), 0, MOE_OP_SWIGLU_PROB, sizes, forward, backward};
