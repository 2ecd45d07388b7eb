/* From uses to edges: a node waits for the last writer of what it reads, and for the last writer and all readers since
 * of what it writes. Uses are recorded in order of emission, so one pass is enough. */
#include <moe/options.h>
#include <stdlib.h>

#include "graph/graph.h"

/* Readers since the last write of each buffer, as linked lists in one pool. */
typedef struct reader {
    uint32_t node;
    int64_t next;
} reader;

typedef struct edge_builder {
    int64_t *writer;  /* [n_buffers] last writer, -1 = none */
    int64_t *readers; /* [n_buffers] head in pool, -1 = none */
    reader *pool;     /* [n_uses] */
    uint32_t *seen;   /* [n_nodes] last node for which an edge from i was made, + 1 */
    uint32_t *edges;  /* growing list of predecessors of the current and earlier nodes */
    uint64_t n_edges, cap_edges;
    uint32_t n_pool;
} edge_builder;

static moe_status add_edge(edge_builder *b, uint32_t from, uint32_t to, moe_err *err) {
    if (from == to || b->seen[from] == to + 1) return MOE_OK;
    if (b->n_edges == b->cap_edges) {
        uint64_t cap = b->cap_edges ? b->cap_edges * 2 : 1024;
        uint32_t *p = realloc(b->edges, cap * sizeof *p);
        if (!p) return moe_fail(err, MOE_E_NOMEM, "out of memory for the edges of the step graph");
        b->edges = p;
        b->cap_edges = cap;
    }
    b->seen[from] = to + 1;
    b->edges[b->n_edges++] = from;
    return MOE_OK;
}

static moe_status use_edges(edge_builder *b, const graph_use *u, moe_err *err) {
    moe_status status = b->writer[u->buf] >= 0 ? add_edge(b, (uint32_t)b->writer[u->buf], u->node, err) : MOE_OK;
    if (u->write)
        for (int64_t r = b->readers[u->buf]; r >= 0 && !status; r = b->pool[r].next)
            status = add_edge(b, b->pool[r].node, u->node, err);
    return status;
}

/* After all edges of a node are known: it becomes the last writer or a reader. */
static void note_use(edge_builder *b, const graph_use *u) {
    if (u->write) {
        b->writer[u->buf] = u->node;
        b->readers[u->buf] = -1;
    } else if (b->writer[u->buf] != u->node) {
        b->pool[b->n_pool] = (reader){u->node, b->readers[u->buf]};
        b->readers[u->buf] = b->n_pool++;
    }
}

static moe_status check_written(const graph *g, const edge_builder *b, const graph_use *u, moe_err *err) {
    if (u->write || g->buffers[u->buf].fixed || b->writer[u->buf] >= 0) return MOE_OK;
    return moe_fail(err, MOE_E_INTERNAL, "node %s reads buffer %s, which nothing has written",
                    g->nodes[u->node].info.name, g->buffers[u->buf].name);
}

static moe_status walk(graph *g, edge_builder *b, moe_err *err) {
    moe_status status = MOE_OK;
    uint32_t at = 0;
    for (uint32_t n = 0; n < g->n_nodes && !status; n++) {
        g->pred_start[n] = (uint32_t)b->n_edges;
        g->use_start[n] = at;
        uint32_t end = at;
        for (; end < g->n_uses && g->uses[end].node == n && !status; end++) {
            status = check_written(g, b, &g->uses[end], err);
            if (!status) status = use_edges(b, &g->uses[end], err);
            g->use[end] = g->uses[end].buf;
        }
        for (uint32_t i = at; i < end; i++)
            if (!g->uses[i].write) note_use(b, &g->uses[i]);
        for (uint32_t i = at; i < end; i++)
            if (g->uses[i].write) note_use(b, &g->uses[i]);
        at = end;
    }
    g->pred_start[g->n_nodes] = (uint32_t)b->n_edges;
    g->use_start[g->n_nodes] = at;
    if (!status && at != g->n_uses)
        status = moe_fail(err, MOE_E_INTERNAL, "uses of node %s were not recorded in order of emission",
                          g->nodes[g->uses[at].node].info.name);
    return status;
}

static void make_view(graph *g) {
    for (uint32_t i = 0; i < g->n_nodes; i++) g->sched_nodes[i] = g->nodes[i].info;
    for (uint32_t i = 0; i < g->n_buffers; i++)
        g->sched_buffers[i] = (moe_sched_buffer){.bytes = g->buffers[i].bytes, .fixed = (uint32_t)g->buffers[i].fixed};
    g->view = (moe_sched_view){.size = sizeof g->view,
                               .n_nodes = g->n_nodes,
                               .n_buffers = g->n_buffers,
                               .nodes = g->sched_nodes,
                               .buffers = g->sched_buffers,
                               .pred_start = g->pred_start,
                               .pred = g->pred,
                               .use_start = g->use_start,
                               .use = g->use};
}

moe_status graph_finish(graph *g, moe_err *err) {
    g->pred_start = graph_alloc(g, (g->n_nodes + 1) * sizeof *g->pred_start);
    g->use_start = graph_alloc(g, (g->n_nodes + 1) * sizeof *g->use_start);
    g->use = graph_alloc(g, g->n_uses * sizeof *g->use);
    g->sched_nodes = graph_alloc(g, g->n_nodes * sizeof *g->sched_nodes);
    g->sched_buffers = graph_alloc(g, g->n_buffers * sizeof *g->sched_buffers);
    edge_builder b = {.writer = graph_alloc(g, g->n_buffers * sizeof *b.writer),
                      .readers = graph_alloc(g, g->n_buffers * sizeof *b.readers),
                      .pool = graph_alloc(g, g->n_uses * sizeof *b.pool),
                      .seen = graph_alloc(g, g->n_nodes * sizeof *b.seen)};
    if (g->status) return *err = g->err, g->status;
    for (uint32_t i = 0; i < g->n_buffers; i++) b.writer[i] = b.readers[i] = -1;
    moe_status status = walk(g, &b, err);
    if (!status) {
        g->pred = graph_alloc(g, b.n_edges * sizeof *g->pred);
        for (uint64_t i = 0; g->pred && i < b.n_edges; i++) g->pred[i] = b.edges[i];
        if (g->status) *err = g->err, status = g->status;
    }
    free(b.edges);
    if (!status) make_view(g);
    return status;
}

moe_status graph_check_order(const graph *g, const uint32_t *order, moe_err *err) {
    uint32_t *at = malloc((g->n_nodes + 1) * sizeof *at);
    if (!at) return moe_fail(err, MOE_E_NOMEM, "out of memory for the check of an order");
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < g->n_nodes; i++) at[i] = UINT32_MAX;
    for (uint32_t i = 0; i < g->n_nodes && !status; i++) {
        if (order[i] >= g->n_nodes)
            status = moe_fail(err, MOE_E_ARG, "the order holds node %u of %u", order[i], g->n_nodes);
        else if (at[order[i]] != UINT32_MAX)
            status = moe_fail(err, MOE_E_ARG, "the order holds node %s twice", g->nodes[order[i]].info.name);
        else
            at[order[i]] = i;
    }
    for (uint32_t n = 0; n < g->n_nodes && !status; n++)
        for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1] && !status; e++)
            if (at[g->pred[e]] > at[n])
                status = moe_fail(err, MOE_E_ARG, "node %s is ordered before %s, which it needs", g->nodes[n].info.name,
                                  g->nodes[g->pred[e]].info.name);
    free(at);
    return status;
}
