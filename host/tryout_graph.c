/* Emission of the small step. Per microbatch: embedding, layers of attention and experts, head, and all of it backward;
 * then gradient buckets over data parallel ranks, and the update. */
#include "tryout_graph.h"

#include <moe/options.h>
#include <stdio.h>
#include <string.h>

enum { ACT_BYTES = 1 << 20, GRAD_BYTES = 4 << 20, GROUP_EP = 0, GROUP_DP = 1 };

static const tryout_cost costs[] = {
    {"zero_grads", 1},
    {"embed.fwd", 1},
    {"attention.fwd", 4},
    {"route.fwd", 1},
    {"layout.fwd", 1},
    {"dispatch.pack.fwd", 1},
    {"dispatch.exchange.fwd", 3},
    {"dispatch.unpack.fwd", 1},
    {"experts.fwd", 6},
    {"combine.pack.fwd", 1},
    {"combine.exchange.fwd", 3},
    {"combine.unpack.fwd", 1},
    {"head.fwd", 4},
    {"head.bwd", 8},
    {"combine.pack.bwd", 1},
    {"combine.exchange.bwd", 3},
    {"combine.unpack.bwd", 1},
    {"experts.dgrad", 6},
    {"experts.wgrad", 6},
    {"dispatch.pack.bwd", 1},
    {"dispatch.exchange.bwd", 3},
    {"dispatch.unpack.bwd", 1},
    {"route.bwd", 1},
    {"attention.dgrad", 6},
    {"attention.wgrad", 4},
    {"embed.bwd", 1},
    {"reduce", 4},
    {"norm", 1},
    {"update", 2},
};

const tryout_cost *tryout_costs(size_t *n) {
    *n = sizeof costs / sizeof costs[0];
    return costs;
}

uint64_t tryout_grad_bytes(uint32_t layers) {
    return ((uint64_t)layers + 1) * GRAD_BYTES; /* embedding and head together are one more */
}

enum { MAX_LAYERS = 64, ATTENTION = 0, ROUTER, EXPERTS, GRADS };
typedef struct maker {
    graph *g;
    const tryout_graph_cfg *cfg;
    int32_t layer, mb, piece, phase;     /* of the nodes to come; -1 = none */
    buf_id grads[MAX_LAYERS + 1][GRADS]; /* of layers; the last: of embedding and head */
    buf_id acts[MAX_LAYERS + 1];         /* input of each layer, output of the last */
    buf_id attended[MAX_LAYERS], routed[MAX_LAYERS], rows[MAX_LAYERS][TRYOUT_MOST_PIECES];
} maker;

static double cost_of(const char *name) {
    for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++)
        if (strcmp(costs[i].name, name) == 0) return costs[i].units * TRYOUT_UNIT;
    return 0;
}

/* reads and writes: buffers, ended by BUF_NONE. */
typedef struct uses {
    buf_id reads[4], writes[3];
} uses;
#define READS(...) .reads = {__VA_ARGS__, BUF_NONE}
#define WRITES(...) .writes = {__VA_ARGS__, BUF_NONE}

static void node(maker *m, const char *name, int32_t lane, int32_t group, uses u) {
    char where[48] = "", full[128];
    if (m->layer >= 0) snprintf(where, sizeof where, "L%d.", m->layer);
    size_t used = strlen(where);
    if (m->mb >= 0) used += (size_t)snprintf(where + used, sizeof where - used, "mb%d.", m->mb);
    if (m->piece >= 0) snprintf(where + used, sizeof where - used, "p%d.", m->piece);
    snprintf(full, sizeof full, "%s%s", where, name);
    moe_sched_node info = {.name = full,
                           .layer = m->layer,
                           .microbatch = m->mb,
                           .phase = m->phase,
                           .lane = lane,
                           .group = group,
                           .deferrable = strstr(name, ".wgrad") != NULL,
                           .cost = cost_of(name)};
    uint32_t n = graph_node_add(m->g, &info, NULL, NULL, NULL, 0);
    for (int i = 0; i < 4 && u.reads[i] != BUF_NONE; i++) graph_reads(m->g, n, u.reads[i]);
    for (int i = 0; i < 3 && u.writes[i] != BUF_NONE; i++) graph_writes(m->g, n, u.writes[i]);
}

