/* Routing: projection to logits, the router plugin's choice, and the capacity. */
#include <moe/random.h>
#include <stdio.h>

#include "model/blocks.h"

/* ---- the plugin's call ---- */
typedef struct route_node {
    moe_route_args args;
    moe_tensor logits, ids, weights, mask, counts, losses, divisor, batch_counts, d_weights, d_logits, absent;
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
static route_node *make_route(emit *e, const route_acts *a) {
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
                               .first_token = emit_first_token(e),
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
                               .d_params = n->d_params,
                               .batch_counts = &n->absent};
    return n;
}

static tref state_ref(const emit *e, const model_router *r, uint32_t i) {
    const moe_param_spec *s = &r->needs.state[i];
    tref t = {.buf = e->state[e->layer][i], .t = {.dtype = s->dtype, .ndim = s->ndim}};
    for (int d = 0; d < 4; d++) t.t.shape[d] = d < s->ndim ? s->shape[d] : 1;
    return t;
}

static uint32_t add_route_node(emit *e, route_node *n, const route_acts *a) {
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
    if (parts_async(m->parts, &m->parts->cfg.routers[e->layer]))
        faults_add(e, node, &n->args.fault, (fault_site){.kind = FAULT_LOGIT, .what = "router"});
    if (e->mask.t.ndim) {
        n->mask = e->mask.t;
        n->args.mask = &n->mask;
        emit_bind(e, node, &n->mask.data, e->mask, 0);
    }
    return node;
}

static void bind_losses(emit *e, uint32_t node, route_node *n) {
    const model_router *r = &e->m->routers[e->layer];
    tref losses = tref_of(e->stats[1 + e->layer], MOE_F64, r->needs.n_losses, 0, 0);
    if (!r->needs.n_losses) return;
    n->losses = losses.t;
    n->args.losses = &n->losses;
    emit_bind(e, node, &n->losses.data, losses, 1);
}

static tref expert_counts(const emit *e) {
    return tref_of(e->counts[e->layer], MOE_I64, e->m->cfg.experts, 0, 0);
}

static void choose(emit *e, route_acts *a) {
    const model_router *r = &e->m->routers[e->layer];
    if (r->needs.saved)
        a->saved = tref_of(graph_buffer_add(e->g, r->needs.saved, "L%d.mb%d.route.saved", e->layer, e->mb), MOE_U8,
                           (int64_t)r->needs.saved, 0, 0);
    route_node *n = make_route(e, a);
    if (!n || e->g->status) return;
    uint32_t node = add_route_node(e, n, a);
    emit_bind(e, node, &n->ids.data, a->ids, 1);
    emit_bind(e, node, &n->weights.data, a->weights, 1);
    emit_bind(e, node, &n->args.saved, a->saved, 1);
    if (!e->train) return;
    n->counts = expert_counts(e).t;
    n->args.counts = &n->counts;
    emit_bind(e, node, &n->counts.data, expert_counts(e), 1);
    bind_losses(e, node, n);
}

/* Where the router's own gradients go, [n_params]: all tp ranks have the same, and one gives it to the sum. */
static tref *param_grads(emit *e, const model_router *r) {
    tref *g = graph_alloc(e->g, r->needs.n_params * sizeof *g);
    for (uint32_t i = 0; g && i < r->needs.n_params; i++) {
        g[i] = tref_grad(e, r->params[i]);
        if (e->m->split.tp_rank == 0) continue;
        const param *p = &e->m->params.at[r->params[i]];
        g[i].buf = graph_buffer_add(e->g, (uint64_t)p->count * sizeof(float), "L%d.mb%d.unused", e->layer, e->mb);
        emit_zero(e, "zero.unused", g[i].buf, (uint64_t)p->count * sizeof(float));
    }
    return g;
}

/* d_weights [T,k] -> d_logits [T,E] */
static tref choose_backward(emit *e, const route_acts *a, tref d_weights) {
    const model *m = e->m;
    const model_router *r = &m->routers[e->layer];
    tref d_logits = tref_new(e, "d_logits", MOE_F32, tokens_total(e), m->cfg.experts, 0);
    route_node *n = make_route(e, a);
    if (!n || e->g->status) return d_logits;
    tref *d_params = param_grads(e, r);
    n->fn = n->table->route_bwd;
    uint32_t node = add_route_node(e, n, a);
    n->d_weights = d_weights.t;
    n->d_logits = d_logits.t;
    n->divisor = e->routed.t;
    n->args.d_weights = &n->d_weights;
    n->args.d_logits = &n->d_logits;
    n->args.divisor = &n->divisor;
    emit_bind(e, node, &n->ids.data, a->ids, 0);
    emit_bind(e, node, &n->weights.data, a->weights, 0);
    emit_bind(e, node, &n->args.saved, a->saved, 0);
    emit_bind(e, node, &n->d_weights.data, d_weights, 0);
    emit_bind(e, node, &n->divisor.data, e->routed, 0);
    emit_bind(e, node, &n->d_logits.data, d_logits, 1);
    for (uint32_t i = 0; d_params && i < r->needs.n_params; i++) {
        n->d_params[i] = d_params[i].t;
        emit_bind(e, node, &n->d_params[i].data, d_params[i], 1);
    }
    if (r->needs.loss_scope != MOE_SCOPE_GLOBAL) return d_logits;
    n->batch_counts = expert_counts(e).t;
    n->args.batch_counts = &n->batch_counts;
    emit_bind(e, node, &n->batch_counts.data, expert_counts(e), 0);
    bind_losses(e, node, n);
    return d_logits;
}

