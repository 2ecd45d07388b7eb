/* Router "topk": group-limited choice - which groups are kept, by which score, ties, and what create refuses. */
#include <math.h>

#include "fixture.h"
#include "test_main.h"

static void open_row(rig *r, int64_t experts, int64_t k, const char *options, const float *row, const float *bias) {
    rig_open(r, "topk", 1, experts, k, options, NULL);
    memcpy(r->logits, row, (size_t)experts * sizeof *row);
    if (bias) memcpy(r->bias, bias, (size_t)experts * sizeof *bias);
    ck_assert_int_eq(rig_route(r), MOE_OK);
}

static void expect_choice(int64_t experts, int64_t k, const char *options, const float *row, const float *bias,
                          const int32_t *ids) {
    rig r;
    open_row(&r, experts, k, options, row, bias);
    for (int64_t j = 0; j < k; j++)
        ck_assert_msg(r.ids[j] == ids[j], "%s: choice %d is %d, not %d", options, (int)j, r.ids[j], ids[j]);
    rig_close(&r);
}

/* Scores of zero in place of the rejected would win over the negative ones of the kept group. */
START_TEST(C005_rejected_groups_are_never_chosen) {
    static const char *const scores[] = {"max", "sum2", "sum"};
    const float row[4] = {0}, bias[4] = {-1, -1, -2, -2};
    for (int i = 0; i < 3; i++) {
        char options[160];
        rig r;
        snprintf(options, sizeof options,
                 "score=sigmoid renormalise=true expert_bias=true groups=2 groups_kept=1 group_score=%s", scores[i]);
        open_row(&r, 4, 2, options, row, bias);
        ck_assert(r.ids[0] == 0 && r.ids[1] == 1);
        ck_assert(r.weights[0] == 0.5f && r.weights[1] == 0.5f);
        rig_close(&r);
    }
}
END_TEST

/* As many choices as the kept groups have experts: all of these and no other, however bad they are. */
START_TEST(C005_every_expert_of_the_kept_groups) {
    const float row[8] = {3, -30, 2, 2, 2, 2, 1, -1};
    expect_choice(8, 4, "groups=4 groups_kept=2", row, NULL, (int32_t[]){0, 2, 3, 1});
    expect_choice(8, 4, "groups=4 groups_kept=2 group_score=sum2 score=sigmoid", row, NULL, (int32_t[]){2, 3, 4, 5});
}
END_TEST

START_TEST(the_group_scores_differ) {
    /* best: group 0; two best: group 1; three best: group 2 */
    const float row[12] = {3, -9, -9, -9, 2.5f, 2.5f, -9, -9, 2.2f, 2.2f, 2.2f, -9};
    expect_choice(12, 3, "groups=3 groups_kept=1", row, NULL, (int32_t[]){0, 1, 2});
    expect_choice(12, 3, "groups=3 groups_kept=1 group_score=sum2", row, NULL, (int32_t[]){4, 5, 6});
    expect_choice(12, 3, "groups=3 groups_kept=1 group_score=sum", row, NULL, (int32_t[]){8, 9, 10});
    expect_choice(12, 3, "", row, NULL, (int32_t[]){0, 4, 5});
}
END_TEST

/* k / groups_kept = 6 best, more of them than groups. */
START_TEST(sum_of_more_experts_than_groups) {
    float row[16];
    for (int e = 0; e < 16; e++) row[e] = e < 8 ? 1.0f : e == 8 ? 1.5f : 0.9f;
    expect_choice(16, 6, "groups=2 groups_kept=1 group_score=sum score=sigmoid", row, NULL,
                  (int32_t[]){0, 1, 2, 3, 4, 5});
    expect_choice(16, 6, "groups=2 groups_kept=1 group_score=max score=sigmoid", row, NULL,
                  (int32_t[]){8, 9, 10, 11, 12, 13});
}
END_TEST

START_TEST(the_bias_moves_groups) {
    const float row[4] = {0}, bias[4] = {0, 0, 0.25f, -0.125f};
    const char *const options = "score=sigmoid expert_bias=true groups=2 groups_kept=1 group_score=sum2";
    rig r;
    open_row(&r, 4, 2, options, row, bias);
    ck_assert(r.ids[0] == 2 && r.ids[1] == 3); /* 1.125 against 1 */
    ck_assert(r.weights[0] == 0.5f && r.weights[1] == 0.5f);
    rig_close(&r);
    expect_choice(4, 2, options, row, NULL, (int32_t[]){0, 1});
}
END_TEST