static void compute(maker *m, const char *name, uses u) {
    node(m, name, MOE_LANE_COMPUTE, -1, u);
}

static buf_id buffer(maker *m, const char *name) {
    return graph_buffer_add(m->g, ACT_BYTES, "L%d.mb%d.%s", m->layer, m->mb, name);
}

/* One movement of rows, through the EP lane; to is written. */
static void movement(maker *m, const char *what, const char *way, buf_id from, buf_id handle, buf_id to) {
    char name[64];
    buf_id packed = buffer(m, "packed"), received = buffer(m, "received");
    snprintf(name, sizeof name, "%s.pack.%s", what, way);
    compute(m, name, (uses){READS(from, handle), WRITES(packed)});
    snprintf(name, sizeof name, "%s.exchange.%s", what, way);
    node(m, name, MOE_LANE_COMM_EP, GROUP_EP, (uses){READS(packed), WRITES(received)});
    snprintf(name, sizeof name, "%s.unpack.%s", what, way);
    compute(m, name, (uses){READS(received, handle), WRITES(to)});
}

/* ---- forward ---- */
static void layer_forward(maker *m, uint32_t l) {
    m->layer = (int32_t)l;
    buf_id x = m->acts[l], attended = m->attended[l] = buffer(m, "attended"), ids = buffer(m, "ids");
    buf_id handle = m->routed[l] = buffer(m, "handle"), out = m->acts[l + 1] = buffer(m, "out");
    compute(m, "attention.fwd", (uses){READS(x), WRITES(attended)});
    compute(m, "route.fwd", (uses){READS(attended), WRITES(ids)});
    compute(m, "layout.fwd", (uses){READS(ids), WRITES(handle)});
    for (uint32_t p = 0; p < m->cfg->pieces_fwd; p++) {
        if (m->cfg->pieces_fwd > 1) m->piece = (int32_t)p;
        buf_id rows = m->rows[l][p] = buffer(m, "rows"), y = buffer(m, "y");
        movement(m, "dispatch", "fwd", attended, handle, rows);
        compute(m, "experts.fwd", (uses){READS(rows), WRITES(y)});
        movement(m, "combine", "fwd", y, handle, out);
        m->piece = -1;
    }
}

/* ---- backward ---- */
static buf_id layer_backward(maker *m, uint32_t l, buf_id dy) {
    m->layer = (int32_t)l;
    buf_id d_attended = buffer(m, "d_attended"), d_out = buffer(m, "d_routed"), dx = buffer(m, "dx");
    for (uint32_t p = 0; p < m->cfg->pieces_bwd; p++) {
        if (m->cfg->pieces_bwd > 1) m->piece = (int32_t)p;
        buf_id rows = m->rows[l][p % m->cfg->pieces_fwd], d_rows = buffer(m, "d_rows"), d_in = buffer(m, "d_in");
        movement(m, "combine", "bwd", dy, m->routed[l], d_rows);
        compute(m, "experts.dgrad", (uses){READS(d_rows), WRITES(d_in)});
        compute(m, "experts.wgrad", (uses){READS(d_rows, rows), WRITES(m->grads[l][EXPERTS])});
        movement(m, "dispatch", "bwd", d_in, m->routed[l], d_out);
        m->piece = -1;
    }
    compute(m, "route.bwd", (uses){READS(d_out, m->attended[l]), WRITES(d_attended, m->grads[l][ROUTER])});
    compute(m, "attention.dgrad", (uses){READS(d_attended, m->attended[l]), WRITES(dx)});
    compute(m, "attention.wgrad", (uses){READS(d_attended, m->acts[l]), WRITES(m->grads[l][ATTENTION])});
    return dx;
}

