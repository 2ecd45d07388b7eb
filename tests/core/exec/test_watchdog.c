/* The watchdog: calls that communicate end in time with words about who is missing, computing may last, and an abort
 * ends a rank at its next node, or gives it up. */
#include <exec/watchdog.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <util/clock.h>

#include "core/exec/run_graph.h"

/* ---- a comm that can be aborted and waits for what a test says ---- */
typedef struct fake_comm {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int aborted, aborts;
    char reason[512];
    void *asked; /* the group of the last waiting */
} fake_comm;

static void fake_abort(void *self, const char *reason) {
    fake_comm *c = self;
    pthread_mutex_lock(&c->lock);
    if (!c->aborted) snprintf(c->reason, sizeof c->reason, "%s", reason);
    c->aborted = 1;
    c->aborts++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static moe_status fake_poll(void *self, moe_err *err) {
    fake_comm *c = self;
    pthread_mutex_lock(&c->lock);
    moe_status status = c->aborted ? moe_fail(err, MOE_E_COMM, "%s", c->reason) : MOE_OK;
    pthread_mutex_unlock(&c->lock);
    return status;
}

static void fake_waiting(void *self, void *group, char *text, uint64_t bytes) {
    fake_comm *c = self;
    c->asked = group;
    snprintf(text, bytes, "all_reduce of 512 F32 on group dp of ranks 0 3: rank 0 has not come");
}

static const moe_comm_v0 fake_table = {
    .size = sizeof fake_table, .abort = fake_abort, .poll = fake_poll, .waiting = fake_waiting};
static const moe_comm_v0 older_table = {
    .size = offsetof(moe_comm_v0, waiting), .abort = fake_abort, .poll = fake_poll, .waiting = fake_waiting};

/* ---- nodes ---- */
/* Waits for a peer that never comes, as a collective call does: until the abort. */
static moe_status wait_for_peer(void *ctx, moe_err *err) {
    fake_comm *c = ctx;
    pthread_mutex_lock(&c->lock);
    while (!c->aborted) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return moe_fail(err, MOE_E_COMM, "%s", c->reason);
}

typedef struct sleeper {
    useconds_t us;
    atomic_int runs;
    atomic_int *until; /* NULL: once; else as long as it is 0 */
} sleeper;
static moe_status sleep_a_while(void *ctx, moe_err *err) {
    sleeper *s = ctx;
    (void)err;
    do usleep(s->us);
    while (s->until && !atomic_load(s->until));
    atomic_fetch_add(&s->runs, 1);
    return MOE_OK;
}

/* ---- a rank ---- */
typedef struct scene {
    device_open c;
    fake_comm comm;
    run_graph run;
    uint32_t members[2];
    exec_group group;
    exec_groups groups;
    watchdog *dog;
    atomic_int stuck;
    char stuck_msg[1024];
} scene;

static void note_stuck(void *arg, const char *msg) {
    scene *s = arg;
    snprintf(s->stuck_msg, sizeof s->stuck_msg, "%s", msg);
    atomic_fetch_add(&s->stuck, 1);
}

static uint32_t add(graph *g, const char *name, int32_t group, graph_fn fn, void *ctx) {
    moe_sched_node info = {.name = name, .layer = -1, .microbatch = -1, .group = group};
    info.lane = group < 0 ? MOE_LANE_COMPUTE : MOE_LANE_COMM_DP;
    return graph_node_add(g, &info, fn, ctx, NULL, 0);
}

/* g: as emitted; not finished yet. */
static void open_scene(scene *s, graph *g, const moe_comm_v0 *comm, double timeout, double grace) {
    device_open_start(&s->c, 1);
    s->members[1] = 3;
    s->group = (exec_group){.name = "dp", .handle = &s->group, .ranks = s->members, .n = 2};
    s->groups = (exec_groups){&s->group, 1, -1};
    check_ok(graph_finish(g, err));
    run_graph_open(&s->run, &s->c, g, NULL, NULL, NULL);
    const watchdog_cfg cfg = {.rank = 3, .timeout = timeout, .grace = grace, .on_stuck = note_stuck, .arg = s};
    check_ok(watchdog_create(&s->dog, &cfg, err));
    watchdog_attach(s->dog, comm, &s->comm, &s->run.streams, &s->groups);
}
static scene *new_scene(void) {
    scene *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    pthread_mutex_init(&s->comm.lock, NULL);
    pthread_cond_init(&s->comm.changed, NULL);
    return s;
}
static void close_scene(scene *s) {
    watchdog_detach(s->dog);
    watchdog_destroy(s->dog);
    run_graph_close(&s->run);
    device_open_stop(&s->c);
    pthread_cond_destroy(&s->comm.changed);
    pthread_mutex_destroy(&s->comm.lock);
    free(s);
}

/* ---- calls that communicate ---- */
START_TEST(C042_a_late_call_names_rank_node_group_and_who_is_missing) {
    scene *s = new_scene();
    graph *g = graph_create();
    add(g, "L2.mb1.dispatch.exchange.fwd", 0, wait_for_peer, &s->comm);
    open_scene(s, g, &fake_table, 0.2, 0);
    double begin = clock_seconds();
    check_ok(exec_issue(s->run.x, err));
    check_fails(exec_finish(s->run.x, err), MOE_E_COMM, "rank 3: L2.mb1.dispatch.exchange.fwd on group dp",
                "has not returned for", "all_reduce of 512 F32 on group dp of ranks 0 3: rank 0 has not come");
    ck_assert_double_ge(clock_seconds() - begin, 0.2);
    ck_assert_ptr_eq(s->comm.asked, &s->group);
    ck_assert_int_ge(s->comm.aborts, 1);
    ck_assert_int_eq(atomic_load(&s->stuck), 0);
    close_scene(s);
}
END_TEST

START_TEST(a_comm_that_cannot_say_who_is_missing_leaves_the_members) {
    scene *s = new_scene();
    graph *g = graph_create();
    add(g, "grads.0-7.all_reduce", 0, wait_for_peer, &s->comm);
    open_scene(s, g, &older_table, 0.1, 0);
    check_ok(exec_issue(s->run.x, err));
    check_fails(exec_finish(s->run.x, err), MOE_E_COMM, "grads.0-7.all_reduce on group dp", "the group has ranks 0 3");
    close_scene(s);
}
END_TEST

START_TEST(computing_may_take_as_long_as_it_likes) {
    scene *s = new_scene();
    sleeper slow = {.us = 600000};
    graph *g = graph_create();
    add(g, "L0.mb0.attention.fwd", -1, sleep_a_while, &slow);
    open_scene(s, g, &fake_table, 0.1, 0);
    check_ok(exec_issue(s->run.x, err));
    check_ok(exec_finish(s->run.x, err));
    ck_assert_int_eq(s->comm.aborts, 0);
    close_scene(s);
}
END_TEST

/* Many short calls that are longer than the timeout together: each counts alone, the same node in each step too. */
START_TEST(each_call_counts_alone) {
    scene *s = new_scene();
    sleeper brief = {.us = 50000};
    graph *g = graph_create();
    for (int i = 0; i < 4; i++) add(g, "stats.all_reduce", 0, sleep_a_while, &brief);
    open_scene(s, g, &fake_table, 0.5, 0);
    for (int i = 0; i < 5; i++) {
        check_ok(exec_issue(s->run.x, err));
        check_ok(exec_finish(s->run.x, err));
    }
    ck_assert_int_eq(atomic_load(&brief.runs), 20);
    ck_assert_int_eq(s->comm.aborts, 0);
    close_scene(s);
}
END_TEST

START_TEST(without_a_timeout_a_call_may_wait_for_ever) {
    scene *s = new_scene();
    sleeper slow = {.us = 700000};
    graph *g = graph_create();
    add(g, "stats.all_reduce", 0, sleep_a_while, &slow);
    open_scene(s, g, &fake_table, 0, 0.1);
    check_ok(exec_issue(s->run.x, err));
    check_ok(exec_finish(s->run.x, err));
    ck_assert_int_eq(s->comm.aborts, 0);
    ck_assert_int_eq(atomic_load(&s->stuck), 0);
    close_scene(s);
}
END_TEST

/* ---- after an abort ---- */
/* A long chain of computing, and a peer that ends: the rank ends at a node's end, with the peer's reason. */
START_TEST(an_abort_ends_a_rank_that_only_computes) {
    enum { NODES = 200 };
    scene *s = new_scene();
    sleeper each = {.us = 20000};
    graph *g = graph_create();
    for (int i = 0; i < NODES; i++) add(g, "L0.mb0.norm1.fwd", -1, sleep_a_while, &each);
    open_scene(s, g, &fake_table, 0, 0.5);
    check_ok(exec_issue(s->run.x, err));
    fake_abort(&s->comm, "aborted by rank 0: no space left");
    check_fails(exec_finish(s->run.x, err), MOE_E_COMM, "aborted by rank 0: no space left");
    ck_assert_int_lt(atomic_load(&each.runs), NODES);
    check_ok(exec_issue(s->run.x, err));
    check_fails(exec_finish(s->run.x, err), MOE_E_COMM, "aborted by rank 0"); /* and stays ended */
    close_scene(s);
}
END_TEST

START_TEST(a_rank_that_does_not_end_is_given_up_with_words) {
    scene *s = new_scene();
    atomic_int release = 0;
    sleeper deaf = {.us = 10000, .until = &release};
    graph *g = graph_create();
    add(g, "L5.mb0.combine.exchange.bwd", 0, sleep_a_while, &deaf);
    open_scene(s, g, &fake_table, 0.1, 0.2);
    check_ok(exec_issue(s->run.x, err));
    while (!atomic_load(&s->stuck)) usleep(1000);
    ck_assert_ptr_nonnull(strstr(s->stuck_msg, "rank 3: L5.mb0.combine.exchange.bwd on group dp has not returned"));
    ck_assert_ptr_nonnull(strstr(s->stuck_msg, "rank 3 has not ended"));
    ck_assert_ptr_nonnull(strstr(s->stuck_msg, "given up, inside of L5.mb0.combine.exchange.bwd"));
    usleep(500000);
    ck_assert_int_eq(atomic_load(&s->stuck), 1); /* said once */
    atomic_store(&release, 1);
    check_fails(exec_finish(s->run.x, err), MOE_E_COMM, "L5.mb0.combine.exchange.bwd");
    close_scene(s);
}
END_TEST

/* ---- outside of steps ---- */
START_TEST(a_late_set_up_call_ends_the_run) {
    scene *s = new_scene();
    open_scene(s, graph_create(), &fake_table, 0.1, 0);
    watchdog_enter(s->dog, "making group ep");
    check_fails(wait_for_peer(&s->comm, err), MOE_E_COMM, "rank 3: making group ep has not returned for",
                "rank 0 has not come");
    watchdog_leave(s->dog);
    close_scene(s);
}
END_TEST

START_TEST(what_is_between_two_set_up_calls_does_not_count) {
    scene *s = new_scene();
    open_scene(s, graph_create(), &fake_table, 0.4, 0);
    for (int i = 0; i < 10; i++) {
        watchdog_enter(s->dog, "making group ep");
        usleep(40000);
        watchdog_leave(s->dog);
        usleep(40000);
    }
    ck_assert_int_eq(s->comm.aborts, 0);
    close_scene(s);
}
END_TEST

/* Before there is a comm, nobody can be told: the rank is given up; a comm that comes later passes it on. */
START_TEST(the_making_of_the_comm_itself_is_watched) {
    scene *s = new_scene();
    open_scene(s, graph_create(), &fake_table, 0.1, 0.2);
    watchdog_detach(s->dog);
    watchdog_enter(s->dog, "comm/mpi");
    while (!atomic_load(&s->stuck)) usleep(1000);
    ck_assert_ptr_nonnull(strstr(s->stuck_msg, "rank 3: comm/mpi has not returned for"));
    ck_assert_ptr_nonnull(strstr(s->stuck_msg, "inside of comm/mpi"));
    watchdog_leave(s->dog);
    watchdog_attach(s->dog, &fake_table, &s->comm, &s->run.streams, &s->groups);
    check_fails(wait_for_peer(&s->comm, err), MOE_E_COMM, "comm/mpi has not returned");
    close_scene(s);
}
END_TEST

START_TEST(no_watchdog_is_nothing) {
    watchdog_attach(NULL, NULL, NULL, NULL, NULL);
    watchdog_enter(NULL, "x");
    watchdog_leave(NULL);
    watchdog_detach(NULL);
    watchdog_destroy(NULL);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("watchdog");
    tcase_add_test(t, C042_a_late_call_names_rank_node_group_and_who_is_missing);
    tcase_add_test(t, a_comm_that_cannot_say_who_is_missing_leaves_the_members);
    tcase_add_test(t, computing_may_take_as_long_as_it_likes);
    tcase_add_test(t, each_call_counts_alone);
    tcase_add_test(t, without_a_timeout_a_call_may_wait_for_ever);
    tcase_add_test(t, an_abort_ends_a_rank_that_only_computes);
    tcase_add_test(t, a_rank_that_does_not_end_is_given_up_with_words);
    tcase_add_test(t, a_late_set_up_call_ends_the_run);
    tcase_add_test(t, what_is_between_two_set_up_calls_does_not_count);
    tcase_add_test(t, the_making_of_the_comm_itself_is_watched);
    tcase_add_test(t, no_watchdog_is_nothing);
    return run_suite("watchdog", t);
}
