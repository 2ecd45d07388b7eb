/* Every dispatcher, over groups of 1 to 8 ranks with and without expert tensor parallelism: rows go to their experts
 * and come back, for named patterns of load and random shapes. Test i of a loop runs dispatcher i % n of group_kinds on
 * device i / n, where there are two (any_device.h). */
#include "group_case.h"

static const char *id_of(int i) {
    return group_kinds[i % n_group_kinds()].id;
}
static int device_of(int i) {
    return i / n_group_kinds();
}
/* Opening device/cpu on every rank takes the most of a test: there, only some of what the plain device runs. */
static int skips(int i, size_t n) {
    return device_of(i) == DEVICE_CPU && n % 4;
}
/* Dispatchers that have no group run the same shapes on one rank each. */
static int alone(int i) {
    return group_kinds[i % n_group_kinds()].one_rank;
}

/* ---- patterns: distinct ids of one token ---- */
static void balanced(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = (int32_t)(((uint64_t)t * c->s.k + i + rank) % c->s.experts);
}
static void hot_expert(group_case *c, uint32_t rank, int64_t t, int32_t *ids) { /* expert 0 gets every token */
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = i ? (int32_t)(1 + ((uint64_t)t + rank + i) % (c->s.experts - 1)) : 0;
}
static void hot_rank(group_case *c, uint32_t rank, int64_t t, int32_t *ids) { /* all to the last ep rank */
    (void)rank;
    for (uint32_t i = 0; i < c->s.k; i++)
        ids[i] = i < c->groups ? (int32_t)(c->s.experts - 1 - ((uint64_t)t + i) % c->groups) : -1;
}
static void ragged(group_case *c, uint32_t rank, int64_t t, int32_t *ids) { /* some ranks choose for few tokens */
    balanced(c, rank, t, ids);
    for (uint32_t i = 0; i < c->s.k; i++)
        if (t % (rank + 1) || (t + i) % 5 == 0) ids[i] = -1;
}
static void zero_load(group_case *c, uint32_t rank, int64_t t, int32_t *ids) { /* even ranks choose nothing */
    if (rank % 2) balanced(c, rank, t, ids);
}
static void moving_hot(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)rank;
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = (int32_t)(((uint64_t)t / 8 + i) % c->s.experts);
}
static void burst(group_case *c, uint32_t rank, int64_t t, int32_t *ids) { /* nothing, then everything */
    if (t >= c->s.tokens[rank] / 2) hot_expert(c, rank, t, ids);
}
static void anything(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    uint64_t x = (uint64_t)t * 77 + rank * 1013 + (uint64_t)c->s.hidden;
    for (uint32_t i = 0; i < c->s.k; i++) {
        uint32_t j;
        do {
            ids[i] = (int32_t)group_roll(&x, c->s.experts);
            for (j = 0; j < i && ids[j] != ids[i]; j++) continue;
        } while (j < i);
    }
}
static void holes(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    anything(c, rank, t, ids);
    uint64_t x = (uint64_t)t * 31 + rank;
    for (uint32_t i = 0; i < c->s.k; i++)
        if (group_roll(&x, 3) == 0) ids[i] = -1;
}

/* ---- meshes of 1 to 8 ranks ---- */
static const struct {
    uint32_t ep, etp, copies;
} meshes[] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {8, 1, 1}, {1, 2, 1},
              {2, 2, 1}, {4, 2, 1}, {2, 1, 3}, {2, 2, 2}, {1, 4, 1}};
enum { N_MESHES = sizeof meshes / sizeof meshes[0] };

static group_shape on_mesh(group_shape s, size_t mesh, int single) {
    s.ep = single ? 1 : meshes[mesh].ep;
    s.etp = single ? 1 : meshes[mesh].etp;
    s.copies = single ? 1 : meshes[mesh].copies;
    return s;
}
/* Different numbers on every rank, none of which divides anything. */
static group_shape with_tokens(group_shape s, int64_t about) {
    static const int64_t more[GROUP_RANKS] = {0, 3, -2, 7, 1, -5, 4, 2};
    for (int r = 0; r < GROUP_RANKS; r++) s.tokens[r] = about + more[r];
    return s;
}

START_TEST(C048_seven_patterns_are_exact_and_equal) {
    static group_fill *const patterns[] = {balanced, hot_expert, hot_rank, ragged, zero_load, moving_hot, burst};
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++)
        for (size_t m = 0; m < N_MESHES; m++) {
            if (skips(_i, m + p)) continue;
            const group_shape s = {.k = 3,
                                   .experts = 8,
                                   .hidden = 13,
                                   .align = (p + m) % 2 ? 16 : 1,
                                   .dtype = (p + m / 2) % 2 ? MOE_BF16 : MOE_F32};
            const group_shape all = with_tokens(on_mesh(s, m, alone(_i)), 23);
            group_try(id_of(_i), &all, device_of(_i), patterns[p]);
        }
}
END_TEST