static void microbatch(maker *m, uint32_t mb) {
    const uint32_t layers = m->cfg->layers;
    m->mb = (int32_t)mb;
    m->layer = -1;
    m->phase = MOE_SCHED_FORWARD;
    buf_id d = graph_buffer_add(m->g, ACT_BYTES, "mb%d.d_logits", m->mb);
    m->acts[0] = graph_buffer_add(m->g, ACT_BYTES, "mb%d.embedded", m->mb);
    compute(m, "embed.fwd", (uses){READS(BUF_NONE), WRITES(m->acts[0])});
    for (uint32_t l = 0; l < layers; l++) layer_forward(m, l);
    m->layer = -1;
    compute(m, "head.fwd", (uses){READS(m->acts[layers]), WRITES(d)});
    m->phase = MOE_SCHED_BACKWARD;
    buf_id dy = graph_buffer_add(m->g, ACT_BYTES, "mb%d.d_head", m->mb);
    compute(m, "head.bwd", (uses){READS(d, m->acts[layers]), WRITES(dy, m->grads[layers][0])});
    for (uint32_t l = layers; l-- > 0;) dy = layer_backward(m, l, dy);
    m->layer = -1;
    compute(m, "embed.bwd", (uses){READS(dy), WRITES(m->grads[layers][0])});
    m->mb = -1;
}

/* ---- the step ---- */
static void use_grads(maker *m, uint32_t at, uint32_t layer, void (*use)(graph *g, uint32_t node, buf_id buf)) {
    for (int k = 0; k < GRADS; k++) use(m->g, at, m->grads[layer][k]);
}

/* Buckets are runs of layers, the last layer's first, as backward finishes them; embedding and head are the last. */
static void reduce(maker *m) {
    const uint32_t n = m->cfg->layers + 1;
    uint32_t buckets = m->cfg->n_buckets < n ? m->cfg->n_buckets : n;
    m->phase = MOE_SCHED_REDUCE;
    for (uint32_t b = 0; b < buckets && m->cfg->dp > 1; b++) {
        char name[32];
        snprintf(name, sizeof name, "bucket%u.reduce", b);
        moe_sched_node info = {.name = name,
                               .layer = -1,
                               .microbatch = -1,
                               .phase = m->phase,
                               .lane = MOE_LANE_COMM_DP,
                               .group = GROUP_DP,
                               .cost = cost_of("reduce")};
        uint32_t at = graph_node_add(m->g, &info, NULL, NULL, NULL, 0);
        for (uint32_t i = n * b / buckets; i < n * (b + 1) / buckets; i++) {
            uint32_t layer = i + 1 < n ? n - 2 - i : n - 1;
            use_grads(m, at, layer, graph_writes);
        }
    }
}

static void update(maker *m) {
    const uint32_t n = m->cfg->layers + 1;
    buf_id norm = graph_buffer_add(m->g, 8, "norm");
    m->phase = MOE_SCHED_UPDATE;
    compute(m, "norm", (uses){READS(BUF_NONE), WRITES(norm)});
    for (uint32_t i = 0; i < n; i++) use_grads(m, m->g->n_nodes - 1, i, graph_reads);
    compute(m, "update", (uses){READS(norm), WRITES(BUF_NONE)});
    for (uint32_t i = 0; i < n; i++) use_grads(m, m->g->n_nodes - 1, i, graph_reads);
}

moe_status tryout_graph(graph **out, const tryout_graph_cfg *cfg, moe_err *err) {
    maker m = {.g = graph_create(), .cfg = cfg, .layer = -1, .mb = -1, .piece = -1, .phase = MOE_SCHED_PREPARE};
    if (!m.g) return moe_fail(err, MOE_E_NOMEM, "out of memory for the step graph");
    for (uint32_t l = 0; l <= cfg->layers; l++)
        for (int k = 0; k < GRADS; k++)
            m.grads[l][k] = graph_buffer_fixed(m.g, NULL, GRAD_BYTES / GRADS, "grads%u.%d", l, k);
    compute(&m, "zero_grads", (uses){READS(BUF_NONE), WRITES(BUF_NONE)});
    for (uint32_t l = 0; l <= cfg->layers; l++) use_grads(&m, m.g->n_nodes - 1, l, graph_writes);
    for (uint32_t mb = 0; mb < cfg->microbatches; mb++) microbatch(&m, mb);
    reduce(&m);
    update(&m);
    moe_status status = graph_finish(m.g, err);
    if (status)
        graph_destroy(m.g);
    else
        *out = m.g;
    return status;
}
