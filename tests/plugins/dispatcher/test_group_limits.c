/* Every dispatcher: how many rows there may be. recv_rows exactly enough, one short with each way of overflow, least
 * rows of experts, alignment, and what is sent. */
#include <inttypes.h>

#include "group_case.h"

static const char *id_of(int i) {
    return group_kinds[i].id;
}
static int alone(int i) {
    return group_kinds[i].one_rank;
}

static void turn(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = (int32_t)(((uint64_t)t + i + rank) % c->s.experts);
}
static void skewed(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    uint64_t x = (uint64_t)t * 41 + rank;
    ids[0] = (int32_t)(group_roll(&x, c->s.experts) * group_roll(&x, c->s.experts) / c->s.experts);
    for (uint32_t i = 1; i < c->s.k; i++) ids[i] = (int32_t)(((uint32_t)ids[0] + i) % c->s.experts);
}

/* The most that an ep rank of the case needs. */
static int64_t needed(const group_case *c) {
    int64_t most = 0;
    for (uint32_t base = 0; base < c->world; base += c->members)
        for (uint32_t ep = 0; ep < c->s.ep; ep++) {
            oracle o = oracle_of(c, base, ep);
            if (o.needed > most) most = o.needed;
            oracle_free(&o);
        }
    return most;
}

static const struct {
    uint32_t ep, etp, copies;
    int64_t align, min_rows;
} meshes[] = {{1, 1, 1, 1, 0}, {2, 1, 1, 1, 0}, {4, 1, 1, 4, 0}, {2, 2, 1, 1, 3},
              {2, 1, 2, 8, 5}, {4, 2, 1, 4, 1}, {1, 2, 1, 4, 2}};
enum { N_MESHES = sizeof meshes / sizeof meshes[0] };
static group_shape shape_of(size_t m, int single) {
    const group_shape s = {.ep = single ? 1 : meshes[m].ep,
                           .etp = single ? 1 : meshes[m].etp,
                           .copies = single ? 1 : meshes[m].copies,
                           .align = meshes[m].align,
                           .min_rows = meshes[m].min_rows,
                           .k = 2,
                           .experts = 8,
                           .hidden = 5,
                           .tokens = {17, 4, 0, 21, 8, 13, 1, 9},
                           .max_tokens = 21};
    return s;
}

/* An overflow says where and how many: in words, or as a fault. */
static void check_text(const group_case *c, uint32_t rank, int single) {
    const char *text = c->out[rank].text;
    char rows[48];
    int64_t ep = 0;
    long long value = 0;
    snprintf(rows, sizeof rows, "recv_rows is %lld", (long long)c->s.recv_rows);
    if (test_on_async()) {
        const int given = sscanf(text, "fault %*d at token %" SCNd64 ", value %lld", &ep, &value);
        ck_assert_msg(given == 2 && value > c->s.recv_rows && (single || (ep >= 0 && ep < c->s.ep)), "%s", text);
    } else if (!single) {
        ck_assert_msg(strstr(text, "layer 7: ep rank ") && strstr(text, rows), "%s", text);
    }
}

/* A limit of exactly what is needed changes nothing; one row less stops all ranks with the numbers, or drops. */
static void run_limit(int kind, const group_shape *s, int64_t less, int32_t overflow) {
    group_case c;
    group_open(&c, id_of(kind), s, less % 5 == 0 ? DEVICE_CPU : DEVICE_PLAIN);
    group_fill_with(&c, skewed);
    const int64_t all = needed(&c);
    const int64_t least = c.groups * ((s->min_rows + c.s.align - 1) / c.s.align * c.s.align);
    c.s.recv_rows = all - less > least ? all - less : least;
    c.s.overflow = overflow;
    const int over = all > c.s.recv_rows && c.s.recv_rows > 0;
    group_run(&c);
    if (!over || overflow == MOE_OVERFLOW_DROP) {
        group_check(&c);
        for (uint32_t r = 0; r < c.world; r++) ck_assert_int_le(c.out[r].total, c.s.recv_rows);
    } else {
        int stopped = 0;
        for (uint32_t r = 0; r < c.world; r++) {
            if (c.out[r].status == MOE_OK) continue; /* a group that fits */
            ck_assert_msg(c.out[r].status == MOE_E_OVERFLOW, "rank %u: %s", r, c.out[r].text);
            ck_assert_str_eq(c.out[r].where, "layout");
            ck_assert_int_eq(c.out[r].stray, 0);
            stopped++;
            check_text(&c, r, alone(kind));
        }
        ck_assert_int_ge(stopped, (int)c.members);
    }
    group_close(&c);
}

