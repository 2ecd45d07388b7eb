/* Lanes really run side by side: graphs of nodes that sleep, as a step's would be, take little more than their longest
 * lane. Durations are those that the nodes themselves noted, and the best of several runs counts, so that a busy
 * machine changes little. */
#include <exec/issue.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/exec/run_graph.h"
#include "core/graph/random_graph.h"

enum { RUNS = 8 };

static moe_status nap(void *ctx, moe_err *err) {
    (void)err;
    usleep((useconds_t)(uintptr_t)ctx);
    return MOE_OK;
}

static uint32_t add(graph *g, const char *name, int32_t lane, useconds_t us, const buf_id *reads,
                    const buf_id *writes) {
    return run_graph_node(g, name, lane, nap, (void *)(uintptr_t)us, reads, writes);
}

/* Step time over the time that the busiest lane was busy: the least of several runs. */
static double overlap_of(graph *g) {
    device_open c;
    run_graph r;
    double best = 1e30;
    check_ok(graph_finish(g, err));
    device_open_start(&c, 1);
    run_graph_open(&r, &c, g, NULL, NULL, NULL);
    exec_span *spans = calloc(g->n_nodes, sizeof *spans);
    exec_watch(r.x, spans);
    for (int run = 0; run < RUNS && best > 1.05; run++) {
        int64_t busy[MOE_LANES] = {0}, most = 0, begin = INT64_MAX, end = 0;
        check_ok(exec_issue(r.x, err));
        check_ok(exec_finish(r.x, err));
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            int64_t *lane = &busy[g->nodes[i].info.lane];
            *lane += spans[i].end - spans[i].begin;
            if (*lane > most) most = *lane;
            if (spans[i].begin < begin) begin = spans[i].begin;
            if (spans[i].end > end) end = spans[i].end;
        }
        double ratio = (double)(end - begin) / (double)most;
        if (ratio < best) best = ratio;
    }
    free(spans);
    run_graph_close(&r);
    device_open_stop(&c);
    return best;
}

/* Backward of many layers, and a reduction for the gradients of each: emitted with them, or behind the last layer. */
static graph *reductions(int behind) {
    enum { LAYERS = 20 };
    graph *g = graph_create();
    buf_id d = graph_buffer_add(g, 8, "d_residual"), grads[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        grads[i] = graph_buffer_add(g, 8, "grad%d", i);
        add(g, "mlp.bwd", MOE_LANE_COMPUTE, 10000, NULL, BUFS(d, grads[i]));
        if (!behind) add(g, "grads.all_reduce", MOE_LANE_COMM_DP, 8000, NULL, BUFS(grads[i]));
    }
    for (int i = 0; i < LAYERS && behind; i++) add(g, "grads.all_reduce", MOE_LANE_COMM_DP, 8000, NULL, BUFS(grads[i]));
    return g;
}

START_TEST(reductions_hide_under_the_backward) {
    double ratio = overlap_of(reductions(_i)); /* all but the last: 1 + 8 / 200 */
    ck_assert_msg(ratio < 1.1, "the step takes %.2f times its longest lane", ratio);
}
END_TEST

/* dispatch: pack, exchange, [shared expert], unpack, experts: the exchange lies beside the shared expert. */
START_TEST(the_shared_expert_hides_an_exchange) {
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 8, "x");
    add(g, "embed", MOE_LANE_COMPUTE, 1000, NULL, BUFS(x));
    for (int layer = 0; layer < 6; layer++) {
        buf_id packed = graph_buffer_add(g, 8, "packed"), rows = graph_buffer_add(g, 8, "rows"),
               shared = graph_buffer_add(g, 8, "shared");
        add(g, "dispatch.pack", MOE_LANE_COMPUTE, 5000, BUFS(x), BUFS(packed));
        add(g, "dispatch.exchange", MOE_LANE_COMM_EP, 20000, BUFS(packed), BUFS(rows));
        add(g, "shared.w1", MOE_LANE_COMPUTE, 22000, BUFS(x), BUFS(shared));
        add(g, "dispatch.unpack", MOE_LANE_COMPUTE, 5000, BUFS(rows), BUFS(x));
        add(g, "shared.add", MOE_LANE_COMPUTE, 1000, BUFS(shared), BUFS(x));
    }
    double ratio = overlap_of(g);
    ck_assert_msg(ratio < 1.1, "the step takes %.2f times its longest lane", ratio);
}
END_TEST

