/* A graph on the real CPU device: order, lanes, executor and their release, for the tests of the executor. */
#ifndef TESTS_CORE_RUN_GRAPH_H
#define TESTS_CORE_RUN_GRAPH_H
#include <exec/exec.h>

#include "core/run_suite.h"
#include "plugins/device/device_open.h"

typedef struct run_graph {
    graph *g;
    uint32_t *order; /* NULL: order of emission */
    lanes l;
    exec_lanes streams;
    exec *x;
} run_graph;

/* g is finished; it and the order belong to the run from now on. */
static inline void run_graph_open(run_graph *r, device_open *c, graph *g, uint32_t *order, exec_fail_fn on_fail,
                                  void *arg) {
    *r = (run_graph){.g = g, .order = order};
    if (!order) {
        r->order = malloc((g->n_nodes + 1) * sizeof *order);
        for (uint32_t i = 0; i < g->n_nodes; i++) r->order[i] = i;
    }
    check_ok(graph_check_order(g, r->order, err));
    check_ok(lanes_init(&r->l, g, r->order, err));
    exec_lanes_init(&r->streams, c->table, c->self, 3);
    check_ok(exec_create(&r->x, g, r->order, &r->l, &r->streams, on_fail, arg, err));
}
static inline void run_graph_close(run_graph *r) {
    exec_destroy(r->x);
    exec_lanes_free(&r->streams);
    lanes_free(&r->l);
    free(r->order);
    graph_destroy(r->g);
}

/* A node with these uses: reads and writes end with BUF_NONE. */
static inline uint32_t run_graph_node(graph *g, const char *name, int32_t lane, graph_fn fn, void *ctx,
                                      const buf_id *reads, const buf_id *writes) {
    moe_sched_node info = {.name = name, .layer = -1, .microbatch = -1, .lane = lane, .group = -1};
    uint32_t n = graph_node_add(g, &info, fn, ctx, NULL, 0);
    for (; reads && *reads != BUF_NONE; reads++) graph_reads(g, n, *reads);
    for (; writes && *writes != BUF_NONE; writes++) graph_writes(g, n, *writes);
    return n;
}
#define BUFS(...) ((const buf_id[]){__VA_ARGS__, BUF_NONE})
#endif
