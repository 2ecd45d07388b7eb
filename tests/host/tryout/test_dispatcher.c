/* Dispatchers: rows in order of experts and back, on one rank, on ranks by themselves, and over ranks. */
#include <stdio.h>
#include <string.h>

#include "runs.h"

#define RANK0                                                                   \
    {"rank.0.hidden", MOE_F32, SHAPE(3, 2), F32(1, 2, 3, 4, 5, 6)},             \
        {"rank.0.expert_ids", MOE_I32, SHAPE(3, 2), I32(3, 0, -1, 1, 0, -1)}, { \
        "rank.0.weights", MOE_F32, SHAPE(3, 2), F32(0.5f, 0.25f, 0, 2, 1, 0)    \
    }
#define RANK1                                                             \
    {"rank.1.hidden", MOE_F32, SHAPE(2, 2), F32(10, 20, 30, 40)},         \
        {"rank.1.expert_ids", MOE_I64, SHAPE(2, 2), I64(1, 3, -1, -1)}, { \
        "rank.1.weights", MOE_F32, SHAPE(2, 2), F32(0.5f, 1.5f, 0, 0)     \
    }
static const given one[] = {RANK0, END}, two[] = {RANK0, RANK1, END};

START_TEST(a_round_trip_on_one_rank) {
    put(one);
    probe_well(_i ? "dispatcher/" ODD : "dispatcher/local");
    want_i64("rank.0.counts", I64(2, 1, 0, 1), 4);
    want_floats("rank.0.rows", F32(1, 2, 5, 6, 3, 4, 1, 2), 8, 0);
    want_floats("rank.0.combined", F32(0.75f, 1.5f, 6, 8, 5, 6), 6, 0);
}
END_TEST

START_TEST(aligned_rows_are_padded_with_zeros) {
    put(one);
    probe_well("dispatcher/local --experts 5 --row-align 4 --layer 2");
    want_i64("rank.0.counts", I64(2, 1, 0, 1, 0), 5);
    want_floats("rank.0.rows", F32(1, 2, 5, 6, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0), 24, 0);
    want_floats("rank.0.combined", F32(0.75f, 1.5f, 6, 8, 5, 6), 6, 0);
}
END_TEST

START_TEST(ranks_by_themselves) {
    put(two);
    probe_well("dispatcher/local --ranks 2 --ep 1");
    want_floats("rank.0.combined", F32(0.75f, 1.5f, 6, 8, 5, 6), 6, 0);
    want_i64("rank.1.counts", I64(0, 1, 0, 1), 4);
    want_floats("rank.1.rows", F32(10, 20, 10, 20), 4, 0);
    want_floats("rank.1.combined", F32(20, 40, 0, 0), 4, 0);
}
END_TEST

/* Experts 0 and 1 live on rank 0, 2 and 3 on rank 1. */
START_TEST(over_two_ranks) {
    static const char *const which[] = {"dispatcher/" ODD " --ranks 2", "dispatcher/allgather --ranks 2",
                                        "dispatcher/alltoall --ranks 2"};
    put(two);
    probe_well(which[_i]);
    want_i64("rank.0.counts", I64(2, 2), 2);
    want_floats("rank.0.rows", F32(1, 2, 5, 6, 3, 4, 10, 20), 8, 0);
    want_i64("rank.1.counts", I64(0, 2), 2);
    want_floats("rank.1.rows", F32(1, 2, 10, 20), 4, 0);
    want_floats("rank.0.combined", F32(0.75f, 1.5f, 6, 8, 5, 6), 6, 0);
    want_floats("rank.1.combined", F32(20, 40, 0, 0), 4, 0);
}
END_TEST

/* Both ranks have all experts, each a half: rows go to both, with padding to 3, and their sums come back. */
START_TEST(over_ranks_that_share_experts) {
    put(two);
    probe_well(_i ? "dispatcher/alltoall --ranks 2 --etp 2 --min-rows 3 --experts 4"
                  : "dispatcher/allgather --ranks 2 --etp 2 --min-rows 3 --experts 4");
    for (int rank = 0; rank < 2; rank++) {
        char counts[32], rows[32];
        snprintf(counts, sizeof counts, "rank.%d.counts", rank);
        snprintf(rows, sizeof rows, "rank.%d.rows", rank);
        want_i64(counts, I64(2, 2, 0, 2), 4);
        want_floats(rows, F32(1, 2, 5, 6, 0, 0, 3, 4, 10, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 10, 20, 0, 0), 24, 0);
    }
    want_floats("rank.0.combined", F32(0.75f, 1.5f, 6, 8, 5, 6), 6, 0);
    want_floats("rank.1.combined", F32(20, 40, 0, 0), 4, 0);
    if (_i) want_i64("rank.0.sent", I64(4 * 12, 2 * 8), 2); /* 4 rows of 8 and 4 bytes; the other's 2 rows back */
}
END_TEST

