/* moe.attention/0: the record, and the small kernels around the large ones. See attention.cuh. */
#include "attention.cuh"
#include "reduce.cuh"

namespace {

enum { THREADS = 256, PART = 64, LANES = 16, MOST_SEQ = 1 << 30 }; /* PART: queries of a block of `dots` */
const double LOG2_E = 1.4426950408889634;

/* ranges [batch,runs] = least and largest number of each run of tokens. A warp a run. */
__global__ void __launch_bounds__(THREADS) find_ranges(const attention_call c) {
    const int64_t run = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / WARP;
    if (run >= (int64_t)c.batch * c.runs) return;
    const int at = (int)(run % c.runs) * ATTENTION_RUN + (int)threadIdx.x % WARP;
    const int32_t number = at < c.seq ? c.doc[run / c.runs * c.seq + at] : ATTENTION_PADDING;
    const bool padding = number == ATTENTION_PADDING;
    int32_t lo = padding ? INT32_MAX : number, hi = padding ? INT32_MIN : number;
    lo = -1 - warp_max(-1 - lo); /* -1 - x turns the order round and never overflows */
    hi = warp_max(hi);
    const int some = __any_sync(0xffffffffu, padding && at < c.seq);
    if (threadIdx.x % WARP == 0) c.ranges[run] = attention_range{lo, hi, some, 0};
}

/* The row's sum of grad x o over the elements of `width`, on each of LANES lanes. */
template <class T, int P>
__device__ __forceinline__ float row_dot(const T *grad, const T *o, int width) {
    float sum = 0;
    for (int e = (int)threadIdx.x % LANES * P; e < width; e += LANES * P) {
        float a[P], b[P];
        if constexpr (P == 1) {
            a[0] = act_get(grad + e);
            b[0] = act_get(o + e);
        } else {
            act_load(grad + e, a);
            act_load(o + e, b);
        }
#pragma unroll
        for (int i = 0; i < P; i++) sum += a[i] * b[i];
    }
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    return sum;
}

/* dot [batch,heads,seq] = rowsum(do o), 0 for padding; and each block's part of dsinks = -sum of
 * e^(sink - lse) dot: the sink is a score whose value is 0, so that its dp is 0. A block takes PART queries of one
 * head, LANES lanes a query. Bytes: do and o once. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS) dots(const attention_call c) {
    KERNEL_SHARED(block_room<float>, room);
    const int slices = c.batch * c.heads, slice = (int)blockIdx.x % slices, part = (int)blockIdx.x / slices;
    const int sequence = slice / c.heads, head = slice % c.heads;
    const T *grad = static_cast<const T *>(c.grad_o), *o = static_cast<const T *>(c.o);
    float sink = 0;
    for (int i = (int)threadIdx.x / LANES; i < PART; i += THREADS / LANES) {
        const int at = part * PART + i;
        const int64_t token = (int64_t)sequence * c.seq + at, row = (int64_t)slice * c.seq + at;
        const bool there = at < c.seq && !(c.doc && c.doc[token] == ATTENTION_PADDING);
        const int64_t from = there ? token * c.o_width + (int64_t)head * c.v_dim : 0;
        const float dot = row_dot<T, P>(grad + from, o + from, there ? c.v_dim : 0);
        if ((int)threadIdx.x % LANES || at >= c.seq) continue;
        c.dot[row] = dot;
        if (c.dsinks && there) sink -= exp2f(c.sinks[head] * (float)LOG2_E - c.lse[row]) * dot;
    }
    if (!c.dsinks) return;
    sink = block_sum(sink, room);
    if (threadIdx.x == 0) c.sink_parts[((int64_t)head * c.batch + sequence) * c.parts + part] = sink;
}

/* dsinks [heads] += the parts, in a fixed order. A block a head. */
__global__ void __launch_bounds__(THREADS) add_sinks(const attention_call c) {
    KERNEL_SHARED(block_room<float>, room);
    const int64_t n = (int64_t)c.batch * c.parts;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) sum += c.sink_parts[blockIdx.x * n + i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) c.dsinks[blockIdx.x] += sum;
}

/* ---- host ---- */
uint64_t lse_bytes(const moe_attention_attr *at) { /* what follows begins at a multiple of 16 */
    return ((uint64_t)at->batch * (uint64_t)at->seq * at->heads + 3) / 4 * 4 * sizeof(float);
}

/* What both directions take from the arguments. optional: where sinks and doc are in the list. */
attention_call take(const moe_op_args *a, const moe_tensor *qkv, uint32_t optional) {
    const moe_attention_attr at = op_heads_attr(a);
    const moe_tensor *sinks = op_optional(a->in, a->n_in, optional), *doc = op_optional(a->in, a->n_in, optional + 1);
    attention_call c = {};
    c.qkv = qkv->data;
    c.sinks = sinks ? static_cast<const float *>(sinks->data) : nullptr;
    c.doc = doc ? static_cast<const int32_t *>(doc->data) : nullptr;
    c.lse = static_cast<float *>(a->saved);
    c.ranges = doc ? reinterpret_cast<attention_range *>(static_cast<char *>(a->saved) + lse_bytes(&at)) : nullptr;
    c.width = op_heads_width(&at);
    c.o_width = (int64_t)at.heads * at.v_dim;
    c.batch = (int)at.batch;
    c.seq = (int)at.seq;
    c.heads = (int)at.heads;
    c.kv_heads = (int)at.kv_heads;
    c.dim = (int)at.head_dim;
    c.v_dim = (int)at.v_dim;
    c.window = at.window > 0 && at.window < at.seq ? (int)at.window : c.seq;
    c.runs = (c.seq + ATTENTION_RUN - 1) / ATTENTION_RUN;
    c.parts = (c.seq + PART - 1) / PART;
    c.scale = at.scale;
    c.scale2 = (float)((double)at.scale * LOG2_E);
    c.masked = at.scale > 0 ? -INFINITY : INFINITY;
    return c;
}