START_TEST(random_shapes) {
    uint64_t x = 99 + (uint64_t)_i;
    for (int i = 0; i < (device_of(_i) == DEVICE_CPU ? 12 : 40); i++) {
        group_shape s = on_mesh((group_shape){.hidden = 1 + group_roll(&x, 40)}, group_roll(&x, N_MESHES), alone(_i));
        s.align = 1 + group_roll(&x, 17);
        s.experts = s.ep * (1 + group_roll(&x, 4));
        s.k = 1 + group_roll(&x, s.experts);
        s.dtype = group_roll(&x, 2) ? MOE_F32 : MOE_BF16;
        s.bare = !group_roll(&x, 4);
        s.min_rows = group_roll(&x, 2) ? 0 : group_roll(&x, 20);
        for (int r = 0; r < GROUP_RANKS; r++) s.tokens[r] = group_roll(&x, 3) ? group_roll(&x, 30) : 0;
        s.max_tokens = 30 + group_roll(&x, 5);
        group_try(id_of(_i), &s, device_of(_i), i % 2 ? anything : holes);
    }
}
END_TEST

/* What a capacity drops reaches the dispatcher as ids of -1: every dispatcher gives the same. */
static void first_four(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    static const int64_t capacity = 4;
    anything(c, rank, t, ids);
    for (uint32_t i = 0; i < c->s.k; i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < t * c->s.k; j++) before += c->ids[rank][j] == ids[i];
        if (before >= capacity) ids[i] = -1;
    }
}
START_TEST(C034_choices_that_a_capacity_drops) {
    for (size_t m = 0; m < N_MESHES; m++) {
        const group_shape s = on_mesh((group_shape){.k = 2, .experts = 8, .hidden = 5}, m, alone(_i));
        const group_shape all = with_tokens(s, 19);
        group_try(id_of(_i), &all, device_of(_i), first_four);
    }
}
END_TEST

static void ninety_percent(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    uint64_t x = (uint64_t)t * 3 + rank;
    ids[0] = group_roll(&x, 10) ? 0 : 1 + (int32_t)group_roll(&x, c->s.experts - 1);
}
START_TEST(C037_rows_of_later_experts_survive_a_hot_one) {
    const uint32_t ep = alone(_i) ? 1 : 2;
    const group_shape s = {.ep = ep, .k = 1, .experts = 4 * ep, .hidden = 4, .tokens = {ep == 1 ? 4096 : 2048, 2048}};
    group_try(id_of(_i), &s, device_of(_i), ninety_percent);
}
END_TEST

static void only_rank_0(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)rank;
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = (int32_t)(((uint64_t)t + i) % c->groups);
}
START_TEST(C041_a_rank_whose_experts_get_nothing_takes_part) {
    const group_shape s = {.ep = alone(_i) ? 1 : 2, .k = 2, .experts = 4, .hidden = 6, .align = 16, .tokens = {9, 12}};
    group_case c;
    group_open(&c, id_of(_i), &s, device_of(_i));
    group_fill_with(&c, only_rank_0);
    group_run(&c);
    group_check(&c);
    if (c.world > 1) ck_assert_int_eq(c.out[1].total, 0);
    group_close(&c);
}
END_TEST

static void to_expert_0(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)c, (void)rank, (void)t;
    ids[0] = 0;
}
static moe_status dawdle(group_case *c, uint32_t rank, const char *where, const moe_comm_v0 *comm, void *self) {
    (void)comm, (void)self;
    uint64_t x = (uint64_t)(uintptr_t)where + rank * 7919u + c->out[rank].sent[0];
    if (group_roll(&x, 4) == 0) usleep(group_roll(&x, 60));
    return MOE_OK;
}
START_TEST(C042_one_expert_gets_all_tokens_with_ranks_that_dawdle) {
    const group_shape s = {.ep = alone(_i) ? 1 : 4, .k = 1, .experts = 4, .hidden = 3, .tokens = {5, 2, 0, 7}};
    group_case c;
    group_open(&c, id_of(_i), &s, device_of(_i));
    group_fill_with(&c, to_expert_0);
    c.before = dawdle;
    c.repeats = 200;
    group_run(&c);
    group_check(&c);
    group_close(&c);
}
END_TEST

