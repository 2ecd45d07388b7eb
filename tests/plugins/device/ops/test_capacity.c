/* moe.capacity/0 against a naive reference that asks of each choice how many of its expert and scope go before it; and
 * moe.expert_rows/0 with a least number of rows an expert, its counterpart where capacity pads. */
#include "ot.h"

typedef struct shape {
    int64_t tokens, k, capacity, scope;
    uint32_t experts;
    int32_t drop, values; /* values: this many different weights, so that ties are common; 0 = any */
} shape;
static const shape shapes[] = {
    {0, 2, 1, 5, 4, MOE_DROP_PROB, 0},       {1, 1, 1, 1, 1, MOE_DROP_PROB, 0},
    {9, 3, 1, 9, 4, MOE_DROP_PROB, 0},       {9, 3, 2, 3, 4, MOE_DROP_POSITION, 0},
    {60, 2, 7, 20, 5, MOE_DROP_PROB, 3},     {60, 2, 7, 60, 5, MOE_DROP_PROB, 1},
    {60, 4, 20, 20, 8, MOE_DROP_PROB, 2},    {60, 4, 19, 20, 8, MOE_DROP_PROB, 2},
    {64, 8, 5, 16, 8, MOE_DROP_POSITION, 0}, {900, 2, 100, 900, 7, MOE_DROP_PROB, 0},
    {900, 2, 100, 300, 7, MOE_DROP_PROB, 5}, {50, 1, INT64_MAX, 50, 3, MOE_DROP_PROB, 2},
    {12, 2, 1, 1, 4, MOE_DROP_POSITION, 0},
};

/* Distinct experts within a token, -1 here and there; weights of both signs, zeros of both signs, and ties. */
static void choose(ot *t, const shape *s, const moe_tensor *ids, const moe_tensor *weights) {
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t slot = i % s->k, first = i / s->k * 7 % s->experts;
        if (ot_below(t, 3) == 0) first = 0; /* some experts are hot */
        int32_t *id = (int32_t *)ids->data + i;
        *id = ot_below(t, 9) == 0 || slot >= s->experts ? -1 : (int32_t)((first + slot) % s->experts);
        for (int64_t j = i - slot; j < i; j++)
            if (((int32_t *)ids->data)[j] == *id) *id = -1;
        double w = ot_uniform(t, -0.5, 1);
        if (s->values) w = (double)ot_below(t, s->values) / 4 - 0.25;
        if (s->values == 3 && w == 0 && ot_below(t, 2)) w = -0.0;
        ot_set(weights, i, w);
    }
}

/* Does choice i go before choice j of the same expert? Larger weight first, then the earlier token. */
static int goes_before(const shape *s, const float *w, int64_t i, int64_t j) {
    if (s->drop == MOE_DROP_PROB && w[i] != w[j]) return w[i] > w[j];
    return i < j;
}

/* kept [T,k] 0 or 1; returns the number dropped. */
static int64_t naive(const shape *s, const int32_t *ids, const float *w, char *kept) {
    int64_t pairs = s->scope * s->k, dropped = 0;
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t begin = i / pairs * pairs, before = 0;
        for (int64_t j = begin; j < begin + pairs; j++) before += j != i && ids[j] == ids[i] && goes_before(s, w, j, i);
        kept[i] = ids[i] >= 0 && before < s->capacity;
        dropped += ids[i] >= 0 && !kept[i];
    }
    return dropped;
}

static uint64_t capacity_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const moe_capacity_attr attr = {sizeof attr, s->experts, s->drop, 0, s->capacity, s->scope};
    int64_t pairs = s->tokens * s->k, choices = 0;
    moe_tensor ids = ot_tensor(t, MOE_I32, s->tokens, s->k), w = ot_tensor(t, MOE_F32, s->tokens, s->k);
    moe_tensor kept_ids = ot_clone(t, &ids), kept_w = ot_clone(t, &w), n = ot_tensor(t, MOE_I64, 2);
    char *kept = calloc((size_t)pairs + 1, 1);
    choose(t, s, &ids, &w);
    ot_set(&n, 0, 1000);
    ot_set(&n, 1, 10);
    ot_forward(t, &call, MOE_OP_CAPACITY, OT_LIST(ids, w), OT_LIST(kept_ids, kept_w, n), &attr, NULL);
    int64_t dropped = naive(s, ids.data, w.data, kept);
    for (int64_t i = 0; i < pairs; i++) {
        choices += ot_get(&ids, i) >= 0;
        ot_want_msg(ot_get(&kept_ids, i) == (kept[i] ? ot_get(&ids, i) : -1), "token %lld slot %lld: %s",
                    (long long)(i / s->k), (long long)(i % s->k), kept[i] ? "dropped" : "kept");
        ot_want(ot_get(&kept_w, i) == (kept[i] ? ot_get(&w, i) : 0));
    }
    ot_want((int64_t)ot_get(&n, 0) == 1000 + choices && (int64_t)ot_get(&n, 1) == 10 + dropped);
    free(kept);
    return ot_hash(ot_hash(ot_hash(0, &kept_ids), &kept_w), &n);
}

