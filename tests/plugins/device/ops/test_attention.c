/* moe.attention/0 against plain causal attention in FP64, which stores every score; gradients against sampled central
 * differences of that. Shapes cross the block size (64) on both sides. */
#include "ot.h"

typedef struct shape {
    int64_t batch, seq;
    uint32_t heads, kv_heads, dim;
    int32_t act;
} shape;
static const shape shapes[] = {
    {0, 16, 2, 1, 8, MOE_F32},   {2, 0, 2, 1, 8, MOE_F32},    {1, 1, 1, 1, 4, MOE_F32},    {2, 5, 2, 1, 6, MOE_F32},
    {1, 17, 4, 2, 16, MOE_F32},  {1, 33, 2, 2, 33, MOE_BF16}, {2, 63, 1, 1, 32, MOE_F32},  {1, 64, 3, 1, 48, MOE_F32},
    {1, 65, 2, 2, 64, MOE_BF16}, {1, 130, 2, 1, 20, MOE_F32}, {1, 70, 1, 1, 256, MOE_F32}, {1, 140, 1, 1, 5, MOE_F32},
    {5, 70, 1, 1, 8, MOE_F32},
};

typedef struct plain {
    const shape *s;
    double scale, *qkv, *grad, *o, *lse; /* [T,(nq+2nkv)d], [T,nq*d], [T,nq*d], [batch,nq,seq] */
} plain;

