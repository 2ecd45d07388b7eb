/* Random step graphs with a record of who uses what, and random valid orders of them: what the tests of edges, lanes,
 * plan and executor are fed with. A graph has at most 64 nodes, so that a set of nodes is one word. */
#ifndef TESTS_CORE_RANDOM_GRAPH_H
#define TESTS_CORE_RANDOM_GRAPH_H
#include <graph/graph.h>
#include <moe/random.h>
#include <stdio.h>

#include "core/run_suite.h"

enum { RANDOM_NODES = 64, RANDOM_BUFFERS = 40 };

typedef struct draw {
    uint64_t state;
} draw;
/* In [0, n). */
static inline uint32_t draw_below(draw *d, uint32_t n) {
    d->state += 0x9e3779b97f4a7c15u;
    return (uint32_t)(moe_random_mix(d->state) >> 32) % n;
}

typedef struct random_graph {
    graph *g;
    uint64_t reads[RANDOM_BUFFERS], writes[RANDOM_BUFFERS]; /* nodes that read, write each buffer */
} random_graph;

static inline moe_status random_nothing(void *ctx, moe_err *err) {
    (void)ctx;
    (void)err;
    return MOE_OK;
}

static inline moe_sched_node random_info(const char *name, int32_t lane) {
    return (moe_sched_node){.name = name, .layer = -1, .microbatch = -1, .lane = lane, .group = -1};
}

static inline void random_use(random_graph *r, uint32_t node, buf_id buf, int write) {
    if (write) {
        graph_writes(r->g, node, buf);
        r->writes[buf] |= UINT64_C(1) << node;
    } else {
        graph_reads(r->g, node, buf);
        r->reads[buf] |= UINT64_C(1) << node;
    }
}

/* Buffers of 0 to 1000 bytes, every seventh fixed; each node uses up to five, and reads nothing that is not written. */
static inline random_graph random_graph_make(draw *d, uint32_t n_nodes, uint32_t n_buffers, uint32_t n_lanes) {
    static char fixed[8];
    random_graph r = {.g = graph_create()};
    ck_assert_ptr_nonnull(r.g);
    for (uint32_t i = 0; i < n_buffers; i++) {
        if (i % 7 == 6)
            graph_buffer_fixed(r.g, fixed, 8, "fixed%u", i);
        else
            graph_buffer_add(r.g, draw_below(d, 4) ? draw_below(d, 1001) : 0, "buffer%u", i);
    }
    for (uint32_t n = 0; n < n_nodes; n++) {
        char name[16];
        snprintf(name, sizeof name, "node%u", n);
        moe_sched_node info = random_info(name, (int32_t)draw_below(d, n_lanes));
        ck_assert_uint_eq(graph_node_add(r.g, &info, random_nothing, NULL, NULL, 0), n);
        for (uint32_t u = draw_below(d, 6); u-- > 0;) {
            uint32_t buf = draw_below(d, n_buffers);
            uint64_t before = r.writes[buf] & ((UINT64_C(1) << n) - 1);
            random_use(&r, n, buf, (!before && !r.g->buffers[buf].fixed) || draw_below(d, 3) == 0);
        }
    }
    check_ok(graph_finish(r.g, err));
    return r;
}

/* A random topological order. */
static inline void random_order(draw *d, const graph *g, uint32_t *order) {
    uint64_t done = 0;
    for (uint32_t at = 0; at < g->n_nodes; at++) {
        uint32_t ready[RANDOM_NODES], n_ready = 0;
        for (uint32_t n = 0; n < g->n_nodes; n++) {
            int open = !(done >> n & 1);
            for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++) open &= (int)(done >> g->pred[e] & 1);
            if (open) ready[n_ready++] = n;
        }
        ck_assert_msg(n_ready > 0, "the graph has a circle");
        order[at] = ready[draw_below(d, n_ready)];
        done |= UINT64_C(1) << order[at];
    }
}

/* Plain reference of "happens before": for every node the nodes that are over before it starts, when lanes run in this
 * order and edges are kept. */
static inline void random_reach(const graph *g, const uint32_t *order, uint64_t *reach) {
    int64_t last[MOE_LANES];
    for (int i = 0; i < MOE_LANES; i++) last[i] = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = order[i];
        int64_t *lane = &last[g->nodes[n].info.lane];
        reach[n] = *lane >= 0 ? reach[*lane] | UINT64_C(1) << *lane : 0;
        for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++)
            reach[n] |= reach[g->pred[e]] | UINT64_C(1) << g->pred[e];
        *lane = n;
    }
}
#endif
