/* Rows of the operations that the memory limits: TB/s of their necessary bytes, and of the copy, which is the first
 * row. BF16; tensors are much larger than the caches of any GPU. Bytes are those of operands that have to be read and
 * those that have to be written, each once (cross-entropy: logits twice, as a row is larger than what a multiprocessor
 * holds); indices are counted, one number a row (1/rms, a probability) is not. */
#include <math.h>

#include "bench_router.h"

typedef struct sizes {
    int64_t tokens, hidden, flat; /* flat: elements of parameters */
} sizes;
static sizes sizes_of(const bench *b) {
    return (sizes){bench_size(b, 16384, 20), bench_size(b, 4096, 64), bench_size(b, 268435456, 5000)};
}
static moe_tensor rows_of(bench *b) {
    const sizes n = sizes_of(b);
    return bench_random(b, MOE_BF16, n.tokens, n.hidden, 0);
}
static double row_bytes(const bench *b) {
    const sizes n = sizes_of(b);
    return 2.0 * (double)n.tokens * (double)n.hidden;
}
static void time_op(bench *b, bench_call *c, int backward, double bytes) {
    bench_memory_figure(b, backward ? bench_backward : bench_forward, c, bytes);
}

/* ---- the copy that others are fractions of: the best of three ways ---- */
typedef struct plain_copy {
    bench *b;
    void *to, *from;
    uint64_t bytes;
} plain_copy;
static moe_status copy_plain(void *arg, moe_err *err) {
    const plain_copy *p = arg;
    return p->b->dev.table->copy(p->b->dev.self, p->b->dev.stream, p->to, p->from, p->bytes, err);
}

static void run_copy(bench *b, int arg) {
    (void)arg;
    const int64_t n = bench_size(b, 268435456, 4096);
    moe_tensor x = bench_tensor(b, MOE_F32, n, 0, 0), y = bench_tensor(b, MOE_F32, n, 0, 0);
    plain_copy plain = {b, y.data, x.data, bench_bytes(&x)};
    double best = 2.0 * (double)bench_bytes(&x) / bench_seconds(b, copy_plain, &plain);
    for (uint32_t streaming = 0; streaming < 2; streaming++) {
        const moe_copy_attr attr = {sizeof attr, streaming};
        bench_call c;
        if (!bench_op(b, &c, MOE_OP_COPY, &x, 1, &y, 1, &attr, NULL)) return;
        best = fmax(best, 2.0 * (double)bench_bytes(&x) / bench_seconds(b, bench_forward, &c));
    }
    b->copy = isnan(best) ? 0 : best;
    b->value = best * 1e-12;
    b->unit = "TB/s";
}

/* ---- router ---- */
static void run_router(bench *b, int backward) {
    const int64_t tokens = bench_size(b, 131072, 20);
    bench_router r;
    if (!bench_router_open(b, &r, tokens, bench_size(b, 64, 16), bench_size(b, 256, 16), 8)) return;
    const double choices = 8.0 * (double)tokens * 8, logits = 4.0 * (double)(tokens * r.experts); /* bytes */
    if (backward) {
        bench_once(b, bench_route, &r);
        bench_memory_figure(b, bench_route_back, &r, 2 * logits + choices + choices / 2);
    } else {
        bench_memory_figure(b, bench_route, &r, logits + choices);
    }
    bench_router_close(&r);
}

/* ---- rows to experts and back ---- */
typedef struct moved {
    int64_t tokens, hidden, rows;
    moe_tensor ids, slot_row, row_slot, offsets, counts;
    moe_rows order;
} moved;
enum { EXPERTS = 64, CHOICES = 8, ALIGN = 128 };
static const moe_expert_rows_attr sort = {sizeof sort, 0, EXPERTS, EXPERTS, ALIGN, 0};
static const moe_permute_attr permute = {sizeof permute, CHOICES};

static void make_ids(bench *b, moved *m) {
    int32_t *ids = bench_alloc(b, MOE_SPACE_HOST, (uint64_t)(m->tokens * CHOICES) * 4);
    for (int64_t t = 0; t < m->tokens; t++)
        for (int64_t j = 0, first = bench_draw((uint64_t)t, EXPERTS); j < CHOICES; j++)
            ids[t * CHOICES + j] = (int32_t)((first + j * (EXPERTS / CHOICES + 1)) % EXPERTS);
    bench_put(b, &m->ids, ids);
}

