/* The executor on the real CPU device: edges hold across lanes, a lane keeps its order, waits are the fewest. */
#include <pthread.h>
#include <stdatomic.h>

#include "core/exec/run_graph.h"
#include "core/graph/random_graph.h"

/* ---- order ---- */
/* Each node notes when it begins and ends on one clock for all. */
typedef struct stamp {
    atomic_uint *clock;
    uint32_t begin, end, spin;
    const char *name; /* what exec_current_node said inside */
} stamp;

static moe_status note(void *ctx, moe_err *err) {
    (void)err;
    stamp *s = ctx;
    s->begin = atomic_fetch_add(s->clock, 1) + 1;
    for (volatile uint32_t i = 0; i < s->spin; i++) {
    }
    s->name = exec_current_node();
    s->end = atomic_fetch_add(s->clock, 1) + 1;
    return MOE_OK;
}

static void check_stamps(const graph *g, const uint32_t *order, const stamp *at) {
    int64_t last[MOE_LANES] = {-1, -1, -1, -1, -1, -1};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = order[i];
        int64_t *lane = &last[g->nodes[n].info.lane];
        if (!at[n].begin) ck_abort_msg("node %u did not run", n);
        if (*lane >= 0 && at[*lane].end > at[n].begin) ck_abort_msg("node %u overtook %d on its lane", n, (int)*lane);
        for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++)
            if (at[g->pred[e]].end > at[n].begin) ck_abort_msg("node %u ran before node %u", n, g->pred[e]);
        if (!at[n].name || strcmp(at[n].name, g->nodes[n].info.name) != 0)
            ck_abort_msg("inside node %u the current node is %s", n, at[n].name ? at[n].name : "none");
        *lane = n;
    }
}

START_TEST(edges_hold_across_lanes) {
    enum { GRAPHS = 20, REPEATS = 50 };
    draw d = {(uint64_t)_i};
    device_open c;
    device_open_start(&c, 1);
    for (int round = 0; round < GRAPHS; round++) {
        random_graph r = random_graph_make(&d, draw_below(&d, RANDOM_NODES) + 1, 20, draw_below(&d, MOE_LANES) + 1);
        uint32_t *order = malloc(RANDOM_NODES * sizeof *order);
        stamp at[RANDOM_NODES];
        atomic_uint clock;
        for (uint32_t n = 0; n < r.g->n_nodes; n++) {
            at[n] = (stamp){.clock = &clock, .spin = draw_below(&d, 8) ? 0 : draw_below(&d, 3000)};
            r.g->nodes[n].fn = note;
            r.g->nodes[n].ctx = &at[n];
        }
        random_order(&d, r.g, order);
        run_graph run;
        run_graph_open(&run, &c, r.g, order, NULL, NULL);
        for (int i = 0; i < REPEATS; i++) {
            atomic_store(&clock, 0);
            for (uint32_t n = 0; n < r.g->n_nodes; n++) at[n].begin = at[n].end = 0;
            check_ok(exec_issue(run.x, err));
            check_ok(exec_finish(run.x, err));
            check_stamps(r.g, order, at);
        }
        run_graph_close(&run);
    }
    ck_assert_ptr_null(exec_current_node());
    device_open_stop(&c);
}
END_TEST

/* ---- commands ---- */
/* Nodes, waits and records of an order by plain sets: a node waits for those of its predecessors on other lanes that
 * neither its lane so far nor another predecessor implies, and each node that is waited for is recorded. */
static uint32_t fewest_commands(const graph *g, const uint32_t *order) {
    uint64_t reach[RANDOM_NODES], waited = 0;
    int64_t last[MOE_LANES] = {-1, -1, -1, -1, -1, -1};
    uint32_t waits = 0;
    random_reach(g, order, reach);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = order[i];
        int64_t *lane = &last[g->nodes[n].info.lane];
        uint64_t implied = *lane >= 0 ? reach[*lane] | UINT64_C(1) << *lane : 0, preds = 0;
        for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++) {
            preds |= UINT64_C(1) << g->pred[e];
            implied |= reach[g->pred[e]];
        }
        waits += (uint32_t)__builtin_popcountll(preds & ~implied);
        waited |= preds & ~implied;
        *lane = n;
    }
    return g->n_nodes + waits + (uint32_t)__builtin_popcountll(waited);
}

START_TEST(waits_are_the_fewest) {
    draw d = {(uint64_t)_i + 500};
    device_open c;
    device_open_start(&c, 1);
    for (int round = 0; round < 40; round++) {
        random_graph r = random_graph_make(&d, draw_below(&d, RANDOM_NODES) + 1, 15, draw_below(&d, MOE_LANES) + 1);
        uint32_t *order = malloc(RANDOM_NODES * sizeof *order);
        random_order(&d, r.g, order);
        run_graph run;
        run_graph_open(&run, &c, r.g, order, NULL, NULL);
        ck_assert_uint_eq(exec_commands(run.x), fewest_commands(r.g, order));
        run_graph_close(&run);
    }
    device_open_stop(&c);
}
END_TEST

