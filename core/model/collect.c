/* One node a call. */
#include "model/collect.h"

typedef struct collect_node {
    const moe_comm_v0 *comm;
    void *self, *group, *stream, *in, *out;
    uint64_t count; /* as the call counts: of the smaller side */
    int32_t dtype, op;
} collect_node;

static moe_status run_all_reduce(void *ctx, moe_err *err) {
    collect_node *n = ctx;
    return n->comm->all_reduce(n->self, n->group, n->stream, n->out, n->out, n->count, n->dtype, n->op, err);
}

static moe_status run_all_gather(void *ctx, moe_err *err) {
    collect_node *n = ctx;
    return n->comm->all_gather(n->self, n->group, n->stream, n->in, n->out, n->count, n->dtype, err);
}

static moe_status run_reduce_scatter(void *ctx, moe_err *err) {
    collect_node *n = ctx;
    return n->comm->reduce_scatter(n->self, n->group, n->stream, n->in, n->out, n->count, n->dtype, MOE_SUM, err);
}

static uint64_t elements(tref t) {
    uint64_t n = 1;
    for (int i = 0; i < t.t.ndim; i++) n *= (uint64_t)t.t.shape[i];
    return n;
}

/* The node's number, or UINT32_MAX when the graph is out of memory. */
static uint32_t add(emit *e, const char *name, mesh_axis axis, int32_t lane, graph_fn fn, tref small,
                    collect_node **made) {
    const parts *p = e->m->parts;
    collect_node *n = *made = graph_alloc(e->g, sizeof *n);
    if (!n) return UINT32_MAX;
    *n = (collect_node){.comm = p->comm,
                        .self = p->comm_self,
                        .group = e->m->place.groups->of[axis],
                        .count = elements(small),
                        .dtype = small.t.dtype,
                        .op = MOE_SUM};
    char full[128];
    emit_name(e, name, full, sizeof full);
    moe_sched_node info = emit_info(e, e->layer >= 0 || e->mb >= 0 ? full : name, lane);
    info.group = (int32_t)axis;
    return graph_node_add(e->g, &info, fn, n, &n->stream, parts_async(p, &p->cfg.comm));
}

void emit_all_reduce(emit *e, const char *name, mesh_axis axis, int32_t lane, int32_t op, tref t, const buf_id *bufs,
                     uint32_t n) {
    collect_node *c;
    if (e->m->place.mesh->degree[axis] == 1) return;
    uint32_t node = add(e, name, axis, lane, run_all_reduce, t, &c);
    if (!c) return;
    c->op = op;
    emit_bind(e, node, &c->out, tref_updated(t), 1);
    for (uint32_t i = 0; i < n; i++) graph_writes(e->g, node, bufs[i]);
}

void emit_all_gather(emit *e, const char *name, mesh_axis axis, int32_t lane, tref in, tref out) {
    collect_node *c;
    uint32_t node = add(e, name, axis, lane, run_all_gather, in, &c);
    if (!c) return;
    emit_bind(e, node, &c->in, in, 0);
    emit_bind(e, node, &c->out, out, 1);
}

void emit_reduce_scatter(emit *e, const char *name, mesh_axis axis, int32_t lane, tref in, tref out) {
    collect_node *c;
    uint32_t node = add(e, name, axis, lane, run_reduce_scatter, out, &c);
    if (!c) return;
    emit_bind(e, node, &c->in, in, 0);
    emit_bind(e, node, &c->out, out, 1);
}
