/* Prints the speed of the operations per compute thread: moe.attention/0 in GFLOP/s (only the products of pairs that
 * the query sees are counted) beside one large dnnl_sgemm on one thread, and the row operations in GB/s (bytes that
 * have to be read and written) beside one large memcpy, all measured in the same run. Arguments: threads (1),
 * instruction set (auto), part ("attention", "rows", or both). A program, not a test. */
#include <dnnl.h>
#include <time.h>

#include "../bench_run.h"
#include "ot.h"

extern void omp_set_num_threads(int n) __attribute__((weak));
static const char *threads_arg = "1", *isa_arg = "auto", *part_arg = "";

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* GFLOP/s, the best of a few; the machine may be shared. */
static double measure_product(void) {
    enum { N = 1536 };
    float *a = malloc(N * N * 4), *b = malloc(N * N * 4), *y = malloc(N * N * 4);
    double best = 0;
    for (int i = 0; i < N * N; i++) a[i] = b[i] = (float)(i % 7) - 3.0f;
    if (omp_set_num_threads) omp_set_num_threads(1);
    for (int i = 0; i < 5; i++) {
        double t = now();
        dnnl_sgemm('N', 'T', N, N, N, 1.0f, a, N, b, N, 0.0f, y, N);
        best = fmax(best, 2.0 * N * N * N / (now() - t));
    }
    free(a);
    free(b);
    free(y);
    return best * 1e-9;
}

/* GB/s read and written by memcpy of 64 MiB. */
static double measure_copy(void) {
    enum { BYTES = 64 << 20 };
    char *a = malloc(BYTES), *b = malloc(BYTES);
    double best = 0;
    memset(a, 1, BYTES);
    memset(b, 2, BYTES);
    for (int i = 0; i < 7; i++) {
        double t = now();
        memcpy(i % 2 ? a : b, i % 2 ? b : a, BYTES);
        best = fmax(best, 2.0 * BYTES / (now() - t));
    }
    free(a);
    free(b);
    return best * 1e-9;
}

/* Seconds of one call, the best of nine. */
static double measure(ot *t, cpu_open_step step, const moe_op_args *args) {
    double best = 1e9;
    moe_err err = {.size = sizeof err};
    for (int i = 0; i < 9; i++) {
        double at = now();
        ot_want_msg(cpu_open_run_step(&t->dev, step, args, &err) == MOE_OK, "%s", err.msg);
        best = fmin(best, now() - at);
    }
    return best;
}

typedef struct attention_case {
    int64_t batch, seq;
    uint32_t heads, dim, v_dim; /* v_dim: 0 = dim */
    int32_t act;
    int64_t window, doc; /* tokens; 0 = none. doc: length of each document */
} attention_case;

/* Pairs of a query and a key that it sees, in one sequence. */
static double count_pairs(const attention_case *s) {
    double pairs = 0;
    for (int64_t i = 0; i < s->seq; i++) {
        int64_t keys = (s->doc ? i % s->doc : i) + 1;
        pairs += (double)(s->window && s->window < keys ? s->window : keys);
    }
    return pairs;
}

static void bench_attention(ot *t, double peak, const attention_case *s) {
    ot_call call;
    moe_attention_attr attr = {.size = sizeof attr, .heads = s->heads, .kv_heads = s->heads / 2, .head_dim = s->dim};
    attr.batch = s->batch;
    attr.seq = s->seq;
    attr.scale = 1.0f / sqrtf((float)s->dim);
    attr.v_dim = s->v_dim;
    attr.window = s->window;
    int64_t tokens = s->batch * s->seq, v_dim = s->v_dim ? s->v_dim : s->dim;
    int64_t width = (int64_t)(s->heads + s->heads / 2) * s->dim + s->heads / 2 * v_dim;
    moe_tensor qkv = ot_random(t, ot_tensor(t, s->act, tokens, width), -1, 1), dqkv = ot_clone(t, &qkv);
    moe_tensor o = ot_tensor(t, s->act, tokens, s->heads * v_dim), grad = ot_random(t, ot_clone(t, &o), -1, 1);
    moe_tensor doc = s->doc ? ot_tensor(t, MOE_I32, tokens) : ot_absent(), none = ot_absent();
    for (int64_t i = 0; s->doc && i < tokens; i++) ot_set(&doc, i, (double)(i % s->seq / s->doc));
    const moe_tensor in[] = {qkv, none, doc}, out[] = {o}, back_in[] = {grad, qkv, o, none, doc}, back_out[] = {dqkv};
    ot_forward(t, &call, MOE_OP_ATTENTION, in, 3, out, 1, &attr, NULL);
    double product = 2.0 * (double)(s->batch * s->heads) * count_pairs(s) * 1e-9, d = s->dim, dv = (double)v_dim;
    double forward = (d + dv) * product / measure(t, call.op->forward, &call.args) / atof(threads_arg);
    call.args.in = back_in;
    call.args.n_in = 5;
    call.args.out = back_out;
    double backward = (3 * d + 2 * dv) * product / measure(t, call.op->backward, &call.args) / atof(threads_arg);
    printf("attention %s batch %lld seq %4lld heads %u dim %3u value %3u window %4lld document %4lld: ",
           s->act == MOE_BF16 ? "BF16" : "F32 ", (long long)s->batch, (long long)s->seq, s->heads, s->dim,
           (unsigned)v_dim, (long long)s->window, (long long)s->doc);
    printf("forward %5.1f GFLOP/s %3.0f %%, backward %5.1f %3.0f %%\n", forward, 100 * forward / peak, backward,
           100 * backward / peak);
    ot_clear(t);
}