/* Equal groups: the lowest; equal experts: the lowest, across groups as well, whichever group scored more. */
START_TEST(C003_ties_take_lowest_group_and_expert) {
    static const char *const scores[] = {"max", "sum2", "sum"};
    static const int64_t sizes[][3] = {{8, 4, 2}, {32, 8, 4}, {128, 8, 4}, {256, 8, 4}};
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 6; i++) {
            char options[160];
            float row[256] = {0};
            snprintf(options, sizeof options, "groups=%d groups_kept=%d group_score=%s score=%s", (int)sizes[s][1],
                     (int)sizes[s][2], scores[i % 3], i / 3 ? "sigmoid" : "softmax");
            expect_choice(sizes[s][0], 4, options, row, NULL, (int32_t[]){0, 1, 2, 3});
        }
    const float row[8] = {0, 1, 0, 0, 2, 1, 1, 1};
    expect_choice(8, 2, "groups=4 groups_kept=2", row, NULL, (int32_t[]){4, 1});
    expect_choice(8, 3, "groups=4 groups_kept=2", row, NULL, (int32_t[]){4, 1, 5});
}
END_TEST

/* One group, and all groups, are no limit: the same bits as without. */
START_TEST(all_groups_kept_is_no_limit) {
    static const char *const styles[] = {"", "groups=1", "groups=1 groups_kept=1 group_score=sum2",
                                         "groups=8 groups_kept=8 group_score=sum2"};
    rig plain;
    rig_open(&plain, "topk", 50, 64, 6, "score=sigmoid", NULL);
    rig_random(plain.logits, 50 * 64, 2, 3);
    ck_assert_int_eq(rig_route(&plain), MOE_OK);
    for (int i = 0; i < 4; i++) {
        rig r;
        char options[128];
        snprintf(options, sizeof options, "score=sigmoid %s", styles[i]);
        rig_open(&r, "topk", 50, 64, 6, options, NULL);
        memcpy(r.logits, plain.logits, 50 * 64 * sizeof(float));
        ck_assert_int_eq(rig_route(&r), MOE_OK);
        ck_assert_mem_eq(r.ids, plain.ids, 300 * sizeof *r.ids);
        ck_assert_mem_eq(r.weights, plain.weights, 300 * sizeof *r.weights);
        rig_close(&r);
    }
    rig_close(&plain);
}
END_TEST

/* No token uses more groups than are kept, in the shape of DeepSeek-V3. */
START_TEST(tokens_stay_within_their_groups) {
    rig r;
    rig_open(&r, "topk", 200, 256, 8,
             "score=sigmoid renormalise=true scale=2.5 expert_bias=true groups=8 groups_kept=4 group_score=sum2", NULL);
    rig_random(r.logits, 200 * 256, 1, 3);
    rig_random(r.bias, 256, 0.1, 4);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    int most = 0;
    for (int t = 0; t < 200; t++) {
        unsigned used = 0;
        for (int j = 0; j < 8; j++) used |= 1u << (r.ids[8 * t + j] / 32);
        int n = __builtin_popcount(used);
        most = n > most ? n : most;
        ck_assert_int_le(n, 4);
    }
    ck_assert_int_eq(most, 4);
    rig_close(&r);
}
END_TEST

/* The largest biases overflow the sum of a group: ids stay distinct and in range. */
START_TEST(overflowing_groups_choose_something) {
    rig r;
    rig_open(&r, "topk", 1, 8, 4, "score=sigmoid expert_bias=true groups=4 groups_kept=2 group_score=sum2", NULL);
    for (int e = 0; e < 8; e++) r.bias[e] = _i ? -3.4e38f : 3.4e38f;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    for (int j = 0; j < 4; j++) ck_assert(r.ids[j] == j && isfinite(r.weights[j]));
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("groups");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, C005_rejected_groups_are_never_chosen);
    tcase_add_test(c, C005_every_expert_of_the_kept_groups);
    tcase_add_test(c, the_group_scores_differ);
    tcase_add_test(c, sum_of_more_experts_than_groups);
    tcase_add_test(c, the_bias_moves_groups);
    tcase_add_test(c, C003_ties_take_lowest_group_and_expert);
    tcase_add_test(c, all_groups_kept_is_no_limit);
    tcase_add_test(c, tokens_stay_within_their_groups);
    tcase_add_loop_test(c, overflowing_groups_choose_something, 0, 2);
    return run_case(c);
}
