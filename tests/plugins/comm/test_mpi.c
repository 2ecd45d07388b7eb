/* comm/mpi: what only processes show - who is where, how calls end when a rank aborts, leaves, or calls something else,
 * who is missing, and nodes (option virtual_node) that share no memory. Started by mpirun; the suites of comm/threads
 * that need no memory of all ranks run too. */
#include <time.h>

#include "threads_case.h"

/* A rank of the whole job. Besides the instance under test each has one that keeps the ranks in step. */
typedef struct process {
    const moe_comm_v0 *c;
    uint32_t rank, world, local;
    void *self, *group, *pace, *pace_group;
    rank_env env;
    moe_err err;
} process;

static void *open_with(process *p, const moe_kv *kv, uint64_t n_kv) {
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = p->rank, .world = p->world, .kv = kv, .n_kv = n_kv};
    void *self = NULL;
    moe_status s = p->c->create(&cfg, rank_host(&p->env, NULL), &self, &p->err);
    ck_assert_msg(s == MOE_OK, "rank %u: %s", p->rank, p->err.msg);
    return self;
}

static void start_on(process *p, const char *virtual_node) {
    const moe_kv kv[] = {{"virtual_node", virtual_node}};
    *p = (process){.c = threads_table(), .err.size = sizeof(moe_err)};
    ck_assert_msg(p->c->topology(&p->rank, &p->world, &p->local, &p->err) == MOE_OK, "%s", p->err.msg);
    p->env = (rank_env){.rank = p->rank, .world = p->world};
    p->pace = open_with(p, NULL, 0);
    p->pace_group = threads_group(p->c, p->pace, "pace");
    p->self = open_with(p, kv, 1);
    p->group = threads_group(p->c, p->self, "all");
}
static void start(process *p) {
    start_on(p, "0");
}
static void pace(process *p) {
    ck_assert_int_eq(p->c->barrier(p->pace, p->pace_group, NULL, &p->err), MOE_OK);
}
static void end(process *p) {
    p->c->destroy(p->self);
    p->c->destroy(p->pace);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- start ---- */

START_TEST(topology_and_create_agree) {
    process p;
    start(&p);
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = p.rank + 1, .world = p.world};
    void *self = NULL;
    uint32_t rank = 99, world = 99, local = 99;
    ck_assert_int_eq(p.c->create(&cfg, rank_host(&p.env, NULL), &self, &p.err), MOE_E_ARG);
    ck_assert_msg(strstr(p.err.msg, "but the launcher says rank"), "%s", p.err.msg);
    ck_assert_int_eq(p.c->topology(&rank, &world, &local, &p.err), MOE_OK);         /* again */
    ck_assert(rank == p.rank && world == p.world && rank < world && local == rank); /* one machine */
    ck_assert_int_eq(p.c->launch, MOE_LAUNCH_PROCESSES);
    end(&p);
}
END_TEST

START_TEST(the_bootstrap_gathers_blobs_in_rank_order) {
    process p;
    start(&p);
    const moe_bootstrap *b = p.c->extension(p.self, "moe.bootstrap/0");
    ck_assert_ptr_null(p.c->extension(p.self, "moe.bootstrap/9"));
    ck_assert(b && b->rank == p.rank && b->world == p.world);
    char mine[24], all[RANKS_MAX][24];
    snprintf(mine, sizeof mine, "rank %u says so", p.rank);
    ck_assert_int_eq(b->all_gather(b->ctx, mine, sizeof mine, all, &p.err), MOE_OK);
    for (uint32_t r = 0; r < p.world; r++) {
        snprintf(mine, sizeof mine, "rank %u says so", r);
        ck_assert_str_eq(all[r], mine);
    }
    ck_assert_int_eq(b->all_gather(b->ctx, NULL, 0, all, &p.err), MOE_OK);
    end(&p);
}
END_TEST

/* ---- the same bits everywhere ---- */

enum { LARGE = 300007 };

