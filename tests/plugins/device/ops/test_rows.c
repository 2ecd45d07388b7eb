/* moe.expert_rows/0, moe.permute/0, moe.unpermute/0: the sort against a plain one, rows there and back. */
#include <sys/mman.h>

#include "args.h"
#include "ot.h"

typedef struct shape {
    int64_t tokens, k, width, align;
    uint32_t first, groups, experts;
    int32_t act;
} shape;
static const shape shapes[] = {
    {0, 2, 8, 1, 0, 4, 4, MOE_F32},      {1, 1, 1, 1, 0, 1, 1, MOE_F32},    {9, 3, 17, 1, 0, 8, 8, MOE_F32},
    {25, 2, 8, 16, 2, 3, 8, MOE_BF16},   {40, 4, 33, 8, 4, 4, 16, MOE_F32}, {3000, 2, 5, 32, 0, 7, 7, MOE_F32},
    {12, 2, 5000, 4, 0, 3, 3, MOE_BF16},
};

/* The wanted layout, made token by token for each expert. Returns the rows used. */
static int64_t plain_rows(const shape *s, const moe_tensor *ids, int64_t *slot_row, int64_t *row_slot, int64_t *offsets,
                          int64_t *counts) {
    int64_t row = 0, pairs = s->tokens * s->k;
    for (int64_t i = 0; i < pairs; i++) slot_row[i] = -1;
    for (uint32_t g = 0; g < s->groups; g++) {
        offsets[g] = row;
        for (int64_t i = 0; i < pairs; i++)
            if (ot_get(ids, i) == (double)(s->first + g)) {
                slot_row[i] = row;
                row_slot[row++] = i;
            }
        counts[g] = row - offsets[g];
        while (row % s->align) row_slot[row++] = -1;
    }
    offsets[s->groups] = row;
    return row;
}

/* Distinct experts within a token, -1 here and there and where there are more slots than experts. */
static void choose(ot *t, const shape *s, moe_tensor *ids) {
    int64_t first = 0;
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t slot = i % s->k;
        if (slot == 0) first = ot_below(t, s->experts);
        ot_set(ids, i, i % 11 == 5 || slot >= s->experts ? -1.0 : (double)((first + slot) % s->experts));
    }
}

