/* probe of a scheduler: shape and order over a small step (tryout_graph.h), once for every data parallel rank, and what
 * the order comes to when each lane is a stream: a node starts when its lane is free and all that it needs has ended.
 */
#include <io/fs.h>
#include <jansson.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "tryout.h"
#include "tryout_graph.h"

typedef struct scheduler_try {
    tryout *t;
    tryout_rank rank;
    tryout_graph_cfg cfg;
    graph *g;
    uint32_t *order, *first; /* [nodes] of this rank, of rank 0 */
    moe_shape_out shape;
    json_t *root, *ranks;
} scheduler_try;

static const char *const lane_names[MOE_LANES] = {"compute", "comm:ep", "comm:dp", "comm:pp", "comm:tp", "copy"};
static const char *const phase_names[] = {"prepare", "forward", "backward", "reduce", "update"};

/* ---- the plugin ---- */
static moe_status ask_shape(scheduler_try *s, uint32_t rank, moe_err *err) {
    tryout *t = s->t;
    moe_shape_in in = {.size = sizeof in,
                       .n_layers = s->cfg.layers,
                       .n_microbatches = s->cfg.microbatches,
                       .pp = 1,
                       .grad_bytes = tryout_grad_bytes(s->cfg.layers)};
    moe_shape_out shape = {sizeof shape, 1, 1, 1};
    const parts *p = s->rank.parts;
    moe_status status = p->scheduler->shape(p->scheduler_self, &in, &shape, err);
    if (status) return status;
    if (!shape.pieces_fwd || !shape.pieces_bwd || !shape.n_buckets || shape.pieces_fwd > TRYOUT_MOST_PIECES ||
        shape.pieces_bwd > TRYOUT_MOST_PIECES)
        return tryout_broken(t, err,
                             "asks for %u and %u pieces and %u buckets; want 1 to %d pieces and at least 1 bucket",
                             shape.pieces_fwd, shape.pieces_bwd, shape.n_buckets, TRYOUT_MOST_PIECES);
    if (rank == 0) s->shape = shape;
    if (shape.pieces_fwd != s->shape.pieces_fwd || shape.pieces_bwd != s->shape.pieces_bwd ||
        shape.n_buckets != s->shape.n_buckets)
        return tryout_broken(t, err, "gives rank %u another shape than rank 0", rank);
    return MOE_OK;
}

static moe_status build(scheduler_try *s, moe_err *err) {
    s->cfg.pieces_fwd = s->shape.pieces_fwd;
    s->cfg.pieces_bwd = s->shape.pieces_bwd;
    s->cfg.n_buckets = s->shape.n_buckets;
    moe_status status = tryout_graph(&s->g, &s->cfg, err);
    if (status) return status;
    s->order = calloc(s->g->n_nodes, sizeof *s->order);
    s->first = calloc(s->g->n_nodes, sizeof *s->first);
    return s->order && s->first ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %u nodes", s->g->n_nodes);
}

static moe_status ask_order(scheduler_try *s, uint32_t rank, moe_err *err) {
    const parts *p = s->rank.parts;
    const size_t bytes = s->g->n_nodes * sizeof *s->order;
    moe_err why = {.size = sizeof why};
    memset(s->order, 0xff, bytes);
    moe_status status = p->scheduler->order(p->scheduler_self, &s->g->view, s->order, err);
    if (status) return status;
    if (graph_check_order(s->g, s->order, &why)) return tryout_broken(s->t, err, "%.400s", why.msg);
    if (rank == 0) memcpy(s->first, s->order, bytes);
    for (uint32_t i = 0; i < s->g->n_nodes; i++)
        if (s->order[i] != s->first[i])
            return tryout_broken(s->t, err,
                                 "place %u of the order is %s on rank 0 and %s on rank %u: ranks would wait "
                                 "for each other",
                                 i, s->g->nodes[s->first[i]].info.name, s->g->nodes[s->order[i]].info.name, rank);
    return MOE_OK;
}

/* ---- JSON; a NULL from memory that is out is found when the root is written ---- */
static json_int_t units(const moe_sched_node *n) {
    return (json_int_t)(n->cost / TRYOUT_UNIT + 0.5);
}

static json_t *describe_nodes(const graph *g) {
    json_t *all = json_array();
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const moe_sched_node *n = &g->nodes[i].info;
        json_t *needs = json_array();
        for (uint32_t e = g->pred_start[i]; e < g->pred_start[i + 1]; e++)
            json_array_append_new(needs, json_string(g->nodes[g->pred[e]].info.name));
        json_array_append_new(
            all, json_pack("{s:s, s:i, s:i, s:s, s:s, s:b, s:I, s:o}", "name", n->name, "layer", n->layer, "microbatch",
                           n->microbatch, "phase", phase_names[n->phase], "lane", lane_names[n->lane], "deferrable",
                           (int)n->deferrable, "cost", units(n), "needs", needs));
    }
    return all;
}

static json_t *describe_costs(void) {
    size_t n;
    const tryout_cost *costs = tryout_costs(&n);
    json_t *all = json_object();
    for (size_t i = 0; i < n; i++) json_object_set_new(all, costs[i].name, json_integer(costs[i].units));
    return all;
}