/* o and lse of one query; returns sum of grad * o. */
static double plain_query(const plain *p, int64_t b, int64_t head, int64_t i, double *score) {
    const shape *s = p->s;
    int64_t d = s->dim, width = (int64_t)(s->heads + 2 * s->kv_heads) * d, kv = head / (s->heads / s->kv_heads);
    const double *base = p->qkv + b * s->seq * width, *q = base + i * width + head * d;
    double most = -INFINITY, sum = 0.0, dot = 0.0;
    for (int64_t j = 0; j <= i; j++) {
        const double *k = base + j * width + ((int64_t)s->heads + kv) * d;
        score[j] = 0.0;
        for (int64_t e = 0; e < d; e++) score[j] += q[e] * k[e] * p->scale;
        most = fmax(most, score[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += score[j] = exp(score[j] - most);
    for (int64_t e = 0; e < d; e++) {
        double o = 0.0;
        const double *v = base + ((int64_t)s->heads + s->kv_heads + kv) * d + e;
        for (int64_t j = 0; j <= i; j++) o += score[j] / sum * v[j * width];
        int64_t at = ((b * s->seq + i) * s->heads + head) * d + e;
        p->o[at] = o;
        dot += p->grad[at] * o;
    }
    p->lse[(b * s->heads + head) * s->seq + i] = most + log(sum);
    return dot;
}

static double plain_attention(void *ctx) {
    const plain *p = ctx;
    double sum = 0.0, *score = ot_zeros(p->s->seq);
    for (int64_t b = 0; b < p->s->batch; b++)
        for (int64_t h = 0; h < p->s->heads; h++)
            for (int64_t i = 0; i < p->s->seq; i++) sum += plain_query(p, b, h, i, score);
    free(score);
    return sum;
}

static void check(ot *t, plain *p, const moe_tensor *o, const float *saved, const moe_tensor *dqkv) {
    const shape *s = p->s;
    plain_attention(p);
    ot_near("o", o, p->o, 2e-6);
    moe_tensor lse = {
        .data = (void *)(uintptr_t)saved, .dtype = MOE_F32, .ndim = 3, .shape = {s->batch, s->heads, s->seq, 1}};
    ot_near("lse", &lse, p->lse, 2e-6);
    ot_differences(t, "dqkv", plain_attention, p, p->qkv, dqkv, s->seq > 60 ? 5 : 16, s->act == MOE_BF16 ? 1e-2 : 2e-5);
}

static uint64_t attention_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_attention_attr attr = {.size = sizeof attr, .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->dim};
    attr.batch = s->batch;
    attr.seq = s->seq;
    attr.scale = 1.0f / sqrtf((float)s->dim);
    int64_t tokens = s->batch * s->seq, width = (int64_t)(s->heads + 2 * s->kv_heads) * s->dim;
    moe_tensor qkv = ot_random(t, ot_tensor(t, s->act, tokens, width), -2, 2);
    moe_tensor o = ot_tensor(t, s->act, tokens, (int64_t)s->heads * s->dim);
    moe_tensor grad = ot_random(t, ot_tensor(t, s->act, tokens, (int64_t)s->heads * s->dim), -1, 1);
    moe_tensor dqkv = ot_tensor(t, s->act, tokens, width);
    ot_forward(t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    ot_backward(t, &call, OT_LIST(grad, qkv, o), OT_LIST(dqkv));
    plain p = {s, (double)attr.scale, ot_doubles(&qkv), ot_doubles(&grad), NULL, NULL};
    p.o = ot_zeros(ot_count(&o));
    p.lse = ot_zeros(tokens * s->heads);
    check(t, &p, &o, call.args.saved, &dqkv);
    free(p.qkv);
    free(p.grad);
    free(p.o);
    free(p.lse);
    return ot_hash(ot_hash(0, &o), &dqkv);
}

START_TEST(attention_and_gradients_hold) {
    OT_EVERYWHERE(attention_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[10];
    ot r = {.seed = 77};
    for (size_t i = 0; i < 10; i++) {
        uint32_t kv_heads = 1 + (uint32_t)ot_below(&r, 2), group = 1 + (uint32_t)ot_below(&r, 3);
        random[i] = (shape){
            1 + ot_below(&r, 2),       1 + ot_below(&r, 80), kv_heads * group, kv_heads, 4 + (uint32_t)ot_below(&r, 30),
            i % 3 ? MOE_F32 : MOE_BF16};
    }
    OT_EVERYWHERE(attention_case, random);
}
END_TEST

/* More key-value heads than threads: each thread reuses its own sums of dk and dv, never another's. */
START_TEST(threads_keep_their_sums_apart) {
    static const char *const threads[] = {"1", "3"};
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 4, .kv_heads = 4, .head_dim = 32, .batch = 6, .seq = 128, .scale = 0.2f};
    uint64_t hash[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        ot t;
        ot_call call;
        ck_assert_int_eq(ot_open(&t, "auto", threads[i]), MOE_OK);
        moe_tensor qkv = ot_random(&t, ot_tensor(&t, MOE_F32, 768, 384), -1, 1), o = ot_tensor(&t, MOE_F32, 768, 128);
        moe_tensor grad = ot_random(&t, ot_clone(&t, &o), -1, 1), dqkv = ot_tensor(&t, MOE_F32, 768, 384);
        ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
        for (int j = 0; j < 6; j++) {
            ot_backward(&t, &call, OT_LIST(grad, qkv, o), OT_LIST(dqkv));
            uint64_t h = ot_hash(0, &dqkv);
            ot_want_msg((i == 0 && j == 0) || h == hash[0], "call %d with %s threads gives other bits", j, threads[i]);
            hash[i] = h;
        }
        ot_close(&t);
    }
}
END_TEST

/* Scores of several hundred do not overflow, and one of them takes all. */
START_TEST(large_scores_are_safe) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 1, .kv_heads = 1, .head_dim = 4, .batch = 1, .seq = 70, .scale = 1.0f};
    moe_tensor qkv = ot_random(&t, ot_tensor(&t, MOE_F32, 70, 12), -30, 30), o = ot_tensor(&t, MOE_F32, 70, 4);
    moe_tensor grad = ot_fill(ot_tensor(&t, MOE_F32, 70, 4), 1), dqkv = ot_tensor(&t, MOE_F32, 70, 12);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    ot_backward(&t, &call, OT_LIST(grad, qkv, o), OT_LIST(dqkv));
    for (int64_t i = 0; i < 280; i++) ot_want(fabs(ot_get(&o, i)) <= 30.0001);
    for (int64_t i = 0; i < 840; i++) ot_want(isfinite(ot_get(&dqkv, i)));
    ot_close(&t);
}
END_TEST

/* Later tokens and other sequences have no influence: the first rows keep their bits. */
START_TEST(nothing_leaks_from_the_future) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 8, .batch = 2, .seq = 100, .scale = 0.3f};
    moe_tensor qkv = ot_random(&t, ot_tensor(&t, MOE_F32, 200, 32), -1, 1), o = ot_tensor(&t, MOE_F32, 200, 16);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    moe_tensor before = ot_clone(&t, &o);
    for (int64_t r = 70; r < 100; r++)
        for (int64_t i = 0; i < 32; i++) ot_set(&qkv, r * 32 + i, 5);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    ot_want(memcmp(before.data, o.data, 70 * 16 * 4) == 0);
    ot_want(memcmp((float *)before.data + 1600, (float *)o.data + 1600, 1600 * 4) == 0);
    ot_want(memcmp((float *)before.data + 1120, (float *)o.data + 1120, 480 * 4) != 0);
    ot_close(&t);
}
END_TEST

START_TEST(bad_arguments_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_attention_attr attr = {
        .size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 8, .batch = 2, .seq = 3, .scale = 1};
    moe_attention_attr wide = attr, odd = attr;
    wide.head_dim = 257;
    odd.kv_heads = 0;
    moe_tensor qkv = ot_tensor(&t, MOE_F32, 7, 32), o = ot_tensor(&t, MOE_F32, 6, 16);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL), MOE_E_ARG,
               "qkv is [7,32] F32, want [6,32]");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &wide, NULL), MOE_E_UNSUPPORTED,
               "head_dim is 257, want at most 256");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &odd, NULL), MOE_E_ARG,
               "2 query heads and 0 key-value heads");
    ot_close(&t);
}
END_TEST

OT_MAIN("attention", attention_and_gradients_hold, random_shapes_hold, threads_keep_their_sums_apart,
        large_scores_are_safe, nothing_leaks_from_the_future, bad_arguments_are_named)