static uint64_t rows_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    int64_t pairs = s->tokens * s->k, max = pairs + s->groups * s->align + 3, *want = calloc((size_t)(pairs + max), 8);
    int64_t plain_offsets[17], plain_counts[16], *want_row = want + pairs;
    moe_expert_rows_attr attr = {sizeof attr, s->first, s->groups, s->experts, s->align, 0};
    moe_permute_attr permute = {sizeof permute, (uint32_t)s->k};
    moe_tensor ids = ot_tensor(t, MOE_I32, s->tokens, s->k), slot_row = ot_tensor(t, MOE_I64, s->tokens, s->k);
    moe_tensor row_slot = ot_tensor(t, MOE_I64, max), offsets = ot_tensor(t, MOE_I64, s->groups + 1);
    moe_tensor counts = ot_tensor(t, MOE_I64, s->groups), x = ot_tensor(t, s->act, s->tokens, s->width);
    moe_tensor y = ot_tensor(t, s->act, max, s->width), p = ot_random(t, ot_tensor(t, MOE_F32, s->tokens, s->k), 0, 1);
    moe_tensor row_p = ot_tensor(t, MOE_F32, max), back = ot_tensor(t, s->act, s->tokens, s->width);
    moe_tensor back_p = ot_tensor(t, MOE_F32, s->tokens, s->k);
    ot_random(t, x, -1, 1);
    choose(t, s, &ids);
    ot_forward(t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, counts), &attr, NULL);
    int64_t used = plain_rows(s, &ids, want, want_row, plain_offsets, plain_counts);
    for (int64_t r = used; r < max; r++) want_row[r] = -1;
    ot_want(memcmp(slot_row.data, want, (size_t)pairs * 8) == 0 &&
            memcmp(row_slot.data, want_row, (size_t)max * 8) == 0);
    ot_want(memcmp(offsets.data, plain_offsets, (s->groups + 1) * 8) == 0);
    ot_want(memcmp(counts.data, plain_counts, s->groups * 8) == 0);

    moe_rows rows = {sizeof rows, s->groups, max, offsets.data, counts.data, -1, NULL, NULL};
    ot_forward(t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot, p), OT_LIST(y, row_p), &permute, &rows);
    for (int64_t r = 0; r < used; r++) {
        int64_t slot = want_row[r];
        for (int64_t i = 0; i < s->width; i++)
            ot_want(ot_get(&y, r * s->width + i) == (slot < 0 ? 0.0 : ot_get(&x, slot / s->k * s->width + i)));
        ot_want(ot_get(&row_p, r) == (slot < 0 ? 0.0 : ot_get(&p, slot)));
    }
    ot_untouched("y", &y, used * s->width, max * s->width);
    ot_untouched("row_scalar", &row_p, used, max);
    ot_forward(t, &call, MOE_OP_UNPERMUTE, OT_LIST(y, slot_row, row_p), OT_LIST(back, back_p), &permute, &rows);
    moe_tensor wide = ot_tensor(t, MOE_F32, s->tokens, s->width); /* the sums as they are */
    ot_forward(t, &call, MOE_OP_UNPERMUTE, OT_LIST(y, slot_row), OT_LIST(wide), &permute, &rows);
    for (int64_t i = 0; i < s->tokens * s->width; i++) {
        int64_t copies = 0;
        for (int64_t j = 0; j < s->k; j++) copies += want[i / s->width * s->k + j] >= 0;
        float sum = 0.0f; /* combine after dispatch: as many times the row as it was sent, summed in FP32 */
        for (int64_t j = 0; j < copies; j++) sum += (float)ot_get(&x, i);
        ot_want(s->act == MOE_BF16 ? ((uint16_t *)back.data)[i] == ot_bf16(sum) : ((float *)back.data)[i] == sum);
        ot_want(((float *)wide.data)[i] == sum);
    }
    for (int64_t i = 0; i < pairs; i++) ot_want(ot_get(&back_p, i) == (want[i] < 0 ? 0.0 : ot_get(&p, i)));
    free(want);
    return ot_hash(ot_hash(ot_hash(0, &row_slot), &y), &back);
}

START_TEST(sort_and_moves_are_exact) {
    OT_EVERYWHERE(rows_case, shapes);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[16];
    ot r = {.seed = 79};
    for (size_t i = 0; i < 16; i++) {
        uint32_t groups = 1 + (uint32_t)ot_below(&r, 16), first = (uint32_t)ot_below(&r, 4);
        random[i] = (shape){
            ot_below(&r, 120),  1 + ot_below(&r, 8),       1 + ot_below(&r, 60), 1 + ot_below(&r, 33), first, groups,
            first + groups + 2, i % 3 ? MOE_F32 : MOE_BF16};
    }
    OT_EVERYWHERE(rows_case, random);
}
END_TEST

/* Eight routes and room for six: an error that says so, and nothing is written past the end (guards of ot). */
START_TEST(C040_more_routes_than_rows_is_an_error) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_expert_rows_attr attr = {sizeof attr, 0, 2, 2, 1, 0};
    static const moe_expert_rows_attr aligned = {sizeof attr, 0, 2, 2, 8, 0};
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 4, 2), 1), slot_row = ot_tensor(&t, MOE_I64, 4, 2);
    moe_tensor row_slot = ot_tensor(&t, MOE_I64, 6), offsets = ot_tensor(&t, MOE_I64, 3), n = ot_tensor(&t, MOE_I64, 2);
    for (int64_t i = 0; i < 4; i++) ot_set(&ids, 2 * i, 0);