START_TEST(choices_are_those_of_the_reference) {
    OT_EVERYWHERE(capacity_case, shapes);
}
END_TEST

START_TEST(random_routings_hold) {
    shape random[60];
    ot r = {.seed = 83};
    for (size_t i = 0; i < 60; i++) {
        int64_t scope = 1 + ot_below(&r, 50), most = scope + scope / 4 + 2;
        random[i] = (shape){scope * ot_below(&r, 4),        1 + ot_below(&r, 6),
                            1 + ot_below(&r, most),         scope,
                            1 + (uint32_t)ot_below(&r, 10), i % 3 ? MOE_DROP_PROB : MOE_DROP_POSITION,
                            (int32_t)ot_below(&r, 5)};
    }
    OT_EVERYWHERE(capacity_case, random);
}
END_TEST

/* Four tokens, two experts, two choices a token, capacity 32 (factor 8 before any clamp): nothing is dropped, and what
 * comes out is what went in, so the output is that of a dropless layer. The same for capacity T exactly. */
START_TEST(C035_capacity_beyond_the_tokens_drops_nothing) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor ids = ot_tensor(&t, MOE_I32, 4, 2), w = ot_random(&t, ot_tensor(&t, MOE_F32, 4, 2), 0, 1);
    moe_tensor kept_ids = ot_clone(&t, &ids), kept_w = ot_clone(&t, &w), n = ot_fill(ot_tensor(&t, MOE_I64, 2), 0);
    for (int64_t i = 0; i < 8; i++) ot_set(&ids, i, (double)((i + i / 2) % 2));
    static const int64_t capacity[] = {32, 4, INT64_MAX};
    for (int i = 0; i < 6; i++) {
        const moe_capacity_attr attr = {sizeof attr,     2, i < 3 ? MOE_DROP_PROB : MOE_DROP_POSITION, 0,
                                        capacity[i % 3], 4};
        ot_forward(&t, &call, MOE_OP_CAPACITY, OT_LIST(ids, w), OT_LIST(kept_ids, kept_w, n), &attr, NULL);
        ot_want(memcmp(kept_ids.data, ids.data, 32) == 0 && memcmp(kept_w.data, w.data, 32) == 0);
        ot_want(ot_get(&n, 0) == 8 * (i + 1) && ot_get(&n, 1) == 0);
    }
    ot_close(&t);
}
END_TEST

START_TEST(bad_ids_weights_and_attributes_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_capacity_attr attr = {sizeof attr, 3, MOE_DROP_PROB, 0, 1, 2};
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 4, 2), 1), w = ot_fill(ot_tensor(&t, MOE_F32, 4, 2), 1);
    moe_tensor kept_ids = ot_tensor(&t, MOE_I32, 4, 2), kept_w = ot_tensor(&t, MOE_F32, 4, 2);
    moe_tensor n = ot_fill(ot_tensor(&t, MOE_I64, 2), 0), wide = ot_tensor(&t, MOE_F32, 4, 3);
#define TRY(weights) \
    ot_try(&t, &call, MOE_OP_CAPACITY, OT_LIST(ids, weights), OT_LIST(kept_ids, kept_w, n), &attr, NULL)
    ot_refused(&call, TRY(wide), MOE_E_ARG, "weights is [4,3] F32, want [4,2] F32");
    ot_set(&ids, 5, 3);
    ot_expect_data(&t, &call, TRY(w), MOE_E_DATA, 2, 3, "token 2 slot 1 has expert 3, want -1 or below 3");
    ot_set(&ids, 5, -2);
    ot_expect_data(&t, &call, TRY(w), MOE_E_DATA, 2, -2, "token 2 slot 1 has expert -2, want -1 or below 3");
    ot_set(&ids, 5, -1);
    ot_set(&w, 5, NAN); /* nobody's */
    ot_want(TRY(w) == MOE_OK);
    ot_set(&w, 6, NAN);
    ot_expect_data(&t, &call, TRY(w), MOE_E_DATA, 3, 0, "token 3 slot 0 has a weight that is not a number");
    attr.scope = 3;
    ot_refused(&call, TRY(w), MOE_E_ARG, "4 tokens are not a multiple of scope 3");
    attr.scope = 0;
    ot_refused(&call, TRY(w), MOE_E_ARG, "scope is 0, want >= 1");
    attr.capacity = 0;
    ot_refused(&call, TRY(w), MOE_E_ARG, "capacity is 0, want >= 1");
    attr.drop = 2;
    ot_refused(&call, TRY(w), MOE_E_ARG, "drop is 2, want MOE_DROP_PROB (0) or MOE_DROP_POSITION (1)");
    attr.n_experts = 0;
    ot_refused(&call, TRY(w), MOE_E_UNSUPPORTED, "0 experts, want 1..");