/* Sorted on the device; *c is the sort. */
static int make_order(bench *b, moved *m, bench_call *c, moe_tensor out[4]) {
    m->tokens = bench_size(b, 16384, 20);
    m->hidden = bench_size(b, 2048, 64);
    m->rows = m->tokens * CHOICES + EXPERTS * ALIGN;
    m->ids = bench_tensor(b, MOE_I32, m->tokens, CHOICES, 0);
    out[0] = m->slot_row = bench_tensor(b, MOE_I64, m->tokens, CHOICES, 0);
    out[1] = m->row_slot = bench_tensor(b, MOE_I64, m->rows, 0, 0);
    out[2] = m->offsets = bench_tensor(b, MOE_I64, EXPERTS + 1, 0, 0);
    out[3] = m->counts = bench_tensor(b, MOE_I64, EXPERTS, 0, 0);
    m->order = (moe_rows){sizeof m->order, EXPERTS, m->rows, m->offsets.data, m->counts.data, -1, NULL, NULL};
    make_ids(b, m);
    if (!bench_op(b, c, MOE_OP_EXPERT_ROWS, &m->ids, 1, out, 4, &sort, NULL)) return 0;
    bench_once(b, bench_forward, c);
    return 1;
}

static void run_sort(bench *b, int arg) {
    (void)arg;
    moved m;
    bench_call c;
    moe_tensor out[4];
    if (make_order(b, &m, &c, out)) time_op(b, &c, 0, 20.0 * (double)(m.tokens * CHOICES));
}

static void run_move(bench *b, int back) {
    moved m;
    bench_call c;
    moe_tensor lists[4];
    if (!make_order(b, &m, &c, lists)) return;
    moe_tensor x = bench_random(b, MOE_BF16, m.tokens, m.hidden, 0), y = bench_random(b, MOE_BF16, m.rows, m.hidden, 0);
    moe_tensor weight = bench_random(b, MOE_F32, m.tokens, CHOICES, 0), p = bench_random(b, MOE_F32, m.rows, 0, 0);
    const moe_tensor there_in[] = {x, m.row_slot, weight}, there_out[] = {y, p};
    const moe_tensor back_in[] = {y, m.slot_row, p}, back_out[] = {x, weight};
    const double bytes = 2.0 * (double)(m.tokens * m.hidden) * (1 + CHOICES) + 16.0 * (double)(m.tokens * CHOICES);
    if (bench_op(b, &c, back ? MOE_OP_UNPERMUTE : MOE_OP_PERMUTE, back ? back_in : there_in, 3,
                 back ? back_out : there_out, 2, &permute, &m.order))
        time_op(b, &c, 0, bytes);
}

static void run_swiglu(bench *b, int backward) {
    const int64_t n = bench_size(b, 65536, 40), f = bench_size(b, 1536, 32);
    moe_tensor z = bench_random(b, MOE_BF16, n, 2 * f, 0), p = bench_random(b, MOE_F32, n, 0, 0);
    moe_tensor a = bench_random(b, MOE_BF16, n, f, 0), dz = bench_tensor(b, MOE_BF16, n, 2 * f, 0);
    moe_tensor dp = bench_tensor(b, MOE_F32, n, 0, 0);
    const moe_tensor in[] = {z, p}, back_in[] = {a, z, p}, back_out[] = {dz, dp};
    bench_call c;
    if (!bench_op(b, &c, MOE_OP_SWIGLU_PROB, in, 2, &a, 1, NULL, NULL)) return;
    if (backward) bench_lists(&c, back_in, 3, back_out, 2);
    time_op(b, &c, backward, (backward ? 10.0 : 6.0) * (double)(n * f));
}

/* ---- norms and heads ---- */
enum { NORM_PLAIN, NORM_SUM, NORM_BACK };
static void run_norm(bench *b, int kind) {
    static const moe_rmsnorm_attr attr = {sizeof attr, 1e-5f};
    const int64_t h = sizes_of(b).hidden;
    moe_tensor x = rows_of(b), r = rows_of(b), s = rows_of(b), y = rows_of(b), none = device_open_absent();
    moe_tensor w = bench_random(b, MOE_F32, h, 0, 0), dw = bench_tensor(b, MOE_F32, h, 0, 0);
    const moe_tensor plain_in[] = {x, none, w}, plain_out[] = {none, y}, in[] = {x, r, w}, out[] = {s, y};
    const moe_tensor back_in[] = {y, s, w, r}, back_out[] = {x, dw};
    bench_call c;
    if (!bench_op(b, &c, MOE_OP_RMSNORM, kind == NORM_PLAIN ? plain_in : in, 3, kind == NORM_PLAIN ? plain_out : out, 2,
                  &attr, NULL))
        return;
    if (kind == NORM_BACK) {
        bench_once(b, bench_forward, &c);
        bench_lists(&c, back_in, 4, back_out, 2);
    }
    time_op(b, &c, kind == NORM_BACK, (kind == NORM_PLAIN ? 2 : 4) * row_bytes(b));
}