#define TRY(how) ot_try(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, n), how, NULL)
    ot_expect_data(&t, &call, TRY(&attr), MOE_E_OVERFLOW, DEVICE_OPEN_ANY, DEVICE_OPEN_ANY,
                   "8 rows needed (aligned to 1), the buffer has 6");
    ot_expect_data(&t, &call, TRY(&aligned), MOE_E_OVERFLOW, DEVICE_OPEN_ANY, DEVICE_OPEN_ANY,
                   "16 rows needed (aligned to 8)");
#undef TRY
    if (!ot_async(&t)) ot_untouched("row_slot", &row_slot, 0, 6);
    ot_close(&t);
}
END_TEST

/* The row index times the width passes 2^31 at row 299594 of 7168. */
START_TEST(C038_offsets_are_64_bits_wide) {
    ot_want(cpu_row_at(299593, 7168) == INT64_C(2147482624));
    ot_want(cpu_row_at(299594, 7168) == INT64_C(2147489792));
    ot_want(cpu_row_at(600000, 7168) == INT64_C(4300800000));
}
END_TEST

/* The same through the operation: a table of 600001 tokens in BF16. On the CPU a sparse one, of which three rows are
 * touched; elsewhere, where a table of that size would be filled, the only row that exists, three times. */
static void move_far_row(ot *t, int64_t far, const moe_tensor *shape_of) {
    static const moe_permute_attr attr = {sizeof attr, 1};
    const int64_t width = shape_of->shape[1], at[] = {0, 1}, n[] = {1};
    ot_call call;
    moe_tensor x = *shape_of, row = ot_tensor(t, MOE_BF16, 1, width), y = ot_tensor(t, MOE_BF16, 1, width);
    moe_tensor row_slot = ot_fill(ot_tensor(t, MOE_I64, 1), (double)far);
    moe_rows rows = ot_rows(t, 1, 1, at, n);
    x.data = (void *)((uintptr_t)row.data - (uintptr_t)(far * width * 2)); /* row `far` of x is `row` */
    ot_fill(row, 1.5);
    ot_forward(t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot), OT_LIST(y), &attr, &rows);
    for (int64_t i = 0; i < width; i++) ot_want(ot_get(&y, i) == 1.5);
    ot_clear(t);
}
START_TEST(C038_far_rows_are_moved) {
    enum { TOKENS = 600001, WIDTH = 7168 };
    static const int64_t far[] = {299593, 299594, 600000};
    static const int64_t at[] = {0, 3}, n[] = {3};
    static const moe_permute_attr attr = {sizeof attr, 1};
    moe_tensor x = {.dtype = MOE_BF16, .ndim = 2, .shape = {TOKENS, WIDTH, 1, 1}};
    ot t;
    ot_call call;
    ot_start(&t);
    if (!test_on_cpu()) {
        for (int r = 0; r < 3; r++) move_far_row(&t, far[r], &x);
        ot_close(&t);
        return;
    }
    size_t bytes = (size_t)TOKENS * WIDTH * 2;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return; /* address space is limited here; the helper itself is tested above */
    x.data = map;
    moe_tensor row_slot = ot_tensor(&t, MOE_I64, 3), y = ot_tensor(&t, MOE_BF16, 3, WIDTH);
    for (int r = 0; r < 3; r++) {
        ot_set(&row_slot, r, (double)far[r]);
        for (int64_t i = 0; i < WIDTH; i++) ((uint16_t *)map)[far[r] * WIDTH + i] = (uint16_t)(0x3f80 + r);
    }
    moe_rows rows = ot_rows(&t, 1, 3, at, n);
    rows.host_total = 3;
    ot_forward(&t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot), OT_LIST(y), &attr, &rows);
    for (int64_t i = 0; i < 3 * WIDTH; i++) ot_want(((uint16_t *)y.data)[i] == (uint16_t)(0x3f80 + i / WIDTH));
    munmap(map, bytes);
    ot_close(&t);
}
END_TEST

