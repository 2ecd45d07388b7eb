/* moe.embed/0: rows by id, of a table or of parts of one, gradients summed in token order, ids outside the table
 * refused. */
#include "ot.h"

typedef struct shape {
    int64_t tokens, vocabulary, width;
    int32_t act;
} shape;
static const shape shapes[] = {
    {0, 5, 8, MOE_F32},     {1, 1, 1, MOE_F32},    {7, 5, 13, MOE_BF16},
    {33, 20, 130, MOE_F32}, {50, 7, 96, MOE_BF16}, {300, 40, 257, MOE_F32},
};

static uint64_t embed_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor ids = ot_tensor(t, MOE_I32, s->tokens), table = ot_tensor(t, s->act, s->vocabulary, s->width);
    moe_tensor x = ot_tensor(t, s->act, s->tokens, s->width), dx = ot_tensor(t, s->act, s->tokens, s->width);
    moe_tensor dtable = ot_tensor(t, MOE_F32, s->vocabulary, s->width);
    for (int64_t i = 0; i < s->tokens; i++) ot_set(&ids, i, (double)ot_below(t, s->vocabulary));
    ot_random(t, table, -1, 1);
    ot_random(t, dx, -1, 1);
    ot_random(t, dtable, -1, 1); /* what is there already */
    float *want = calloc((size_t)(s->vocabulary * s->width), sizeof(float));
    memcpy(want, dtable.data, (size_t)(s->vocabulary * s->width) * sizeof(float));
    ot_forward(t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), NULL, NULL);
    ot_backward(t, &call, OT_LIST(ids, dx), OT_LIST(dtable));
    for (int64_t i = 0; i < s->tokens * s->width; i++) {
        int64_t from = (int64_t)ot_get(&ids, i / s->width) * s->width + i % s->width;
        ot_want(ot_get(&x, i) == ot_get(&table, from));
        want[from] += (float)ot_get(&dx, i);
    }
    for (int64_t i = 0; i < s->vocabulary * s->width; i++) ot_want((double)want[i] == ot_get(&dtable, i));
    free(want);
    return ot_hash(ot_hash(0, &x), &dtable);
}

/* Parts of the table, as ranks have them: the sum of what they give is the whole's row, each adds the gradients of its
 * own words, and the others' leave it as it is. */
static uint64_t parts_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    moe_tensor ids = ot_tensor(t, MOE_I32, s->tokens), dx = ot_tensor(t, s->act, s->tokens, s->width);
    moe_tensor table = ot_random(t, ot_tensor(t, s->act, s->vocabulary, s->width), -1, 1);
    for (int64_t i = 0; i < s->tokens; i++) ot_set(&ids, i, (double)ot_below(t, s->vocabulary));
    ot_random(t, dx, -1, 1);
    moe_tensor dwhole = ot_fill(ot_tensor(t, MOE_F32, s->vocabulary, s->width), 0.5), x = ot_clone(t, &dx);
    ot_forward(t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), NULL, NULL);
    ot_backward(t, &call, OT_LIST(ids, dx), OT_LIST(dwhole));
    double *sum = ot_zeros(s->tokens * s->width);
    uint64_t hash = 0;
    const int64_t bounds[] = {0, s->vocabulary / 3, s->vocabulary / 2, s->vocabulary}; /* of one word: parts of none */
    for (int k = 0; k < 3; k++) {
        int64_t first = bounds[k], n = bounds[k + 1] - first;
        const moe_vocabulary_attr attr = {sizeof attr, 0, first, s->vocabulary};
        moe_tensor own = ot_tensor(t, s->act, n, s->width), down = ot_fill(ot_tensor(t, MOE_F32, n, s->width), 0.5);
        moe_tensor y = ot_tensor(t, s->act, s->tokens, s->width);
        for (int64_t i = 0; i < n * s->width; i++) ot_set(&own, i, ot_get(&table, first * s->width + i));
        ot_forward(t, &call, MOE_OP_EMBED, OT_LIST(ids, own), OT_LIST(y), &attr, NULL);
        ot_backward(t, &call, OT_LIST(ids, dx), OT_LIST(down));
        for (int64_t i = 0; i < s->tokens * s->width; i++) sum[i] += ot_get(&y, i);
        for (int64_t i = 0; i < n * s->width; i++) ot_want(ot_get(&down, i) == ot_get(&dwhole, first * s->width + i));
        hash = ot_hash(ot_hash(hash, &y), &down);
    }
    for (int64_t i = 0; i < s->tokens * s->width; i++) ot_want(sum[i] == ot_get(&x, i));
    free(sum);
    return hash;
}