static void bench_attentions(ot *t, double peak) {
    static const attention_case cases[] = {
        {16, 128, 4, 32, 0, MOE_F32, 0, 0},    {8, 256, 4, 32, 0, MOE_F32, 0, 0},
        {4, 512, 4, 32, 0, MOE_F32, 0, 0},     {16, 128, 4, 64, 0, MOE_F32, 0, 0},
        {8, 256, 4, 64, 0, MOE_F32, 0, 0},     {4, 512, 4, 64, 0, MOE_F32, 0, 0},
        {16, 128, 4, 128, 0, MOE_F32, 0, 0},   {8, 256, 4, 128, 0, MOE_F32, 0, 0},
        {4, 512, 4, 128, 0, MOE_F32, 0, 0},    {8, 256, 4, 64, 0, MOE_BF16, 0, 0},
        {1, 2048, 4, 64, 0, MOE_F32, 0, 0},    {1, 2048, 4, 64, 0, MOE_F32, 128, 0},
        {1, 2048, 4, 64, 0, MOE_F32, 0, 2048}, {1, 2048, 4, 64, 0, MOE_F32, 0, 256},
        {1, 2048, 4, 64, 0, MOE_F32, 0, 100},  {4, 512, 4, 192, 128, MOE_F32, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) bench_attention(t, peak, &cases[i]);
}

static void report(const char *name, double bytes, double seconds, double peak) {
    double got = bytes / seconds * 1e-9 / atof(threads_arg);
    printf("%-24s %8.0f us %6.1f GB/s %4.0f %%\n", name, seconds * 1e6, got, 100 * got / peak);
}

enum { T = 4096, H = 512, V = 4096, E = 16, K = 2, N = T * K };

static void bench_layers(ot *t, double peak) {
    static const moe_rmsnorm_attr norm = {sizeof norm, 1e-5f};
    static const moe_attention_attr rope = {
        .size = sizeof rope, .heads = 8, .kv_heads = 4, .head_dim = 32, .rotary_dim = 32};
    ot_call c;
    moe_tensor x = ot_random(t, ot_tensor(t, MOE_F32, T, H), -1, 1), y = ot_clone(t, &x);
    moe_tensor w = ot_fill(ot_tensor(t, MOE_F32, H), 1), dw = ot_clone(t, &w), none = ot_absent();
    moe_tensor pos = ot_fill(ot_tensor(t, MOE_I32, T), 100), freq = ot_fill(ot_tensor(t, MOE_F32, 16), 0.1);
    const moe_tensor norm_in[] = {x, none, w}, norm_out[] = {none, y}, norm_back[] = {y, x, w}, norm_grad[] = {y, dw};
    ot_forward(t, &c, MOE_OP_RMSNORM, norm_in, 3, norm_out, 2, &norm, NULL);
    report("rmsnorm forward", T * H * 8.0, measure(t, c.op->forward, &c.args), peak);
    c.args.in = norm_back;
    c.args.out = norm_grad;
    report("rmsnorm backward", T * H * 12.0, measure(t, c.op->backward, &c.args), peak);
    const moe_tensor rope_in[] = {x, pos, freq}, rope_out[] = {x};
    ot_forward(t, &c, MOE_OP_ROPE, rope_in, 3, rope_out, 1, &rope, NULL);
    report("rope", T * 384 * 8.0, measure(t, c.op->forward, &c.args), peak);

    moe_tensor z = ot_random(t, ot_tensor(t, MOE_F32, T, 2 * H), -1, 1), p = ot_fill(ot_tensor(t, MOE_F32, T), 0.5);
    moe_tensor dp = ot_clone(t, &p);
    const moe_tensor gate_in[] = {z, p}, gate_out[] = {y}, gate_back[] = {x, z, p}, gate_grad[] = {z, dp};
    ot_forward(t, &c, MOE_OP_SWIGLU_PROB, gate_in, 2, gate_out, 1, NULL, NULL);
    report("swiglu_prob forward", T * H * 12.0, measure(t, c.op->forward, &c.args), peak);
    c.args = (moe_op_args){.size = sizeof c.args, .n_in = 3, .n_out = 2, .in = gate_back, .out = gate_grad};
    report("swiglu_prob backward", T * H * 20.0, measure(t, c.op->backward, &c.args), peak);
    ot_clear(t);
}

static void bench_moves(ot *t, double peak) {
    static const moe_expert_rows_attr sort = {sizeof sort, 0, E, E, 1, 0};
    static const moe_permute_attr permute = {sizeof permute, K};
    ot_call c;
    moe_tensor x = ot_random(t, ot_tensor(t, MOE_F32, T, H), -1, 1), ids = ot_tensor(t, MOE_I32, T, K);
    moe_tensor slot_row = ot_tensor(t, MOE_I64, T, K), row_slot = ot_tensor(t, MOE_I64, N);
    moe_tensor at = ot_tensor(t, MOE_I64, E + 1), n = ot_tensor(t, MOE_I64, E);
    moe_tensor rows_y = ot_fill(ot_tensor(t, MOE_F32, N, H), 0);
    moe_rows rows = {sizeof rows, E, N, at.data, n.data, -1};
    for (int64_t i = 0; i < T * K; i++) ot_set(&ids, i, (double)((i / K * 7 + i % K) % E));
    const moe_tensor sort_out[] = {slot_row, row_slot, at, n}, out_in[] = {x, row_slot}, back_in[] = {rows_y, slot_row};
    ot_forward(t, &c, MOE_OP_EXPERT_ROWS, &ids, 1, sort_out, 4, &sort, NULL);
    report("expert_rows", N * 20.0, measure(t, c.op->forward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_PERMUTE, out_in, 2, &rows_y, 1, &permute, &rows);
    report("permute", N * H * 8.0, measure(t, c.op->forward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_UNPERMUTE, back_in, 2, &x, 1, &permute, &rows);
    report("unpermute", N * H * 4.0 + T * H * 4.0, measure(t, c.op->forward, &c.args), peak);
    ot_clear(t);
}

/* The operations that only some models have. */
static void bench_options(ot *t, double peak) {
    enum { HEADS = 8, D = 64, W = HEADS * D };
    static const uint64_t step = 1;
    static const moe_head_norm_attr norm = {sizeof norm, 1e-5f, 0, HEADS, D};
    static const moe_mla_pack_attr pack = {sizeof pack, HEADS, 48, 16, D, 0};
    static const moe_jitter_attr jitter = {sizeof jitter, 0.01f, {1, 2}, 0, &step};
    static const moe_swiglu_attr clamp = {sizeof clamp, 1.702f, 7};
    ot_call c;
    moe_tensor x = ot_random(t, ot_tensor(t, MOE_F32, T, W), -1, 1), y = ot_clone(t, &x),
               kv = ot_tensor(t, MOE_F32, T, HEADS * 112);
    moe_tensor w = ot_fill(ot_tensor(t, MOE_F32, D), 1), dw = ot_clone(t, &w), b = ot_fill(ot_tensor(t, MOE_F32, W), 1);
    moe_tensor rope = ot_tensor(t, MOE_F32, T, 16), qkv = ot_fill(ot_tensor(t, MOE_F32, T, 3 * W), 0),
               db = ot_clone(t, &b);
    const moe_tensor x_w[] = {x, w}, y_w[] = {y, w}, y_dw[] = {y, dw}, parts[] = {x, ot_fill(kv, 0), ot_fill(rope, 0)},
                     x_b[] = {x, b};
    ot_forward(t, &c, MOE_OP_HEAD_NORM, x_w, 2, &y, 1, &norm, NULL);
    report("head_norm forward", T * W * 12.0, measure(t, c.op->forward, &c.args), peak);
    c.args.in = y_w;
    c.args.out = y_dw;
    c.args.n_out = 2;
    report("head_norm backward", T * W * 12.0, measure(t, c.op->backward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_MLA_PACK, parts, 3, &qkv, 1, &pack, NULL);
    report("mla_pack forward", T * W * 23.0, measure(t, c.op->forward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_BIAS, x_b, 2, &x, 1, NULL, NULL);
    report("bias forward", T * W * 8.0, measure(t, c.op->forward, &c.args), peak);
    c.args.out = &db;
    report("bias backward", T * W * 4.0, measure(t, c.op->backward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_SIGMOID, &x, 1, &y, 1, NULL, NULL);
    report("sigmoid forward", T * W * 8.0, measure(t, c.op->forward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_JITTER, &x, 1, &y, 1, &jitter, NULL);
    report("jitter forward", T * W * 8.0, measure(t, c.op->forward, &c.args), peak);
    report("jitter backward", T * W * 12.0, measure(t, c.op->backward, &c.args), peak);
    moe_tensor z = ot_random(t, ot_tensor(t, MOE_F32, T, 2 * W), -9, 9);
    ot_forward(t, &c, MOE_OP_SWIGLU_PROB, &z, 1, &y, 1, &clamp, NULL);
    report("clamped swiglu forward", T * W * 12.0, measure(t, c.op->forward, &c.args), peak);
    ot_clear(t);
}

static void bench_capacity(ot *t, double peak) {
    static const moe_capacity_attr attr = {sizeof attr, E, MOE_DROP_PROB, 0, T * K / E, T};
    ot_call c;
    moe_tensor ids = ot_tensor(t, MOE_I32, T, K), w = ot_random(t, ot_tensor(t, MOE_F32, T, K), 0, 1);
    moe_tensor n = ot_fill(ot_tensor(t, MOE_I64, 2), 0);
    const moe_tensor out[] = {ot_clone(t, &ids), ot_clone(t, &w), n}, in[] = {ids, w};
    for (int64_t i = 0; i < T * K; i++) ot_set(&ids, i, (double)ot_below(t, 1 + ot_below(t, E)));
    ot_forward(t, &c, MOE_OP_CAPACITY, in, 2, out, 3, &attr, NULL);
    report("capacity", N * 16.0, measure(t, c.op->forward, &c.args), peak);
    ot_clear(t);
}

static void bench_step(ot *t, double peak) {
    static const moe_adamw_attr adamw = {sizeof adamw, 0.9f, 0.95f, 1e-8f, 0.1f};
    const int64_t flat = (int64_t)T * V;
    ot_call c;
    moe_tensor logits = ot_random(t, ot_tensor(t, MOE_F32, T, V), -1, 1),
               grad = ot_fill(ot_tensor(t, MOE_F32, flat), 0);
    moe_tensor targets = ot_fill(ot_tensor(t, MOE_I32, T), 5), loss = ot_fill(ot_tensor(t, MOE_F64, 1), 0);
    const moe_tensor loss_in[] = {logits, targets}, loss_out[] = {loss, logits};
    ot_forward(t, &c, MOE_OP_CROSS_ENTROPY, loss_in, 2, loss_out, 2, NULL, NULL);
    report("cross_entropy", (double)flat * 8, measure(t, c.op->forward, &c.args), peak);
    moe_tensor m = ot_clone(t, &grad), v = ot_clone(t, &grad), w = ot_clone(t, &grad);
    moe_tensor hyper = ot_fill(ot_tensor(t, MOE_F32, 4), 0.5), stats = ot_fill(ot_tensor(t, MOE_F32, 2), 1);
    const moe_tensor adam_in[] = {grad, hyper, stats}, adam_out[] = {w, m, v};
    ot_forward(t, &c, MOE_OP_ADAMW, adam_in, 3, adam_out, 3, &adamw, NULL);
    report("adamw", (double)flat * 28, measure(t, c.op->forward, &c.args), peak);
    ot_forward(t, &c, MOE_OP_SUMSQ, &grad, 1, &loss, 1, NULL, NULL);
    report("sumsq", (double)flat * 4, measure(t, c.op->forward, &c.args), peak);
    ot_clear(t);
}

START_TEST(measure_operations) {
    ot t;
    (void)_i;
    ck_assert_int_eq(ot_open(&t, isa_arg, threads_arg), MOE_OK);
    if (strcmp(part_arg, "rows") != 0) {
        double peak = measure_product();
        printf("product of one thread: %.0f GFLOP/s\n", peak);
        bench_attentions(&t, peak);
    }
    if (strcmp(part_arg, "attention") != 0) {
        double peak = measure_copy();
        printf("memcpy of one thread: %.1f GB/s\n", peak);
        bench_layers(&t, peak);
        bench_options(&t, peak);
        bench_moves(&t, peak);
        bench_capacity(&t, peak);
        bench_step(&t, peak);
    }
    ot_close(&t);
}
END_TEST

int main(int argc, char **argv) {
    if (argc > 1) threads_arg = argv[1];
    if (argc > 2) isa_arg = argv[2];
    if (argc > 3) part_arg = argv[3];
    return bench_run(measure_operations, 0);
}