enum { HEADS = 32, KV = 8, QK = HEADS + KV, QKV = QK + KV };
static int64_t head_of(const bench *b) {
    return bench_size(b, 128, 16);
}
static void run_rope(bench *b, int backward) {
    const int64_t tokens = sizes_of(b).tokens, d = head_of(b);
    const moe_attention_attr attr = {
        .size = sizeof attr, .heads = HEADS, .kv_heads = KV, .head_dim = (uint32_t)d, .rotary_dim = (uint32_t)d};
    moe_tensor x = bench_random(b, MOE_BF16, tokens, QKV * d, 0), pos = bench_tensor(b, MOE_I32, tokens, 0, 0);
    moe_tensor freq = bench_random(b, MOE_F32, d / 2, 0, 0);
    const moe_tensor in[] = {x, pos, freq};
    int32_t *at = bench_alloc(b, MOE_SPACE_HOST, bench_bytes(&pos));
    bench_call c;
    for (int64_t t = 0; t < tokens; t++) at[t] = (int32_t)(t % 4096);
    bench_put(b, &pos, at);
    if (bench_op(b, &c, MOE_OP_ROPE, in, 3, &x, 1, &attr, NULL))
        time_op(b, &c, backward, 4.0 * (double)(tokens * QK * d));
}

static void run_head_norm(bench *b, int backward) {
    const int64_t tokens = sizes_of(b).tokens, d = head_of(b);
    const moe_head_norm_attr attr = {sizeof attr, 1e-5f, 0, QK, d};
    moe_tensor x = bench_random(b, MOE_BF16, tokens, QKV * d, 0), w = bench_random(b, MOE_F32, d, 0, 0);
    moe_tensor dw = bench_tensor(b, MOE_F32, d, 0, 0);
    const moe_tensor in[] = {x, w}, out[] = {x, dw};
    bench_call c;
    if (!bench_op(b, &c, MOE_OP_HEAD_NORM, in, 2, out, 1, &attr, NULL)) return;
    if (backward) {
        bench_once(b, bench_forward, &c);
        bench_lists(&c, in, 2, out, 2);
    }
    time_op(b, &c, backward, 6.0 * (double)(tokens * QK * d)); /* with the segments that backward needs */
}

/* ---- ends of the model ---- */
static void run_embed(bench *b, int backward) {
    const sizes n = sizes_of(b);
    const int64_t vocab = bench_size(b, 151936, 100);
    moe_tensor table = backward ? (moe_tensor){.dtype = MOE_BF16, .ndim = 2, .shape = {vocab, n.hidden, 1, 1}}
                                : bench_random(b, MOE_BF16, vocab, n.hidden, 0);
    moe_tensor ids = bench_tensor(b, MOE_I32, n.tokens, 0, 0), x = rows_of(b);
    moe_tensor dtable = backward ? bench_tensor(b, MOE_F32, vocab, n.hidden, 0) : device_open_absent();
    const moe_tensor in[] = {ids, table}, back_in[] = {ids, x};
    int32_t *words = bench_alloc(b, MOE_SPACE_HOST, bench_bytes(&ids));
    bench_call c;
    for (int64_t t = 0; t < n.tokens; t++) words[t] = (int32_t)bench_draw((uint64_t)t, vocab);
    bench_put(b, &ids, words);
    if (!bench_op(b, &c, MOE_OP_EMBED, in, 2, &x, 1, NULL, NULL)) return;
    if (backward) bench_lists(&c, back_in, 2, &dtable, 1);
    time_op(b, &c, backward, (backward ? 5 : 2) * row_bytes(b)); /* F32 sums are read and written */
}

static void run_loss(bench *b, int arg) {
    (void)arg;
    const int64_t tokens = bench_size(b, 4096, 20), vocab = bench_size(b, 151936, 100);
    moe_tensor logits = bench_random(b, MOE_BF16, tokens, vocab, 0), targets = bench_tensor(b, MOE_I32, tokens, 0, 0);
    moe_tensor loss = bench_tensor(b, MOE_F64, 1, 0, 0);
    const moe_tensor in[] = {logits, targets}, out[] = {loss, logits};
    int32_t *words = bench_alloc(b, MOE_SPACE_HOST, bench_bytes(&targets));
    bench_call c;
    for (int64_t t = 0; t < tokens; t++) words[t] = (int32_t)bench_draw((uint64_t)t, vocab);
    bench_put(b, &targets, words);
    if (bench_op(b, &c, MOE_OP_CROSS_ENTROPY, in, 2, out, 2, NULL, NULL))
        time_op(b, &c, 0, 6.0 * (double)(tokens * vocab));
}

/* ---- elements ---- */
static void run_add(bench *b, int arg) {
    (void)arg;
    moe_tensor x = rows_of(b), y = rows_of(b);
    bench_call c;
    if (bench_op(b, &c, MOE_OP_ADD, &x, 1, &y, 1, NULL, NULL)) time_op(b, &c, 0, 3 * row_bytes(b));
}

