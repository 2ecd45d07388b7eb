/* moe.mla_pack/0: every element at its place, and the gradient of the rotary part as the sum over the heads. */
#include "ot.h"

typedef struct shape {
    int64_t tokens, n, a, r, v;
    int32_t act;
} shape;
static const shape shapes[] = {
    {0, 2, 4, 2, 3, MOE_F32},    {1, 1, 1, 1, 1, MOE_BF16},   {1, 3, 5, 2, 7, MOE_F32},
    {40, 4, 16, 8, 16, MOE_F32}, {300, 3, 7, 3, 5, MOE_BF16}, {9, 16, 128, 64, 128, MOE_BF16},
};

/* Where element j of the packed row t comes from: tensor 0 q, 1 kv, 2 k_rope. */
static int64_t source(const shape *s, int64_t t, int64_t j, int *tensor) {
    int64_t head = s->a + s->r, qk = s->n * head, step = s->a + s->v;
    if (j < qk) {
        *tensor = 0;
        return t * qk + j;
    }
    if (j < 2 * qk) {
        int64_t h = (j - qk) / head, i = (j - qk) % head;
        *tensor = i < s->a ? 1 : 2;
        return i < s->a ? (t * s->n + h) * step + i : t * s->r + i - s->a;
    }
    int64_t h = (j - 2 * qk) / s->v, i = (j - 2 * qk) % s->v;
    *tensor = 1;
    return (t * s->n + h) * step + s->a + i;
}

static uint64_t pack_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const moe_mla_pack_attr attr = {sizeof attr, (uint32_t)s->n, (uint32_t)s->a, (uint32_t)s->r, (uint32_t)s->v, 0};
    int64_t T = s->tokens, width = 2 * s->n * (s->a + s->r) + s->n * s->v;
    moe_tensor from[] = {ot_tensor(t, s->act, T, s->n * (s->a + s->r)), ot_tensor(t, s->act, T, s->n * (s->a + s->v)),
                         ot_tensor(t, s->act, T, s->r)};
    moe_tensor d[] = {ot_clone(t, &from[0]), ot_clone(t, &from[1]), ot_clone(t, &from[2])};
    moe_tensor qkv = ot_tensor(t, s->act, T, width), dqkv = ot_tensor(t, s->act, T, width);
    double *want[3];
    for (int i = 0; i < 3; i++) {
        ot_random(t, from[i], -1, 1);
        want[i] = ot_zeros(ot_count(&from[i]));
    }
    ot_random(t, dqkv, -1, 1);
    ot_forward(t, &call, MOE_OP_MLA_PACK, from, 3, OT_LIST(qkv), &attr, NULL);
    ot_backward(t, &call, OT_LIST(dqkv), d, 3);
    for (int64_t i = 0; i < T * width; i++) {
        int tensor;
        int64_t at = source(s, i / width, i % width, &tensor);
        ot_want_msg(ot_get(&qkv, i) == ot_get(&from[tensor], at), "element %lld of row %lld", (long long)(i % width),
                    (long long)(i / width));
        want[tensor][at] += ot_get(&dqkv, i);
    }
    for (int i = 0; i < 2; i++) /* moved, not computed: exact */
        for (int64_t j = 0; j < ot_count(&d[i]); j++) ot_want(ot_get(&d[i], j) == want[i][j]);
    ot_near("dk_rope", &d[2], want[2], 1e-6);
    for (int i = 0; i < 3; i++) free(want[i]);
    return ot_hash(ot_hash(ot_hash(ot_hash(0, &qkv), &d[0]), &d[1]), &d[2]);
}

START_TEST(rows_are_packed_and_gradients_come_back) {
    OT_EVERYWHERE(pack_case, shapes);
}
END_TEST

/* 256 and then many halves: in BF16 each would be lost, in FP32 their sum is there. */
START_TEST(rotary_gradients_are_summed_in_fp32) {
    enum { HEADS = 17 };
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_mla_pack_attr attr = {sizeof attr, HEADS, 1, 1, 1, 0};
    moe_tensor q = ot_fill(ot_tensor(&t, MOE_BF16, 1, HEADS * 2), 0), kv = ot_clone(&t, &q);
    moe_tensor k_rope = ot_fill(ot_tensor(&t, MOE_BF16, 1, 1), 0), qkv = ot_tensor(&t, MOE_BF16, 1, HEADS * 5);
    ot_forward(&t, &call, MOE_OP_MLA_PACK, OT_LIST(q, kv, k_rope), OT_LIST(qkv), &attr, NULL);
    ot_fill(qkv, 0.5);
    ot_set(&qkv, HEADS * 2 + 1, 256);
    ot_backward(&t, &call, OT_LIST(qkv), OT_LIST(q, kv, k_rope));
    ot_want(ot_get(&k_rope, 0) == 264);
    ot_close(&t);
}
END_TEST

START_TEST(misfits_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_mla_pack_attr attr = {sizeof attr, 2, 3, 2, 4, 0};
    moe_tensor q = ot_tensor(&t, MOE_F32, 5, 10), kv = ot_tensor(&t, MOE_F32, 5, 14), r = ot_tensor(&t, MOE_F32, 5, 2);
    moe_tensor qkv = ot_tensor(&t, MOE_F32, 5, 28), narrow = ot_tensor(&t, MOE_F32, 5, 27),
               four = ot_tensor(&t, MOE_F32, 4, 2), half = ot_tensor(&t, MOE_BF16, 5, 14);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_MLA_PACK, OT_LIST(q, kv, r), OT_LIST(narrow), &attr, NULL), MOE_E_ARG,
               "qkv is [5,27] F32, want [*,28]");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_MLA_PACK, OT_LIST(q, kv, four), OT_LIST(qkv), &attr, NULL), MOE_E_ARG,
               "k_rope is [4,2] F32, want [5,2] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_MLA_PACK, OT_LIST(q, half, r), OT_LIST(qkv), &attr, NULL), MOE_E_ARG,
               "kv is [5,14] BF16, want [5,14] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_MLA_PACK, OT_LIST(kv, q, r), OT_LIST(qkv), &attr, NULL), MOE_E_ARG,
               "q is [5,14] F32, want [5,10] F32");
    attr.rope = 0;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_MLA_PACK, OT_LIST(q, kv, r), OT_LIST(qkv), &attr, NULL), MOE_E_ARG,
               "rope is 0, want 1..");
    attr.rope = UINT32_MAX;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_MLA_PACK, OT_LIST(q, kv, r), OT_LIST(qkv), &attr, NULL), MOE_E_ARG,
               "rope is 4294967295, want 1..");
    ot_untouched("qkv", &qkv, 0, 5 * 28);
    ot_close(&t);
}
END_TEST

OT_MAIN("mla_pack", rows_are_packed_and_gradients_come_back, rotary_gradients_are_summed_in_fp32, misfits_are_named)
