/* dispatcher/common's plan, alone: sizes beyond any memory, as numbers only. A comm of the test gives the counts of all
 * members; device/cpu makes the plan of them. */
#include <check.h>
#include <plan.h>
#include <stdlib.h>

#include "plugins/device/device_open.h"

/* ---- a comm that gathers what the test has written ---- */
typedef struct table_comm {
    moe_comm_v0 table;
    const int64_t *all; /* [members, stride] */
    uint32_t members;
    int aborted;
} table_comm;

static moe_status give_all(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                           int32_t dtype, moe_err *err) {
    const table_comm *c = self;
    (void)group, (void)stream, (void)in, (void)dtype, (void)err;
    memcpy(out, c->all, c->members * count * sizeof *c->all);
    return MOE_OK;
}
static void note_abort(void *self, const char *reason) {
    (void)reason;
    ((table_comm *)self)->aborted++;
}

/* ---- two ep ranks of two experts each; this is member 1 ---- */
enum { MEMBERS = 2, EXPERTS = 4, GROUPS = 2 };
typedef struct plan_case {
    device_open dev;
    table_comm comm;
    disp d;
    plan p;
    void *memory;
    int64_t offsets[GROUPS + 1], counts[GROUPS];
    moe_err err;
} plan_case;

static void plan_start(plan_case *c, const int64_t *all) {
    *c = (plan_case){.comm = {.table = {.size = sizeof(moe_comm_v0), .all_gather = give_all, .abort = note_abort},
                              .all = all,
                              .members = MEMBERS},
                     .err.size = sizeof c->err};
    device_open_start(&c->dev, 1);
    c->d = (disp){.name = "dispatcher/test",
                  .device = c->dev.table,
                  .dev = c->dev.self,
                  .comm = &c->comm.table,
                  .comm_self = &c->comm,
                  .members = MEMBERS,
                  .me = 1,
                  .ep_rank = 1,
                  .ep_size = 2,
                  .etp_size = 1,
                  .n_experts = EXPERTS,
                  .groups = GROUPS,
                  .first = 2,
                  .top_k = 2,
                  .layer = 3,
                  .align = 16,
                  .max_rows = INT64_MAX / 64,
                  .alignment = 64};
    ck_assert_msg(plan_open(&c->d, &c->err) == MOE_OK, "%s", c->err.msg);
    const uint64_t bytes = (plan_bytes(&c->d, 0) + 63) / 64 * 64;
    c->memory = aligned_alloc(64, bytes);
    c->p = plan_at(&c->d, 0, c->memory);
}
static void plan_stop(plan_case *c) {
    free(c->memory);
    device_open_stop(&c->dev);
}

static moe_status gather(void *arg, void *fault) {
    plan_case *c = arg;
    const moe_tensor offsets = device_open_tensor(c->offsets, MOE_I64, 1, GROUPS + 1);
    const moe_tensor counts = device_open_tensor(c->counts, MOE_I64, 1, GROUPS);
    const moe_layout_args args = {
        .size = sizeof args, .stream = c->dev.stream, .offsets = &offsets, .counts = &counts, .fault = fault};
    return plan_gather(&c->d, &args, &c->p, &c->err);
}
static moe_status plan_run(plan_case *c) {
    return device_open_do(&c->dev, gather, c, &c->err);
}
static int64_t first_of(const plan_case *c, int m, int e) {
    return c->p.first[m * EXPERTS + e];
}
static const int64_t *offsets_of(const plan_case *c, int ep) {
    return c->p.offsets + ep * (GROUPS + 1);
}

/* Rows past 2^31 and past 2^31 / hidden: every number is 64 bits. */
START_TEST(C038_rows_beyond_32_bits) {
    static const int64_t all[] = {3000000000, 1, 299593, 5000000000, 4000000000, 7, 2000000000, 299594, 1, 2500000000};
    plan_case c;
    plan_start(&c, all);
    ck_assert_msg(plan_run(&c) == MOE_OK, "%s", c.err.msg);
    ck_assert_int_eq(first_of(&c, 0, 0), 0);
    ck_assert_int_eq(first_of(&c, 1, 0), 3000000000);
    ck_assert_int_eq(offsets_of(&c, 0)[1], 3000000016); /* 3000000007 aligned to 16 */
    ck_assert_int_eq(first_of(&c, 0, 1), 3000000016);
    ck_assert_int_eq(first_of(&c, 1, 1), 3000000017);
    ck_assert_int_eq(offsets_of(&c, 0)[2], 5000000032); /* 3000000016 + 2000000001 */
    ck_assert_int_eq(first_of(&c, 1, 2), 299593);
    ck_assert_int_eq(offsets_of(&c, 1)[2] - offsets_of(&c, 1)[1], 5000000016 - 16 + 16);
    ck_assert_int_eq(c.p.tokens[0], 4000000000);
    ck_assert_int_eq(plan_kept(&c.d, &c.p, 1, 1), 2000000000);
    ck_assert_int_eq(plan_dropped(&c.d, &c.p), 0);
    ck_assert_mem_eq(c.offsets, offsets_of(&c, 1), sizeof c.offsets); /* those of this member */
    ck_assert_int_eq(c.counts[0], 299593 + 299594);
    ck_assert_int_eq(c.counts[1], 5000000001);
    plan_stop(&c);
}
END_TEST

