/* moe.embed/0. Forward: a block a token. Memory: a row read and written, 4 bytes an element in BF16.
 * Backward: the tokens are sorted by word (sort.cuh, eight bits of the word a time, stable), then a block a word that
 * occurs, and a strip of its columns, adds its tokens in order: the bits are those of a loop over the tokens. Memory:
 * dx read once, a row of dtable read and written for each word that occurs; the sort moves 8 bytes a token three or
 * four times. A word that is most of the tokens is one long chain for its blocks. */
#include "call.cuh"
#include "sort.cuh"

namespace {

enum { THREADS = 128, AHEAD = 4 }; /* of backward; tokens of a word that are fetched together */

/* Words [first, first + rows) of `whole` are in the table. */
struct words {
    int64_t first, rows, whole;
    __device__ bool is_word(int32_t id) const { return id >= 0 && id < whole; }
    /* Its row of the table, or -1. */
    __device__ int64_t row(int32_t id) const {
        const int64_t row = id - first;
        return is_word(id) && row >= 0 && row < rows ? row : -1;
    }
};

template <class U>
__global__ void __launch_bounds__(ROW_THREADS) look_up(const int32_t *__restrict__ ids, const U *__restrict__ table,
                                                       U *__restrict__ x, words w, int width, moe_fault *fault) {
    const int64_t token = blockIdx.x, row = w.row(ids[token]);
    if (threadIdx.x == 0 && !w.is_word(ids[token])) fault_set(fault, MOE_E_DATA, token, ids[token]);
    row_copy(x + token * width, row < 0 ? nullptr : table + row * width, width);
}

/* ---- backward ---- */
struct item {
    unsigned row, token; /* row: of the table; `rows` where it has none, which comes last */
};

struct digit_keys {
    const item *from;
    item *to;
    int shift;
    __device__ int bin(int64_t, int i) const { return (int)(from[i].row >> shift & 255u); }
    __device__ void check(int64_t, int) const {}
    __device__ void place(int64_t, int i, int64_t at) const { to[at] = from[i]; }
};

__global__ void __launch_bounds__(THREADS)
    list_tokens(const int32_t *__restrict__ ids, item *__restrict__ items, words w, int tokens, moe_fault *fault) {
    const int t = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (t >= tokens) return;
    const int64_t row = w.row(ids[t]);
    if (!w.is_word(ids[t])) fault_set(fault, MOE_E_DATA, t, ids[t]);
    items[t] = item{(unsigned)(row < 0 ? w.rows : row), (unsigned)t};
}

/* A block an item and strip of THREADS P columns; only the first item of a row goes on. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS)
    add_tokens(const item *__restrict__ items, const T *__restrict__ dx, float *__restrict__ dtable, int tokens,
               unsigned rows, int width) {
    const int first = (int)blockIdx.x, i = (int)(blockIdx.y * THREADS + threadIdx.x) * P;
    const unsigned row = items[first].row;
    if (row == rows || (first > 0 && items[first - 1].row == row) || i >= width) return;
    float sum[P];
    float *d = dtable + (int64_t)row * width + i;
    act_floats<P>(d, sum);
    for (int at = first; at < tokens && items[at].row == row; at += AHEAD) {
        float v[AHEAD][P];
        int n = 0;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (at + j < tokens && items[at + j].row == row) {
                act_read<P>(dx + (int64_t)items[at + j].token * width + i, v[j]);
                n = j + 1;
            }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (j < n)
#pragma unroll
                for (int e = 0; e < P; e++) sum[e] += v[j][e];
    }
    act_put_floats<P>(d, sum);
}

/* Parts of the workspace, in bytes; in backward alone. */
struct parts {
    uint64_t items[2], offsets, count, end;
};
parts parts_of(int64_t tokens) {
    parts p = {};
    p.items[1] = (uint64_t)tokens * sizeof(item);
    p.offsets = 2 * p.items[1];
    p.count = p.offsets + 257 * sizeof(int64_t);
    p.end = p.count + (uint64_t)sort_counters(sort_plan_of(1, tokens, 256)) * sizeof(unsigned);
    return p;
}

words words_of(const moe_op_args *a, int64_t rows) {
    const moe_vocabulary_attr *part = static_cast<const moe_vocabulary_attr *>(a->attr);
    return part ? words{part->first, rows, part->whole} : words{0, rows, rows};
}

template <class U>
moe_status run(const moe_op_args *a, moe_err *err) {
    const int64_t width = a->in[1].shape[1] * op_act_bytes(a->in[1].dtype) / (int64_t)sizeof(U);
    KERNEL_LAUNCH(look_up<U>, cuda_blocks(a->in[0].shape[0], 1), row_threads(width), 0, cuda_stream(a),
                  static_cast<const int32_t *>(a->in[0].data), static_cast<const U *>(a->in[1].data),
                  static_cast<U *>(a->out[0].data), words_of(a, a->in[1].shape[0]), (int)width,
                  static_cast<moe_fault *>(a->fault));
    return cuda_launched(MOE_OP_EMBED, err);
}

/* Returns the items in order of their rows, and of tokens inside. */
const item *sort_tokens(const moe_op_args *a, const words &w) {
    const int64_t tokens = a->in[0].shape[0];
    const parts p = parts_of(tokens);
    char *room = static_cast<char *>(a->workspace);
    item *items[2] = {reinterpret_cast<item *>(room), reinterpret_cast<item *>(room + p.items[1])};
    KERNEL_LAUNCH(list_tokens, cuda_blocks(tokens, THREADS), THREADS, 0, cuda_stream(a),
                  static_cast<const int32_t *>(a->in[0].data), items[0], w, (int)tokens,
                  static_cast<moe_fault *>(a->fault));
    int now = 0;
    for (int shift = 0; shift < 32 && w.rows >> shift; shift += 8, now = 1 - now)
        sort_run(digit_keys{items[now], items[1 - now], shift}, sort_plan_of(1, tokens, 256),
                 sort_layout{0, 1, INT64_MAX}, reinterpret_cast<unsigned *>(room + p.count),
                 reinterpret_cast<int64_t *>(room + p.offsets), nullptr, nullptr, nullptr, cuda_stream(a));
    return items[now];
}

template <class T, int P>
moe_status run_backward(const moe_op_args *a, moe_err *err) {
    const int64_t tokens = a->in[0].shape[0], rows = a->out[0].shape[0], width = a->out[0].shape[1];
    const item *items = sort_tokens(a, words_of(a, rows));
    KERNEL_LAUNCH((add_tokens<T, P>), dim3(cuda_blocks(tokens, 1), cuda_blocks(width, THREADS * P)), THREADS, 0,
                  cuda_stream(a), items, static_cast<const T *>(a->in[1].data), static_cast<float *>(a->out[0].data),
                  (int)tokens, (unsigned)rows, (int)width);
    return cuda_launched(MOE_OP_EMBED, err);
}

moe_status check_sizes(int64_t tokens, int64_t rows, int64_t width, moe_err *err) {
    moe_status s = sort_want(MOE_OP_EMBED, tokens, "tokens", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_EMBED, rows, "words", err);
    return s == MOE_OK ? cuda_want_int(MOE_OP_EMBED, width, "columns", err) : s;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_embed(a, err);
    if (s == MOE_OK) s = check_sizes(a->in[0].shape[0], a->in[1].shape[0], a->in[1].shape[1], err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = parts_of(a->in[0].shape[0]).end;
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (a->in[0].shape[0] == 0) return MOE_OK;
    const bool packs = call_packs(a->in[1].dtype, a->in[1].shape[1], call_at(&a->in[1]) | call_at(&a->out[0]));
    return CALL_COPY(run, a->in[1].dtype, packs, a, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_embed_backward(a, err);
    if (s == MOE_OK) s = check_sizes(a->in[0].shape[0], a->out[0].shape[0], a->out[0].shape[1], err);
    if (s != MOE_OK || a->in[0].shape[0] == 0) return s;
    const bool packs = call_packs(a->in[1].dtype, a->out[0].shape[1], call_at(&a->in[1]) | call_at(&a->out[0]));
    return CALL_ACT(run_backward, a->in[1].dtype, packs, a, err);
}

}  // namespace

extern const moe_op cuda_op_embed = {sizeof(moe_op), 0, MOE_OP_EMBED, sizes, forward, backward};
