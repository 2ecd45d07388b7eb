/* moe.add/0 and moe.join/0: exact, whatever the sizes. */
#include "ot.h"

typedef struct shape {
    int64_t parts, tokens, width;
    int32_t dtype;
} shape;
static const shape shapes[] = {{1, 0, 5, MOE_F32},     {2, 1, 1, MOE_BF16},   {1, 7, 13, MOE_F32},
                               {4, 9, 30, MOE_BF16},   {0, 3, 4, MOE_F32},    {2, 300, 41, MOE_F32},
                               {8, 130, 64, MOE_BF16}, {2, 3, 9000, MOE_F32}, {3, 5, 0, MOE_BF16}};

static uint64_t join_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor x = ot_random(t, ot_tensor(t, s->dtype, s->parts, s->tokens, s->width), -1, 1);
    moe_tensor y = ot_tensor(t, s->dtype, s->tokens, s->parts * s->width);
    ot_forward(t, &call, MOE_OP_JOIN, OT_LIST(x), OT_LIST(y), NULL, NULL);
    for (int64_t i = 0; i < ot_count(&y); i++) {
        int64_t row = i / (s->parts * s->width), part = i % (s->parts * s->width) / s->width;
        ot_want(ot_get(&y, i) == ot_get(&x, (part * s->tokens + row) * s->width + i % s->width));
    }
    return ot_hash(0, &y);
}

START_TEST(columns_lie_side_by_side) {
    OT_EVERYWHERE(join_case, shapes);
}
END_TEST

/* Its gradient is both sides' as it is: nothing to differentiate. */
static uint64_t add_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor x = ot_random(t, ot_tensor(t, s->dtype, s->parts, s->tokens, s->width), -1, 1);
    moe_tensor y = ot_random(t, ot_clone(t, &x), -1, 1), before = ot_clone(t, &y);
    ot_forward(t, &call, MOE_OP_ADD, OT_LIST(x), OT_LIST(y), NULL, NULL);
    for (int64_t i = 0; i < ot_count(&y); i++) {
        float sum = (float)ot_get(&before, i) + (float)ot_get(&x, i);
        ot_set(&before, i, (double)sum); /* rounds as the tensor does */
        ot_want(ot_get(&y, i) == ot_get(&before, i));
    }
    return ot_hash(0, &y);
}

START_TEST(sums_are_exact) {
    OT_EVERYWHERE(add_case, shapes);
}
END_TEST

START_TEST(bad_shapes_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor x = ot_tensor(&t, MOE_F32, 2, 3, 4), y = ot_tensor(&t, MOE_F32, 3, 7),
               z = ot_tensor(&t, MOE_BF16, 2, 3, 4);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_JOIN, OT_LIST(x), OT_LIST(y), NULL, NULL), MOE_E_ARG,
               "y is [3,7] F32, want [3,8] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ADD, OT_LIST(x), OT_LIST(z), NULL, NULL), MOE_E_ARG,
               "y is [2,3,4] BF16, want [2,3,4] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_ADD, OT_LIST(ot_absent()), OT_LIST(z), NULL, NULL), MOE_E_ARG,
               "x has ndim 0");
    ot_close(&t);
}
END_TEST

OT_MAIN("add and join", columns_lie_side_by_side, sums_are_exact, bad_shapes_are_named)