#undef TRY
    ot_close(&t);
}
END_TEST

/* ---- moe.expert_rows/0 with min_rows ---- */
/* Experts 0..3 get 3, 0, 5, 1 choices. */
static void sort_with(ot *t, int64_t align, int64_t least, const int64_t want[5]) {
    static const int32_t chosen[] = {2, 0, 2, 3, 2, 0, 2, 0, 2};
    static const int64_t count[] = {3, 0, 5, 1};
    enum { ROWS = 64 };
    ot_call call;
    const moe_expert_rows_attr attr = {sizeof attr, 0, 4, 4, align, least};
    moe_tensor ids = ot_tensor(t, MOE_I32, 9, 1), slot_row = ot_tensor(t, MOE_I64, 9, 1);
    moe_tensor row_slot = ot_tensor(t, MOE_I64, ROWS), at = ot_tensor(t, MOE_I64, 5), n = ot_tensor(t, MOE_I64, 4);
    memcpy(ids.data, chosen, sizeof chosen);
    ot_forward(t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, at, n), &attr, NULL);
    ot_want(memcmp(at.data, want, 5 * 8) == 0);
    ot_want(memcmp(n.data, count, 4 * 8) == 0);
    int64_t row = 0;
    for (int64_t g = 0; g < 4; g++) {
        for (int64_t i = 0; i < 9; i++)
            if (chosen[i] == g) {
                ot_want(ot_get(&row_slot, row) == (double)i && ot_get(&slot_row, i) == (double)row);
                row++;
            }
        for (; row < want[g + 1]; row++) ot_want(ot_get(&row_slot, row) == -1);
    }
    for (; row < ROWS; row++) ot_want(ot_get(&row_slot, row) == -1);
}

START_TEST(experts_take_their_least_rows) {
    ot t;
    ot_start(&t);
    sort_with(&t, 1, 0, (const int64_t[]){0, 3, 3, 8, 9});
    sort_with(&t, 1, 4, (const int64_t[]){0, 4, 8, 13, 17});
    sort_with(&t, 1, 16, (const int64_t[]){0, 16, 32, 48, 64});
    sort_with(&t, 4, 3, (const int64_t[]){0, 4, 8, 16, 20});
    sort_with(&t, 8, 9, (const int64_t[]){0, 16, 32, 48, 64});
    ot_close(&t);
}
END_TEST

START_TEST(least_rows_that_do_not_fit_are_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_expert_rows_attr attr = {sizeof attr, 0, 4, 4, 8, 9};
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 20, 1), 2), slot_row = ot_tensor(&t, MOE_I64, 20, 1);
    moe_tensor row_slot = ot_tensor(&t, MOE_I64, 64), at = ot_tensor(&t, MOE_I64, 5), n = ot_tensor(&t, MOE_I64, 4);
#define TRY() ot_try(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, at, n), &attr, NULL)
    ot_expect_data(&t, &call, TRY(), MOE_E_OVERFLOW, DEVICE_OPEN_ANY, DEVICE_OPEN_ANY,
                   "72 rows needed (aligned to 8), the buffer has 64; min_rows is 9");
    attr.min_rows = 17;
    ot_refused(&call, TRY(), MOE_E_ARG, "4 experts of at least 17 rows (aligned to 8), row_slot has 64");
    attr.min_rows = INT64_MAX;
    ot_refused(&call, TRY(), MOE_E_ARG, "4 experts of at least 9223372036854775807 rows");
    attr.min_rows = -1;
    ot_refused(&call, TRY(), MOE_E_ARG, "min_rows is -1, want >= 0");
    if (!ot_async(&t)) ot_untouched("row_slot", &row_slot, 0, 64);
    attr.size = offsetof(moe_expert_rows_attr, min_rows); /* an older caller: 0 */
    ot_want(TRY() == MOE_OK);
    ot_want(ot_get(&at, 4) == 24);
#undef TRY
    ot_close(&t);
}
END_TEST

OT_MAIN("capacity", choices_are_those_of_the_reference, random_routings_hold,
        C035_capacity_beyond_the_tokens_drops_nothing, bad_ids_weights_and_attributes_are_named,
        experts_take_their_least_rows, least_rows_that_do_not_fit_are_refused)
