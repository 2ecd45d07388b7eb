/* Times the operations that the memory limits, at the shapes of recipes/bench/cpu-moe.ini; see bench_ops.h. Operands
 * lie in device memory. moe.copy/0 of 64 MiB runs before each try, so that tensors come from memory as they mostly do
 * within a step; a second call after each has the tensors where the first has left them. */
#include "bench_ops.h"

enum { T = 4096, H = 512, D = 64, HEADS = 8, KV = 4, QK = HEADS + KV, QKV = (QK + KV) * D }; /* attention */
enum { V = 4096, E = 32, K = 4, F = 256, N = T * K, FLAT = 25000000 };                       /* the rest */
enum { TRIES = 15, COPIED = 16 << 20, MOST = 64 };

typedef struct bench {
    ot *t;
    const char *only;
    int32_t act;
    ot_call copy;
    moe_tensor x, y; /* of the copy */
    void *memory[MOST];
    uint64_t bytes[MOST];
    int n;
} bench;

/* ---- tensors in device memory ---- */
static moe_tensor place(bench *b, moe_tensor x) {
    b->bytes[b->n] = (uint64_t)ot_count(&x) * ot_dtype_bytes(x.dtype);
    x.data = b->memory[b->n] = device_open_alloc(&b->t->dev, b->bytes[b->n]);
    b->n++;
    return x;
}
static moe_tensor make1(bench *b, int32_t dtype, int64_t n) {
    return place(b, (moe_tensor){.dtype = dtype, .ndim = 1, .shape = {n, 1, 1, 1}});
}
static moe_tensor make2(bench *b, int32_t dtype, int64_t rows, int64_t columns) {
    return place(b, (moe_tensor){.dtype = dtype, .ndim = 2, .shape = {rows, columns, 1, 1}});
}
static moe_tensor random2(bench *b, int64_t rows, int64_t columns) {
    return ot_random(b->t, make2(b, b->act, rows, columns), -1, 1);
}
static void release(bench *b, int from) {
    while (b->n > from) {
        b->n--;
        device_open_free(&b->t->dev, b->memory[b->n], b->bytes[b->n]);
    }
    ot_clear(b->t);
}

/* ---- one operation ---- */
static int wanted(const bench *b, const char *name) {
    return strstr(name, b->only) != NULL;
}

/* bytes: of all operands, each once. flop: 0 where it does not matter. */
static void report(bench *b, const char *name, device_open_step step, const moe_op_args *args, double bytes,
                   double flop) {
    double cold = 1e9, warm = 1e9, copy = 1e9;
    for (int i = 0; i < TRIES; i++) {
        copy = fmin(copy, bench_call(b->t, b->copy.op->forward, &b->copy.args));
        cold = fmin(cold, bench_call(b->t, step, args));
        warm = fmin(warm, bench_call(b->t, step, args));
    }
    double peak = 8.0 * COPIED / copy * 1e-9;
    printf("%-4s %-24s", b->act == MOE_BF16 ? "BF16" : "F32", name);
    printf(" %7.0f us %6.1f GB/s %4.0f %% of %.1f", cold * 1e6, bytes / cold * 1e-9, bytes / cold * 1e-7 / peak, peak);
    printf(", again %7.0f us %4.0f %%", warm * 1e6, bytes / warm * 1e-7 / peak);
    if (flop > 0) printf("  %6.1f GFLOP/s", flop / cold * 1e-9);
    printf("\n");
}

/* sizes, saved and workspace of a call, as ot_try makes them, but in device memory; runs forward once. */
static void prepare(bench *b, ot_call *c, const char *name, const moe_tensor *in, uint32_t n_in, const moe_tensor *out,
                    uint32_t n_out, const void *attr, const moe_rows *rows) {
    uint64_t saved = 0, workspace = 0;
    moe_status s = ot_sizes(b->t, c, name, in, n_in, out, n_out, attr, rows, &saved, &workspace);
    ot_want_msg(s == MOE_OK, "%s", c->err.msg);
    if (saved) c->args.saved = make1(b, MOE_F32, (int64_t)saved / 4 + 1).data;
    if (workspace) c->args.workspace = make1(b, MOE_F32, (int64_t)workspace / 4 + 1).data;
    bench_call(b->t, c->op->forward, &c->args);
}
static void set_lists(ot_call *c, const moe_tensor *in, uint32_t n_in, const moe_tensor *out, uint32_t n_out) {
    c->args.in = in;
    c->args.n_in = n_in;
    c->args.out = out;
    c->args.n_out = n_out;
}

