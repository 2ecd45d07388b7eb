/* comm/threads: sub-groups at the same time, ranks that come in any order and late, thousands of calls back to back,
 * many instances in one process. */
#include "threads_case.h"

typedef struct group_case {
    const moe_comm_v0 *c;
    int calls;
    useconds_t jitter; /* random pause before a call, at most */
    _Atomic int faults;
} group_case;

/* Row r / 2 and column r % 2 of a mesh of world / 2 rows; sums of ranks in each. */
static void mesh_rank(rank_env *env) {
    group_case *k = env->arg;
    const uint32_t r = env->rank, rows = env->world / 2;
    void *self = threads_open(env, k->c), *row = NULL, *column = NULL;
    moe_err err = {.size = sizeof err};
    if (k->c->group_split(self, NULL, "row", r / 2, &row, &err) != MOE_OK) k->faults++;
    if (k->c->group_split(self, NULL, "column", r % 2, &column, &err) != MOE_OK) k->faults++;
    const int64_t row_sum = (int64_t)(r / 2) * 4 + 1, column_sum = (int64_t)rows * (rows - 1) + (r & 1) * rows;
    dice d = dice_new(r);
    for (int i = 0; i < k->calls; i++) {
        if (k->jitter) usleep((useconds_t)(dice_next(&d) % k->jitter));
        int64_t x = r, y = 0, z = 0;
        k->c->all_reduce(self, row, NULL, &x, &y, 1, MOE_I64, MOE_SUM, &err);
        k->c->all_reduce(self, column, NULL, &x, &z, 1, MOE_I64, MOE_SUM, &err);
        if (y != row_sum || z != column_sum) k->faults++;
    }
    k->c->group_destroy(self, row);
    k->c->group_destroy(self, NULL);
    k->c->group_destroy(self, column);
    k->c->destroy(self);
}

START_TEST(sub_groups_work_at_the_same_time) {
    group_case k = {.c = threads_table(), .calls = 200};
    ranks_run(8, mesh_rank, &k);
    ranks_run(4, mesh_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

START_TEST(C085_ranks_start_in_any_order_and_late) {
    for (uint32_t seed = 0; seed < 6; seed++) {
        uint32_t order[4] = {3, 2, 1, 0};
        useconds_t delays[4];
        dice d = dice_new(seed);
        for (uint32_t i = 3; i > 0 && seed > 1; i--) {
            const uint32_t j = (uint32_t)(dice_next(&d) % (i + 1)), x = order[i];
            order[i] = order[j];
            order[j] = x;
        }
        for (int i = 0; i < 4; i++) delays[i] = (useconds_t)(dice_next(&d) % 20000);
        if (seed == 0) delays[3] = 0;     /* rank 3 alone, then the others */
        if (seed == 1) delays[3] = 60000; /* rank 3 last */
        group_case k = {.c = threads_table(), .calls = 10, .jitter = 1500};
        ranks_run_order(4, mesh_rank, &k, order, delays);
        ck_assert_msg(k.faults == 0, "seed %u: %d faults", seed, k.faults);
    }
}
END_TEST

static void thousand_rank(rank_env *env) {
    group_case *k = env->arg;
    const uint32_t n = env->world;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    for (int i = 0; i < k->calls; i++) {
        int64_t x = (int64_t)env->rank + i, sum = 0, all[8] = {0}, want = (int64_t)n * (n - 1) / 2 + (int64_t)n * i;
        moe_status s = k->c->all_reduce(self, g, NULL, &x, &sum, 1, MOE_I64, MOE_SUM, &err);
        if (s == MOE_OK) s = k->c->all_gather(self, g, NULL, &sum, all, 1, MOE_I64, &err);
        if (s == MOE_OK && i % 3 == 0) s = k->c->barrier(self, g, NULL, &err);
        if (s != MOE_OK || sum != want || all[n - 1] != want) k->faults++;
    }
    k->c->destroy(self);
}

START_TEST(a_thousand_calls_back_to_back) {
    group_case k = {.c = threads_table(), .calls = 1000};
    ranks_run(2, thousand_rank, &k);
    ranks_run(4, thousand_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

static void many_rank(rank_env *env) {
    group_case *k = env->arg;
    for (int i = 0; i < k->calls; i++) {
        void *a = threads_open(env, k->c), *b = threads_open(env, k->c);
        void *ga = threads_group(k->c, a, "a"), *gb = threads_group(k->c, b, "b");
        moe_err err = {.size = sizeof err};
        int32_t x = 1, y = 0, z = 0;
        k->c->all_reduce(a, ga, NULL, &x, &y, 1, MOE_I32, MOE_SUM, &err);
        k->c->abort(a, "only a"); /* b is another world */
        if (k->c->all_reduce(b, gb, NULL, &x, &z, 1, MOE_I32, MOE_SUM, &err) != MOE_OK) k->faults++;
        if (z != (int32_t)env->world || k->c->poll(b, &err) != MOE_OK) k->faults++;
        if (env->rank & 1) {
            k->c->destroy(a);
            k->c->destroy(b);
        } else {
            k->c->destroy(b);
            k->c->destroy(a);
        }
    }
}

START_TEST(instances_do_not_know_each_other) {
    group_case k = {.c = threads_table(), .calls = 20};
    ranks_run(3, many_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

Suite *suite_groups(void) {
    Suite *s = suite_create("comm/threads groups");
    TCase *t = tcase_create("all");
    tcase_add_test(t, sub_groups_work_at_the_same_time);
    tcase_add_test(t, C085_ranks_start_in_any_order_and_late);
    tcase_add_test(t, a_thousand_calls_back_to_back);
    tcase_add_test(t, instances_do_not_know_each_other);
    suite_add_tcase(s, t);
    return s;
}
