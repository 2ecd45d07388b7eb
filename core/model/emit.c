/* Argument structs in graph memory, patched when the plan is bound. */
#include "model/emit.h"

#include <stdio.h>
#include <string.h>

/* ---- tensors ---- */
uint64_t dtype_bytes(int32_t dtype) {
    switch (dtype) {
        case MOE_F64:
        case MOE_I64:
            return 8;
        case MOE_F32:
        case MOE_I32:
            return 4;
        case MOE_BF16:
            return 2;
        default:
            return 1;
    }
}

tref tref_none(void) {
    return (tref){.buf = BUF_NONE, .t = {.shape = {1, 1, 1, 1}}};
}

tref tref_of(buf_id buf, int32_t dtype, int64_t d0, int64_t d1, int64_t d2) {
    tref r = {.buf = buf, .t = {.dtype = dtype, .ndim = 1, .shape = {d0, 1, 1, 1}}};
    if (d1) r.t.ndim = 2, r.t.shape[1] = d1;
    if (d2) r.t.ndim = 3, r.t.shape[2] = d2;
    return r;
}

static uint64_t tensor_bytes(const moe_tensor *t) {
    return (uint64_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) * dtype_bytes(t->dtype);
}

/* Does its size in bytes stay well within 64 bits? */
static int tensor_fits(const moe_tensor *t) {
    int64_t n = (int64_t)dtype_bytes(t->dtype);
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n)) return 0;
    return n < (int64_t)1 << 58;
}

tref tref_new(emit *e, const char *name, int32_t dtype, int64_t d0, int64_t d1, int64_t d2) {
    tref r = tref_of(BUF_NONE, dtype, d0, d1, d2);
    if (!tensor_fits(&r.t))
        graph_fail(e->g, MOE_E_ARG, "%s of layer %d would be %lld x %lld x %lld elements, past 2^58 bytes", name,
                   e->layer, (long long)r.t.shape[0], (long long)r.t.shape[1], (long long)r.t.shape[2]);
    else
        r.buf = graph_buffer_add(e->g, tensor_bytes(&r.t), "L%d.mb%d.%s", e->layer, e->mb, name);
    return r;
}

tref tref_new_rows(emit *e, const char *name, int32_t dtype, int64_t n, int64_t w) {
    tref r = tref_new(e, name, dtype, n, w, 0);
    if (e->m->cfg.recv == RECV_EXACT && e->m->split.ep > 1) graph_buffer_lazy(e->g, r.buf);
    return r;
}

tref tref_rows(tref t, int64_t first, int64_t n) {
    uint64_t row = tensor_bytes(&t.t) / (uint64_t)(t.t.shape[0] ? t.t.shape[0] : 1);
    t.offset += (uint64_t)first * row;
    t.t.shape[0] = n;
    return t;
}

static tref of_param(const emit *e, int64_t id, buf_id buf, int32_t dtype) {
    const param *p = &e->m->params.at[id];
    tref r = {.buf = buf, .t = {.dtype = dtype, .ndim = p->ndim}};
    memcpy(r.t.shape, p->shape, sizeof r.t.shape);
    return r;
}

tref tref_weight(const emit *e, int64_t id) {
    const params *p = &e->m->params;
    return of_param(e, id, e->weight[id], p->at[id].kind == PARAM_LINEAR ? p->weight_dtype : MOE_F32);
}

tref tref_grad(const emit *e, int64_t id) {
    return tref_updated(of_param(e, id, e->grad[id], MOE_F32));
}

tref tref_filled(const emit *e, int64_t id) {
    if (e->filled[id] == BUF_NONE) return tref_none();
    return tref_of(e->filled[id], MOE_I32, e->m->params.at[id].experts, 0, 0);
}

tref tref_touched(tref t, int64_t elements) {
    t.touched = (uint64_t)elements * dtype_bytes(t.t.dtype);
    return t;
}

tref tref_updated(tref t) {
    t.updated = 1;
    return t;
}

