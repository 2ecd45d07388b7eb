/* comm/threads: splits into uneven colors and again, sub-groups at the same time, ranks that come in any order and
 * late, thousands of calls back to back, many instances in one process. */
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

/* ---- splits ---- */

/* Colors of 8 ranks: three groups of 3, 2 and 2 ranks, one rank in none. */
static const uint32_t colors[8] = {7, 0, 7, MOE_NO_GROUP, UINT32_MAX - 1, 0, 7, UINT32_MAX - 1};

/* The split of g again, by odd and even places; the last place of three or more is out. */
static void split_again(group_case *k, rank_env *env, void *self, void *g, const uint32_t *members, uint32_t count,
                        uint32_t at) {
    const moe_comm_v0 *c = k->c;
    moe_err err = {.size = sizeof err};
    void *half = &err;
    uint32_t n = 0, index = 99, all[4] = {0};
    const int out = count > 2 && at == count - 1;
    COUNT_UNLESS(k->faults, c->group_split(self, g, "half", out ? MOE_NO_GROUP : at % 2, &half, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, out == (half == NULL));
    if (out) return;
    COUNT_UNLESS(k->faults, c->group_info(self, half, &n, &index, &err) == MOE_OK && n == 1 && index == 0);
    COUNT_UNLESS(k->faults, c->all_gather(self, half, NULL, &env->rank, all, 1, MOE_I32, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, all[0] == members[at]);
    c->group_destroy(self, half);
}

static void uneven_rank(rank_env *env) {
    group_case *k = env->arg;
    const moe_comm_v0 *c = k->c;
    const uint32_t r = env->rank;
    void *self = threads_open(env, c), *g = &k;
    moe_err err = {.size = sizeof err};
    uint32_t members[8], count = 0, at = 0, n = 0, index = 99, all[8] = {0};
    for (uint32_t i = 0; i < 8; i++) {
        if (i == r) at = count;
        if (colors[i] == colors[r]) members[count++] = i;
    }
    COUNT_UNLESS(k->faults, c->group_split(self, NULL, "uneven", colors[r], &g, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, (colors[r] == MOE_NO_GROUP) == (g == NULL));
    if (g) {
        COUNT_UNLESS(k->faults, c->group_info(self, g, &n, &index, &err) == MOE_OK && n == count && index == at);
        COUNT_UNLESS(k->faults, c->all_gather(self, g, NULL, &r, all, 1, MOE_I32, &err) == MOE_OK);
        COUNT_UNLESS(k->faults, memcmp(all, members, count * sizeof *all) == 0);
        split_again(k, env, self, g, members, count, at);
    } else
        COUNT_UNLESS(k->faults, c->group_info(self, g, &n, &index, &err) == MOE_E_ARG && c->poll(self, &err) == MOE_OK);
    void *none = &k; /* nobody joins */
    COUNT_UNLESS(k->faults, c->group_split(self, NULL, "none", MOE_NO_GROUP, &none, &err) == MOE_OK && none == NULL);
    c->destroy(self);
}

START_TEST(splits_into_uneven_colors_and_again) {
    group_case k = {.c = threads_table()};
    for (int i = 0; i < 5; i++) ranks_run(8, uneven_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* A mesh of many ranks: neighbours, strided, all alone, in three calls. */
static void crowd_rank(rank_env *env) {
    group_case *k = env->arg;
    const uint32_t r = env->rank, half = env->world / 2;
    void *self = threads_open(env, k->c), *g[3] = {NULL};
    moe_err err = {.size = sizeof err};
    const uint32_t axes[3] = {r / 2, r % half, r};
    int64_t x = r, y[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++) {
        COUNT_UNLESS(k->faults, k->c->group_split(self, NULL, "axis", axes[i], &g[i], &err) == MOE_OK);
        COUNT_UNLESS(k->faults, !k->c->all_reduce(self, g[i], NULL, &x, &y[i], 1, MOE_I64, MOE_SUM, &err));
    }
    COUNT_UNLESS(k->faults, y[0] == (int64_t)(r & ~1u) * 2 + 1 && y[1] == (int64_t)(r % half) * 2 + half && y[2] == x);
    k->c->destroy(self);
}

START_TEST(splits_of_many_ranks) {
    group_case k = {.c = threads_table()};
    ranks_run(RANKS_MAX, crowd_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

Suite *suite_groups(void) {
    Suite *s = suite_create("comm/threads groups");
    TCase *t = tcase_create("all");
    tcase_add_test(t, splits_into_uneven_colors_and_again);
    tcase_add_test(t, splits_of_many_ranks);
    tcase_add_test(t, sub_groups_work_at_the_same_time);
    tcase_add_test(t, C085_ranks_start_in_any_order_and_late);
    tcase_add_test(t, a_thousand_calls_back_to_back);
    tcase_add_test(t, instances_do_not_know_each_other);
    suite_add_tcase(s, t);
    return s;
}
