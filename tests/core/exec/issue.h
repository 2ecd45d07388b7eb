/* Times exec_issue on graphs of empty nodes: what a node costs the issuing thread. */
#ifndef TESTS_CORE_ISSUE_H
#define TESTS_CORE_ISSUE_H
#include "core/exec/run_graph.h"
#include "plugins/device/enqueue.h"

static inline moe_status issue_nothing(void *ctx, moe_err *err) {
    (void)ctx;
    (void)err;
    return MOE_OK;
}

/* n nodes in turn on n_lanes lanes, each of which follows the one before. */
static inline void issue_open(run_graph *r, device_open *c, uint32_t n, uint32_t n_lanes) {
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 8, "x");
    for (uint32_t i = 0; i < n; i++) run_graph_node(g, "n", (int32_t)(i % n_lanes), issue_nothing, NULL, NULL, BUFS(x));
    check_ok(graph_finish(g, err));
    run_graph_open(r, c, g, NULL, NULL, NULL);
}

/* Median nanoseconds a node of `runs` (at most 101) issues; the lanes are idle before each. */
static inline double issue_median(run_graph *r, int runs) {
    double times[101];
    moe_err err = {.size = sizeof err};
    for (int i = 0; i < runs; i++) {
        double begin = enqueue_now();
        moe_status status = exec_issue(r->x, &err);
        times[i] = (enqueue_now() - begin) / r->g->n_nodes;
        if (!status) status = exec_finish(r->x, &err);
        ck_assert_msg(!status, "%s", err.msg);
    }
    qsort(times, (size_t)runs, sizeof times[0], enqueue_order);
    return times[runs / 2];
}
#endif