/* ---- set-up ---- */
static void add_params(emit *e) {
    const params *p = &e->m->params;
    for (uint32_t i = 0; i < p->n && !e->g->status; i++) {
        const param *a = &p->at[i];
        void *w = p->copy && a->kind == PARAM_LINEAR ? (void *)(p->copy + a->offset)
                                                     : (void *)params_address(p, PARAM_MASTER, NULL, a->offset);
        uint64_t size = a->kind == PARAM_LINEAR ? dtype_bytes(p->weight_dtype) : sizeof(float);
        e->weight[i] = graph_buffer_fixed(e->g, w, (uint64_t)a->count * size, "%s", a->name);
        e->grad[i] = e->filled[i] = BUF_NONE;
        if (!e->train) continue;
        e->grad[i] = graph_buffer_fixed(e->g, params_address(p, PARAM_GRAD, NULL, a->offset), (uint64_t)a->count * 4,
                                        "grad.%s", a->name);
        if (a->flags >= 0)
            e->filled[i] = graph_buffer_fixed(e->g, p->filled ? p->filled + a->flags : NULL,
                                              (uint64_t)a->experts * sizeof *p->filled, "filled.%s", a->name);
    }
}

static void add_router_state(emit *e) {
    const model *m = e->m;
    for (uint32_t l = 0; l < m->cfg.layers && !e->g->status; l++) {
        const model_router *r = &m->routers[l];
        uint64_t row = m->cfg.experts * sizeof(int64_t);
        e->counts[l] =
            graph_buffer_fixed(e->g, m->counts ? m->counts + (size_t)l * m->cfg.experts : NULL, row, "L%u.counts", l);
        e->state[l] = graph_alloc(e->g, r->needs.n_state * sizeof **e->state);
        for (uint32_t i = 0; i < r->needs.n_state && !e->g->status; i++)
            e->state[l][i] = graph_buffer_fixed(e->g, r->state[i], 0, "L%u.%s", l, r->needs.state[i].name);
    }
}

moe_status emit_init(emit *e, graph *g, const model *m, int train, const uint64_t *step) {
    const model_cfg *c = &m->cfg;
    *e = (emit){.g = g, .m = m, .train = train, .step = step, .layer = -1, .mb = -1};
    e->weight = graph_alloc(g, m->params.n * sizeof *e->weight);
    e->grad = graph_alloc(g, m->params.n * sizeof *e->grad);
    e->grad_live = graph_alloc(g, m->params.n);
    e->filled = graph_alloc(g, m->params.n * sizeof *e->filled);
    e->most_filled = graph_alloc(g, m->params.n * sizeof *e->most_filled);
    e->counts = graph_alloc(g, c->layers * sizeof *e->counts);
    e->state = graph_alloc(g, c->layers * sizeof *e->state);
    e->stats = graph_alloc(g, (c->layers + 1) * sizeof *e->stats);
    if (g->status) return g->status;
    add_params(e);
    add_router_state(e);
    int64_t tokens = c->micro * c->seq, half = c->rope.dim / 2;
    e->stats_all = graph_buffer_fixed(g, m->stats, model_n_stats(m) * sizeof(double), "stats");
    for (uint32_t i = 0; i <= c->layers && !g->status; i++) {
        uint32_t first = i ? 1 + (i - 1) * MODEL_MAX_LOSSES : 0, n = i ? MODEL_MAX_LOSSES : 1;
        e->stats[i] = graph_buffer_fixed(g, m->stats ? m->stats + first : NULL, n * sizeof(double), "stats.%u", i);
    }
    e->positions =
        tref_of(graph_buffer_fixed(g, m->positions, (uint64_t)tokens * 4, "positions"), MOE_I32, tokens, 0, 0);
    e->inv_freq = tref_of(graph_buffer_fixed(g, m->inv_freq, (uint64_t)half * 4, "inv_freq"), MOE_F32, half, 0, 0);
    e->drops = graph_buffer_fixed(g, m->drops, 2 * sizeof *m->drops, "drops");
    e->divisor = e->routed = e->docs = e->mask = e->fault = tref_none();
    return g->status;
}

int64_t emit_first_token(const emit *e) {
    const model_place *at = &e->m->place;
    int64_t microbatch = (int64_t)e->mb * at->mesh->degree[MESH_DP] + mesh_coord(at->mesh, MESH_DP, at->rank);
    return microbatch * e->m->cfg.micro * e->m->cfg.seq;
}

/* ---- nodes ---- */
moe_sched_node emit_info(const emit *e, const char *name, int32_t lane) {
    return (moe_sched_node){
        .name = name, .layer = e->layer, .microbatch = e->mb, .phase = e->phase, .lane = lane, .group = -1};
}

