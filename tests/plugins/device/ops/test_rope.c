/* moe.rope/0 against the rotation in FP64, and backward as its transpose: the inverse rotation times the amplitude. */
#include "ot.h"

typedef struct shape {
    int64_t tokens;
    uint32_t heads, kv_heads, dim, rotary;
    int32_t act;
    uint32_t v_dim, first, interleaved;
    float amplitude; /* 0 = 1 */
} shape;
static const shape shapes[] = {
    {0, 2, 1, 8, 8, MOE_F32, 0, 0, 0, 0},         {1, 1, 1, 2, 2, MOE_F32, 0, 0, 0, 0},
    {9, 4, 2, 64, 64, MOE_F32, 0, 0, 0, 0},       {7, 3, 3, 10, 6, MOE_BF16, 0, 0, 0, 0},
    {5, 2, 1, 48, 32, MOE_BF16, 0, 0, 0, 0},      {150, 2, 2, 34, 34, MOE_F32, 0, 0, 0, 0},
    {9, 4, 2, 24, 8, MOE_F32, 0, 16, 0, 0},       {9, 4, 2, 24, 8, MOE_F32, 16, 16, 1, 0},
    {7, 2, 2, 64, 64, MOE_F32, 0, 0, 1, 0},       {7, 2, 1, 192, 64, MOE_BF16, 128, 128, 1, 1.3f},
    {11, 3, 1, 15, 6, MOE_BF16, 20, 9, 0, 0.75f}, {11, 3, 1, 15, 6, MOE_F32, 20, 3, 1, 1.2079442f},
    {60, 2, 2, 7, 2, MOE_F32, 1, 5, 0, -2},       {60, 2, 2, 7, 0, MOE_F32, 1, 7, 1, 3},
    {150, 2, 1, 34, 34, MOE_F32, 0, 0, 1, 1},
};

/* Where pair i of head j lies in a row, counted from its first element. */
static void pair_of(const shape *s, int64_t j, int64_t i, int64_t *lo, int64_t *hi) {
    int64_t begin = j * s->dim + s->first;
    *lo = s->interleaved ? begin + 2 * i : begin + i;
    *hi = s->interleaved ? *lo + 1 : *lo + s->rotary / 2;
}

/* Is element e of a row in a pair? */
static int turns(const shape *s, int64_t e) {
    int64_t in_head = e % s->dim;
    return e < (int64_t)(s->heads + s->kv_heads) * s->dim && in_head >= s->first && in_head < s->first + s->rotary;
}

static uint64_t rope_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_attention_attr attr = {.size = sizeof attr, .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->dim};
    attr.v_dim = s->v_dim;
    attr.rotary_dim = s->rotary;
    attr.rotary_first = s->first;
    attr.interleaved = s->interleaved;
    attr.amplitude = s->amplitude;
    const double amplitude = s->amplitude != 0.0f ? (double)s->amplitude : 1.0;
    int64_t width = (int64_t)(s->heads + s->kv_heads) * s->dim + s->kv_heads * (s->v_dim ? s->v_dim : s->dim);
    int64_t half = s->rotary / 2;
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
                double c = amplitude * cos(angle), sine = amplitude * sin(angle);
                int64_t lo, hi;
                pair_of(s, j, i, &lo, &hi);
                double a = want[r * width + lo], b = want[r * width + hi];
                want[r * width + lo] = a * c - b * sine;
                want[r * width + hi] = b * c + a * sine;
            }
    ot_forward(t, &call, MOE_OP_ROPE, OT_LIST(y, pos, freq), OT_LIST(y), &attr, NULL);
    ot_near("qkv", &y, want, 5e-7);
    for (int64_t i = 0; i < s->tokens * width; i++) { /* what no pair covers has passed untouched */
        if (turns(s, i % width))
            back[i] *= amplitude * amplitude;
        else
            ot_want(ot_get(&y, i) == ot_get(&x, i));
    }
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

