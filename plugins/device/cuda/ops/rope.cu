/* moe.rope/0: a block a token. Its sines and cosines are made once, in shared memory, and used by all its heads; a
 * head's pairs are shared by the lanes of a part of a warp. Memory: what turns is read and written once, 4 bytes an
 * element in BF16; other elements are not touched (where the output is another buffer, they are copied before). */
#include "call.cuh"

namespace {

const int64_t MOST_ROTARY = 8192; /* elements: sine and cosine of a token in 32 KiB of shared memory */

struct rope_shape {
    int64_t width;
    int heads, dim, first, half, lanes; /* heads: of queries and keys; lanes: of a head, a power of two up to 32 */
    float cosine_factor, sine_factor;   /* amplitude; the sine's is negative in backward */
};

/* Pairs [i, i + P) of a head that begins at p: of two runs of elements, or, NEIGHBOURS, of one. */
template <class T, int P, bool NEIGHBOURS>
__device__ __forceinline__ void turn_pairs(T *p, int i, int half, const float *cosine, const float *sine) {
    if constexpr (NEIGHBOURS && P > 1) { /* a pack holds P / 2 pairs: two packs */
        float v[2 * P];
        T *at = p + 2 * i;
        act_read<P>(at, v);
        act_read<P>(at + P, v + P);
#pragma unroll
        for (int j = 0; j < P; j++) {
            const float x = v[2 * j], y = v[2 * j + 1], c = cosine[i + j], s = sine[i + j];
            v[2 * j] = x * c - y * s;
            v[2 * j + 1] = y * c + x * s;
        }
        act_write<P>(at, v);
        act_write<P>(at + P, v + P);
    } else {
        T *lo = p + (NEIGHBOURS ? 2 * i : i), *hi = lo + (NEIGHBOURS ? 1 : half);
        float x[P], y[P];
        act_read<P>(lo, x);
        act_read<P>(hi, y);
#pragma unroll
        for (int j = 0; j < P; j++) {
            const float a = x[j], b = y[j], c = cosine[i + j], s = sine[i + j];
            x[j] = a * c - b * s;
            y[j] = b * c + a * s;
        }
        act_write<P>(lo, x);
        act_write<P>(hi, y);
    }
}

template <class T, int P, bool NEIGHBOURS>
__global__ void __launch_bounds__(ROW_THREADS)
    turn(T *qkv, const int32_t *__restrict__ pos, const float *__restrict__ freq, rope_shape s) {
    KERNEL_DYNAMIC(float, cosine); /* [half], then the sines */
    float *sine = cosine + s.half;
    T *row = qkv + blockIdx.x * s.width + s.first;
    const float at = (float)pos[blockIdx.x];
    for (int i = threadIdx.x; i < s.half; i += blockDim.x) {
        float sin, cos;
        sincosf(at * freq[i], &sin, &cos);
        sine[i] = sin * s.sine_factor;
        cosine[i] = cos * s.cosine_factor;
    }
    __syncthreads();
    const int lane = threadIdx.x & (s.lanes - 1);
    for (int head = threadIdx.x / (unsigned)s.lanes; head < s.heads; head += blockDim.x / (unsigned)s.lanes)
        for (int i = lane * P; i < s.half; i += s.lanes * P)
            turn_pairs<T, P, NEIGHBOURS>(row + (int64_t)head * s.dim, i, s.half, cosine, sine);
}

template <class T, int P>
moe_status launch(const moe_op_args *a, const rope_shape &shape, bool neighbours, moe_err *err) {
    rope_shape s = shape;
    for (s.lanes = 1; s.lanes < 32 && s.lanes * P < s.half;) s.lanes *= 2;
    const unsigned threads = row_threads((int64_t)s.heads * s.lanes), blocks = cuda_blocks(a->in[0].shape[0], 1);
    const size_t room = 2 * (size_t)s.half * sizeof(float);
    T *qkv = static_cast<T *>(a->out[0].data);
    const int32_t *pos = static_cast<const int32_t *>(a->in[1].data);
    const float *freq = static_cast<const float *>(a->in[2].data);
    if (neighbours)
        KERNEL_LAUNCH((turn<T, P, true>), blocks, threads, room, cuda_stream(a), qkv, pos, freq, s);
    else
        KERNEL_LAUNCH((turn<T, P, false>), blocks, threads, room, cuda_stream(a), qkv, pos, freq, s);
    return cuda_launched(MOE_OP_ROPE, err);
}

moe_status run(const moe_op_args *a, float sign, moe_err *err) {
    const moe_attention_attr at = op_heads_attr(a);
    const int32_t act = a->in[0].dtype;
    const int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1], bytes = rows * width * op_act_bytes(act);
    if (bytes > 0 && a->in[0].data != a->out[0].data) {
        const moe_status s = cuda_status(
            cudaMemcpyAsync(a->out[0].data, a->in[0].data, (size_t)bytes, cudaMemcpyDefault, cuda_stream(a)),
            MOE_OP_ROPE, err);
        if (s != MOE_OK) return s;
    }
    if (bytes == 0 || at.rotary_dim == 0) return MOE_OK;
    const int half = (int)at.rotary_dim / 2;
    const rope_shape shape = {width,
                              (int)(at.heads + at.kv_heads),
                              (int)at.head_dim,
                              (int)at.rotary_first,
                              half,
                              1,
                              at.amplitude,
                              sign * at.amplitude};
    const bool packs = call_packs(act, width | shape.dim | shape.first | half, call_at(&a->out[0]));
    return CALL_ACT(launch, act, packs, a, shape, at.interleaved != 0, err);
}

moe_status check(const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_rope(a, MOST_ROTARY, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_ROPE, a->in[0].shape[1], "columns", err);
    return s == MOE_OK ? cuda_want_int(MOE_OP_ROPE, a->in[0].shape[0], "tokens", err) : s;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(check(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    return run(a, 1.0f, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = check(a, err);
    return s == MOE_OK ? run(a, -1.0f, err) : s;
}

}  // namespace

extern const moe_op cuda_op_rope = {sizeof(moe_op), 0, MOE_OP_ROPE, sizes, forward, backward};