void emit_name(const emit *e, const char *name, char *full, size_t size) {
    static const char *const phases[] = {"prep", "fwd", "bwd", "reduce", "update"};
    if (e->layer >= 0)
        snprintf(full, size, "L%d.mb%d.%s.%s", e->layer, e->mb, name, phases[e->phase]);
    else if (e->mb >= 0)
        snprintf(full, size, "mb%d.%s.%s", e->mb, name, phases[e->phase]);
    else
        snprintf(full, size, "%s.%s", name, phases[e->phase]);
}

uint32_t emit_node(emit *e, const char *name, int32_t lane, graph_fn fn, void *ctx, void **stream, int async) {
    char full[128];
    emit_name(e, name, full, sizeof full);
    const moe_sched_node info = emit_info(e, full, lane);
    return graph_node_add(e->g, &info, fn, ctx, stream, async);
}

/* Nothing of the same microbatch waits for the last node: a scheduler may put it off. */
static void mark_deferrable(emit *e) {
    if (!e->g->status) e->g->nodes[e->g->n_nodes - 1].info.deferrable = 1;
}

static uint64_t moved_bytes(const tref *t, int write) {
    if (t->buf == BUF_NONE || !t->t.ndim) return 0;
    uint64_t once = t->touched ? t->touched : tensor_bytes(&t->t);
    return write && t->updated ? 2 * once : once;
}

void emit_bind(emit *e, uint32_t node, void **where, tref t, int write) {
    graph_patch_add(e->g, where, t.buf, t.offset);
    graph_moves(e->g, node, moved_bytes(&t, write));
    if (write)
        graph_writes(e->g, node, t.buf);
    else
        graph_reads(e->g, node, t.buf);
}

static void bind_rows(emit *e, uint32_t node, const rows_ref *rows) {
    if (!rows) return;
    graph_reads(e->g, node, rows->offsets);
    graph_reads(e->g, node, rows->counts);
}

/* ---- operations ---- */
typedef struct op_node {
    moe_op_args args;
    void *dev;
    moe_status (*fn)(void *dev, const moe_op_args *args, moe_err *err);
} op_node;

static moe_status run_op(void *ctx, moe_err *err) {
    op_node *n = ctx;
    return n->fn(n->dev, &n->args, err);
}

static moe_tensor *copy_views(emit *e, const tref *refs, uint32_t n) {
    moe_tensor *t = graph_alloc(e->g, n * sizeof *t);
    for (uint32_t i = 0; t && i < n; i++) t[i] = refs[i].t;
    return t;
}

static const int losses[] = {MODEL_CROSS_ENTROPY, MODEL_CROSS_ENTROPY_MAX, MODEL_CROSS_ENTROPY_SUM,
                             MODEL_CROSS_ENTROPY_END};

/* Where the call reports an error in its data, or, of clip_coef, looks for those of the step. */
static void bind_fault(emit *e, uint32_t node, op_node *n, const moe_op *op) {
    const model_cfg *c = &e->m->cfg;
    int is_loss = 0;
    for (uint32_t i = 0; i < N_OF(losses); i++) is_loss |= op == e->m->ops[losses[i]];
    if (op == e->m->ops[MODEL_CLIP_COEF] && e->fault.t.ndim)
        emit_bind(e, node, &n->args.fault, e->fault, 0);
    else if (op == e->m->ops[MODEL_EMBED])
        faults_add(e, node, &n->args.fault, (fault_site){.kind = FAULT_ID, .what = op->name, .limit = c->vocab});
    else if (is_loss)
        faults_add(e, node, &n->args.fault, (fault_site){.kind = FAULT_TARGET, .what = op->name, .limit = c->vocab});
    else if (op == e->m->ops[MODEL_CAPACITY])
        faults_add(e, node, &n->args.fault, (fault_site){.kind = FAULT_CHOICE, .what = op->name, .limit = c->experts});
}

