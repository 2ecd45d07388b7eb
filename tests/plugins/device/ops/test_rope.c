/* moe.rope/0 against the rotation in FP64, and backward as its inverse. */
#include "ot.h"

typedef struct shape {
    int64_t tokens;
    uint32_t heads, kv_heads, dim, rotary;
    int32_t act;
} shape;
static const shape shapes[] = {
    {0, 2, 1, 8, 8, MOE_F32},   {1, 1, 1, 2, 2, MOE_F32},    {9, 4, 2, 64, 64, MOE_F32},
    {7, 3, 3, 10, 6, MOE_BF16}, {5, 2, 1, 48, 32, MOE_BF16}, {150, 2, 2, 34, 34, MOE_F32},
};

static uint64_t rope_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_attention_attr attr = {.size = sizeof attr, .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->dim};
    attr.rotary_dim = s->rotary;
    int64_t width = (int64_t)(s->heads + 2 * s->kv_heads) * s->dim, half = s->rotary / 2;
    moe_tensor x = ot_random(t, ot_tensor(t, s->act, s->tokens, width), -1, 1), y = ot_clone(t, &x);
    moe_tensor pos = ot_tensor(t, MOE_I32, s->tokens), freq = ot_tensor(t, MOE_F32, half);
    for (int64_t i = 0; i < s->tokens; i++) ot_set(&pos, i, (double)ot_below(t, i % 2 ? 100 : 200000));
    for (int64_t i = 0; i < half; i++) ot_set(&freq, i, pow(10000.0, -(double)i / (double)half));
    double *want = ot_doubles(&x), *back = ot_doubles(&x);
    for (int64_t r = 0; r < s->tokens; r++)
        for (int64_t j = 0; j < s->heads + s->kv_heads; j++)
            for (int64_t i = 0; i < half; i++) {
                /* the angle itself is an FP32 product, as the contract says */
                double angle = (double)((float)ot_get(&pos, r) * (float)ot_get(&freq, i));
                int64_t lo = r * width + j * s->dim + i, hi = lo + half;
                double a = want[lo], b = want[hi];
                want[lo] = a * cos(angle) - b * sin(angle);
                want[hi] = b * cos(angle) + a * sin(angle);
            }
    ot_forward(t, &call, MOE_OP_ROPE, OT_LIST(y, pos, freq), OT_LIST(y), &attr, NULL);
    ot_near("qkv", &y, want, 5e-7);
    for (int64_t i = 0; i < s->tokens * width; i++) /* what no pair covers has passed untouched */
        if (i % width >= (s->heads + s->kv_heads) * s->dim || i % width % s->dim >= s->rotary)
            ot_want(ot_get(&y, i) == ot_get(&x, i));
    uint64_t hash = ot_hash(0, &y);
    ot_backward(t, &call, OT_LIST(y, pos, freq), OT_LIST(y)); /* a rotation's transpose is its inverse */
    ot_near("dqkv", &y, back, s->act == MOE_BF16 ? 6e-3 : 1e-6);
    free(want);
    free(back);
    return ot_hash(hash, &y);
}

START_TEST(rotation_and_its_inverse_hold) {
    OT_EVERYWHERE(rope_case, shapes);
}
END_TEST

START_TEST(other_buffer_equals_in_place) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 8, .rotary_dim = 4};
    moe_tensor x = ot_random(&t, ot_tensor(&t, MOE_BF16, 6, 32), -1, 1), y = ot_tensor(&t, MOE_BF16, 6, 32);
    moe_tensor pos = ot_fill(ot_tensor(&t, MOE_I32, 6), 11), freq = ot_fill(ot_tensor(&t, MOE_F32, 2), 0.3);
    ot_forward(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(y), &attr, NULL);
    ot_forward(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &attr, NULL);
    ot_want(memcmp(x.data, y.data, 6 * 32 * 2) == 0);
    ot_close(&t);
}
END_TEST

/* An odd rotary size and one beyond the head would touch elements of the next head. */
START_TEST(C099_odd_or_too_large_rotary_size_is_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_attention_attr odd = {.size = sizeof odd, .heads = 1, .kv_heads = 1, .head_dim = 33, .rotary_dim = 33};
    moe_attention_attr large = odd, uneven = odd;
    large.rotary_dim = 34;
    uneven.kv_heads = 2;
    moe_tensor x = ot_tensor(&t, MOE_F32, 2, 99), pos = ot_tensor(&t, MOE_I32, 2), freq = ot_tensor(&t, MOE_F32, 16);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &odd, NULL), MOE_E_ARG,
               "rotary_dim is 33, want an even number up to head_dim 33");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &large, NULL), MOE_E_ARG,
               "rotary_dim is 34");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &uneven, NULL), MOE_E_ARG,
               "1 query heads and 2 key-value heads");
    ot_close(&t);
}
END_TEST

OT_MAIN("rope", rotation_and_its_inverse_hold, other_buffer_equals_in_place,
        C099_odd_or_too_large_rotary_size_is_refused)