/* ---- the operations, by what they work on ---- */
static void bench_norm(bench *b) {
    static const moe_rmsnorm_attr norm = {sizeof norm, 1e-5f};
    double row = (double)T * H * (double)ot_dtype_bytes(b->act);
    ot_call c;
    moe_tensor a = random2(b, T, H), r = random2(b, T, H), s = random2(b, T, H), y = random2(b, T, H);
    moe_tensor w = ot_fill(make1(b, MOE_F32, H), 1), dw = make1(b, MOE_F32, H), none = ot_absent();
    const moe_tensor in[] = {a, r, w}, out[] = {s, y}, back_in[] = {y, s, w, r}, back_out[] = {r, dw};
    prepare(b, &c, MOE_OP_RMSNORM, in, 3, out, 2, &norm, NULL);
    report(b, "rmsnorm forward", c.op->forward, &c.args, 4 * row, 0);
    set_lists(&c, back_in, 4, back_out, 2);
    report(b, "rmsnorm backward", c.op->backward, &c.args, 4 * row, 0);
    const moe_tensor plain_in[] = {a, none, w}, plain_out[] = {none, y};
    set_lists(&c, plain_in, 3, plain_out, 2);
    report(b, "rmsnorm forward, no sum", c.op->forward, &c.args, 2 * row, 0);
}

static void bench_heads(bench *b) {
    static const moe_head_norm_attr norm = {sizeof norm, 1e-5f, 0, QK, D};
    static const moe_attention_attr rope = {
        .size = sizeof rope, .heads = HEADS, .kv_heads = KV, .head_dim = D, .rotary_dim = D};
    double heads = (double)T * QK * D * (double)ot_dtype_bytes(b->act);
    ot_call c;
    moe_tensor x = random2(b, T, QKV), w = ot_fill(make1(b, MOE_F32, D), 1), dw = make1(b, MOE_F32, D);
    moe_tensor pos = make1(b, MOE_I32, T), freq = make1(b, MOE_F32, D / 2);
    const moe_tensor in[] = {x, w}, out[] = {x, dw}, rope_in[] = {x, pos, freq};
    prepare(b, &c, MOE_OP_HEAD_NORM, in, 2, out, 1, &norm, NULL);
    report(b, "head_norm forward", c.op->forward, &c.args, 3 * heads, 0); /* what backward needs is written, too */
    set_lists(&c, in, 2, out, 2);
    report(b, "head_norm backward", c.op->backward, &c.args, 3 * heads, 0);
    for (int64_t i = 0; i < T; i++) ot_set(&pos, i, (double)(i % 512));
    for (int64_t i = 0; i < D / 2; i++) ot_set(&freq, i, pow(1e4, -(double)i / (D / 2)));
    prepare(b, &c, MOE_OP_ROPE, rope_in, 3, &x, 1, &rope, NULL);
    report(b, "rope forward", c.op->forward, &c.args, 2 * heads, 0);
    report(b, "rope backward", c.op->backward, &c.args, 2 * heads, 0);
}

static void bench_embed(bench *b) {
    double row = (double)T * H;
    ot_call c;
    moe_tensor ids = make1(b, MOE_I32, T), table = random2(b, V, H), x = random2(b, T, H);
    moe_tensor dtable = make2(b, MOE_F32, V, H);
    for (int64_t i = 0; i < T; i++) ot_set(&ids, i, (double)(i * 1021 % V));
    const moe_tensor in[] = {ids, table}, back[] = {ids, x};
    prepare(b, &c, MOE_OP_EMBED, in, 2, &x, 1, NULL, NULL);
    report(b, "embed forward", c.op->forward, &c.args, 2 * row * (double)ot_dtype_bytes(b->act), 0);
    set_lists(&c, back, 2, &dtable, 1);
    report(b, "embed backward", c.op->backward, &c.args, row * (8 + (double)ot_dtype_bytes(b->act)), 0);
}

static void bench_loss(bench *b) {
    ot_call c;
    for (int64_t tokens = 1024; tokens <= T; tokens *= 4) {
        moe_tensor logits = random2(b, tokens, V), targets = make1(b, MOE_I32, tokens), loss = make1(b, MOE_F64, 1);
        const moe_tensor in[] = {logits, targets}, out[] = {loss, logits};
        prepare(b, &c, MOE_OP_CROSS_ENTROPY, in, 2, out, 2, NULL, NULL);
        report(b, tokens == T ? "cross_entropy T 4096" : "cross_entropy T 1024", c.op->forward, &c.args,
               2.0 * (double)(tokens * V) * (double)ot_dtype_bytes(b->act), 0);
        set_lists(&c, in, 2, out, 1);
        if (tokens == T)
            report(b, "cross_entropy, loss only", c.op->forward, &c.args,
                   (double)(tokens * V) * (double)ot_dtype_bytes(b->act), 0);
    }
}