/* More rows than any cache is taken to hold, in another order, from an odd address and with a rest in every row. */
START_TEST(large_tensors_are_moved) {
    enum { ROWS = 300, WIDTH = 14003 };
    static const int64_t at[] = {0, ROWS}, n[] = {ROWS - 1};
    static const moe_permute_attr attr = {sizeof attr, 1};
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor x = ot_tensor(&t, MOE_F32, ROWS, WIDTH), y = ot_tensor(&t, MOE_F32, ROWS, WIDTH);
    moe_tensor row_slot = ot_tensor(&t, MOE_I64, ROWS), slot_row = ot_tensor(&t, MOE_I64, ROWS, 1);
    float *from = x.data, *to = y.data;
    for (int64_t i = 0; i < ROWS * WIDTH; i++) from[i] = (float)(ot_bits(&t) >> 40);
    for (int64_t r = 0; r < ROWS; r++) ot_set(&row_slot, r, r == ROWS - 1 ? -1.0 : (double)(r * 7 % ROWS));
    for (int64_t i = 0; i < ROWS; i++) ot_set(&slot_row, i, -1);
    for (int64_t r = 0; r < ROWS - 1; r++) ot_set(&slot_row, r * 7 % ROWS, (double)r);
    moe_rows rows = ot_rows(&t, 1, ROWS, at, n);
    ot_forward(&t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot), OT_LIST(y), &attr, &rows);
    for (int64_t r = 0; r < ROWS - 1; r++)
        ot_want(memcmp(to + r * WIDTH, from + r * 7 % ROWS * WIDTH, WIDTH * sizeof(float)) == 0);
    for (int64_t i = 0; i < WIDTH; i++) ot_want(to[(ROWS - 1) * WIDTH + i] == 0.0f);
    moe_tensor back = ot_tensor(&t, MOE_F32, ROWS, WIDTH);
    ot_forward(&t, &call, MOE_OP_UNPERMUTE, OT_LIST(y, slot_row), OT_LIST(back), &attr, &rows);
    for (int64_t i = 0; i < ROWS; i++) {
        const float *got = (const float *)back.data + i * WIDTH;
        if (ot_get(&slot_row, i) < 0)
            ot_want(got[0] == 0.0f && got[WIDTH - 1] == 0.0f);
        else
            ot_want(memcmp(got, from + i * WIDTH, WIDTH * sizeof(float)) == 0);
    }
    ot_close(&t);
}
END_TEST

/* Ids of -1 throughout: no rows, zero output. */
START_TEST(C039_all_ids_minus_one_give_zeros) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_expert_rows_attr attr = {sizeof attr, 0, 2, 2, 1, 0};
    static const moe_permute_attr permute = {sizeof permute, 2};
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 3, 2), -1), slot_row = ot_tensor(&t, MOE_I64, 3, 2);
    moe_tensor row_slot = ot_tensor(&t, MOE_I64, 4), offsets = ot_tensor(&t, MOE_I64, 3), n = ot_tensor(&t, MOE_I64, 2);
    moe_tensor y = ot_fill(ot_tensor(&t, MOE_F32, 4, 5), NAN), x = ot_tensor(&t, MOE_F32, 3, 5);
    ot_forward(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, n), &attr, NULL);
    moe_rows rows = {sizeof rows, 2, 4, offsets.data, n.data, -1, NULL, NULL};
    ot_forward(&t, &call, MOE_OP_UNPERMUTE, OT_LIST(y, slot_row), OT_LIST(x), &permute, &rows);
    for (int64_t i = 0; i < 15; i++) ot_want(ot_get(&x, i) == 0.0);
    ot_close(&t);
}
END_TEST