static void add_op(emit *e, const char *name, op_node *n, const op_call *call, const tref *in, const tref *out,
                   const rows_ref *rows) {
    const model *m = e->m;
    buf_id ws = call->workspace ? graph_buffer_add(e->g, call->workspace, "L%d.mb%d.%s.ws", e->layer, e->mb, name)
                                : (buf_id)BUF_NONE;
    uint32_t node =
        emit_node(e, name, MOE_LANE_COMPUTE, run_op, n, &n->args.stream, parts_async(m->parts, &m->parts->cfg.device));
    for (uint32_t i = 0; i < n->args.n_in; i++) emit_bind(e, node, (void **)&n->args.in[i].data, in[i], 0);
    for (uint32_t i = 0; i < n->args.n_out; i++) emit_bind(e, node, (void **)&n->args.out[i].data, out[i], 1);
    bind_rows(e, node, rows);
    bind_fault(e, node, n, call->op);
    emit_bind(e, node, &n->args.workspace, (tref){.buf = ws}, 1);
    emit_bind(e, node, &n->args.saved, (tref){.buf = call->saved}, e->phase != MOE_SCHED_BACKWARD);
    if (call->saved != BUF_NONE && !e->g->status) graph_moves(e->g, node, e->g->buffers[call->saved].bytes);
}

static op_node *make_op(emit *e, const void *attr, const tref *in, uint32_t n_in, const tref *out, uint32_t n_out,
                        const rows_ref *rows) {
    op_node *n = graph_alloc(e->g, sizeof *n);
    if (!n) return NULL;
    n->dev = e->m->parts->device_self;
    n->args = (moe_op_args){.size = sizeof n->args,
                            .n_in = n_in,
                            .n_out = n_out,
                            .in = copy_views(e, in, n_in),
                            .out = copy_views(e, out, n_out),
                            .attr = attr,
                            .rows = rows ? rows->rows : NULL};
    return e->g->status ? NULL : n;
}

op_call emit_op(emit *e, const char *name, int op, const void *attr, const tref *in, uint32_t n_in, const tref *out,
                uint32_t n_out, const rows_ref *rows) {
    op_call call = {.op = e->m->ops[op], .attr = attr, .saved = BUF_NONE};
    op_node *n = make_op(e, attr, in, n_in, out, n_out, rows);
    if (!n) return call;
    uint64_t saved = 0;
    moe_err err = {.size = sizeof err};
    moe_status status = call.op->sizes(n->dev, &n->args, &saved, &call.workspace, &err);
    if (status) graph_fail(e->g, status, "%s", err.msg);
    if (saved) call.saved = graph_buffer_add(e->g, saved, "L%d.mb%d.%s.saved", e->layer, e->mb, name);
    n->fn = call.op->forward;
    add_op(e, name, n, &call, in, out, rows);
    return call;
}

void emit_op_bwd(emit *e, const char *name, const op_call *call, const tref *in, uint32_t n_in, const tref *out,
                 uint32_t n_out, const rows_ref *rows) {
    op_node *n = make_op(e, call->attr, in, n_in, out, n_out, rows);
    if (!n) return;
    n->fn = call->op->backward;
    add_op(e, name, n, call, in, out, rows);
}

/* ---- products ---- */
typedef struct linear_node {
    moe_linear_args args;
    moe_tensor a, b, out, filled;
    const moe_precision_v0 *table;
    const void *self;
} linear_node;

static moe_status run_linear(void *ctx, moe_err *err) {
    linear_node *n = ctx;
    return n->table->linear(n->self, &n->args, err);
}

static void add_linear(emit *e, const char *name, int32_t role, int accumulate, tref a, tref b, tref out, tref filled,
                       const rows_ref *rows) {
    parts *p = e->m->parts;
    linear_node *n = graph_alloc(e->g, sizeof *n);
    if (!n) return;
    *n = (linear_node){
        .a = a.t, .b = b.t, .out = out.t, .filled = filled.t, .table = p->precision, .self = p->precision_self};
    n->args = (moe_linear_args){.size = sizeof n->args,
                                .role = role,
                                .accumulate = (uint32_t)accumulate,
                                .a = &n->a,
                                .b = &n->b,
                                .out = &n->out,
                                .rows = rows ? rows->rows : NULL,
                                .filled = filled.t.ndim ? &n->filled : NULL};
    uint64_t workspace = 0;
    moe_err err = {.size = sizeof err};
    moe_status status = n->table->sizes(p->precision_self, &n->args, &workspace, &err);
    if (status) graph_fail(e->g, status, "%s: %s", name, err.msg);
    uint32_t node =
        emit_node(e, name, MOE_LANE_COMPUTE, run_linear, n, &n->args.stream, parts_async(p, &p->cfg.precision));
    if (role == MOE_WGRAD) mark_deferrable(e);
    emit_bind(e, node, &n->a.data, a, 0);
    emit_bind(e, node, &n->b.data, b, 0);
    out.updated = accumulate;
    emit_bind(e, node, &n->out.data, out, 1);
    emit_bind(e, node, &n->filled.data, filled, 1);
    bind_rows(e, node, rows);
    if (workspace) {
        buf_id ws = graph_buffer_add(e->g, workspace, "L%d.mb%d.%s.ws", e->layer, e->mb, name);
        emit_bind(e, node, &n->args.workspace, (tref){.buf = ws}, 1);
    }
}

