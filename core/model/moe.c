/* The MoE layer: route -> layout -> dispatch -> experts -> combine, and its backward. The probability of a choice goes
 * out with its row and is applied inside the expert (y = sum W2 (p * act(W1 x))), so nothing of size [T,k,h] exists.
 * Movements are in moves.c. */
#include "model/blocks.h"
#include "model/moves.h"

/* ---- routing ---- */
typedef struct route_node {
    moe_route_args args;
    moe_tensor logits, ids, weights, counts, losses, divisor, d_weights, d_logits, absent;
    moe_tensor *state, *params, *d_params;
    const moe_router_v0 *table;
    const void *self;
    moe_status (*fn)(const void *self, const moe_route_args *args, moe_err *err);
} route_node;

static moe_status run_route(void *ctx, moe_err *err) {
    route_node *n = ctx;
    return n->fn(n->self, &n->args, err);
}

/* Arguments that both directions share. */
static route_node *make_route(emit *e, const moe_acts *a) {
    const model *m = e->m;
    const model_router *r = &m->routers[e->layer];
    route_node *n = graph_alloc(e->g, sizeof *n);
    if (!n) return NULL;
    *n = (route_node){.logits = a->logits.t,
                      .ids = a->ids.t,
                      .weights = a->weights.t,
                      .absent = tref_none().t,
                      .state = graph_alloc(e->g, r->needs.n_state * sizeof(moe_tensor)),
                      .params = graph_alloc(e->g, r->needs.n_params * sizeof(moe_tensor)),
                      .d_params = graph_alloc(e->g, r->needs.n_params * sizeof(moe_tensor)),
                      .table = parts_router(m->parts, (uint32_t)e->layer),
                      .self = m->parts->router_self[e->layer]};
    n->fn = n->table->route;
    n->args = (moe_route_args){.size = sizeof n->args,
                               .flags = e->train ? MOE_ROUTE_TRAIN : 0,
                               .step = e->step,
                               .microbatch = (uint64_t)e->mb,
                               .first_token = ((int64_t)e->mb * e->dp_size + e->dp_rank) * m->cfg.micro * m->cfg.seq,
                               .seq_len = m->cfg.seq,
                               .logits = &n->logits,
                               .hidden = &n->absent,
                               .token_ids = &n->absent,
                               .mask = &n->absent,
                               .params = n->params,
                               .state = n->state,
                               .expert_ids = &n->ids,
                               .weights = &n->weights,
                               .counts = &n->absent,
                               .losses = &n->absent,
                               .divisor = &n->absent,
                               .d_weights = &n->absent,
                               .d_logits = &n->absent,
                               .d_hidden = &n->absent,
                               .d_params = n->d_params};
    return n;
}

static tref state_ref(const emit *e, const model_router *r, uint32_t i) {
    const moe_param_spec *s = &r->needs.state[i];
    tref t = {.buf = e->state[e->layer][i], .t = {.dtype = s->dtype, .ndim = s->ndim}};
    for (int d = 0; d < 4; d++) t.t.shape[d] = d < s->ndim ? s->shape[d] : 1;
    return t;
}

static uint32_t add_route_node(emit *e, route_node *n, const moe_acts *a) {
    const model *m = e->m;
    const model_router *r = &m->routers[e->layer];
    uint32_t node = emit_node(e, "route", MOE_LANE_COMPUTE, run_route, n, &n->args.stream,
                              parts_async(m->parts, &m->parts->cfg.routers[e->layer]));
    for (uint32_t i = 0; i < r->needs.n_state; i++) {
        tref s = state_ref(e, r, i);
        n->state[i] = s.t;
        emit_bind(e, node, &n->state[i].data, s, 0);
    }
    for (uint32_t i = 0; i < r->needs.n_params; i++) {
        tref p = tref_weight(e, r->params[i]);
        n->params[i] = p.t;
        emit_bind(e, node, &n->params[i].data, p, 0);
    }
    if (r->needs.workspace) {
        buf_id ws = graph_buffer_add(e->g, r->needs.workspace, "L%d.mb%d.route.ws", e->layer, e->mb);
        emit_bind(e, node, &n->args.workspace, (tref){.buf = ws}, 1);
    }
    emit_bind(e, node, &n->logits.data, a->logits, 0);
    return node;
}

