/* comm/nccl with processes for ranks: one of them, started by start_ranks; the suites of comm/threads that need no
 * memory of all ranks, and what only processes show. With an argument "killed R": that rank is killed while the others
 * wait. */
#include <signal.h>
#include <time.h>

#include "../threads_case.h"

Suite *suite_nccl(void);

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct process {
    const moe_comm_v0 *c;
    uint32_t rank, world, local;
    void *self, *group;
    rank_env env;
    moe_err err;
} process;

static void start(process *p) {
    *p = (process){.c = threads_table(), .err.size = sizeof(moe_err)};
    ck_assert_msg(p->c->topology(&p->rank, &p->world, &p->local, &p->err) == MOE_OK, "%s", p->err.msg);
    p->env = (rank_env){.rank = p->rank, .world = p->world};
    p->self = threads_open(&p->env, p->c);
    p->group = threads_group(p->c, p->self, "all");
}

START_TEST(topology_and_create_agree) {
    process p;
    start(&p);
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = p.rank + 1, .world = p.world};
    void *self = NULL;
    const moe_comm_v0 *table = waited_desc()->vtable;
    ck_assert_int_eq(table->create(&cfg, rank_host(&p.env, NULL), &self, &p.err), MOE_E_ARG);
    ck_assert_msg(strstr(p.err.msg, "but the environment says rank"), "%s", p.err.msg);
    ck_assert(p.rank < p.world && p.local == p.rank); /* one machine */
    ck_assert_int_eq(table->launch, MOE_LAUNCH_PROCESSES);
    p.c->destroy(p.self);
}
END_TEST

START_TEST(the_bootstrap_gathers_blobs_in_rank_order) {
    process p;
    start(&p);
    const moe_bootstrap *b = p.c->extension(p.self, "moe.bootstrap/0");
    ck_assert_ptr_null(p.c->extension(p.self, "moe.bootstrap/9"));
    ck_assert(b && b->rank == p.rank && b->world == p.world && b->local == p.local);
    char mine[40], all[RANKS_MAX][40];
    for (int round = 0; round < 50; round++) {
        snprintf(mine, sizeof mine, "rank %u, round %d", p.rank, round);
        ck_assert_int_eq(b->all_gather(b->ctx, mine, sizeof mine, all, &p.err), MOE_OK);
        for (uint32_t r = 0; r < p.world; r++) {
            snprintf(mine, sizeof mine, "rank %u, round %d", r, round);
            ck_assert_str_eq(all[r], mine);
        }
    }
    ck_assert_int_eq(b->all_gather(b->ctx, NULL, 0, all, &p.err), MOE_OK);
    p.c->destroy(p.self);
}
END_TEST

/* _i: who */
START_TEST(a_rank_that_is_killed_ends_the_others_in_time) {
    process p;
    float x[512] = {0}, y[512];
    char text[100];
    start(&p);
    if (p.rank == (uint32_t)_i) {
        usleep(300000); /* the others are inside */
        raise(SIGKILL);
    }
    const double begin = now_s();
    ck_assert_int_eq(p.c->all_reduce(p.self, p.group, NULL, x, y, 512, MOE_F32, MOE_SUM, &p.err), MOE_E_COMM);
    snprintf(text, sizeof text, "rank %d", _i); /* its connection has closed, or NCCL has found it gone */
    ck_assert_msg(strstr(p.err.msg, text), "rank %u: %s", p.rank, p.err.msg);
    p.c->destroy(p.self);
    ck_assert_double_lt(now_s() - begin, 10);
}
END_TEST

static Suite *suite_killed(int who) {
    Suite *s = suite_create("comm/nccl, a rank is killed");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, a_rank_that_is_killed_ends_the_others_in_time, who, who + 1);
    suite_add_tcase(s, t);
    return s;
}

static Suite *suite_processes(void) {
    Suite *s = suite_create("comm/nccl processes");
    TCase *t = tcase_create("all");
    tcase_add_test(t, topology_and_create_agree);
    tcase_add_test(t, the_bootstrap_gathers_blobs_in_rank_order);
    suite_add_tcase(s, t);
    return s;
}

int main(int argc, char **argv) {
    const int killed = argc == 3 && strcmp(argv[1], "killed") == 0;
    SRunner *r = srunner_create(killed ? suite_killed(atoi(argv[2])) : suite_processes());
    Suite *(*const suites[])(void) = {suite_nccl,     suite_collectives, suite_exchange,
                                      suite_messages, suite_windows,     suite_groups};
    for (size_t i = 0; i < sizeof suites / sizeof suites[0] && !killed; i++) srunner_add_suite(r, suites[i]());
    srunner_set_fork_status(r, CK_NOFORK); /* the process is a rank of the job */
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
