/* moe.mla_pack/0: a block a token, a warp a head. Memory: every element is read and written once, in 16-byte units
 * where the parts of a head allow it (4 bytes an element in BF16); k_rope is written once a head. */
#include "call.cuh"
#include "reduce.cuh"

namespace {

/* In units of a copy. */
struct pack_shape {
    int heads, nope, rope, v;
};

template <class U>
__device__ __forceinline__ void warp_copy(U *__restrict__ to, const U *__restrict__ from, int n) {
    for (int i = threadIdx.x % WARP; i < n; i += WARP) to[i] = from[i];
}

template <class U>
__global__ void __launch_bounds__(ROW_THREADS) pack(const U *__restrict__ q, const U *__restrict__ kv,
                                                    const U *__restrict__ k_rope, U *__restrict__ qkv, pack_shape s) {
    const int64_t t = blockIdx.x;
    const int key = s.nope + s.rope, all = s.heads * key; /* all: of queries, or of keys */
    U *row = qkv + t * (2 * all + s.heads * s.v);
    row_copy(row, q + t * all, all);
    for (int j = threadIdx.x / WARP; j < s.heads; j += ROW_THREADS / WARP) {
        const U *from = kv + (t * s.heads + j) * (s.nope + s.v);
        warp_copy(row + all + j * key, from, s.nope);
        warp_copy(row + all + j * key + s.nope, k_rope + t * s.rope, s.rope);
        warp_copy(row + 2 * all + j * s.v, from + s.nope, s.v);
    }
}

template <class U>
__global__ void __launch_bounds__(ROW_THREADS)
    unpack(const U *__restrict__ dqkv, U *__restrict__ dq, U *__restrict__ dkv, pack_shape s) {
    const int64_t t = blockIdx.x;
    const int key = s.nope + s.rope, all = s.heads * key;
    const U *row = dqkv + t * (2 * all + s.heads * s.v);
    row_copy(dq + t * all, row, all);
    for (int j = threadIdx.x / WARP; j < s.heads; j += ROW_THREADS / WARP) {
        U *to = dkv + (t * s.heads + j) * (s.nope + s.v);
        warp_copy(to, row + all + j * key, s.nope);
        warp_copy(to + s.nope, row + 2 * all + j * s.v, s.v);
    }
}

/* dk_rope: thread an element pack, over the heads in order. In elements. */
template <class T, int P>
__global__ void __launch_bounds__(ROW_THREADS)
    sum_rope(const T *__restrict__ dqkv, T *__restrict__ dk_rope, pack_shape s, int64_t packs) {
    const int64_t at = blockIdx.x * (int64_t)ROW_THREADS + threadIdx.x;
    if (at >= packs) return;
    const int64_t t = quick_divide(at, (unsigned)(s.rope / P)), key = s.nope + s.rope, all = s.heads * key;
    const int i = (int)(at - t * (s.rope / P)) * P;
    const T *from = dqkv + t * (2 * all + s.heads * s.v) + all + s.nope + i;
    float sum[P] = {};
#pragma unroll 8
    for (int j = 0; j < s.heads; j++) {
        float v[P];
        act_read<P>(from + j * key, v);
#pragma unroll
        for (int e = 0; e < P; e++) sum[e] += v[e];
    }
    act_write<P>(dk_rope + t * s.rope + i, sum);
}

pack_shape shape_of(const moe_op_args *a, int64_t unit) {
    const moe_mla_pack_attr *at = static_cast<const moe_mla_pack_attr *>(a->attr);
    return {(int)at->heads, (int)(at->nope / unit), (int)(at->rope / unit), (int)(at->v_dim / unit)};
}

/* qkv, and q, kv, k_rope, which lie side by side in a list. */
bool packs_of(const moe_op_args *a, const moe_tensor *qkv, const moe_tensor *three) {
    const pack_shape s = shape_of(a, 1);
    const uintptr_t at = call_at(qkv) | call_at(&three[0]) | call_at(&three[1]) | call_at(&three[2]);
    return call_packs(qkv->dtype, s.nope | s.rope | s.v, at);
}

template <class U>
moe_status run(const moe_op_args *a, moe_err *err) {
    const pack_shape s = shape_of(a, (int64_t)sizeof(U) / op_act_bytes(a->in[0].dtype));
    KERNEL_LAUNCH(pack<U>, cuda_blocks(a->in[0].shape[0], 1), ROW_THREADS, 0, cuda_stream(a),
                  static_cast<const U *>(a->in[0].data), static_cast<const U *>(a->in[1].data),
                  static_cast<const U *>(a->in[2].data), static_cast<U *>(a->out[0].data), s);
    return cuda_launched(MOE_OP_MLA_PACK, err);
}

template <class U>
moe_status run_unpack(const moe_op_args *a, moe_err *err) {
    const pack_shape s = shape_of(a, (int64_t)sizeof(U) / op_act_bytes(a->in[0].dtype));
    KERNEL_LAUNCH(unpack<U>, cuda_blocks(a->in[0].shape[0], 1), ROW_THREADS, 0, cuda_stream(a),
                  static_cast<const U *>(a->in[0].data), static_cast<U *>(a->out[0].data),
                  static_cast<U *>(a->out[1].data), s);
    return cuda_launched(MOE_OP_MLA_PACK, err);
}

template <class T, int P>
moe_status run_sum(const moe_op_args *a, moe_err *err) {
    const pack_shape s = shape_of(a, 1);
    const int64_t packs = a->in[0].shape[0] * (s.rope / P);
    KERNEL_LAUNCH((sum_rope<T, P>), cuda_blocks(packs, ROW_THREADS), ROW_THREADS, 0, cuda_stream(a),
                  static_cast<const T *>(a->in[0].data), static_cast<T *>(a->out[2].data), s, packs);
    return cuda_launched(MOE_OP_MLA_PACK, err);
}

/* Rows and widths that the kernels count with int. qkv: the packed rows. */
moe_status check_sizes(const moe_tensor *qkv, moe_err *err) {
    const moe_status s = cuda_want_int(MOE_OP_MLA_PACK, qkv->shape[1], "columns", err);
    return s == MOE_OK ? cuda_want_int(MOE_OP_MLA_PACK, qkv->shape[0], "tokens", err) : s;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_mla_pack(a, err);
    if (s == MOE_OK) s = check_sizes(&a->out[0], err);
    return op_sizes_none(s, saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    return CALL_COPY(run, a->in[0].dtype, packs_of(a, &a->out[0], a->in), a, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_mla_pack_backward(a, err);
    if (s == MOE_OK) s = check_sizes(&a->in[0], err);
    if (s != MOE_OK || a->in[0].shape[0] == 0) return s;
    const bool packs = packs_of(a, &a->in[0], a->out);
    s = CALL_COPY(run_unpack, a->in[0].dtype, packs, a, err);
    return s == MOE_OK ? CALL_ACT(run_sum, a->in[0].dtype, packs, a, err) : s;
}

}  // namespace

extern const moe_op cuda_op_mla_pack = {sizeof(moe_op), 0, MOE_OP_MLA_PACK, sizes, forward, backward};