/* Rank 0 takes 3 of 4 rows: the last of expert 1, which is rank 1's, is dropped. */
START_TEST(rows_over_the_limit) {
    char says[4096];
    put(two);
    probe_well(_i ? "dispatcher/alltoall --ranks 2 --recv-rows 3 --overflow drop"
                  : "dispatcher/allgather --ranks 2 --recv-rows 3 --overflow drop");
    want_i64("rank.0.counts", I64(2, 1), 2);
    want_floats("rank.0.rows", F32(1, 2, 5, 6, 3, 4), 6, 0);
    want_floats("rank.1.combined", F32(15, 30, 0, 0), 4, 0);
    int code = probe(_i ? "dispatcher/alltoall --ranks 2 --recv-rows 3 --in in.safetensors --out o.safetensors"
                        : "dispatcher/allgather --ranks 2 --recv-rows 3 --in in.safetensors --out o.safetensors",
                     says);
    ck_assert_msg(code == 1 && strstr(says, "layer 0: ep rank 0 needs 4 rows (aligned to 1), recv_rows is 3"), "%d: %s",
                  code, says);
}
END_TEST

START_TEST(bf16_rows_keep_their_type) {
    const uint16_t rows[] = {0x3f80, 0x4000}; /* 1, 2 */
    put((const given[]){{"rank.0.hidden", MOE_BF16, SHAPE(1, 2), rows},
                        {"rank.0.expert_ids", MOE_I32, SHAPE(1, 1), I32(0)},
                        {"rank.0.weights", MOE_F32, SHAPE(1, 1), F32(1.00390625f)},
                        END});
    probe_well("dispatcher/local");
    ck_assert_mem_eq(got("rank.0.rows", MOE_BF16, 2), rows, sizeof rows);
    ck_assert_mem_eq(got("rank.0.combined", MOE_BF16, 2), rows, sizeof rows); /* half-way: to even */
}
END_TEST

START_TEST(no_tokens_and_no_choices) {
    put((const given[]){{"rank.0.hidden", MOE_F32, SHAPE(0, 2), ""},
                        {"rank.0.expert_ids", MOE_I32, SHAPE(0, 2), ""},
                        {"rank.0.weights", MOE_F32, SHAPE(0, 2), ""},
                        RANK1,
                        END});
    probe_well("dispatcher/" ODD " --ranks 2");
    want_floats("rank.0.rows", F32(10, 20), 2, 0);
    got("rank.0.combined", MOE_F32, 0);
    want_floats("rank.1.combined", F32(20, 40, 0, 0), 4, 0);
    put((const given[]){{"rank.0.hidden", MOE_F32, SHAPE(1, 2), F32(1, 2)},
                        {"rank.0.expert_ids", MOE_I32, SHAPE(1, 2), I32(-1, -1)},
                        {"rank.0.weights", MOE_F32, SHAPE(1, 2), F32(0, 0)},
                        END});
    probe_well("dispatcher/local");
    want_i64("rank.0.counts", I64(0, 0), 2);
    want_floats("rank.0.combined", F32(0, 0), 2, 0);
}
END_TEST

/* The last rank fails before a collective that the others are in: all of them end, with its reason. */
START_TEST(a_rank_that_fails_ends_all) {
    char says[4096];
    put(two);
    int code = probe("dispatcher/" ODD " --ranks 2 --set fault=layout --in in.safetensors --out out.safetensors", says);
    ck_assert_int_eq(code, 1);
    ck_assert_msg(strstr(says, "dispatcher/odd layout: rank 1 gives up") != NULL, "%s", says);
}
END_TEST

TCase *dispatcher_tests(void) {
    TCase *t = tcase_create("dispatcher");
    tcase_add_loop_test(t, a_round_trip_on_one_rank, 0, 2);
    tcase_add_test(t, aligned_rows_are_padded_with_zeros);
    tcase_add_test(t, ranks_by_themselves);
    tcase_add_loop_test(t, over_two_ranks, 0, 3);
    tcase_add_loop_test(t, over_ranks_that_share_experts, 0, 2);
    tcase_add_loop_test(t, rows_over_the_limit, 0, 2);
    tcase_add_test(t, bf16_rows_keep_their_type);
    tcase_add_test(t, no_tokens_and_no_choices);
    tcase_add_test(t, a_rank_that_fails_ends_all);
    return t;
}