START_TEST(large_sums_have_the_same_bits_in_all_processes) {
    process p;
    start(&p);
    float *in = malloc(LARGE * 4), *out = malloc(LARGE * 4), *all = malloc(LARGE * 4 * p.world);
    for (int again = 0; again < 2; again++) {
        dice d = dice_new(p.rank);
        for (int i = 0; i < LARGE; i++) in[i] = (float)(dice_next(&d) >> 40) * 0x1p-13f - 1000.0f;
        ck_assert_int_eq(p.c->all_reduce(p.self, p.group, NULL, in, out, LARGE, MOE_F32, MOE_SUM, &p.err), MOE_OK);
        ck_assert_int_eq(p.c->all_gather(p.self, p.group, NULL, out, all, LARGE, MOE_F32, &p.err), MOE_OK);
        for (uint32_t r = 0; r < p.world; r++) ck_assert(memcmp(out, all + (size_t)r * LARGE, LARGE * 4) == 0);
    }
    double want = 0; /* element 5, in rank order */
    float sum = 0;
    for (uint32_t r = 0; r < p.world; r++) {
        dice d = dice_new(r);
        float x = 0;
        for (int i = 0; i <= 5; i++) x = (float)(dice_next(&d) >> 40) * 0x1p-13f - 1000.0f;
        sum = r ? sum + x : x;
        want += (double)x;
    }
    ck_assert(memcmp(&sum, &out[5], 4) == 0);
    ck_assert(want - (double)sum < 0.01 && (double)sum - want < 0.01);
    free(in);
    free(out);
    free(all);
    end(&p);
}
END_TEST

/* ---- ends ---- */

static moe_status reduce_something(process *p) {
    static float x[512], y[512];
    return p->c->all_reduce(p->self, p->group, NULL, x, y, 512, MOE_F32, MOE_SUM, &p->err);
}

/* The last rank aborts while the others are inside of a call, or on their way. _i: ranks of a virtual node. */
START_TEST(an_abort_reaches_every_rank_with_its_reason) {
    process p;
    char size[8], reason[64];
    snprintf(size, sizeof size, "%d", _i);
    start_on(&p, size);
    snprintf(reason, sizeof reason, "aborted by rank %u: on fire", p.world - 1);
    pace(&p);
    const double begin = now_s();
    if (p.rank == p.world - 1) {
        usleep(20000);
        p.c->abort(p.self, "on fire");
        p.c->abort(p.self, "and again");
    }
    ck_assert_int_eq(reduce_something(&p), MOE_E_COMM);
    ck_assert_msg(strstr(p.err.msg, reason), "rank %u: %s", p.rank, p.err.msg);
    ck_assert_int_eq(p.c->poll(p.self, &p.err), MOE_E_COMM);
    ck_assert_msg(strstr(p.err.msg, reason), "rank %u: %s", p.rank, p.err.msg);
    ck_assert(now_s() - begin < 10);
    ck_assert_int_eq(p.c->poll(p.pace, &p.err), MOE_OK); /* another instance goes on */
    pace(&p);
    end(&p);
}
END_TEST

/* Messages to a rank that never posts its part, short and long ones, are ended too. */
START_TEST(an_abort_ends_messages_and_exchanges) {
    process p;
    start(&p);
    enum { BYTES = 1 << 20 };
    char *x = calloc(1, BYTES), *y = calloc(1, BYTES);
    const uint32_t last = p.world - 1;
    const moe_p2p_op ops[] = {{.buf = x, .bytes = BYTES, .peer = last, .tag = 1},
                              {.buf = y, .bytes = BYTES, .peer = last, .tag = 2, .receive = 1}};
    pace(&p);
    if (p.rank == last) {
        usleep(20000);
        p.c->abort(p.self, "no more");
    }
    ck_assert_int_eq(p.c->p2p(p.self, p.group, NULL, ops, p.rank == last ? 0 : 2, &p.err), MOE_E_COMM);
    ck_assert_msg(strstr(p.err.msg, "no more"), "%s", p.err.msg);
    void *half = NULL;
    moe_window w = {.size = sizeof w};
    ck_assert_int_eq(p.c->group_split(p.self, NULL, "half", 0, &half, &p.err), MOE_E_COMM);
    ck_assert_int_eq(p.c->window_create(p.self, p.group, 64, &w, &p.err), MOE_E_COMM);
    free(x);
    free(y);
    pace(&p);
    end(&p);
}
END_TEST

START_TEST(calls_that_differ_fail_everywhere_with_both) {
    process p;
    start(&p);
    float x[8] = {0}, y[8];
    moe_status s = p.rank == 1 ? p.c->broadcast(p.self, p.group, NULL, x, 8, MOE_F32, 0, &p.err)
                               : p.c->all_reduce(p.self, p.group, NULL, x, y, 8, MOE_F32, MOE_SUM, &p.err);
    ck_assert_int_eq(s, MOE_E_COMM);
    ck_assert_msg(
        strstr(p.err.msg, "group all: rank 0 calls all_reduce of 8 F32 (sum), rank 1 calls broadcast of 8 F32"),
        "rank %u: %s", p.rank, p.err.msg);
    pace(&p);
    end(&p);
}
END_TEST