/* ---- the capacity ---- */
static void limit(emit *e, route_acts *a) {
    const model_cfg *c = &e->m->cfg;
    const model_capacity cap = model_capacity_of(c);
    moe_capacity_attr *attr = graph_alloc(e->g, sizeof *attr);
    a->kept_ids = a->ids;
    a->kept_weights = a->weights;
    if (c->capacity <= 0 || !attr) return;
    *attr = (moe_capacity_attr){.size = sizeof *attr,
                                .n_experts = c->experts,
                                .drop = c->capacity_drop == CAPACITY_DROP_PROB ? MOE_DROP_PROB : MOE_DROP_POSITION,
                                .capacity = cap.choices,
                                .scope = cap.scope};
    a->kept_ids = tref_new(e, "kept_ids", MOE_I32, a->ids.t.shape[0], c->top_k, 0);
    a->kept_weights = tref_new(e, "kept_weights", MOE_F32, a->ids.t.shape[0], c->top_k, 0);
    tref in[] = {a->ids, a->weights}, out[] = {a->kept_ids, a->kept_weights, tref_of(e->drops, MOE_I64, 2, 0, 0)};
    emit_op(e, "capacity", MODEL_CAPACITY, attr, in, N_OF(in), out, N_OF(out), NULL);
}

/* ---- the whole ---- */
/* x times random numbers near 1, in training. */
static tref jitter(emit *e, tref x, route_acts *a) {
    const model *m = e->m;
    float eps = m->routers[e->layer].needs.input_jitter;
    moe_jitter_attr *attr = graph_alloc(e->g, sizeof *attr);
    char name[48];
    if (!e->train || e->taps || eps <= 0 || !attr) return x;
    snprintf(name, sizeof name, "layers.%d.router", e->layer);
    moe_random_key key = moe_random_key_make(m->cfg.seed, MOE_RANDOM_JITTER, name);
    *attr = (moe_jitter_attr){.size = sizeof *attr,
                              .eps = eps,
                              .key = {key.k0, key.k1},
                              .first_token = emit_first_token(e) + m->local.first_token,
                              .step = e->step};
    tref y = tref_new(e, "jittered", m->act, x.t.shape[0], x.t.shape[1], 0);
    a->jitter = emit_op(e, "jitter", MODEL_JITTER, attr, &x, 1, &y, 1, NULL);
    return y;
}

void route_forward(emit *e, const model_layer *w, tref x, route_acts *a) {
    const model_cfg *c = &e->m->cfg;
    const taps *to = e->taps;
    int64_t T = tokens_total(e);
    *a = (route_acts){.logits = tref_new(e, "logits", MOE_F32, T, c->experts, 0),
                      .ids = tref_new(e, "ids", MOE_I32, T, c->top_k, 0),
                      .weights = tref_new(e, "weights", MOE_F32, T, c->top_k, 0),
                      .saved = tref_none()};
    a->x = jitter(e, x, a);
    tref own = tokens_own(e, a->logits), in[] = {a->x, tref_weight(e, w->router)};
    a->linear = emit_op(e, "router_linear", MODEL_ROUTER_LINEAR, NULL, in, N_OF(in), &own, 1, NULL);
    if (w->router_bias >= 0) a->bias = emit_bias(e, "router.bias", w->router_bias, own, tref_none(), NULL);
    tokens_fill(e, "tp.logits.gather", a->logits);
    choose(e, a);
    limit(e, a);
    if (!to) return;
    emit_tap(e, "router_logits", to->router_logits[e->layer], a->logits);
    emit_tap(e, "expert_ids", to->expert_ids[e->layer], a->ids);
    emit_tap(e, "expert_weights", to->expert_weights[e->layer], a->weights);
}

void route_backward(emit *e, const model_layer *w, const route_acts *a, tref d_weights, tref dx) {
    const model *m = e->m;
    int jittered = a->jitter.op != NULL;
    tokens_fill(e, "tp.d_weights.gather", d_weights);
    tref d_logits = tokens_own(e, choose_backward(e, a, d_weights)), d = dx;
    if (w->router_bias >= 0)
        emit_bias_bwd(e, "router.bias", w->router_bias, &a->bias, d_logits, tref_none(), tref_none(), NULL);
    if (jittered) {
        d = tref_new(e, "d_jittered", m->act, dx.t.shape[0], dx.t.shape[1], 0);
        emit_zero(e, "zero.d_jittered", d.buf, (uint64_t)(dx.t.shape[0] * dx.t.shape[1]) * dtype_bytes(m->act));
    }
    tref in[] = {d_logits, a->x, tref_weight(e, w->router)}, out[] = {d, tref_grad(e, w->router)};
    emit_op_bwd(e, "router_linear", &a->linear, in, N_OF(in), out, N_OF(out), NULL);
    if (jittered) emit_op_bwd(e, "jitter", &a->jitter, &d, 1, &dx, 1, NULL);
}