/* Do heads of these tensors begin at multiples of 16 bytes? */
bool packs(const attention_call &c, int32_t dtype) {
    const uintptr_t all = (uintptr_t)c.qkv | (uintptr_t)c.o | (uintptr_t)c.grad_o | (uintptr_t)c.dqkv;
    const int each = dtype == MOE_F32 ? ACT_PACK<float> : ACT_PACK<bf16>;
    return all % 16 == 0 && c.dim % each == 0 && c.v_dim % each == 0;
}

/* Positions are int, and so are the numbers of blocks. */
moe_status check_size(const moe_attention_attr *at, moe_err *err) {
    if (at->seq > MOST_SEQ)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: seq is %lld, want at most %d", MOE_OP_ATTENTION,
                        (long long)at->seq, MOST_SEQ);
    int64_t blocks;
    if (__builtin_mul_overflow(at->batch, (int64_t)at->heads * ((at->seq + 31) / 32), &blocks) || blocks > INT32_MAX)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: batch %lld, seq %lld and %u heads are more than 2^31 blocks",
                        MOE_OP_ATTENTION, (long long)at->batch, (long long)at->seq, at->heads);
    return MOE_OK;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_attention(a, ATTENTION_MOST_DIM, err);
    if (s != MOE_OK) return s;
    const moe_attention_attr at = op_heads_attr(a);
    s = check_size(&at, err);
    if (s != MOE_OK) return s;
    const attention_call c = take(a, &a->in[0], 1);
    const uint64_t batch = (uint64_t)c.batch, heads = (uint64_t)c.heads;
    *saved = lse_bytes(&at);
    if (op_optional(a->in, a->n_in, 2)) *saved += batch * (uint64_t)c.runs * sizeof(attention_range);
    *workspace = lse_bytes(&at);
    if (op_optional(a->in, a->n_in, 1)) *workspace += heads * batch * (uint64_t)c.parts * sizeof(float);
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    attention_call c = take(a, &a->in[0], 1);
    c.o = a->out[0].data;
    c.packs = packs(c, a->in[0].dtype);
    if (c.doc)
        KERNEL_LAUNCH(find_ranges, cuda_blocks((int64_t)c.batch * c.runs, THREADS / WARP), THREADS, 0, cuda_stream(a),
                      c);
    attention_run_forward(c, a->in[0].dtype, cuda_stream(a));
    return cuda_launched(MOE_OP_ATTENTION, err);
}

void run_dots(const attention_call &c, int32_t dtype, cudaStream_t stream) {
    const unsigned blocks = (unsigned)(c.batch * c.heads * c.parts);
    if (dtype == MOE_F32 && c.packs)
        KERNEL_LAUNCH((dots<float, 4>), blocks, THREADS, 0, stream, c);
    else if (dtype == MOE_F32)
        KERNEL_LAUNCH((dots<float, 1>), blocks, THREADS, 0, stream, c);
    else if (c.packs)
        KERNEL_LAUNCH((dots<bf16, 8>), blocks, THREADS, 0, stream, c);
    else
        KERNEL_LAUNCH((dots<bf16, 1>), blocks, THREADS, 0, stream, c);
    if (c.dsinks) KERNEL_LAUNCH(add_sinks, (unsigned)c.heads, THREADS, 0, stream, c);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = op_check_attention_backward(a, ATTENTION_MOST_DIM, err);
    if (s != MOE_OK || a->in[1].shape[0] == 0) return s;
    const int32_t dtype = a->in[1].dtype;
    attention_call c = take(a, &a->in[1], 3);
    const moe_tensor *dsinks = op_optional(a->out, a->n_out, 1);
    c.grad_o = a->in[0].data;
    c.o = a->in[2].data;
    c.dqkv = a->out[0].data;
    c.dsinks = dsinks ? static_cast<float *>(dsinks->data) : nullptr;
    c.packs = packs(c, dtype);
    c.dot = static_cast<float *>(a->workspace);
    c.sink_parts = c.dot + lse_bytes(static_cast<const moe_attention_attr *>(a->attr)) / sizeof(float);
    run_dots(c, dtype, cuda_stream(a));
    attention_run_dkv(c, dtype, cuda_stream(a));
    attention_run_dq(c, dtype, cuda_stream(a));
    return cuda_launched(MOE_OP_ATTENTION, err);
}

}  // namespace

extern const moe_op cuda_op_attention = {sizeof(moe_op), 0, MOE_OP_ATTENTION, sizes, forward, backward};