static uint32_t commands_of(graph *g) {
    device_open c;
    run_graph run;
    device_open_start(&c, 1);
    check_ok(graph_finish(g, err));
    run_graph_open(&run, &c, g, NULL, NULL, NULL);
    uint32_t n = exec_commands(run.x);
    run_graph_close(&run);
    device_open_stop(&c);
    return n;
}

START_TEST(one_lane_needs_no_wait) {
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 8, "x");
    for (int i = 0; i < 10; i++) run_graph_node(g, "n", MOE_LANE_COMPUTE, random_nothing, NULL, NULL, BUFS(x));
    ck_assert_uint_eq(commands_of(g), 10);
}
END_TEST

/* Two results of one lane, both read on another: one wait, for the later. */
START_TEST(the_last_of_a_lane_stands_for_those_before) {
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 8, "x"), y = graph_buffer_add(g, 8, "y");
    run_graph_node(g, "a", MOE_LANE_COMPUTE, random_nothing, NULL, NULL, BUFS(x));
    run_graph_node(g, "b", MOE_LANE_COMPUTE, random_nothing, NULL, NULL, BUFS(y));
    run_graph_node(g, "c", MOE_LANE_COMM_EP, random_nothing, NULL, BUFS(x, y), NULL);
    run_graph_node(g, "d", MOE_LANE_COMM_EP, random_nothing, NULL, BUFS(x), NULL); /* known by then */
    ck_assert_uint_eq(commands_of(g), 4 + 1 + 1);
}
END_TEST

/* compute -> comm -> copy, and copy also reads what compute made: comm's end implies it. */
START_TEST(a_wait_carries_what_the_other_lane_waited_for) {
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 8, "x"), y = graph_buffer_add(g, 8, "y");
    run_graph_node(g, "a", MOE_LANE_COMPUTE, random_nothing, NULL, NULL, BUFS(x));
    run_graph_node(g, "b", MOE_LANE_COMM_EP, random_nothing, NULL, BUFS(x), BUFS(y));
    run_graph_node(g, "c", MOE_LANE_COPY, random_nothing, NULL, BUFS(x, y), NULL);
    ck_assert_uint_eq(commands_of(g), 3 + 2 + 2);
}
END_TEST

/* ---- asynchronous nodes ---- */
typedef struct enqueuer {
    device_open *c;
    void *stream;
    pthread_t called_on, ran_on;
    int runs;
} enqueuer;
static void ran(void *arg) {
    enqueuer *e = arg;
    e->ran_on = pthread_self();
    e->runs++;
}
static moe_status enqueue(void *ctx, moe_err *err) {
    enqueuer *e = ctx;
    e->called_on = pthread_self();
    return e->c->table->call_host(e->c->self, e->stream, ran, e, err);
}

START_TEST(asynchronous_nodes_are_called_by_the_issuer_with_their_stream) {
    device_open c;
    device_open_start(&c, 1);
    graph *g = graph_create();
    enqueuer e[2] = {{.c = &c}, {.c = &c}};
    moe_sched_node info[2] = {random_info("first", MOE_LANE_COMPUTE), random_info("second", MOE_LANE_COMM_DP)};
    for (int i = 0; i < 2; i++) graph_node_add(g, &info[i], enqueue, &e[i], &e[i].stream, 1);
    check_ok(graph_finish(g, err));
    run_graph run;
    run_graph_open(&run, &c, g, NULL, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        check_ok(exec_issue(run.x, err));
        check_ok(exec_finish(run.x, err));
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(e[i].runs, 10);
        ck_assert(pthread_equal(e[i].called_on, pthread_self()));
        ck_assert(!pthread_equal(e[i].ran_on, pthread_self()));
    }
    ck_assert_ptr_eq(e[0].stream, run.streams.stream[MOE_LANE_COMPUTE]);
    ck_assert_ptr_eq(e[1].stream, run.streams.stream[MOE_LANE_COMM_DP]);
    ck_assert_ptr_null(run.streams.stream[MOE_LANE_COPY]); /* lanes that no node uses have no stream */
    run_graph_close(&run);
    device_open_stop(&c);
}
END_TEST

START_TEST(nothing_to_run_is_done_at_once) {
    device_open c;
    device_open_start(&c, 1);
    graph *g = graph_create();
    check_ok(graph_finish(g, err));
    run_graph run;
    run_graph_open(&run, &c, g, NULL, NULL, NULL);
    check_ok(exec_issue(run.x, err));
    check_ok(exec_finish(run.x, err));
    ck_assert_uint_eq(exec_commands(run.x), 0);
    run_graph_close(&run);
    device_open_stop(&c);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("exec");
    tcase_add_loop_test(t, edges_hold_across_lanes, 0, 3);
    tcase_add_loop_test(t, waits_are_the_fewest, 0, 3);
    tcase_add_test(t, one_lane_needs_no_wait);
    tcase_add_test(t, the_last_of_a_lane_stands_for_those_before);
    tcase_add_test(t, a_wait_carries_what_the_other_lane_waited_for);
    tcase_add_test(t, asynchronous_nodes_are_called_by_the_issuer_with_their_stream);
    tcase_add_test(t, nothing_to_run_is_done_at_once);
    return run_suite("exec", t);
}
