/* dispatcher/local: rows go to their experts and come back, for named patterns of load and random ones. */
#include "local_case.h"

/* ---- patterns: distinct ids of one token ---- */
typedef void pattern(int32_t *ids, int64_t token, const shape_case *s, uint64_t *x);

static void balanced(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) {
    (void)x;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = (int32_t)(((uint64_t)t * s->k + i) % s->experts);
}
static void one_hot(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) { /* expert 0 gets every token */
    (void)x;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = i ? (int32_t)(1 + ((uint64_t)t + i) % (s->experts - 1)) : 0;
}
static void half_empty(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) { /* only even experts */
    (void)x;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = (int32_t)(2 * (((uint64_t)t + i) % (s->experts / 2)));
}
static void ragged(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) { /* slots without expert, at random */
    balanced(ids, t, s, x);
    for (uint32_t i = 0; i < s->k; i++)
        if (local_roll(x, 3) == 0) ids[i] = -1;
}
static void moving_hot(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) {
    (void)x;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = (int32_t)(((uint64_t)t / 16 + i) % s->experts);
}
static void burst(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) { /* nothing, then everything */
    if (t < s->tokens / 2)
        for (uint32_t i = 0; i < s->k; i++) ids[i] = -1;
    else
        one_hot(ids, t, s, x);
}
static void anything(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) {
    (void)t;
    for (uint32_t i = 0; i < s->k; i++) {
        uint32_t j;
        do {
            ids[i] = (int32_t)local_roll(x, s->experts);
            for (j = 0; j < i && ids[j] != ids[i]; j++) continue;
        } while (j < i);
    }
}

static void run_pattern(const shape_case *s, pattern *p, int which, uint64_t seed) {
    local_case c;
    local_open(&c, s, which);
    for (int64_t t = 0; t < s->tokens; t++) p(c.ids + t * s->k, t, s, &seed);
    local_round_trip(&c);
    local_close(&c);
}

START_TEST(C048_patterns_come_back_bit_exact) {
    static pattern *const patterns[] = {balanced, one_hot, half_empty, ragged, moving_hot, burst, anything};
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++)
        for (int64_t align = 1; align <= 32; align = align == 1 ? 16 : align * 2) {
            const shape_case f32 = {.tokens = 97, .hidden = 13, .align = align, .k = 3, .experts = 8, .dtype = MOE_F32};
            const shape_case bf16 = {
                .tokens = 64, .hidden = 32, .align = align, .k = 2, .experts = 6, .dtype = MOE_BF16};
            run_pattern(&f32, patterns[p], _i, p);
            run_pattern(&bf16, patterns[p], _i, p);
        }
}
END_TEST

START_TEST(random_shapes) {
    uint64_t x = 99;
    for (int i = 0; i < 60; i++) {
        shape_case s = {.tokens = local_roll(&x, 40),
                        .hidden = 1 + local_roll(&x, 40),
                        .align = 1 + local_roll(&x, 17),
                        .experts = 1 + local_roll(&x, 12),
                        .dtype = local_roll(&x, 2) ? MOE_F32 : MOE_BF16};
        s.k = 1 + local_roll(&x, s.experts);
        s.n_planes = 1 + local_roll(&x, 2);
        s.max_tokens = s.tokens + local_roll(&x, 20);
        run_pattern(&s, anything, _i, x);
        if (s.experts > 1) run_pattern(&s, ragged, _i, x);
    }
}
END_TEST

START_TEST(none_one_and_all_experts) {
    shape_case s = {.tokens = 0, .max_tokens = 16, .hidden = 8, .align = 16, .k = 2, .experts = 4, .dtype = MOE_F32};
    run_pattern(&s, balanced, _i, 1);
    s.max_tokens = 0; /* none ever */
    run_pattern(&s, balanced, _i, 1);
    s.tokens = s.max_tokens = 1;
    run_pattern(&s, balanced, _i, 1);
    s.tokens = s.max_tokens = 33;
    s.k = 4; /* every token to every expert */
    run_pattern(&s, anything, _i, 1);
    s.k = s.experts = 1;
    run_pattern(&s, balanced, _i, 1);
}
END_TEST

static void drop_all(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) {
    (void)t, (void)x;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = -1;
}
START_TEST(C039_all_ids_minus_one_give_zeros) {
    const shape_case s = {.tokens = 20, .hidden = 8, .align = 16, .k = 2, .experts = 4, .dtype = MOE_F32};
    run_pattern(&s, drop_all, _i, 1); /* no rows; combined hidden and slot scalars are 0 */
}
END_TEST

/* Experts with these counts, slots in turn. */
static void run_counts(const int64_t *want, uint32_t experts, int64_t align, const int64_t *offsets, int which) {
    shape_case s = {.hidden = 5, .align = align, .k = 1, .experts = experts, .dtype = MOE_BF16};
    for (uint32_t e = 0; e < experts; e++) s.tokens += want[e];
    local_case c;
    local_open(&c, &s, which);
    int64_t left[8], t = 0;
    memcpy(left, want, experts * sizeof *want);
    while (t < s.tokens)
        for (uint32_t e = 0; e < experts; e++)
            if (left[e] > 0) {
                left[e]--;
                c.ids[t++] = (int32_t)e;
            }
    local_round_trip(&c);
    ck_assert_mem_eq(c.counts, want, experts * sizeof *want);
    ck_assert_mem_eq(c.offsets, offsets, (experts + 1) * sizeof *offsets);
    local_close(&c);
}