/* More nodes of one lane than a stream takes at once, and a reduction that waits for the first of them alone. */
START_TEST(what_is_ready_early_begins_early) {
    enum { NODES = 12000, EARLY = 100 };
    graph *g = graph_create();
    buf_id d = graph_buffer_add(g, 8, "d"), grad = graph_buffer_add(g, 8, "grad");
    for (int i = 0; i < NODES; i++) add(g, "n", MOE_LANE_COMPUTE, 1, NULL, i == EARLY ? BUFS(d, grad) : BUFS(d));
    uint32_t last = add(g, "grads.all_reduce", MOE_LANE_COMM_DP, 1000, NULL, BUFS(grad));
    check_ok(graph_finish(g, err));
    device_open c;
    run_graph r;
    device_open_start(&c, 1);
    run_graph_open(&r, &c, g, NULL, NULL, NULL);
    exec_span *spans = calloc(g->n_nodes, sizeof *spans);
    exec_watch(r.x, spans);
    check_ok(exec_issue(r.x, err));
    check_ok(exec_finish(r.x, err));
    ck_assert_int_ge(spans[last].begin, spans[EARLY].end);
    ck_assert_int_lt(spans[last].begin, spans[NODES / 2].begin);
    free(spans);
    run_graph_close(&r);
    device_open_stop(&c);
}
END_TEST

/* A valid order, every lane as before, and no node beside compute later than right after what it waits for. */
START_TEST(the_order_of_issue_is_valid_and_early) {
    draw d = {(uint64_t)_i + 900};
    for (int round = 0; round < 60; round++) {
        random_graph r = random_graph_make(&d, draw_below(&d, RANDOM_NODES) + 1, 20, draw_below(&d, MOE_LANES) + 1);
        uint32_t order[RANDOM_NODES], out[RANDOM_NODES], at[RANDOM_NODES], n = r.g->n_nodes;
        int64_t last[MOE_LANES] = {-1, -1, -1, -1, -1, -1};
        random_order(&d, r.g, order);
        check_ok(issue_order(r.g, order, out, err));
        check_ok(graph_check_order(r.g, out, err));
        for (uint32_t i = 0; i < n; i++) at[out[i]] = i;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t node = order[i], ready = 0;
            int32_t lane = r.g->nodes[node].info.lane;
            if (last[lane] >= 0) ck_assert_uint_gt(at[node], at[last[lane]]);
            if (last[lane] >= 0) ready = at[last[lane]] + 1;
            for (uint32_t e = r.g->pred_start[node]; e < r.g->pred_start[node + 1]; e++)
                if (at[r.g->pred[e]] + 1 > ready) ready = at[r.g->pred[e]] + 1;
            for (uint32_t k = ready; k < at[node] && lane != MOE_LANE_COMPUTE && ready; k++)
                ck_assert_int_ne(r.g->nodes[out[k]].info.lane, MOE_LANE_COMPUTE);
            last[lane] = node;
        }
        graph_destroy(r.g);
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("overlap");
    tcase_add_loop_test(t, reductions_hide_under_the_backward, 0, 2);
    tcase_add_test(t, the_shared_expert_hides_an_exchange);
    tcase_add_test(t, what_is_ready_early_begins_early);
    tcase_add_loop_test(t, the_order_of_issue_is_valid_and_early, 0, 3);
    return run_suite("overlap", t);
}
