/* Communication calls compared across ranks, on made-up programs: members of a group must agree, ranks of different
 * groups need not, and a difference is named alike on all ranks. */
#include <moe/options.h>
#include <stdlib.h>
#include <train/agree.h>

#include "core/run_suite.h"
#include "plugins/comm/ranks.h"

static moe_status nothing(void *ctx, moe_err *err) {
    (void)ctx;
    (void)err;
    return MOE_OK;
}

/* A program of calls "name/group" in this order; group numbers are digits. "=name" is on another lane. */
static program program_of(const char *const *calls) {
    program p = {.g = graph_create()};
    for (; *calls; calls++) {
        moe_sched_node info = {.name = *calls, .layer = -1, .microbatch = -1, .lane = MOE_LANE_COMM_DP, .group = -1};
        const char *slash = strchr(*calls, '/');
        if (slash) info.group = slash[1] - '0';
        if (**calls == '=') info.lane = MOE_LANE_COMM_EP;
        graph_node_add(p.g, &info, nothing, NULL, NULL, 0);
    }
    p.order = malloc((p.g->n_nodes + 1) * sizeof *p.order);
    for (uint32_t i = 0; i < p.g->n_nodes; i++) p.order[i] = i;
    return p;
}

/* Four ranks in group 0 ("all") and in pairs 0 1 and 2 3 of group 1 ("pair"). */
enum { WORLD = 4 };
typedef struct agree_case {
    const char *const *calls[WORLD]; /* of each rank's first program */
    const char *const *more[WORLD];  /* of a second one; NULL = none */
    int alike;                       /* all ranks run the same program */
    uint32_t shifted;                /* this rank names rank 2 the first of its pair; WORLD = none */
    moe_status status[WORLD];
    char msg[WORLD][512];
} agree_case;

static void agree_rank(rank_env *env) {
    agree_case *c = env->arg;
    static const uint32_t all[] = {0, 1, 2, 3}, pairs[2][2] = {{0, 1}, {2, 3}};
    uint32_t rank = env->rank, pair = rank == c->shifted ? 1 : rank / 2;
    exec_group at[] = {{.name = "all", .ranks = all, .n = 4},
                       {.name = "pair", .ranks = pairs[pair], .n = 2},
                       {.name = "alone", .ranks = &all[rank], .n = 1}};
    const exec_groups groups = {at, 3, c->alike ? 0 : -1};
    program p[3] = {program_of(c->calls[rank])};
    if (c->more[rank]) p[2] = program_of(c->more[rank]);
    moe_err err = {.size = sizeof err};
    c->status[rank] = agree_on_calls(&env->bootstrap, &groups, p, 3, &err);
    snprintf(c->msg[rank], sizeof c->msg[rank], "%s", c->status[rank] ? err.msg : "");
    for (int i = 0; i < 3; i++) program_free(&p[i]);
}

/* All ranks say the same: these words, or nothing. */
static void run_case(agree_case *c, moe_status status, const char *word, const char *other) {
    ranks_run(WORLD, agree_rank, c);
    for (int r = 0; r < WORLD; r++) {
        ck_assert_msg(c->status[r] == status, "rank %d: %d: %s", r, c->status[r], c->msg[r]);
        ck_assert_str_eq(c->msg[r], c->msg[0]);
        if (status) check_text(c->msg[r], (const char *const[]){word, other, NULL});
    }
}
#define CALLS(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(members_of_a_group_agree_and_others_need_not) {
    const char *const *low = CALLS("a/0", "p/1", "compute", "b/0", "q/1"), *const *high = CALLS("r/1", "a/0", "b/0");
    agree_case c = {.calls = {low, low, high, high}, .shifted = WORLD};
    run_case(&c, MOE_OK, NULL, NULL);
}
END_TEST

START_TEST(computing_and_a_group_of_one_are_nobodys_business) {
    agree_case c = {.calls = {CALLS("a/0", "x"), CALLS("y", "a/0", "z"), CALLS("own/2", "a/0"), CALLS("a/0", "me/2")},
                    .shifted = WORLD};
    run_case(&c, MOE_OK, NULL, NULL);
}
END_TEST

START_TEST(the_first_call_that_differs_is_named) {
    const char *const *same = CALLS("a/0", "b/0", "c/0", "d/0", "e/0", "f/0", "g/0");
    agree_case c = {.calls = {same, same, same, CALLS("a/0", "b/0", "c/0", "d/0", "e/0", "g/0", "f/0")},
                    .shifted = WORLD};
    run_case(&c, MOE_E_ARG, "group all: ranks 0 and 3 make other communication calls",
             "call 6 is f/0 on rank 0, and g/0 on rank 3");
}
END_TEST

