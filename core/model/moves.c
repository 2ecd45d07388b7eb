/* Arguments of the dispatcher's calls. */
#include "model/moves.h"

typedef struct layout_node {
    moe_layout_args args;
    moe_tensor ids, offsets, counts;
    const moe_dispatcher_v0 *table;
    const void *self;
} layout_node;

static moe_status run_layout(void *ctx, moe_err *err) {
    layout_node *n = ctx;
    return n->table->layout(n->self, &n->args, err);
}

/* What the three phases of a movement share, and one of them: each has its own stream. */
typedef struct move_call {
    moe_plane plane;
    moe_tensor slot, row;
} move_call;

typedef struct move_phase {
    moe_move_args args;
    const void *self;
    moe_status (*fn)(const void *self, const moe_move_args *args, moe_err *err);
} move_phase;

static moe_status run_move(void *ctx, moe_err *err) {
    move_phase *n = ctx;
    return n->fn(n->self, &n->args, err);
}

static tref workspace(emit *e, const char *name) {
    uint64_t bytes = e->m->routers[e->layer].dispatch.workspace;
    if (!bytes) return tref_none();
    return (tref){.buf = graph_buffer_add(e->g, bytes, "L%d.mb%d.%s.ws", e->layer, e->mb, name)};
}

void move_layout(emit *e, tref ids, tref *handle, rows_ref *rows) {
    const model *m = e->m;
    const moe_dispatcher_needs *needs = &m->routers[e->layer].dispatch;
    layout_node *n = graph_alloc(e->g, sizeof *n);
    *handle = tref_new(e, "handle", MOE_U8, (int64_t)needs->handle, 0, 0);
    tref offsets = tref_new(e, "offsets", MOE_I64, needs->groups + 1, 0, 0);
    tref counts = tref_new(e, "row_counts", MOE_I64, needs->groups, 0, 0);
    *rows = (rows_ref){graph_alloc(e->g, sizeof *rows->rows), offsets.buf, counts.buf};
    if (e->g->status) return;
    *rows->rows =
        (moe_rows){.size = sizeof *rows->rows, .groups = needs->groups, .max = needs->max_rows, .host_total = -1};
    *n = (layout_node){.ids = ids.t,
                       .offsets = offsets.t,
                       .counts = counts.t,
                       .table = m->parts->dispatcher,
                       .self = m->parts->dispatcher_self[e->layer]};
    n->args = (moe_layout_args){.size = sizeof n->args,
                                .expert_ids = &n->ids,
                                .rows = rows->rows,
                                .offsets = &n->offsets,
                                .counts = &n->counts};
    tref ws = workspace(e, "layout");
    uint32_t node = emit_node(e, "layout", MOE_LANE_COMPUTE, run_layout, n, &n->args.stream,
                              parts_async(m->parts, &m->parts->cfg.dispatcher));
    emit_bind(e, node, &n->ids.data, ids, 0);
    emit_bind(e, node, &n->args.handle, *handle, 1);
    emit_bind(e, node, &n->args.workspace, ws, 1);
    emit_bind(e, node, &n->offsets.data, offsets, 1);
    emit_bind(e, node, &n->counts.data, counts, 1);
    graph_patch_add(e->g, (void **)&rows->rows->dev_offsets, offsets.buf, 0);
    graph_patch_add(e->g, (void **)&rows->rows->dev_counts, counts.buf, 0);
}

void move_rows(emit *e, int32_t direction, tref handle, const rows_ref *rows, tref token, tref row, tref slot,
               tref row_scalar) {
    static const char *const names[2][3] = {{"dispatch.pack", "dispatch.exchange", "dispatch.unpack"},
                                            {"combine.pack", "combine.exchange", "combine.unpack"}};
    static const int32_t lanes[3] = {MOE_LANE_COMPUTE, MOE_LANE_COMM_EP, MOE_LANE_COMPUTE};
    const parts *p = e->m->parts;
    const moe_dispatcher_needs *needs = &e->m->routers[e->layer].dispatch;
    uint32_t phases = direction == MOE_DISPATCH ? needs->dispatch_phases : needs->combine_phases;
    moe_status (*const fns[3])(const void *, const moe_move_args *, moe_err *) = {
        p->dispatcher->pack, p->dispatcher->exchange, p->dispatcher->unpack};
    tref ws = workspace(e, direction == MOE_DISPATCH ? "dispatch" : "combine");
    move_call *c = graph_alloc(e->g, sizeof *c);
    int out = direction == MOE_DISPATCH;
    if (!c) return;
    *c = (move_call){{token.t, row.t}, slot.t, row_scalar.t};
    for (int i = 0; i < 3; i++) {
        move_phase *n = (phases & (1u << i)) ? graph_alloc(e->g, sizeof *n) : NULL;
        if (!n) continue;
        *n = (move_phase){.self = p->dispatcher_self[e->layer], .fn = fns[i]};
        n->args = (moe_move_args){.size = sizeof n->args,
                                  .n_planes = 1,
                                  .direction = direction,
                                  .planes = &c->plane,
                                  .rows = rows->rows,
                                  .slot_scalar = &c->slot,
                                  .row_scalar = &c->row};
        uint32_t node = emit_node(e, names[direction][i], lanes[i], run_move, n, &n->args.stream,
                                  parts_async(p, &p->cfg.dispatcher));
        emit_bind(e, node, &n->args.handle, handle, 0);
        emit_bind(e, node, &n->args.workspace, ws, 1);
        emit_bind(e, node, &c->plane.token_order.data, token, !out);
        emit_bind(e, node, &c->plane.expert_order.data, row, out);
        emit_bind(e, node, &c->slot.data, slot, !out);
        emit_bind(e, node, &c->row.data, row_scalar, out);
        graph_reads(e->g, node, rows->offsets);
        graph_reads(e->g, node, rows->counts);
    }
}