static void route_forward(emit *e, moe_acts *a) {
    const model *m = e->m;
    const model_router *r = &m->routers[e->layer];
    if (r->needs.saved)
        a->route_saved = tref_of(graph_buffer_add(e->g, r->needs.saved, "L%d.mb%d.route.saved", e->layer, e->mb),
                                 MOE_U8, (int64_t)r->needs.saved, 0, 0);
    route_node *n = make_route(e, a);
    if (!n || e->g->status) return;
    uint32_t node = add_route_node(e, n, a);
    emit_bind(e, node, &n->ids.data, a->ids, 1);
    emit_bind(e, node, &n->weights.data, a->weights, 1);
    emit_bind(e, node, &n->args.saved, a->route_saved, 1);
    if (!e->train) return;
    tref counts = tref_of(e->counts[e->layer], MOE_I64, m->cfg.experts, 0, 0);
    tref losses = tref_of(e->stats[1 + e->layer], MOE_F64, r->needs.n_losses, 0, 0);
    n->counts = counts.t;
    n->args.counts = &n->counts;
    emit_bind(e, node, &n->counts.data, counts, 1);
    if (!r->needs.n_losses) return;
    n->losses = losses.t;
    n->args.losses = &n->losses;
    emit_bind(e, node, &n->losses.data, losses, 1);
}

/* d_weights [T,k] -> d_logits [T,E] */
static tref route_backward(emit *e, const moe_acts *a, tref d_weights) {
    const model *m = e->m;
    const model_router *r = &m->routers[e->layer];
    tref d_logits = tref_new(e, "d_logits", MOE_F32, a->logits.t.shape[0], m->cfg.experts, 0);
    route_node *n = make_route(e, a);
    if (!n || e->g->status) return d_logits;
    n->fn = n->table->route_bwd;
    uint32_t node = add_route_node(e, n, a);
    n->d_weights = d_weights.t;
    n->d_logits = d_logits.t;
    n->divisor = e->divisor.t;
    n->args.d_weights = &n->d_weights;
    n->args.d_logits = &n->d_logits;
    n->args.divisor = &n->divisor;
    emit_bind(e, node, &n->ids.data, a->ids, 0);
    emit_bind(e, node, &n->weights.data, a->weights, 0);
    emit_bind(e, node, &n->args.saved, a->route_saved, 0);
    emit_bind(e, node, &n->d_weights.data, d_weights, 0);
    emit_bind(e, node, &n->divisor.data, e->divisor, 0);
    emit_bind(e, node, &n->d_logits.data, d_logits, 1);
    for (uint32_t i = 0; i < r->needs.n_params; i++) {
        tref g = tref_grad(e, r->params[i]);
        n->d_params[i] = g.t;
        emit_bind(e, node, &n->d_params[i].data, g, 1);
    }
    return d_logits;
}

