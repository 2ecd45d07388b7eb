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

/* Does the layout tell the host its counts before its rows are used? Of a synchronous dispatcher on an asynchronous
 * device it has not run when the calls are made. */
static int tells_host(const model *m) {
    const parts *p = m->parts;
    return m->cfg.recv == RECV_EXACT && parts_async(p, &p->cfg.device) && parts_async(p, &p->cfg.dispatcher);
}

static void bind_host(emit *e, layout_node *n, rows_ref *rows) {
    uint32_t groups = rows->rows->groups;
    graph_patch_add(e->g, &n->args.host_handle, rows->host_handle, 0);
    if (!tells_host(e->m)) return;
    buf_id offsets = graph_buffer_host(e->g, (groups + 1) * sizeof(int64_t), "L%d.mb%d.host_offsets", e->layer, e->mb);
    buf_id counts = graph_buffer_host(e->g, groups * sizeof(int64_t), "L%d.mb%d.host_counts", e->layer, e->mb);
    graph_patch_add(e->g, (void **)&n->args.host_offsets, offsets, 0);
    graph_patch_add(e->g, (void **)&n->args.host_counts, counts, 0);
    graph_patch_add(e->g, (void **)&rows->rows->host_offsets, offsets, 0);
    graph_patch_add(e->g, (void **)&rows->rows->host_counts, counts, 0);
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

/* The node is a collective call, where the dispatchers' group has several members. */
static void talks(emit *e, uint32_t node, int32_t group) {
    if (!e->g->status && e->m->place.mesh->degree[MESH_ETP_EP] > 1) e->g->nodes[node].info.group = group;
}

void move_layout(emit *e, tref ids, tref *handle, rows_ref *rows) {
    const model *m = e->m;
    const moe_dispatcher_needs *needs = &m->routers[e->layer].dispatch;
    layout_node *n = graph_alloc(e->g, sizeof *n);
    *handle = tref_new(e, "handle", MOE_U8, (int64_t)needs->handle, 0, 0);
    tref offsets = tref_new(e, "offsets", MOE_I64, needs->groups + 1, 0, 0);
    tref counts = tref_new(e, "row_counts", MOE_I64, needs->groups, 0, 0);
    *rows = (rows_ref){graph_alloc(e->g, sizeof *rows->rows), offsets.buf, counts.buf, BUF_NONE};
    if (needs->host_handle)
        rows->host_handle = graph_buffer_host(e->g, needs->host_handle, "L%d.mb%d.host_handle", e->layer, e->mb);
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
    talks(e, node, MESH_LAYOUT);
    bind_host(e, n, rows);
    if (parts_async(m->parts, &m->parts->cfg.dispatcher))
        faults_add(
            e, node, &n->args.fault,
            (fault_site){.kind = FAULT_LAYOUT, .what = "layout", .limit = m->cfg.experts, .rows = needs->max_rows});
    emit_bind(e, node, &n->ids.data, ids, 0);
    emit_bind(e, node, &n->args.handle, *handle, 1);
    emit_bind(e, node, &n->args.workspace, ws, 1);
    emit_bind(e, node, &n->offsets.data, offsets, 1);
    emit_bind(e, node, &n->counts.data, counts, 1);
    graph_patch_add(e->g, (void **)&rows->rows->dev_offsets, offsets.buf, 0);
    graph_patch_add(e->g, (void **)&rows->rows->dev_counts, counts.buf, 0);
}

int move_travels(const emit *e) {
    const moe_dispatcher_needs *needs = &e->m->routers[e->layer].dispatch;
    return ((needs->dispatch_phases | needs->combine_phases) & MOE_PHASE_EXCHANGE) != 0;
}

/* ---- phases ---- */
enum { PACK, EXCHANGE, UNPACK };

/* Nothing where the dispatcher does nothing in this phase. */
static void add_phase(emit *e, const movement *m, int phase) {
    static const char *const names[2][3] = {{"dispatch.pack", "dispatch.exchange", "dispatch.unpack"},
                                            {"combine.pack", "combine.exchange", "combine.unpack"}};
    static const int32_t lanes[3] = {MOE_LANE_COMPUTE, MOE_LANE_COMM_EP, MOE_LANE_COMPUTE};
    const parts *p = e->m->parts;
    const moe_dispatcher_needs *needs = &e->m->routers[e->layer].dispatch;
    moe_status (*const fns[3])(const void *, const moe_move_args *, moe_err *) = {
        p->dispatcher->pack, p->dispatcher->exchange, p->dispatcher->unpack};
    int out = m->direction == MOE_DISPATCH;
    uint32_t phases = out ? needs->dispatch_phases : needs->combine_phases;
    move_call *c = m->call;
    move_phase *n = c && (phases & (1u << phase)) ? graph_alloc(e->g, sizeof *n) : NULL;
    if (!n) return;
    *n = (move_phase){.self = p->dispatcher_self[e->layer], .fn = fns[phase]};
    n->args = (moe_move_args){.size = sizeof n->args,
                              .n_planes = 1,
                              .direction = m->direction,
                              .planes = &c->plane,
                              .rows = m->rows->rows,
                              .slot_scalar = &c->slot,
                              .row_scalar = &c->row,
                              .sent = e->sent ? &e->sent[phase == EXCHANGE].all : NULL,
                              .sent_far = e->sent ? &e->sent[phase == EXCHANGE].far : NULL};
    uint32_t node = emit_node(e, names[m->direction][phase], lanes[phase], run_move, n, &n->args.stream,
                              parts_async(p, &p->cfg.dispatcher));
    if (phase == EXCHANGE) talks(e, node, MESH_ETP_EP);
    if (e->sent) graph_reads(e->g, node, e->sent_buf);
    emit_bind(e, node, &n->args.handle, m->handle, 0);
    graph_patch_add(e->g, &n->args.host_handle, m->rows->host_handle, 0);
    emit_bind(e, node, &n->args.workspace, m->workspace, 1);
    emit_bind(e, node, &c->plane.token_order.data, m->token, !out);
    emit_bind(e, node, &c->plane.expert_order.data, m->row, out);
    emit_bind(e, node, &c->slot.data, m->slot, !out);
    emit_bind(e, node, &c->row.data, m->row_scalar, out);
    graph_reads(e->g, node, m->rows->offsets);
    graph_reads(e->g, node, m->rows->counts);
}

void move_begin(emit *e, movement *m) {
    m->workspace = workspace(e, m->direction == MOE_DISPATCH ? "dispatch" : "combine");
    m->call = graph_alloc(e->g, sizeof *m->call);
    if (!m->call) return;
    *m->call = (move_call){{m->token.t, m->row.t}, m->slot.t, m->row_scalar.t};
    add_phase(e, m, PACK);
    add_phase(e, m, EXCHANGE);
}

void move_end(emit *e, const movement *m) {
    add_phase(e, m, UNPACK);
}
