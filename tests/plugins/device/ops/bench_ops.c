/* Prints the speed of the operations: moe.attention/0 in GFLOP/s per compute thread (only the products of pairs that
 * the query sees are counted) beside one large dnnl_sgemm on one thread, and by bench_memory.c the operations that the
 * memory limits, beside moe.copy/0, all measured in the same run. Arguments: threads (1), instruction set (auto), part
 * (attention; memory, or one of its own: norm, heads, embed, loss, router, experts, update, options; both). A program,
 * not a test. */
#include "bench_ops.h"

#include <dnnl.h>

#include "../bench_run.h"

extern void omp_set_num_threads(int n) __attribute__((weak));
static const char *threads_arg = "1", *isa_arg = "auto", *part_arg = "";

/* GFLOP/s, the best of a few; the machine may be shared. */
static double measure_product(void) {
    enum { N = 1536 };
    float *a = malloc(N * N * 4), *b = malloc(N * N * 4), *y = malloc(N * N * 4);
    double best = 0;
    for (int i = 0; i < N * N; i++) a[i] = b[i] = (float)(i % 7) - 3.0f;
    if (omp_set_num_threads) omp_set_num_threads(1);
    for (int i = 0; i < 5; i++) {
        double t = bench_now();
        dnnl_sgemm('N', 'T', N, N, N, 1.0f, a, N, b, N, 0.0f, y, N);
        best = fmax(best, 2.0 * N * N * N / (bench_now() - t));
    }
    free(a);
    free(b);
    free(y);
    return best * 1e-9;
}

/* Seconds of one call, the best of nine. */
static double measure(ot *t, device_open_step step, const moe_op_args *args) {
    double best = 1e9;
    for (int i = 0; i < 9; i++) best = fmin(best, bench_call(t, step, args));
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

START_TEST(measure_operations) {
    ot t;
    (void)_i;
    ck_assert_int_eq(ot_open(&t, isa_arg, threads_arg), MOE_OK);
    if (part_arg[0] == 0 || strcmp(part_arg, "attention") == 0) {
        double peak = measure_product();
        printf("product of one thread: %.0f GFLOP/s\n", peak);
        bench_attentions(&t, peak);
    }
    if (strcmp(part_arg, "attention") != 0) bench_memory(&t, strcmp(part_arg, "memory") == 0 ? "" : part_arg);
    ot_close(&t);
}
END_TEST

int main(int argc, char **argv) {
    if (argc > 1) threads_arg = argv[1];
    if (argc > 2) isa_arg = argv[2];
    if (argc > 3) part_arg = argv[3];
    return bench_run(measure_operations, 0);
}
