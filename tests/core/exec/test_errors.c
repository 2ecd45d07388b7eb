/* A node fails: the message names it and its rank, what comes later is skipped, peers are told once. */
#include <sched.h>
#include <stdatomic.h>

#include "core/exec/run_graph.h"

typedef struct told {
    atomic_int calls;
    char msg[504];
} told;
static void tell(void *arg, const moe_err *err) {
    told *t = arg;
    atomic_fetch_add(&t->calls, 1);
    memcpy(t->msg, err->msg, sizeof t->msg);
}

static moe_status count(void *ctx, moe_err *err) {
    (void)err;
    ++*(int *)ctx;
    return MOE_OK;
}
static moe_status fail_data(void *ctx, moe_err *err) {
    ++*(int *)ctx;
    return moe_fail(err, MOE_E_DATA, "token 7 is not a number");
}
static moe_status fail_silently(void *ctx, moe_err *err) {
    (void)ctx;
    (void)err;
    return MOE_E_DEVICE;
}

/* first -> bad -> next on one lane; other lane: independent, then what reads the bad node's result. */
typedef struct scene {
    int first, bad, next, follower;
    told told;
    run_graph run;
} scene;
static void open_scene(scene *s, device_open *c) {
    memset(s, 0, sizeof *s);
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 8, "x");
    run_graph_node(g, "L2.mb0.norm2.fwd", MOE_LANE_COMPUTE, count, &s->first, NULL, NULL);
    run_graph_node(g, "L2.mb0.route.fwd", MOE_LANE_COMPUTE, fail_data, &s->bad, NULL, BUFS(x));
    run_graph_node(g, "L2.mb0.layout.fwd", MOE_LANE_COMPUTE, count, &s->next, NULL, NULL);
    run_graph_node(g, "L2.mb0.exchange.fwd", MOE_LANE_COMM_EP, count, &s->follower, BUFS(x), NULL);
    check_ok(graph_finish(g, err));
    run_graph_open(&s->run, c, g, NULL, tell, &s->told);
}

START_TEST(an_error_names_node_and_rank) {
    device_open c;
    scene s;
    device_open_start(&c, 1);
    open_scene(&s, &c);
    check_ok(exec_issue(s.run.x, err));
    check_fails(exec_finish(s.run.x, err), MOE_E_DATA, "token 7 is not a number (node L2.mb0.route.fwd, rank 3)");
    ck_assert(s.first == 1 && s.bad == 1 && s.next == 0 && s.follower == 0);
    ck_assert_int_eq(atomic_load(&s.told.calls), 1);
    ck_assert_str_eq(s.told.msg, "token 7 is not a number (node L2.mb0.route.fwd, rank 3)");
    /* a failed executor stays failed: no node runs again, and the reason is the same */
    check_ok(exec_issue(s.run.x, err));
    check_fails(exec_finish(s.run.x, err), MOE_E_DATA, "node L2.mb0.route.fwd");
    ck_assert(s.first == 1 && s.bad == 1 && s.next == 0 && s.follower == 0);
    ck_assert_int_eq(atomic_load(&s.told.calls), 1);
    run_graph_close(&s.run);
    device_open_stop(&c);
}
END_TEST

START_TEST(an_error_is_the_same_a_thousand_times) {
    enum { REPEATS = UNDER_SANITIZER ? 200 : 1000 };
    device_open c;
    device_open_start(&c, 1);
    for (int i = 0; i < REPEATS; i++) {
        scene s;
        open_scene(&s, &c);
        moe_err err = {.size = sizeof err};
        moe_status issued = exec_issue(s.run.x, &err), status = exec_finish(s.run.x, &err);
        int good = issued == MOE_OK && status == MOE_E_DATA && err.code == MOE_E_DATA &&
                   strcmp(err.msg, s.told.msg) == 0 && strstr(err.msg, "L2.mb0.route.fwd, rank 3") && s.first == 1 &&
                   s.bad == 1 && s.next == 0 && s.follower == 0 && atomic_load(&s.told.calls) == 1;
        if (!good) ck_abort_msg("repeat %d: %d '%s', told '%s'", i, status, err.msg, s.told.msg);
        run_graph_close(&s.run);
    }
    device_open_stop(&c);
}
END_TEST

/* Nodes of several lanes fail at the same time: each waits until all have begun. One of them is reported, once. */
typedef struct meeting {
    atomic_int begun;
} meeting;
static moe_status fail_together(void *ctx, moe_err *err) {
    meeting *m = ctx;
    atomic_fetch_add(&m->begun, 1);
    while (atomic_load(&m->begun) < 3) sched_yield();
    return moe_fail(err, MOE_E_DATA, "token 7 is not a number");
}

START_TEST(of_several_errors_one_is_kept) {
    static const char *const names[] = {"n0", "n1", "n2"};
    device_open c;
    device_open_start(&c, 1);
    for (int i = 0; i < 100; i++) {
        graph *g = graph_create();
        meeting m = {0};
        told t = {0};
        for (int lane = 0; lane < 3; lane++) run_graph_node(g, names[lane], lane, fail_together, &m, NULL, NULL);
        check_ok(graph_finish(g, err));
        run_graph run;
        run_graph_open(&run, &c, g, NULL, tell, &t);
        check_ok(exec_issue(run.x, err));
        check_fails(exec_finish(run.x, err), MOE_E_DATA, "token 7 is not a number (node n", "rank 3)");
        ck_assert_int_eq(atomic_load(&t.calls), 1);
        run_graph_close(&run);
    }
    device_open_stop(&c);
}
END_TEST

START_TEST(an_error_without_words_still_names_its_node) {
    device_open c;
    device_open_start(&c, 1);
    graph *g = graph_create();
    run_graph_node(g, "silent", MOE_LANE_COMPUTE, fail_silently, NULL, NULL, NULL);
    check_ok(graph_finish(g, err));
    run_graph run;
    run_graph_open(&run, &c, g, NULL, NULL, NULL); /* nobody to tell */
    check_ok(exec_issue(run.x, err));
    check_fails(exec_finish(run.x, err), MOE_E_DEVICE, "node silent, rank 3");
    run_graph_close(&run);
    device_open_stop(&c);
}
END_TEST

START_TEST(asynchronous_nodes_fail_the_same_way) {
    device_open c;
    device_open_start(&c, 1);
    graph *g = graph_create();
    int bad = 0, next = 0;
    told t = {0};
    moe_sched_node info[2] = {{.name = "launch", .group = -1}, {.name = "after", .group = -1}};
    graph_node_add(g, &info[0], fail_data, &bad, NULL, 1);
    graph_node_add(g, &info[1], count, &next, NULL, 0);
    check_ok(graph_finish(g, err));
    run_graph run;
    run_graph_open(&run, &c, g, NULL, tell, &t);
    check_ok(exec_issue(run.x, err));
    check_fails(exec_finish(run.x, err), MOE_E_DATA, "node launch, rank 3");
    ck_assert(bad == 1 && next == 0 && atomic_load(&t.calls) == 1);
    run_graph_close(&run);
    device_open_stop(&c);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("errors");
    tcase_add_test(t, an_error_names_node_and_rank);
    tcase_add_test(t, an_error_is_the_same_a_thousand_times);
    tcase_add_test(t, of_several_errors_one_is_kept);
    tcase_add_test(t, an_error_without_words_still_names_its_node);
    tcase_add_test(t, asynchronous_nodes_fail_the_same_way);
    return run_suite("exec errors", t);
}