/* Which rows go when there are too many, by hand: 40 rows of room, 16 of them the least of the second expert. */
START_TEST(the_last_rows_of_the_order_are_dropped) {
    static const int64_t all[] = {0, 0, 20, 9, 29, 0, 0, 15, 3, 18};
    plan_case c;
    plan_start(&c, all);
    c.d.recv_rows = 40; /* 32 in multiples of 16 */
    c.d.min_rows = 2;
    c.d.overflow = MOE_OVERFLOW_DROP;
    ck_assert_msg(plan_run(&c) == MOE_OK, "%s", c.err.msg);
    ck_assert_int_eq(plan_kept(&c.d, &c.p, 0, 2), 16); /* room is 40 - 16, down to 16 */
    ck_assert_int_eq(plan_kept(&c.d, &c.p, 1, 2), 0);
    ck_assert_int_eq(plan_kept(&c.d, &c.p, 0, 3), 9);
    ck_assert_int_eq(plan_kept(&c.d, &c.p, 1, 3), 3);
    ck_assert_int_eq(offsets_of(&c, 1)[1], 16);
    ck_assert_int_eq(offsets_of(&c, 1)[2], 32);
    ck_assert_int_eq(plan_dropped(&c.d, &c.p), 4 + 15);
    c.d.overflow = MOE_OVERFLOW_STOP;
    ck_assert_int_eq(plan_run(&c), MOE_E_OVERFLOW);
    ck_assert_str_eq(c.err.msg,
                     MOE_OP_DISPATCH_PLAN ": layer 3: ep rank 1 needs 64 rows (aligned to 16), recv_rows is 40");
    ck_assert_int_eq(c.comm.aborted, 0); /* every member has seen it */
    plan_stop(&c);
}
END_TEST

/* Sizes of a search over every way to share `left` choices among the experts that are left, none more than `most`. */
typedef struct search {
    int64_t align, least;
} search;
static int64_t most_rows(const search *s, int64_t groups, int64_t left, int64_t most) {
    int64_t best = INT64_MIN;
    if (groups == 0) return left == 0 ? 0 : INT64_MIN;
    for (int64_t own = 0; own <= most && own <= left; own++) {
        int64_t rest = most_rows(s, groups - 1, left - own, own), rows = own > s->least ? own : s->least;
        if (rest < 0) continue;
        rows = (rows + s->align - 1) / s->align * s->align + rest;
        if (rows > best) best = rows;
    }
    return best;
}

START_TEST(worst_rows_are_the_most_that_any_routing_gives) {
    static const int64_t aligns[] = {1, 2, 3, 4, 8}, least[] = {0, 1, 2, 5};
    for (int64_t i = 0; i < 7 * 4 * 4 * 5 * 4; i++) {
        const int64_t tokens = i % 7, groups = i / 7 % 4 + 1, choices = i / 28 % 4 + 1;
        const search s = {aligns[i / 112 % 5], least[i / 560]};
        int64_t rows, used = choices < groups ? choices : groups;
        ck_assert(!disp_worst_rows(tokens, choices, groups, s.align, s.least, &rows));
        ck_assert_int_eq(rows, most_rows(&s, groups, tokens * used, tokens));
    }
}
END_TEST

START_TEST(worst_rows_follow_the_formula_and_refuse_what_does_not_fit) {
    static const struct {
        int64_t tokens, choices, groups, align, least, rows;
    } cases[] = {
        {10, 2, 4, 1, 0, 20},   {10, 2, 1, 1, 0, 10}, {40, 8, 4, 1, 0, 160},  {40, 8, 4, 16, 0, 192},
        {10, 2, 4, 1, 10, 40},  {10, 2, 4, 8, 3, 48}, {0, 2, 4, 16, 1, 64},   {1 << 20, 8, 256, 128, 0, 8421120},
        {64, 2, 8, 1, 40, 368}, {0, 1, 1, 1, 0, 0},   {1, 4, 32, 128, 0, 512}};
    int64_t rows;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert(!disp_worst_rows(cases[i].tokens, cases[i].choices, cases[i].groups, cases[i].align, cases[i].least,
                                   &rows));
        ck_assert_msg(rows == cases[i].rows, "case %zu: %lld rows, expected %lld", i, (long long)rows,
                      (long long)cases[i].rows);
    }
    ck_assert(disp_worst_rows(INT64_MAX / 2, 8, 8, 1, 0, &rows));
    ck_assert(disp_worst_rows(8, 8, 8, INT64_MAX / 4, 0, &rows));
    ck_assert(disp_worst_rows(8, 8, 8, 1, INT64_MAX / 4, &rows));
}
END_TEST

int main(void) {
    Suite *s = suite_create("plan of a routing");
    TCase *t = tcase_create("all");
    tcase_add_test(t, C038_rows_beyond_32_bits);
    tcase_add_test(t, the_last_rows_of_the_order_are_dropped);
    tcase_add_test(t, worst_rows_are_the_most_that_any_routing_gives);
    tcase_add_test(t, worst_rows_follow_the_formula_and_refuse_what_does_not_fit);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