/* The sum goes through the slots from the first to the last, whatever the rows' order. */
START_TEST(C047_slots_are_summed_in_order) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_permute_attr permute = {sizeof permute, 4};
    moe_tensor y = ot_tensor(&t, MOE_F32, 4, 1), slot_row = ot_tensor(&t, MOE_I64, 1, 4),
               x = ot_tensor(&t, MOE_F32, 1, 1);
    static const double value[] = {3.0, -1e8, 1.0, 1e8};
    static const double order[] = {3, 1, 2, 0}; /* 1e8 - 1e8 + 1 + 3; the other way round 1 and 3 would be lost */
    for (int64_t i = 0; i < 4; i++) ot_set(&y, i, value[i]);
    for (int64_t i = 0; i < 4; i++) ot_set(&slot_row, i, order[i]);
    ot_forward(&t, &call, MOE_OP_UNPERMUTE, OT_LIST(y, slot_row), OT_LIST(x), &permute, NULL);
    ot_want(ot_get(&x, 0) == 4.0);
    ot_close(&t);
}
END_TEST

START_TEST(C098_ids_and_rows_outside_are_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_expert_rows_attr attr = {sizeof attr, 0, 2, 4, 1, 0};
    static const moe_expert_rows_attr wide = {sizeof attr, 3, 2, 4, 1, 0};
    static const moe_permute_attr permute = {sizeof permute, 2};
    static const int64_t at[] = {0, 4}, n[] = {4};
    moe_rows rows = ot_rows(&t, 1, 6, at, n);
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 3, 2), -1), slot_row = ot_tensor(&t, MOE_I64, 3, 2);
    moe_tensor row_slot = ot_fill(ot_tensor(&t, MOE_I64, 6), 1), offsets = ot_tensor(&t, MOE_I64, 3);
    moe_tensor counts = ot_tensor(&t, MOE_I64, 2), x = ot_fill(ot_tensor(&t, MOE_F32, 3, 5), 1),
               y = ot_tensor(&t, MOE_F32, 6, 5);
    ot_set(&ids, 1, 1);
    ot_set(&ids, 2, 1); /* the neighbour of another token: no fault */
    ot_forward(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, counts), &attr, NULL);
    ot_set(&ids, 3, 1);
#define TRY() \
    ot_try(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, counts), &attr, NULL)
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, 1, 1, "token 1 chose expert 1 twice");
    ot_set(&ids, 3, -1);
    ot_set(&ids, 5, 4);
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, 2, 4, "token 2 slot 1 has expert 4, want -1 or below 4");
    for (int i = 0; i < 2; i++) { /* no expert's, and not the -1 of none */
        ot_set(&ids, 5, i ? INT32_MIN : -2);
        ot_expect_data(&t, &call, TRY(), MOE_E_DATA, 2, i ? INT32_MIN : -2,
                       i ? "token 2 slot 1 has expert -2147483648, want" : "token 2 slot 1 has expert -2, want");
    }
#undef TRY
    ot_fill(row_slot, 1);
    ot_refused(
        &call,
        ot_try(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, counts), &wide, NULL),
        MOE_E_ARG, "2 experts from 3 on");
    ot_set(&row_slot, 4, 99); /* past the last offset: not looked at */
    ot_forward(&t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot), OT_LIST(y), &permute, &rows);
    ot_set(&row_slot, 3, 6);
    ot_expect_data(&t, &call, ot_try(&t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot), OT_LIST(y), &permute, &rows),
                   MOE_E_DATA, 3, 6, "row 3 has slot 6, want -1..5");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_PERMUTE, OT_LIST(x, row_slot), OT_LIST(y), &permute, NULL), MOE_E_ARG,
               "rows is NULL");
    ot_fill(slot_row, -1);
    ot_set(&slot_row, 3, 4);
    ot_expect_data(&t, &call, ot_try(&t, &call, MOE_OP_UNPERMUTE, OT_LIST(y, slot_row), OT_LIST(x), &permute, &rows),
                   MOE_E_DATA, 1, 4, "token 1 slot 1 has row 4, want -1..3");
    ot_close(&t);
}
END_TEST

OT_MAIN("rows", sort_and_moves_are_exact, random_shapes_hold, C040_more_routes_than_rows_is_an_error,
        C038_offsets_are_64_bits_wide, C038_far_rows_are_moved, large_tensors_are_moved,
        C039_all_ids_minus_one_give_zeros, C047_slots_are_summed_in_order, C098_ids_and_rows_outside_are_refused)