void emit_linear(emit *e, const char *name, int32_t role, int accumulate, tref a, tref b, tref out,
                 const rows_ref *rows) {
    add_linear(e, name, role, accumulate, a, b, out, tref_none(), rows);
}

op_call emit_bias(emit *e, const char *name, int64_t id, tref y, tref p, const rows_ref *rows) {
    tref in[] = {y, tref_weight(e, id), p}, out[] = {y};
    return emit_op(e, name, MODEL_BIAS, NULL, in, N_OF(in), out, N_OF(out), rows);
}

void emit_bias_bwd(emit *e, const char *name, int64_t id, const op_call *call, tref dy, tref p, tref dp,
                   const rows_ref *rows) {
    tref in[] = {dy, tref_weight(e, id), p}, out[] = {tref_grad(e, id), dp};
    emit_op_bwd(e, name, call, in, N_OF(in), out, N_OF(out), rows);
}

void emit_wgrad(emit *e, const char *name, int64_t id, tref dy, tref x, const rows_ref *rows) {
    if (e->g->status) return;
    tref dw = tref_grad(e, id), filled = tref_filled(e, id);
    if (filled.t.ndim) { /* each row reaches one expert */
        int64_t experts = filled.t.shape[0], most = dy.t.shape[0] < experts ? dy.t.shape[0] : experts;
        dw = tref_touched(dw, e->m->params.at[id].count / experts * most);
        e->most_filled[id] = e->most_filled[id] + most < experts ? e->most_filled[id] + most : experts;
    }
    add_linear(e, name, MOE_WGRAD, e->grad_live[id], dy, x, dw, filled, rows);
    e->grad_live[id] = 1;
}

void emit_touch_stats(emit *e, int write) {
    if (e->g->status) return;
    for (uint32_t i = 0; i <= e->m->cfg.layers; i++)
        if (write)
            graph_writes(e->g, e->g->n_nodes - 1, e->stats[i]);
        else
            graph_reads(e->g, e->g->n_nodes - 1, e->stats[i]);
}

/* ---- copies and fills ---- */
typedef struct move_node {
    const moe_device_v0 *device;
    void *self, *stream, *dst;
    const void *src;
    uint64_t bytes;
} move_node;

static moe_status run_copy(void *ctx, moe_err *err) {
    move_node *n = ctx;
    return n->device->copy(n->self, n->stream, n->dst, n->src, n->bytes, err);
}

static moe_status run_zero(void *ctx, moe_err *err) {
    move_node *n = ctx;
    return n->device->fill(n->self, n->stream, n->dst, 0, n->bytes, err);
}

static move_node *make_move(emit *e, uint64_t bytes) {
    move_node *n = graph_alloc(e->g, sizeof *n);
    if (n) *n = (move_node){.device = e->m->parts->device, .self = e->m->parts->device_self, .bytes = bytes};
    return n;
}

void emit_copy(emit *e, const char *name, tref dst, tref src, uint64_t bytes) {
    move_node *n = make_move(e, bytes);
    if (!n) return;
    uint32_t node = emit_node(e, name, MOE_LANE_COMPUTE, run_copy, n, &n->stream, 1);
    emit_bind(e, node, (void **)&n->src, src, 0);
    emit_bind(e, node, &n->dst, dst, 1);
}

void emit_zero(emit *e, const char *name, buf_id buf, uint64_t bytes) {
    move_node *n = make_move(e, bytes);
    if (!n) return;
    uint32_t node = emit_node(e, name, MOE_LANE_COMPUTE, run_zero, n, &n->stream, 1);
    emit_bind(e, node, &n->dst, (tref){.buf = buf}, 1);
    graph_moves(e->g, node, bytes);
}

void emit_tap(emit *e, const char *name, void *host, tref t) {
    uint64_t bytes = tensor_bytes(&t.t);
    if (!host) return;
    tref to = {.buf = graph_buffer_fixed(e->g, host, bytes, "tap.L%d.%s", e->layer, name), .t = t.t};
    emit_copy(e, name, to, t, bytes);
}