START_TEST(parts_of_other_sizes_name_both_ranks) {
    process p;
    start(&p);
    char x[64] = {0}, y[64];
    uint64_t at[RANKS_MAX], in_bytes[RANKS_MAX], out_bytes[RANKS_MAX];
    for (uint32_t i = 0; i < p.world; i++) at[i] = 8 * i, in_bytes[i] = out_bytes[i] = 4;
    if (p.rank == 1) in_bytes[0] = 3 + 2 * (uint64_t)_i;
    const moe_a2a_args a = {
        .size = sizeof a, .in = x, .out = y, .in_at = at, .in_bytes = in_bytes, .out_at = at, .out_bytes = out_bytes};
    moe_status s = p.c->all_to_all_v(p.self, p.group, NULL, &a, &p.err);
    if (p.rank == 0) {
        ck_assert_int_eq(s, MOE_E_COMM);
        ck_assert_msg(strstr(p.err.msg, _i ? "group all: rank 1 sends more than 4 bytes to rank 0, which expects 4"
                                           : "group all: rank 1 sends 3 bytes to rank 0, which expects 4"),
                      "%s", p.err.msg);
    }
    pace(&p);
    if (p.rank) ck_assert_int_eq(p.c->poll(p.self, &p.err), MOE_E_COMM);
    pace(&p);
    end(&p);
}
END_TEST

START_TEST(a_rank_that_left_ends_those_who_wait_for_it) {
    process p;
    start(&p);
    if (p.rank == 1) {
        p.c->group_destroy(p.self, p.group);
        pace(&p);
    } else {
        if (_i) pace(&p); /* it has left before, or leaves while they wait */
        ck_assert_int_eq(reduce_something(&p), MOE_E_COMM);
        ck_assert_msg(strstr(p.err.msg, "group all: rank 1 has left"), "%s", p.err.msg);
        if (!_i) pace(&p);
    }
    void *g = threads_group(p.c, p.self, "again"); /* the world goes on */
    ck_assert_int_eq(p.c->barrier(p.self, g, NULL, &p.err), MOE_OK);
    end(&p);
}
END_TEST

/* ---- who is missing ---- */

typedef struct asker {
    process *p;
    const char *text;
    uint32_t late;
    char got[300];
} asker;

/* From another thread, as a watchdog does; then the missing rank may come. */
static void *ask(void *arg) {
    asker *a = arg;
    for (int i = 0; i < 4000 && strcmp(a->got, a->text) != 0; i++) {
        a->p->c->waiting(a->p->self, NULL, a->got, sizeof a->got);
        usleep(1000);
    }
    const moe_p2p_op go = {.peer = a->late};
    moe_err err = {.size = sizeof err};
    a->p->c->p2p(a->p->pace, a->p->pace_group, NULL, &go, 1, &err);
    return NULL;
}

static void wait_for_go(process *p) {
    const moe_p2p_op go = {.peer = 0, .receive = 1};
    ck_assert_int_eq(p->c->p2p(p->pace, p->pace_group, NULL, &go, 1, &p->err), MOE_OK);
}

/* _i: 0 on one node, 1 on several. The last rank is late. */
START_TEST(waiting_names_who_has_not_come) {
    process p;
    char want[200] = "all_reduce of 512 F32 (sum) on group all of ranks 0", number[16];
    start_on(&p, _i ? "1" : "0");
    for (uint32_t r = 1; r < p.world; r++) snprintf(number, sizeof number, " %u", r), strcat(want, number);
    snprintf(number, sizeof number, ": rank %u", p.world - 1);
    strcat(want, number);
    strcat(want, " has not come");
    asker a = {.p = &p, .text = want, .late = p.world - 1};
    pthread_t thread;
    if (p.rank == 0) pthread_create(&thread, NULL, ask, &a);
    if (p.rank == a.late) wait_for_go(&p);
    ck_assert_int_eq(reduce_something(&p), MOE_OK);
    if (p.rank == 0) pthread_join(thread, NULL);
    if (p.rank == 0) ck_assert_str_eq(a.got, want);
    char text[64] = "x";
    p.c->waiting(p.self, NULL, text, sizeof text);
    ck_assert_str_eq(text, "");
    end(&p);
}
END_TEST