static void three_none_five(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)c, (void)rank;
    ids[0] = t < 3 ? 0 : 2;
}
START_TEST(C043_counts_are_not_padded_counts) {
    const group_shape s = {.ep = alone(_i) ? 1 : 2, .k = 1, .experts = 6, .hidden = 3, .align = 16, .tokens = {8}};
    group_case c;
    group_open(&c, id_of(_i), &s, device_of(_i));
    group_fill_with(&c, three_none_five);
    group_run(&c);
    group_check(&c);
    ck_assert_mem_eq(c.out[0].counts, ((const int64_t[]){3, 0, 5}), 24);
    ck_assert_mem_eq(c.out[0].offsets, ((const int64_t[]){0, 16, 16, 32}), 32);
    group_close(&c);
}
END_TEST

/* Each movement is the other's backward: <dispatch(x), y> = <x, combine(y)>, summed over all ranks, for rows and for
 * the scalars of slots; what comes back to the router is not zero. */
START_TEST(C044_combine_is_the_adjoint_of_dispatch) {
    for (size_t m = 0; m < N_MESHES; m++) {
        const group_shape s = on_mesh((group_shape){.k = 3, .experts = 8, .hidden = 7}, m, alone(_i));
        const group_shape all = with_tokens(s, 11);
        group_case c;
        group_open(&c, id_of(_i), &all, device_of(_i));
        group_fill_with(&c, holes);
        group_run(&c);
        group_check(&c);
        double rows = 0, tokens = 0, row_scalars = 0, slots = 0;
        for (uint32_t r = 0; r < c.world; r++) {
            const group_rank *o = &c.out[r];
            const uint32_t index = r % c.members, first = index / c.s.etp * c.groups;
            for (uint32_t g = 0; g < c.groups; g++)
                for (int64_t i = o->offsets[g]; i < o->offsets[g + 1]; i++) {
                    for (int64_t j = i * 7; j < (i + 1) * 7; j++) /* y is factor times what was dispatched */
                        rows += (double)o->rows[j] * o->rows[j] * group_factor(first + g, index % c.s.etp);
                    row_scalars += (double)o->scalars[i] * o->scalars[i] * (index % c.s.etp + 1);
                }
            for (int64_t i = 0; i < o->tokens * 7; i++)
                tokens += (double)group_hidden(&c, r, i / 7, i % 7) * o->combined[i];
            for (int64_t i = 0; i < o->tokens * c.s.k; i++) slots += (double)group_slot(&c, r, i) * o->slots[i];
        }
        ck_assert_double_eq(rows, tokens);
        ck_assert_double_eq(row_scalars, slots);
        ck_assert_double_gt(slots, 0);
        group_close(&c);
    }
}
END_TEST

/* Beside BF16 rows the weights are FP32, bit for bit. */
START_TEST(C046_weights_travel_as_FP32) {
    for (size_t m = 0; m < N_MESHES; m++) {
        group_shape s = on_mesh((group_shape){.k = 2, .experts = 8, .hidden = 8, .dtype = MOE_BF16}, m, alone(_i));
        s.real = 1;
        s = with_tokens(s, 10);
        group_try(id_of(_i), &s, device_of(_i), anything);
    }
}
END_TEST

/* Values that round: the order of the sums is the documented one, and 20 runs give the same bits. */
START_TEST(C047_sums_have_an_order_and_repeat) {
    for (int dtype = 0; dtype < 2; dtype++)
        for (size_t m = 0; m < N_MESHES; m += 3) {
            group_shape s = on_mesh((group_shape){.k = 8, .experts = 8, .hidden = 33}, m, alone(_i));
            s.real = 1;
            s.dtype = dtype ? MOE_BF16 : MOE_F32;
            s = with_tokens(s, 12);
            group_case c;
            group_open(&c, id_of(_i), &s, device_of(_i));
            group_fill_with(&c, anything);
            c.repeats = 10;
            group_run(&c);
            group_check(&c);
            group_close(&c);
        }
}
END_TEST

/* Experts shared by two members, tokens of each member its own: what one rank would give. */
START_TEST(C057_expert_and_tensor_ranks_together_give_what_one_gives) {
    group_case one, many;
    const group_shape s1 = {.ep = 1, .k = 2, .experts = 4, .hidden = 9, .tokens = {28}};
    const group_shape s4 = {.ep = 2, .etp = 2, .k = 2, .experts = 4, .hidden = 9, .tokens = {7, 7, 7, 7}};
    if (alone(_i)) return;
    group_open(&one, id_of(_i), &s1, device_of(_i));
    group_open(&many, id_of(_i), &s4, device_of(_i));
    group_fill_with(&one, holes);
    for (uint32_t r = 0; r < 4; r++) memcpy(many.ids[r], one.ids[0] + r * 14, 14 * sizeof **one.ids);
    group_run(&one);
    group_run(&many);
    group_check(&one);
    group_check(&many);
    for (uint32_t e = 0; e < 4; e++)
        for (uint32_t f = 0; f < 2; f++) ck_assert_int_eq(many.out[e / 2 * 2 + f].counts[e % 2], one.out[0].counts[e]);
    group_close(&many);
    group_close(&one);
}
END_TEST

