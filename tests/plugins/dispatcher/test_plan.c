/* dispatcher/common's plan, alone: sizes beyond any memory, as numbers only. A comm of the test gives the counts of all
 * members. */
#include <check.h>
#include <plan.h>
#include <stdlib.h>

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
static table_comm comm_of(const int64_t *all, uint32_t members) {
    return (table_comm){.table = {.size = sizeof(moe_comm_v0), .all_gather = give_all, .abort = note_abort},
                        .all = all,
                        .members = members};
}

/* Two ep ranks of two experts each; this is member 1. */
static disp small(table_comm *c) {
    return (disp){.name = "dispatcher/test",
                  .comm = &c->table,
                  .comm_self = c,
                  .members = 2,
                  .me = 1,
                  .ep_rank = 1,
                  .ep_size = 2,
                  .etp_size = 1,
                  .n_experts = 4,
                  .groups = 2,
                  .first = 2,
                  .top_k = 2,
                  .layer = 3,
                  .align = 16,
                  .max_rows = INT64_MAX / 64,
                  .alignment = 64};
}

static plan plan_new(const disp *d, void **memory) {
    *memory = calloc(1, plan_bytes(d, 0));
    return plan_at(d, 0, *memory);
}

/* Rows past 2^31 and past 2^31 / hidden: every number is 64 bits. */
START_TEST(C038_rows_beyond_32_bits) {
    static const int64_t all[] = {3000000000, 1, 299593, 5000000000, 4000000000, 7, 2000000000, 299594, 1, 2500000000};
    table_comm c = comm_of(all, 2);
    const disp d = small(&c);
    void *memory;
    moe_err err = {.size = sizeof err};
    plan p = plan_new(&d, &memory);
    ck_assert_int_eq(plan_gather(&d, NULL, &p, &err), MOE_OK);
    ck_assert_int_eq(plan_first(&d, &p, 0, 0), 0);
    ck_assert_int_eq(plan_first(&d, &p, 1, 0), 3000000000);
    ck_assert_int_eq(plan_offsets(&d, &p, 0)[1], 3000000016); /* 3000000007 aligned to 16 */
    ck_assert_int_eq(plan_first(&d, &p, 0, 1), 3000000016);
    ck_assert_int_eq(plan_first(&d, &p, 1, 1), 3000000017);
    ck_assert_int_eq(plan_offsets(&d, &p, 0)[2], 5000000032); /* 3000000016 + 2000000001 */
    ck_assert_int_eq(plan_first(&d, &p, 1, 2), 299593);
    ck_assert_int_eq(plan_offsets(&d, &p, 1)[2] - plan_offsets(&d, &p, 1)[1], 5000000016 - 16 + 16);
    ck_assert_int_eq(plan_tokens(&d, &p, 0), 4000000000);
    ck_assert_int_eq(plan_kept(&d, &p, 1, 1), 2000000000);
    ck_assert_int_eq(p.dropped, 0);
    free(memory);
}
END_TEST

/* Which rows go when there are too many, by hand: 40 rows of room, 16 of them the least of the second expert. */
START_TEST(the_last_rows_of_the_order_are_dropped) {
    static const int64_t all[] = {0, 0, 20, 9, 29, 0, 0, 15, 3, 18};
    table_comm c = comm_of(all, 2);
    disp d = small(&c);
    d.recv_rows = 40; /* 32 in multiples of 16 */
    d.min_rows = 2;
    d.overflow = MOE_OVERFLOW_DROP;
    void *memory;
    moe_err err = {.size = sizeof err};
    plan p = plan_new(&d, &memory);
    ck_assert_int_eq(plan_gather(&d, NULL, &p, &err), MOE_OK);
    ck_assert_int_eq(plan_kept(&d, &p, 0, 2), 16); /* room is 40 - 16, down to 16 */
    ck_assert_int_eq(plan_kept(&d, &p, 1, 2), 0);
    ck_assert_int_eq(plan_kept(&d, &p, 0, 3), 9);
    ck_assert_int_eq(plan_kept(&d, &p, 1, 3), 3);
    ck_assert_int_eq(plan_offsets(&d, &p, 1)[1], 16);
    ck_assert_int_eq(plan_offsets(&d, &p, 1)[2], 32);
    ck_assert_int_eq(p.dropped, 4 + 15);
    d.overflow = MOE_OVERFLOW_STOP;
    ck_assert_int_eq(plan_gather(&d, NULL, &p, &err), MOE_E_OVERFLOW);
    ck_assert_str_eq(err.msg, "layer 3: ep rank 1 needs 64 rows (aligned to 16), recv_rows is 40");
    ck_assert_int_eq(c.aborted, 0); /* every member has seen it */
    free(memory);
}
END_TEST

START_TEST(worst_rows_follow_the_formula_and_refuse_what_does_not_fit) {
    static const struct {
        int64_t tokens, choices, groups, align, least, rows;
    } cases[] = {
        {10, 2, 4, 1, 0, 20},   {10, 2, 1, 1, 0, 10}, {40, 8, 4, 1, 0, 160}, {40, 8, 4, 16, 0, 224},
        {10, 2, 4, 1, 10, 40},  {10, 2, 4, 8, 3, 56}, {0, 2, 4, 16, 1, 64},  {1 << 20, 8, 256, 128, 0, 8421120},
        {64, 2, 8, 1, 40, 368}, {0, 1, 1, 1, 0, 0}};
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
    tcase_add_test(t, worst_rows_follow_the_formula_and_refuse_what_does_not_fit);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