START_TEST(recv_rows_exact_and_short) {
    for (size_t m = 0; m < N_MESHES; m++)
        for (int64_t less = 0; less < 12; less += less ? 5 : 1)
            for (int32_t overflow = MOE_OVERFLOW_STOP; overflow <= (alone(_i) ? 0 : MOE_OVERFLOW_DROP); overflow++) {
                const group_shape s = shape_of(m, alone(_i));
                run_limit(_i, &s, less, overflow);
            }
}
END_TEST

START_TEST(recv_rows_that_drop_nearly_all) {
    for (size_t m = 0; m < N_MESHES && !alone(_i); m++)
        for (int64_t rows = 1; rows < 80; rows = rows * 3 + 1) {
            group_shape s = shape_of(m, 0);
            const int64_t least = 8 / s.ep * ((s.min_rows + s.align - 1) / s.align * s.align);
            s.overflow = MOE_OVERFLOW_DROP;
            s.recv_rows = least + rows;
            group_try(id_of(_i), &s, rows == 13 ? DEVICE_CPU : DEVICE_PLAIN, skewed);
            s.dtype = MOE_BF16;
            group_try(id_of(_i), &s, DEVICE_PLAIN, turn);
        }
}
END_TEST

/* 8 routes to one rank that takes 6: exactly 6 rows, nothing behind them, and the last two of the order are gone. */
static void eight_routes(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)c, (void)rank;
    ids[0] = (int32_t)(t % 2);
}
START_TEST(C040_more_routes_than_rows) {
    if (alone(_i)) return;
    const group_shape s = {
        .ep = 2, .k = 1, .experts = 4, .hidden = 4, .tokens = {5, 3}, .recv_rows = 6, .overflow = MOE_OVERFLOW_DROP};
    group_case c;
    group_open(&c, id_of(_i), &s, DEVICE_CPU);
    group_fill_with(&c, eight_routes);
    group_run(&c);
    group_check(&c);
    ck_assert_int_eq(c.out[0].max_rows, 6);
    ck_assert_int_eq(c.out[0].total, 6);
    ck_assert_mem_eq(c.out[0].counts, ((const int64_t[]){5, 1}), 16); /* expert 0: 3 + 2; expert 1: 2 + 1, one stays */
    ck_assert(c.out[0].slots[1] != 0 && c.out[0].slots[3] == 0 && c.out[1].slots[1] == 0);
    group_close(&c);
}
END_TEST

/* Rows that the caller's buffers do not hold end all ranks, and nothing is written. */
START_TEST(C040_a_buffer_below_what_needs_says) {
    group_shape s = shape_of(alone(_i) ? 0 : 3, alone(_i));
    group_case c;
    s.short_by = 1000;
    s.max_tokens = 600;
    group_open(&c, id_of(_i), &s, DEVICE_CPU);
    group_fill_with(&c, skewed);
    group_run(&c);
    if (test_on_async() && group_kinds[_i].fixed) { /* nobody could tell that it is too small */
        ck_assert_int_eq(c.out[0].status, MOE_E_ARG);
        ck_assert_msg(strstr(c.out[0].text, "nobody counts the rows") != NULL, "%s", c.out[0].text);
    } else {
        group_check(&c); /* large enough for these tokens */
    }
    group_close(&c);
    s.max_tokens = 0;
    s.min_rows = 0;
    s.short_by = 1;
    s.copies = 1;
    memset(s.tokens, 0, sizeof s.tokens);
    s.tokens[0] = 9;
    group_open(&c, id_of(_i), &s, DEVICE_CPU);
    for (int i = 0; i < 18; i++) c.ids[0][i] = i % 2; /* the worst routing: two experts of one rank */
    group_run(&c);
    int overflows = 0;
    for (uint32_t r = 0; r < c.world; r++) {
        overflows += c.out[r].status == MOE_E_OVERFLOW;
        ck_assert_int_eq(c.out[r].stray, 0);
    }
    if (c.world == 1) ck_assert_int_eq(overflows, 1);
    group_close(&c);
}
END_TEST