static json_t *describe_plugin(const tryout *t) {
    const moe_desc *d = t->plugin.desc;
    json_t *values = json_object();
    for (uint64_t i = 0; i < t->plugin.n_kv; i++)
        json_object_set_new(values, t->plugin.kv[i].key, json_string(t->plugin.kv[i].value));
    return json_pack("{s:s, s:s, s:s, s:o}", "kind", d->kind, "id", d->id, "version", d->version, "options", values);
}

/* Starts and ends, in units, in the order in which nodes are issued. */
static moe_status describe_rank(scheduler_try *s, uint32_t rank, moe_err *err) {
    const graph *g = s->g;
    json_int_t free_at[MOE_LANES] = {0}, busy[MOE_LANES] = {0}, span = 0, *end = calloc(g->n_nodes, sizeof *end);
    json_t *lanes = json_object(), *used = json_object(), *timeline = json_array();
    if (!end) return moe_fail(err, MOE_E_NOMEM, "out of memory for the timeline");
    for (int l = 0; l < MOE_LANES; l++) json_object_set_new(lanes, lane_names[l], json_array());
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t at = s->order[i];
        const moe_sched_node *n = &g->nodes[at].info;
        json_int_t start = free_at[n->lane];
        for (uint32_t e = g->pred_start[at]; e < g->pred_start[at + 1]; e++)
            if (end[g->pred[e]] > start) start = end[g->pred[e]];
        end[at] = free_at[n->lane] = start + units(n);
        busy[n->lane] += units(n);
        if (end[at] > span) span = end[at];
        json_array_append_new(json_object_get(lanes, lane_names[n->lane]), json_string(n->name));
        json_array_append_new(timeline, json_pack("{s:s, s:s, s:I, s:I}", "node", n->name, "lane", lane_names[n->lane],
                                                  "start", start, "end", end[at]));
    }
    for (int l = 0; l < MOE_LANES; l++) json_object_set_new(used, lane_names[l], json_integer(busy[l]));
    free(end);
    json_array_append_new(s->ranks, json_pack("{s:i, s:I, s:o, s:o, s:o}", "rank", (int)rank, "span", span, "busy",
                                              used, "order", lanes, "timeline", timeline));
    return MOE_OK;
}

static moe_status make_root(scheduler_try *s, moe_err *err) {
    json_t *shape = json_pack("{s:I, s:I, s:I}", "pieces_fwd", (json_int_t)s->shape.pieces_fwd, "pieces_bwd",
                              (json_int_t)s->shape.pieces_bwd, "buckets", (json_int_t)s->shape.n_buckets);
    json_t *size = json_pack("{s:i, s:i, s:i}", "layers", (int)s->cfg.layers, "microbatches", (int)s->cfg.microbatches,
                             "dp", (int)s->cfg.dp);
    s->root = json_pack("{s:o, s:o, s:o, s:f, s:o, s:o, s:O}", "plugin", describe_plugin(s->t), "step", size, "shape",
                        shape, "unit_seconds", TRYOUT_UNIT, "costs", describe_costs(), "nodes", describe_nodes(s->g),
                        "ranks", s->ranks);
    return s->root ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory, or text of the plugin is not UTF-8");
}

/* To --out, whole or not at all, or to standard output. */
static moe_status write_root(const scheduler_try *s, moe_err *err) {
    const char *out = s->t->out;
    char *text = json_dumps(s->root, JSON_INDENT(1)), *part = NULL;
    moe_status status = text ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for the JSON");
    if (!status && !out) puts(text);
    if (!status && out && asprintf(&part, "%s.part", out) < 0) {
        part = NULL;
        status = moe_fail(err, MOE_E_NOMEM, "out of memory for %.300s", out);
    }
    if (!status && out) status = fs_save(part, text, strlen(text), err);
    if (!status && out && rename(part, out)) {
        status = fs_fail(err, MOE_E_IO, out, "cannot be replaced: %m");
        remove(part);
    }
    free(part);
    free(text);
    return status;
}

static moe_status run_rank(scheduler_try *s, uint32_t rank, moe_err *err) {
    err->msg[0] = 0;
    moe_status status = tryout_rank_open(&s->rank, s->t, rank, NULL, err);
    if (!status) status = ask_shape(s, rank, err);
    if (!status && rank == 0) status = build(s, err);
    if (!status) status = ask_order(s, rank, err);
    if (!status) status = describe_rank(s, rank, err);
    tryout_rank_free(&s->rank);
    return status;
}

moe_status tryout_scheduler(tryout *t, moe_err *err) {
    scheduler_try s = {.t = t,
                       .cfg = {.layers = (uint32_t)command_int(t->args, "layers", 2),
                               .microbatches = (uint32_t)command_int(t->args, "microbatches", 2),
                               .dp = t->ranks},
                       .ranks = json_array()};
    moe_status status = s.ranks ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for the JSON");
    for (uint32_t rank = 0; rank < t->ranks && !status; rank++) status = run_rank(&s, rank, err);
    if (!status) status = make_root(&s, err);
    if (!status) status = write_root(&s, err);
    json_decref(s.root);
    json_decref(s.ranks);
    free(s.order);
    free(s.first);
    graph_destroy(s.g);
    return status;
}