/* ---- the layer ---- */
tref moe_forward(emit *e, const model_layer *w, tref x, moe_acts *a) {
    const model *m = e->m;
    const model_cfg *c = &m->cfg;
    int64_t T = x.t.shape[0], N = m->routers[e->layer].dispatch.max_rows, f = c->expert_ffn;
    *a = (moe_acts){.logits = tref_new(e, "logits", MOE_F32, T, c->experts, 0),
                    .ids = tref_new(e, "ids", MOE_I32, T, c->top_k, 0),
                    .weights = tref_new(e, "weights", MOE_F32, T, c->top_k, 0),
                    .route_saved = tref_none(),
                    .rows_in = tref_new(e, "rows_in", m->act, N, c->hidden, 0),
                    .row_prob = tref_new(e, "row_prob", MOE_F32, N, 0, 0),
                    .z = tref_new(e, "expert_z", m->act, N, 2 * f, 0),
                    .act = tref_new(e, "expert_act", m->act, N, f, 0)};
    tref score[] = {x, tref_weight(e, w->router)}, scored[] = {a->logits};
    a->router_linear =
        emit_op(e, "router_linear", MODEL_ROUTER_LINEAR, NULL, score, N_OF(score), scored, N_OF(scored), NULL);
    route_forward(e, a);
    move_layout(e, a->ids, &a->handle, &a->rows);
    move_rows(e, MOE_DISPATCH, a->handle, &a->rows, x, a->rows_in, a->weights, a->row_prob);
    emit_linear(e, "experts.w1", MOE_FPROP, 0, a->rows_in, tref_weight(e, w->w1), a->z, &a->rows);
    tref in[] = {a->z, a->row_prob}, out[] = {a->act};
    a->swiglu = emit_op(e, "experts.swiglu", MODEL_SWIGLU_PROB, NULL, in, N_OF(in), out, N_OF(out), &a->rows);
    tref y = tref_new(e, "expert_out", m->act, N, c->hidden, 0), u = tref_new(e, "moe_out", m->act, T, c->hidden, 0);
    emit_linear(e, "experts.w2", MOE_FPROP, 0, a->act, tref_weight(e, w->w2), y, &a->rows);
    move_rows(e, MOE_COMBINE, a->handle, &a->rows, u, y, tref_none(), tref_none());
    if (w->shared_w1 >= 0) mlp_forward(e, "shared", w->shared_w1, w->shared_w2, x, &a->shared, u, 1);
    return u;
}

tref moe_backward(emit *e, const model_layer *w, tref x, const moe_acts *a, tref du) {
    const model *m = e->m;
    const model_cfg *c = &m->cfg;
    int64_t T = x.t.shape[0], N = a->rows_in.t.shape[0];
    tref dy = tref_new(e, "d_expert_out", m->act, N, c->hidden, 0);
    tref dact = tref_new(e, "d_expert_act", m->act, N, c->expert_ffn, 0);
    tref dprob = tref_new(e, "d_row_prob", MOE_F32, N, 0, 0);
    tref drows = tref_new(e, "d_rows_in", m->act, N, c->hidden, 0);
    tref dx = tref_new(e, "d_norm2", m->act, T, c->hidden, 0);
    tref dweights = tref_new(e, "d_weights", MOE_F32, T, c->top_k, 0);
    move_rows(e, MOE_DISPATCH, a->handle, &a->rows, du, dy, tref_none(), tref_none());
    emit_linear(e, "experts.w2.dgrad", MOE_DGRAD, 0, dy, tref_weight(e, w->w2), dact, &a->rows);
    emit_wgrad(e, "experts.w2.wgrad", w->w2, dy, a->act, &a->rows);
    tref in[] = {dact, a->z, a->row_prob}, out[] = {a->z, dprob}; /* dz takes the place of z */
    emit_op_bwd(e, "experts.swiglu", &a->swiglu, in, N_OF(in), out, N_OF(out), &a->rows);
    emit_linear(e, "experts.w1.dgrad", MOE_DGRAD, 0, a->z, tref_weight(e, w->w1), drows, &a->rows);
    emit_wgrad(e, "experts.w1.wgrad", w->w1, a->z, a->rows_in, &a->rows);
    move_rows(e, MOE_COMBINE, a->handle, &a->rows, dx, drows, dweights, dprob);
    tref dlogits = route_backward(e, a, dweights);
    tref back[] = {dlogits, x, tref_weight(e, w->router)}, grads[] = {dx, tref_grad(e, w->router)};
    emit_op_bwd(e, "router_linear", &a->router_linear, back, N_OF(back), grads, N_OF(grads), NULL);
    if (w->shared_w1 >= 0) mlp_backward(e, "shared", w->shared_w1, w->shared_w2, x, &a->shared, du, dx, 1);
    return dx;
}