START_TEST(C043_counts_are_not_padded_counts) {
    run_counts((const int64_t[]){3, 0, 5}, 3, 16, (const int64_t[]){0, 16, 16, 32}, _i);
}
END_TEST
START_TEST(C068_groups_pad_to_the_alignment_with_zero_rows) {
    run_counts((const int64_t[]){33, 31, 64, 0}, 4, 32, (const int64_t[]){0, 64, 96, 160, 160}, _i);
}
END_TEST

/* Every expert takes at least min_rows, its own first; what is added is padding, zero on the expert side. */
START_TEST(experts_take_their_least_rows) {
    static pattern *const patterns[] = {balanced, half_empty, ragged, one_hot, drop_all};
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++)
        for (int64_t least = 1; least <= 40; least += 13)
            for (int64_t align = 1; align <= 16; align *= 4) {
                shape_case s = {.tokens = 29, .hidden = 6, .align = align, .k = 2, .experts = 6, .dtype = MOE_F32};
                s.min_rows = least;
                run_pattern(&s, patterns[p], _i, p);
                s.tokens = 0;
                s.max_tokens = 29;
                run_pattern(&s, patterns[p], _i, p);
            }
}
END_TEST

/* The largest buffer that needs asks for is never too small, for routings as skewed as they come. */
START_TEST(rows_with_a_least_always_fit) {
    uint64_t x = 5;
    for (int i = 0; i < 80; i++) {
        shape_case s = {.tokens = local_roll(&x, 30), .hidden = 1, .align = 1 + local_roll(&x, 9), .dtype = MOE_F32};
        s.experts = 2 + local_roll(&x, 7);
        s.k = 1 + local_roll(&x, s.experts);
        s.min_rows = local_roll(&x, 36);
        run_pattern(&s, one_hot, _i, x);
        run_pattern(&s, anything, _i, x);
        if (s.k <= s.experts / 2) run_pattern(&s, half_empty, _i, x);
    }
}
END_TEST

static void ninety_percent(int32_t *ids, int64_t t, const shape_case *s, uint64_t *x) {
    (void)t;
    ids[0] = local_roll(x, 10) ? 0 : 1 + (int32_t)local_roll(x, s->experts - 1);
}
START_TEST(C037_rows_of_later_experts_survive_a_hot_one) {
    const shape_case s = {.tokens = 4096, .hidden = 4, .align = 1, .k = 1, .experts = 8, .dtype = MOE_F32};
    run_pattern(&s, ninety_percent, _i, 3);
}
END_TEST

/* Two layers, and two microbatches of one, interleaved: handles are apart. */
START_TEST(instances_and_handles_are_apart) {
    const shape_case s = {.tokens = 31, .hidden = 8, .align = 4, .k = 2, .experts = 5, .dtype = MOE_F32};
    uint64_t x = 7;
    local_case a, b;
    local_open(&a, &s, _i);
    local_open(&b, &s, _i);
    for (int64_t t = 0; t < s.tokens; t++) {
        anything(a.ids + t * s.k, t, &s, &x);
        ragged(b.ids + t * s.k, t, &s, &x);
    }
    local_round_trip(&a);
    const int32_t space = device_private(&a.dev);
    void *second = device_alloc_in(&a.dev, space, a.needs.handle), *first = a.handle;
    const int64_t rows = a.offsets[s.experts];
    char *before = device_alloc(&a.dev, a.needs.handle), *after = device_alloc(&a.dev, a.needs.handle);
    device_peek(&a.dev, before, first, a.needs.handle);
    a.handle = second;
    for (int64_t t = 0; t < s.tokens; t++) balanced(a.ids + t * s.k, t, &s, &x);
    memset(a.planes[0].expert_order.data, 0xa5, (size_t)(a.rows.max * s.hidden) * 4);
    local_round_trip(&a);
    local_round_trip(&b);
    device_peek(&a.dev, after, first, a.needs.handle);
    ck_assert_mem_eq(after, before, a.needs.handle);
    ck_assert_int_gt(rows, 0);
    a.handle = first;
    device_free_in(&a.dev, space, second, a.needs.handle);
    device_free(&a.dev, before, a.needs.handle);
    device_free(&a.dev, after, a.needs.handle);
    local_close(&b);
    local_close(&a);
}
END_TEST

Suite *suite_moves(void) {
    Suite *s = suite_create("dispatcher/local moves");
    TCase *t = tcase_create("each device");
    tcase_add_loop_test(t, C048_patterns_come_back_bit_exact, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, random_shapes, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, none_one_and_all_experts, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, C039_all_ids_minus_one_give_zeros, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, C043_counts_are_not_padded_counts, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, C068_groups_pad_to_the_alignment_with_zero_rows, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, experts_take_their_least_rows, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, rows_with_a_least_always_fit, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, C037_rows_of_later_experts_survive_a_hot_one, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, instances_and_handles_are_apart, 0, N_TEST_DEVICES);
    suite_add_tcase(s, t);
    return s;
}