/* sum(r * forward(x)) = sum(x * backward(r)): what makes backward the gradient of a linear map. */
START_TEST(backward_is_the_transpose) {
    ot t;
    ot_call call;
    ot_start(&t);
    for (uint32_t interleaved = 0; interleaved < 2; interleaved++) {
        moe_attention_attr attr = {.size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 10, .v_dim = 5};
        attr.rotary_dim = 6;
        attr.rotary_first = 3;
        attr.interleaved = interleaved;
        attr.amplitude = 1.5f;
        moe_tensor x = ot_random(&t, ot_tensor(&t, MOE_F32, 20, 35), -1, 1), y = ot_clone(&t, &x);
        moe_tensor r = ot_random(&t, ot_clone(&t, &x), -1, 1), g = ot_clone(&t, &r), pos = ot_tensor(&t, MOE_I32, 20);
        moe_tensor freq = ot_random(&t, ot_tensor(&t, MOE_F32, 3), 0.1, 1);
        for (int64_t i = 0; i < 20; i++) ot_set(&pos, i, (double)(i * 7));
        ot_forward(&t, &call, MOE_OP_ROPE, OT_LIST(y, pos, freq), OT_LIST(y), &attr, NULL);
        ot_backward(&t, &call, OT_LIST(g, pos, freq), OT_LIST(g));
        double out = 0, in = 0, plain = 0;
        for (int64_t i = 0; i < 700; i++) {
            out += ot_get(&r, i) * ot_get(&y, i);
            in += ot_get(&x, i) * ot_get(&g, i);
            plain += ot_get(&x, i) * ot_get(&r, i);
        }
        ot_want_msg(fabs(out - in) < 1e-4, "r f(x) is %.9g, x f'(r) is %.9g", out, in);
        ot_want(fabs(out - plain) > 1e-2);
    }
    ot_close(&t);
}
END_TEST

/* A struct that ends with rotary_dim turns from the first element on, in halves, by an amplitude of 1. */
START_TEST(a_shorter_struct_means_zeros) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_attention_attr attr = {
        .size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 8, .v_dim = 3, .rotary_dim = 6};
    uint32_t reach = offsetof(moe_attention_attr, rotary_first);
    moe_tensor x = ot_random(&t, ot_tensor(&t, MOE_F32, 6, 27), -1, 1), y = ot_clone(&t, &x);
    moe_tensor pos = ot_fill(ot_tensor(&t, MOE_I32, 6), 11), freq = ot_fill(ot_tensor(&t, MOE_F32, 3), 0.3);
    void *shorter = ot_alloc(&t, reach); /* beyond it lie bytes that are no attribute */
    memcpy(shorter, &attr, reach);
    memcpy(shorter, &reach, sizeof reach);
    ot_forward(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &attr, NULL);
    ot_forward(&t, &call, MOE_OP_ROPE, OT_LIST(y, pos, freq), OT_LIST(y), shorter, NULL);
    ot_want(memcmp(x.data, y.data, 6 * 27 * 4) == 0);
    attr.size = reach - 1;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "attr has size 51, want at least 52");
    ot_close(&t);
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

START_TEST(bad_arguments_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_attention_attr good = {
        .size = sizeof good, .heads = 1, .kv_heads = 1, .head_dim = 8, .rotary_dim = 6, .rotary_first = 2};
    moe_attention_attr past = good, far = good, both = good, endless = good, value = good;
    past.rotary_first = 3;
    far.rotary_first = UINT32_MAX;
    both.interleaved = 2;
    endless.amplitude = NAN;
    value.v_dim = 4;
    const struct {
        const moe_attention_attr *attr;
        const char *text;
    } all[] = {
        {&past, "rotary_first is 3 and rotary_dim 6, want a sum up to head_dim 8"},
        {&far, "rotary_first is 4294967295 and rotary_dim 6, want a sum up to head_dim 8"},
        {&both, "interleaved is 2, want 0 or 1"},
        {&endless, "amplitude is nan, want a finite number"},
        {&value, "qkv is [2,24] F32, want [*,20]"},
    };
    moe_tensor x = ot_fill(ot_tensor(&t, MOE_F32, 2, 24), 0), pos = ot_fill(ot_tensor(&t, MOE_I32, 2), 0);
    moe_tensor freq = ot_fill(ot_tensor(&t, MOE_F32, 3), 0);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        ot_refused(&call, ot_try(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), all[i].attr, NULL),
                   MOE_E_ARG, all[i].text);
    ot_forward(&t, &call, MOE_OP_ROPE, OT_LIST(x, pos, freq), OT_LIST(x), &good, NULL);
    ot_close(&t);
}
END_TEST

OT_MAIN("rope", rotation_and_its_inverse_hold, backward_is_the_transpose, a_shorter_struct_means_zeros,
        other_buffer_equals_in_place, C099_odd_or_too_large_rotary_size_is_refused, bad_arguments_are_named)
