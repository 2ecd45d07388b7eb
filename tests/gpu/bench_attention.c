/* Rows of moe.attention/0, causal, BF16, d 128: TFLOP/s of the products of pairs that a query sees, as a fraction of
 * the dense product. */
#include "bench.h"

typedef struct heads {
    uint32_t heads, kv_heads;
    int64_t batch, seq;
} heads;
/* Mixtral and Qwen3-30B */
static const heads shapes[] = {{32, 8, 4, 4096}, {32, 4, 1, 16384}};

static void run_attention(bench *b, int arg) {
    const heads *s = &shapes[arg / 2];
    const int backward = arg % 2;
    const int64_t d = bench_size(b, 128, 16), seq = bench_size(b, s->seq, 12), batch = bench_size(b, s->batch, 2);
    const uint32_t nq = b->tiny ? 4 : s->heads, nkv = b->tiny ? 2 : s->kv_heads;
    const int64_t tokens = batch * seq, width = (nq + 2 * nkv) * d;
    const moe_attention_attr attr = {.size = sizeof attr,
                                     .heads = nq,
                                     .kv_heads = nkv,
                                     .head_dim = (uint32_t)d,
                                     .batch = batch,
                                     .seq = seq,
                                     .scale = 0.0884f};
    moe_tensor qkv = bench_random(b, MOE_BF16, tokens, width, 0), dqkv = bench_tensor(b, MOE_BF16, tokens, width, 0);
    moe_tensor o = bench_tensor(b, MOE_BF16, tokens, nq * d, 0), grad = bench_random(b, MOE_BF16, tokens, nq * d, 0);
    moe_tensor none = device_open_absent();
    const moe_tensor in[] = {qkv, none, none}, back_in[] = {grad, qkv, o, none, none};
    bench_call c;
    if (!bench_op(b, &c, MOE_OP_ATTENTION, in, 3, &o, 1, &attr, NULL)) return;
    const double pairs = (double)(batch * nq) * (double)seq * (double)(seq + 1) / 2;
    if (backward) {
        bench_once(b, bench_forward, &c);
        bench_lists(&c, back_in, 5, &dqkv, 1);
    }
    bench_product_figure(b, backward ? bench_backward : bench_forward, &c, (backward ? 10.0 : 4.0) * pairs * (double)d);
}

void bench_add_attention(bench *b) {
    char name[64];
    for (int i = 0; i < 2 * (int)(sizeof shapes / sizeof shapes[0]); i++) {
        const heads *s = &shapes[i / 2];
        snprintf(name, sizeof name, "attention S %lld, %u:%u heads %s", (long long)s->seq, s->heads, s->kv_heads,
                 i % 2 ? "backward" : "forward");
        bench_add(b, "attention", run_attention, i, name);
    }
}