START_TEST(C085_any_rank_may_come_first_or_last) {
    static const uint32_t first[] = {3, 0, 1, 2}, last[] = {0, 1, 2, 3};
    static const useconds_t late[] = {0, 0, 0, 20000}, early[] = {20000, 20000, 20000, 0};
    if (alone(_i)) return;
    const group_shape s = {.ep = 4, .k = 2, .experts = 8, .hidden = 6, .tokens = {5, 9, 3, 4}};
    group_case c;
    group_open(&c, id_of(_i), &s, device_of(_i));
    group_fill_with(&c, anything);
    c.start = first;
    c.delays = early;
    group_run(&c);
    group_check(&c);
    c.start = last;
    c.delays = late;
    group_run(&c);
    group_check(&c);
    group_close(&c);
}
END_TEST

static void all_experts(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)rank, (void)t;
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = (int32_t)(c->s.k - 1 - i);
}
START_TEST(few_tokens_many_ranks_all_experts_one_expert_each) {
    for (size_t m = 0; m < N_MESHES; m++) {
        if (skips(_i, m)) continue;
        const group_shape mesh = on_mesh((group_shape){.hidden = 4, .align = 4}, m, alone(_i));
        group_shape s = mesh; /* k = E */
        s.k = s.experts = 2 * s.ep;
        s = with_tokens(s, 6);
        group_try(id_of(_i), &s, device_of(_i), all_experts);
        s = mesh; /* one expert a rank, two tokens in all */
        s.k = 1;
        s.experts = s.ep;
        s.tokens[0] = 2;
        s.max_tokens = 3;
        group_try(id_of(_i), &s, device_of(_i), anything);
        group_try(id_of(_i), &s, device_of(_i), to_expert_0);
        s.tokens[0] = 0; /* nobody has a token */
        group_try(id_of(_i), &s, device_of(_i), anything);
        s.max_tokens = 0; /* nor ever will */
        group_try(id_of(_i), &s, device_of(_i), anything);
    }
}
END_TEST

static void nothing(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)c, (void)rank, (void)t, (void)ids;
}
START_TEST(C039_all_ids_minus_one_give_zeros) {
    for (size_t m = 0; m < N_MESHES; m++) {
        const group_shape s = on_mesh((group_shape){.k = 2, .experts = 8, .hidden = 4, .min_rows = 3}, m, alone(_i));
        const group_shape all = with_tokens(s, 9);
        group_try(id_of(_i), &all, device_of(_i), nothing);
    }
}
END_TEST

/* "a few rows", here and in the other suites, is what sanitizers see on slow devices. */
Suite *suite_group_moves(void) {
    Suite *s = suite_create("dispatchers over ranks");
    TCase *few = tcase_create("a few rows"), *t = tcase_create("each dispatcher");
    const int n = n_group_kinds(), both = test_on_cpu() ? n * N_TEST_DEVICES : n;
    tcase_add_loop_test(few, C041_a_rank_whose_experts_get_nothing_takes_part, 0, both);
    tcase_add_loop_test(few, C057_expert_and_tensor_ranks_together_give_what_one_gives, 0, n);
    suite_add_tcase(s, few);
    tcase_add_loop_test(t, C048_seven_patterns_are_exact_and_equal, 0, both);
    tcase_add_loop_test(t, random_shapes, 0, both);
    tcase_add_loop_test(t, C034_choices_that_a_capacity_drops, 0, n);
    tcase_add_loop_test(t, C037_rows_of_later_experts_survive_a_hot_one, 0, both);
    tcase_add_loop_test(t, C042_one_expert_gets_all_tokens_with_ranks_that_dawdle, 0, n);
    tcase_add_loop_test(t, C043_counts_are_not_padded_counts, 0, both);
    tcase_add_loop_test(t, C044_combine_is_the_adjoint_of_dispatch, 0, n);
    tcase_add_loop_test(t, C046_weights_travel_as_FP32, 0, n);
    tcase_add_loop_test(t, C047_sums_have_an_order_and_repeat, 0, both);
    tcase_add_loop_test(t, C085_any_rank_may_come_first_or_last, 0, n);
    tcase_add_loop_test(t, few_tokens_many_ranks_all_experts_one_expert_each, 0, both);
    tcase_add_loop_test(t, C039_all_ids_minus_one_give_zeros, 0, n);
    suite_add_tcase(s, t);
    return s;
}