START_TEST(experts_take_their_least_rows) {
    static const struct { uint32_t ep, etp; } mesh[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}};
    for (size_t m = 0; m < 4; m++)
        for (int64_t least = 1; least <= 40; least += 13)
            for (int64_t align = 1; align <= 16; align *= 4) {
                group_shape s = {.ep = mesh[m].ep,
                                 .etp = mesh[m].etp,
                                 .k = 2,
                                 .experts = 4,
                                 .hidden = 3,
                                 .align = align,
                                 .min_rows = least,
                                 .tokens = {9, 0, 4, 11},
                                 .max_tokens = 12};
                if (alone(_i)) s.ep = s.etp = 1;
                group_try(id_of(_i), &s, DEVICE_PLAIN, skewed);
            }
}
END_TEST

/* What needs says is never too little, and with the worst routing it is all taken. */
static void crowd(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)rank, (void)t;
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = i < c->groups ? (int32_t)i : -1;
}
START_TEST(the_worst_routing_fits_and_takes_all) {
    for (uint32_t ep = 1; ep <= (alone(_i) ? 1u : 4u); ep *= 2)
        for (uint32_t k = 1; k <= 4; k++) {
            const group_shape s = {.ep = ep, .k = k, .experts = 8, .hidden = 2, .tokens = {6, 6, 6, 6}};
            group_case c;
            group_open(&c, id_of(_i), &s, DEVICE_PLAIN);
            group_fill_with(&c, crowd);
            group_run(&c);
            group_check(&c);
            ck_assert_int_eq(c.out[0].total, c.out[0].max_rows);
            ck_assert_int_eq(c.out[0].total, 6 * ep * (k < c.groups ? k : c.groups));
            group_close(&c);
        }
}
END_TEST

/* The formulas of what is sent, by hand: 2 ranks, 3 and 1 tokens, hidden 4 of FP32 and one value beside, k = 2. */
static void both_ranks(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    (void)c, (void)rank, (void)t;
    ids[0] = 3;
    ids[1] = 0;
}
START_TEST(bytes_sent_follow_the_formulas) {
    if (alone(_i)) return;
    const group_shape s = {.ep = 2, .k = 2, .experts = 4, .hidden = 4, .tokens = {3, 1}};
    group_case c;
    group_open(&c, id_of(_i), &s, DEVICE_CPU);
    group_fill_with(&c, both_ranks);
    group_run(&c);
    group_check(&c);                     /* compares with the formula of group_kinds for every shape */
    if (strcmp(c.id, "alltoall") == 0) { /* one row of 16 + 4 + 4 bytes a token crosses; back, those of the other */
        ck_assert_uint_eq(c.out[0].sent[MOE_DISPATCH], 3 * 24);
        ck_assert_uint_eq(c.out[1].sent[MOE_DISPATCH], 1 * 24);
        ck_assert_uint_eq(c.out[0].sent[MOE_COMBINE], 1 * 24);
        ck_assert_uint_eq(c.out[1].sent[MOE_COMBINE], 3 * 24);
    }
    if (strcmp(c.id, "allgather") == 0) { /* every token with 2 scalars */
        ck_assert_uint_eq(c.out[0].sent[MOE_DISPATCH], 3 * 28);
        ck_assert_uint_eq(c.out[1].sent[MOE_COMBINE], 3 * 28);
    }
    group_close(&c);
}
END_TEST

Suite *suite_group_limits(void) {
    Suite *s = suite_create("rows at most");
    TCase *t = tcase_create("each dispatcher");
    tcase_add_loop_test(t, recv_rows_exact_and_short, 0, n_group_kinds());
    tcase_add_loop_test(t, recv_rows_that_drop_nearly_all, 0, n_group_kinds());
    tcase_add_loop_test(t, C040_more_routes_than_rows, 0, n_group_kinds());
    tcase_add_loop_test(t, C040_a_buffer_below_what_needs_says, 0, n_group_kinds());
    tcase_add_loop_test(t, experts_take_their_least_rows, 0, n_group_kinds());
    tcase_add_loop_test(t, the_worst_routing_fits_and_takes_all, 0, n_group_kinds());
    tcase_add_loop_test(t, bytes_sent_follow_the_formulas, 0, n_group_kinds());
    suite_add_tcase(s, t);
    return s;
}