static void bench_router(bench *b) {
    double row = (double)T * H * (double)ot_dtype_bytes(b->act), product = 2.0 * T * H * E;
    ot_call c;
    moe_tensor x = random2(b, T, H), dx = random2(b, T, H), w = ot_random(b->t, make2(b, MOE_F32, E, H), -1, 1);
    moe_tensor logits = make2(b, MOE_F32, T, E), dw = make2(b, MOE_F32, E, H);
    const moe_tensor in[] = {x, w}, back_in[] = {logits, x, w}, back_out[] = {dx, dw};
    prepare(b, &c, MOE_OP_ROUTER_LINEAR, in, 2, &logits, 1, NULL, NULL);
    report(b, "router_linear forward", c.op->forward, &c.args, row + T * E * 4.0, product);
    set_lists(&c, back_in, 3, back_out, 2);
    report(b, "router_linear backward", c.op->backward, &c.args, 3 * row + T * E * 4.0, 2 * product);
}

static void bench_experts(bench *b) {
    static const moe_expert_rows_attr sort = {sizeof sort, 0, E, E, 1, 0};
    static const moe_permute_attr permute = {sizeof permute, K};
    double token = (double)T * H * (double)ot_dtype_bytes(b->act), f = (double)N * F * (double)ot_dtype_bytes(b->act);
    ot_call c;
    moe_tensor ids = make2(b, MOE_I32, T, K), slot_row = make2(b, MOE_I64, T, K), row_slot = make1(b, MOE_I64, N);
    moe_tensor at = make1(b, MOE_I64, E + 1), n = make1(b, MOE_I64, E), x = random2(b, T, H), y = random2(b, N, H);
    moe_tensor p = ot_random(b->t, make1(b, MOE_F32, N), 0, 1), dp = make1(b, MOE_F32, N);
    moe_tensor weight = ot_random(b->t, make2(b, MOE_F32, T, K), 0, 1);
    moe_tensor z = random2(b, N, 2 * F), a = random2(b, N, F);
    moe_rows rows = {sizeof rows, E, N, at.data, n.data, -1, NULL, NULL};
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0, first = ot_below(b->t, E); j < K; j++)
            ot_set(&ids, i * K + j, (double)((first + 7 * j) % E));
    const moe_tensor sorted[] = {slot_row, row_slot, at, n};
    prepare(b, &c, MOE_OP_EXPERT_ROWS, &ids, 1, sorted, 4, &sort, NULL);
    report(b, "expert_rows", c.op->forward, &c.args, N * 20.0, 0);
    const moe_tensor out_in[] = {x, row_slot, weight}, out[] = {y, p}, back_in[] = {y, slot_row, p},
                     back[] = {x, weight};
    prepare(b, &c, MOE_OP_PERMUTE, out_in, 3, out, 2, &permute, &rows);
    report(b, "permute", c.op->forward, &c.args, token * (K + 1), 0);
    prepare(b, &c, MOE_OP_UNPERMUTE, back_in, 3, back, 2, &permute, &rows);
    report(b, "unpermute", c.op->forward, &c.args, token * (K + 1), 0);
    const moe_tensor gate_in[] = {z, p}, grad_in[] = {a, z, p}, grad_out[] = {z, dp};
    prepare(b, &c, MOE_OP_SWIGLU_PROB, gate_in, 2, &a, 1, NULL, &rows);
    report(b, "swiglu_prob forward", c.op->forward, &c.args, 3 * f, 0);
    set_lists(&c, grad_in, 3, grad_out, 2);
    report(b, "swiglu_prob backward", c.op->backward, &c.args, 5 * f, 0);
}

/* With BF16: the copy of the weights. */
static void bench_update(bench *b) {
    static const moe_adamw_attr adamw = {sizeof adamw, 0.9f, 0.95f, 1e-8f, 0.1f};
    const int copies = b->act == MOE_BF16;
    ot_call c;
    moe_tensor grad = make1(b, MOE_F32, FLAT), m = make1(b, MOE_F32, FLAT), v = make1(b, MOE_F32, FLAT);
    moe_tensor w = make1(b, MOE_F32, FLAT), copy = copies ? make1(b, MOE_BF16, FLAT) : ot_absent();
    moe_tensor hyper = ot_fill(make1(b, MOE_F32, 4), 0.5), stats = ot_fill(make1(b, MOE_F32, 2), 1);
    moe_tensor sum = make1(b, MOE_F64, 1);
    for (int64_t i = 0; i < FLAT; i++) ((float *)grad.data)[i] = (float)(i % 1023) * 1e-3f - 0.5f;
    const moe_tensor in[] = {grad, hyper, stats}, adam_out[] = {w, m, v, copy}, sgd_out[] = {w, copy};
    prepare(b, &c, MOE_OP_ADAMW, in, 3, adam_out, 4, &adamw, NULL);
    report(b, "adamw", c.op->forward, &c.args, FLAT * (28.0 + 2 * copies), 0);
    prepare(b, &c, MOE_OP_SGD, in, 3, sgd_out, 2, &adamw, NULL);
    report(b, "sgd", c.op->forward, &c.args, FLAT * (12.0 + 2 * copies), 0);
    prepare(b, &c, MOE_OP_SUMSQ, &grad, 1, &sum, 1, NULL, NULL);
    report(b, "sumsq", c.op->forward, &c.args, FLAT * 4.0, 0);
}