static void run_bias(bench *b, int backward) {
    const int64_t h = sizes_of(b).hidden;
    moe_tensor y = rows_of(b), w = bench_random(b, MOE_F32, h, 0, 0), dw = bench_tensor(b, MOE_F32, h, 0, 0);
    const moe_tensor in[] = {y, w};
    bench_call c;
    if (!bench_op(b, &c, MOE_OP_BIAS, in, 2, &y, 1, NULL, NULL)) return;
    if (backward) bench_lists(&c, in, 2, &dw, 1);
    time_op(b, &c, backward, (backward ? 1 : 2) * row_bytes(b));
}

static void run_jitter(bench *b, int arg) {
    (void)arg;
    uint64_t *step = bench_alloc(b, MOE_SPACE_HOST, sizeof *step);
    const moe_jitter_attr attr = {sizeof attr, 0.01f, {1, 2}, 0, step};
    moe_tensor x = rows_of(b), y = rows_of(b);
    bench_call c;
    if (bench_op(b, &c, MOE_OP_JITTER, &x, 1, &y, 1, &attr, NULL)) time_op(b, &c, 0, 2 * row_bytes(b));
}

static void run_convert(bench *b, int arg) {
    (void)arg;
    const sizes n = sizes_of(b);
    moe_tensor x = bench_random(b, MOE_F32, n.tokens, n.hidden, 0), y = rows_of(b);
    bench_call c;
    if (bench_op(b, &c, MOE_OP_CONVERT, &x, 1, &y, 1, NULL, NULL)) time_op(b, &c, 0, 3 * row_bytes(b));
}

/* ---- optimiser ---- */
static void run_adamw(bench *b, int arg) {
    (void)arg;
    static const moe_adamw_attr attr = {sizeof attr, 0.9f, 0.95f, 1e-8f, 0.1f};
    static const float hyper[] = {1e-4f, 0.5f, 0.5f, 0}, stats[] = {1, 1};
    const int64_t n = sizes_of(b).flat;
    moe_tensor grad = bench_random(b, MOE_F32, n, 0, 0), w = bench_random(b, MOE_F32, n, 0, 0);
    moe_tensor m = bench_tensor(b, MOE_F32, n, 0, 0), v = bench_tensor(b, MOE_F32, n, 0, 0);
    moe_tensor copy = bench_tensor(b, MOE_BF16, n, 0, 0);
    moe_tensor h = bench_tensor(b, MOE_F32, 4, 0, 0), s = bench_tensor(b, MOE_F32, 2, 0, 0);
    const moe_tensor in[] = {grad, h, s}, out[] = {w, m, v, copy};
    bench_call c;
    bench_put(b, &h, hyper);
    bench_put(b, &s, stats);
    if (bench_op(b, &c, MOE_OP_ADAMW, in, 3, out, 4, &attr, NULL)) time_op(b, &c, 0, 30.0 * (double)n);
}

static void run_sumsq(bench *b, int arg) {
    (void)arg;
    const int64_t n = sizes_of(b).flat;
    moe_tensor grad = bench_random(b, MOE_F32, n, 0, 0), sum = bench_tensor(b, MOE_F64, 1, 0, 0);
    bench_call c;
    if (bench_op(b, &c, MOE_OP_SUMSQ, &grad, 1, &sum, 1, NULL, NULL)) time_op(b, &c, 0, 4.0 * (double)n);
}

void bench_add_memory(bench *b) {
    static const struct {
        const char *name;
        bench_run_fn *run;
        int arg;
    } rows[] = {{"copy", run_copy, 0},
                {"router score and top-8 of 256", run_router, 0},
                {"router backward", run_router, 1},
                {"sort by expert", run_sort, 0},
                {"permute", run_move, 0},
                {"unpermute", run_move, 1},
                {"swiglu x probability forward", run_swiglu, 0},
                {"swiglu x probability backward", run_swiglu, 1},
                {"rmsnorm forward", run_norm, NORM_PLAIN},
                {"rmsnorm forward with residual", run_norm, NORM_SUM},
                {"rmsnorm backward with residual", run_norm, NORM_BACK},
                {"rope forward", run_rope, 0},
                {"rope backward", run_rope, 1},
                {"head norm forward", run_head_norm, 0},
                {"head norm backward", run_head_norm, 1},
                {"cross-entropy forward and backward", run_loss, 0},
                {"adamw", run_adamw, 0},
                {"sum of squares", run_sumsq, 0},
                {"embed forward", run_embed, 0},
                {"embed backward", run_embed, 1},
                {"add", run_add, 0},
                {"bias forward", run_bias, 0},
                {"bias backward", run_bias, 1},
                {"jitter", run_jitter, 0},
                {"convert F32 to BF16", run_convert, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        bench_add(b, "memory", rows[i].run, rows[i].arg, rows[i].name);
}