START_TEST(a_call_that_is_not_made_is_named) {
    const char *const *short_of = CALLS("p/1", "a/0"), *const *full = CALLS("p/1", "a/0", "q/1");
    agree_case c = {.calls = {full, full, short_of, full}, .shifted = WORLD};
    run_case(&c, MOE_E_ARG, "group pair: ranks 2 and 3", "call 2 is no call on rank 2, and q/1 on rank 3");
}
END_TEST

/* Wherever it is among many, at the ends too. */
START_TEST(every_place_is_found) {
    enum { N = 37 };
    static char names[N][16];
    const char *one[N + 1] = {NULL}, *other[N + 1] = {NULL};
    char want[64];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "n%d/0", i);
        one[i] = other[i] = names[i];
    }
    other[_i] = "odd/0";
    snprintf(want, sizeof want, "call %d is n%d/0 on rank 0, and odd/0 on rank 1", _i + 1, _i);
    agree_case c = {.calls = {one, other, one, one}, .shifted = WORLD};
    run_case(&c, MOE_E_ARG, "ranks 0 and 1", want);
}
END_TEST

START_TEST(later_programs_count) {
    const char *const *same = CALLS("a/0"), *const *eval = CALLS("loss/0"), *const *logits = CALLS("logits/0");
    agree_case c = {.calls = {same, same, same, same}, .more = {eval, eval, logits, eval}, .shifted = WORLD};
    run_case(&c, MOE_E_ARG, "group all: ranks 0 and 2", "call 2 is loss/0 on rank 0, and logits/0 on rank 2");
}
END_TEST

START_TEST(other_members_are_refused) {
    const char *const *same = CALLS("a/0", "p/1");
    agree_case c = {.calls = {same, same, same, same}, .shifted = 1}; /* rank 1 counts itself to the other pair */
    run_case(&c, MOE_E_ARG, "group pair: for rank 0 it has 2 ranks from rank 0 on", "1 say that they are its members");
}
END_TEST

/* Each group's calls are the same, but on one lane those of two groups change places. */
START_TEST(two_groups_may_not_change_places_on_a_lane) {
    const char *const *one = CALLS("a/0", "p/1", "b/0"), *const *other = CALLS("p/1", "a/0", "b/0");
    agree_case c = {.calls = {one, one, other, other}, .shifted = WORLD};
    run_case(&c, MOE_OK, NULL, NULL); /* of programs that are not the same nothing is known */
    c = (agree_case){.calls = {one, one, other, one}, .shifted = WORLD, .alike = 1};
    run_case(&c, MOE_E_ARG, "group all: ranks 0 and 2", "call 1 is a/0 on rank 0, and p/1 on rank 2");
}
END_TEST

/* Calls of other lanes may be ordered as one likes. */
START_TEST(lanes_do_not_wait_for_each_other) {
    const char *const *one = CALLS("a/0", "=x/1", "b/0"), *const *other = CALLS("=x/1", "a/0", "b/0");
    agree_case c = {.calls = {one, other, one, other}, .shifted = WORLD, .alike = 1};
    run_case(&c, MOE_OK, NULL, NULL);
}
END_TEST

START_TEST(one_rank_agrees_with_itself) {
    const exec_groups none = {NULL, 0, -1};
    const moe_bootstrap alone = {.size = sizeof alone, .world = 1};
    check_ok(agree_on_calls(&alone, &none, NULL, 0, err));
    check_ok(agree_on_calls(NULL, &none, NULL, 0, err));
}
END_TEST

int main(void) {
    TCase *t = tcase_create("agree");
    tcase_add_test(t, members_of_a_group_agree_and_others_need_not);
    tcase_add_test(t, computing_and_a_group_of_one_are_nobodys_business);
    tcase_add_test(t, the_first_call_that_differs_is_named);
    tcase_add_test(t, a_call_that_is_not_made_is_named);
    tcase_add_loop_test(t, every_place_is_found, 0, 37);
    tcase_add_test(t, later_programs_count);
    tcase_add_test(t, other_members_are_refused);
    tcase_add_test(t, two_groups_may_not_change_places_on_a_lane);
    tcase_add_test(t, lanes_do_not_wait_for_each_other);
    tcase_add_test(t, one_rank_agrees_with_itself);
    return run_suite("agree", t);
}