/* The operations that only some models have. */
static void bench_options(bench *b) {
    static const uint64_t step = 1;
    static const moe_mla_pack_attr pack = {sizeof pack, HEADS, 48, 16, D, 0};
    static const moe_jitter_attr jitter = {sizeof jitter, 0.01f, {1, 2}, 0, &step};
    static const moe_swiglu_attr clamp = {sizeof clamp, 1.702f, 7};
    static const moe_capacity_attr capacity = {sizeof capacity, E, MOE_DROP_PROB, 0, N / E, T};
    double row = (double)T * H * (double)ot_dtype_bytes(b->act);
    ot_call c;
    moe_tensor x = random2(b, T, H), y = random2(b, T, H), kv = random2(b, T, HEADS * 112), r = random2(b, T, 16);
    moe_tensor qkv = random2(b, T, 3 * H), bias = make1(b, MOE_F32, H), dbias = make1(b, MOE_F32, H);
    moe_tensor z = random2(b, T, 2 * H), ids = make2(b, MOE_I32, T, K), w = make2(b, MOE_F32, T, K);
    const moe_tensor parts[] = {x, kv, r}, x_b[] = {x, bias}, counted = make1(b, MOE_I64, 2);
    const moe_tensor cut_in[] = {ids, w}, cut_out[] = {make2(b, MOE_I32, T, K), make2(b, MOE_F32, T, K), counted};
    prepare(b, &c, MOE_OP_MLA_PACK, parts, 3, &qkv, 1, &pack, NULL);
    report(b, "mla_pack forward", c.op->forward, &c.args, 5.78125 * row, 0);
    prepare(b, &c, MOE_OP_BIAS, x_b, 2, &x, 1, NULL, NULL);
    report(b, "bias forward", c.op->forward, &c.args, 2 * row, 0);
    c.args.out = &dbias;
    report(b, "bias backward", c.op->backward, &c.args, row, 0);
    prepare(b, &c, MOE_OP_JITTER, &x, 1, &y, 1, &jitter, NULL);
    report(b, "jitter forward", c.op->forward, &c.args, 2 * row, 0);
    report(b, "jitter backward", c.op->backward, &c.args, 3 * row, 0);
    prepare(b, &c, MOE_OP_SWIGLU_PROB, &z, 1, &y, 1, &clamp, NULL);
    report(b, "clamped swiglu forward", c.op->forward, &c.args, 3 * row, 0);
    for (int64_t i = 0; i < N; i++) ot_set(&ids, i, (double)ot_below(b->t, 1 + ot_below(b->t, E)));
    prepare(b, &c, MOE_OP_CAPACITY, cut_in, 2, cut_out, 3, &capacity, NULL);
    report(b, "capacity", c.op->forward, &c.args, N * 16.0, 0);
}

/* The arithmetic's own limit, in registers. */
static void bench_fma(bench *b) {
    enum { WIDE = 12288, ROUNDS = 2000 };
    static const moe_fma_attr attr = {sizeof attr, ROUNDS, 0.999f, 0.001f};
    double best = 1e9;
    ot_call c;
    moe_tensor x = make1(b, MOE_F32, WIDE);
    prepare(b, &c, MOE_OP_FMA, &x, 1, &x, 1, &attr, NULL);
    for (int i = 0; i < TRIES; i++) best = fmin(best, bench_call(b->t, c.op->forward, &c.args));
    printf("fma %.1f GFLOP/s\n", 2.0 * WIDE * ROUNDS / best * 1e-9);
}

void bench_memory(ot *t, const char *only) {
    static const struct {
        const char *name;
        void (*run)(bench *b);
    } parts[] = {{"norm", bench_norm},     {"heads", bench_heads},    {"embed", bench_embed},
                 {"loss", bench_loss},     {"router", bench_router},  {"experts", bench_experts},
                 {"update", bench_update}, {"options", bench_options}};
    const moe_copy_attr plain = {sizeof plain, 0};
    bench b = {.t = t, .only = only};
    b.x = make1(&b, MOE_F32, COPIED);
    b.y = make1(&b, MOE_F32, COPIED);
    prepare(&b, &b.copy, MOE_OP_COPY, &b.x, 1, &b.y, 1, &plain, NULL);
    bench_fma(&b);
    int base = b.n;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (b.act = MOE_F32; wanted(&b, parts[i].name) && b.act <= MOE_BF16; b.act++) {
            parts[i].run(&b);
            release(&b, base);
        }
    release(&b, 0);
}