START_TEST(parts_of_a_table_add_up) {
    OT_EVERYWHERE(parts_case, shapes);
}
END_TEST

START_TEST(rows_and_gradients_are_exact) {
    OT_EVERYWHERE(embed_case, shapes);
}
END_TEST

/* An id of V, of -1, and the -1149026846 of the report: refused by both directions, where the call can still return it
 * before any row is written. */
START_TEST(C098_ids_outside_the_table_are_refused) {
    static const int32_t bad[] = {12, -1, -1149026846};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 4), 3), table = ot_fill(ot_tensor(&t, MOE_F32, 12, 8), 1);
    moe_tensor x = ot_tensor(&t, MOE_F32, 4, 8), dtable = ot_tensor(&t, MOE_F32, 12, 8);
    moe_tensor dx = ot_fill(ot_tensor(&t, MOE_F32, 4, 8), 1);
    for (int i = 0; i < 3; i++) {
        char text[64];
        snprintf(text, sizeof text, "token 2 has id %d, the table has 12 rows", bad[i]);
        ((int32_t *)ids.data)[2] = bad[i];
        ot_expect_data(&t, &call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), NULL, NULL),
                       MOE_E_DATA, 2, bad[i], text);
        if (!ot_async(&t)) ot_untouched("x", &x, 0, 32);
        const moe_tensor back[] = {ids, dx};
        call.args.in = back;
        call.args.out = &dtable;
        ot_expect_data(&t, &call, device_open_run_step(&t.dev, call.op->backward, &call.args, &call.err), MOE_E_DATA, 2,
                       bad[i], text);
        if (!ot_async(&t)) ot_untouched("dtable", &dtable, 0, 96);
    }
    ot_close(&t);
}
END_TEST

/* A part refuses what no part has, and takes what another has. */
START_TEST(C098_ids_outside_all_parts_are_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_vocabulary_attr attr = {sizeof attr, 0, 8, 20};
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 4), 3), table = ot_fill(ot_tensor(&t, MOE_F32, 12, 8), 1);
    moe_tensor x = ot_tensor(&t, MOE_F32, 4, 8);
    ot_forward(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), &attr, NULL);
    for (int64_t i = 0; i < 32; i++) ot_want(ot_get(&x, i) == 0.0);
    ot_set(&ids, 1, 20);
    ot_expect_data(&t, &call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), &attr, NULL), MOE_E_DATA,
                   1, 20, "token 1 has id 20, the table has 20 rows");
    attr.whole = 19;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "12 words from word 8, but the whole has 19");
    attr.size = 16; /* and one that ends before `whole` is not read past its end, by either direction */
    ot_refused(&call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "attr has size 16, want at least 24");
    const moe_tensor back[] = {ids, x};
    call.args.in = back;
    call.args.out = &table;
    ot_refused(&call, device_open_run_step(&t.dev, call.op->backward, &call.args, &call.err), MOE_E_ARG,
               "attr has size 16, want at least 24");
    ot_close(&t);
}
END_TEST

START_TEST(bad_shapes_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor ids = ot_tensor(&t, MOE_I32, 4), table = ot_tensor(&t, MOE_F32, 12, 8), x = ot_tensor(&t, MOE_F32, 4, 7);
    moe_tensor half = ot_tensor(&t, MOE_BF16, 4, 8);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(x), NULL, NULL), MOE_E_ARG,
               "x is [4,7] F32, want [4,8] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids, table), OT_LIST(half), NULL, NULL), MOE_E_ARG,
               "x is [4,8] BF16, want [4,8] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_EMBED, OT_LIST(ids), OT_LIST(x), NULL, NULL), MOE_E_ARG, "1 inputs");
    ot_close(&t);
}
END_TEST

OT_MAIN("embed", rows_and_gradients_are_exact, parts_of_a_table_add_up, C098_ids_outside_all_parts_are_refused,
        C098_ids_outside_the_table_are_refused, bad_shapes_are_named)