START_TEST(waiting_names_messages_that_nobody_has_posted) {
    process p;
    char want[200] = "p2p of 1 messages on group all of ranks 0", number[16];
    int32_t x = 7, y = 0;
    start(&p);
    for (uint32_t r = 1; r < p.world; r++) snprintf(number, sizeof number, " %u", r), strcat(want, number);
    strcat(want, ": rank 1 has not posted a send of 4 bytes with tag 3");
    const moe_p2p_op take = {.buf = &y, .bytes = 4, .peer = 1, .tag = 3, .receive = 1},
                     give = {.buf = &x, .bytes = 4, .peer = 0, .tag = 3};
    asker a = {.p = &p, .text = want, .late = 1};
    if (p.rank == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, ask, &a);
        ck_assert_int_eq(p.c->p2p(p.self, p.group, NULL, &take, 1, &p.err), MOE_OK);
        pthread_join(thread, NULL);
        ck_assert_str_eq(a.got, want);
        ck_assert_int_eq(y, 7);
    } else if (p.rank == 1) {
        wait_for_go(&p);
        ck_assert_int_eq(p.c->p2p(p.self, p.group, NULL, &give, 1, &p.err), MOE_OK);
    }
    end(&p);
}
END_TEST

/* ---- nodes ---- */

/* Every rank a node of its own, or two a node: all calls work, windows show only the peers of the node. */
START_TEST(calls_work_between_nodes_and_windows_within) {
    process p;
    char size[8];
    snprintf(size, sizeof size, "%d", _i);
    start_on(&p, size);
    const uint32_t n = p.world, node = p.rank / (uint32_t)_i;
    moe_window w = {.size = sizeof w};
    ck_assert_int_eq(p.c->window_create(p.self, p.group, 100, &w, &p.err), MOE_OK);
    for (uint32_t i = 0; i < n; i++) ck_assert_int_eq(w.peers[i] != NULL, i / (uint32_t)_i == node);
    for (uint32_t i = 0; i < n; i++)
        if (w.peers[i]) ((char *)w.peers[i])[p.rank] = (char)(p.rank + 1);
    ck_assert_int_eq(p.c->barrier(p.self, p.group, NULL, &p.err), MOE_OK);
    for (uint32_t i = 0; i < n; i++) ck_assert_int_eq(((char *)w.peers[p.rank])[i], w.peers[i] ? (int)i + 1 : 0);
    int64_t x = p.rank + 1, sum = 0, all[RANKS_MAX];
    for (int k = 0; k < 50; k++) {
        ck_assert_int_eq(p.c->all_reduce(p.self, p.group, NULL, &x, &sum, 1, MOE_I64, MOE_SUM, &p.err), MOE_OK);
        ck_assert_int_eq(p.c->all_gather(p.self, p.group, NULL, &x, all, 1, MOE_I64, &p.err), MOE_OK);
        ck_assert_int_eq(p.c->barrier(p.self, p.group, NULL, &p.err), MOE_OK);
        ck_assert(sum == (int64_t)n * (n + 1) / 2 && all[n - 1] == n);
    }
    p.c->window_destroy(p.self, &w);
    end(&p);
}
END_TEST

static Suite *suite_mpi(void) {
    Suite *s = suite_create("comm/mpi");
    TCase *t = tcase_create("all");
    tcase_add_test(t, topology_and_create_agree);
    tcase_add_test(t, the_bootstrap_gathers_blobs_in_rank_order);
    tcase_add_test(t, large_sums_have_the_same_bits_in_all_processes);
    tcase_add_loop_test(t, an_abort_reaches_every_rank_with_its_reason, 0, 3);
    tcase_add_test(t, an_abort_ends_messages_and_exchanges);
    tcase_add_test(t, calls_that_differ_fail_everywhere_with_both);
    tcase_add_loop_test(t, parts_of_other_sizes_name_both_ranks, 0, 2);
    tcase_add_loop_test(t, a_rank_that_left_ends_those_who_wait_for_it, 0, 2);
    tcase_add_loop_test(t, waiting_names_who_has_not_come, 0, 2);
    tcase_add_test(t, waiting_names_messages_that_nobody_has_posted);
    tcase_add_loop_test(t, calls_work_between_nodes_and_windows_within, 1, 3);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite_mpi());
    srunner_add_suite(r, suite_collectives());
    srunner_add_suite(r, suite_exchange());
    srunner_add_suite(r, suite_messages());
    srunner_add_suite(r, suite_windows());
    srunner_add_suite(r, suite_groups());
    srunner_set_fork_status(r, CK_NOFORK); /* the process is a rank of the job */
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
