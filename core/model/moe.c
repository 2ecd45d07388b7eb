/* The MoE layer: route -> layout -> dispatch -> experts -> combine, and its backward. The probability of a choice goes
 * out with its row and is applied inside the expert (y = sum W2 (p * act(W1 x))), so no row is stored twice, with and
 * without it. Where rows travel between ranks, what does not wait for them is emitted while they do: the shared experts
 * and weight gradients. Routing is in route.c, movements are in moves.c. */
#include "model/blocks.h"
#include "model/moves.h"

/* Do the shared experts have buffers of their own? Where rows travel, as the time of that is theirs; over tp, as what
 * they give is a sum over other ranks than the experts'. */
static int apart(const emit *e) {
    return e->m->split.tp > 1 || move_travels(e);
}

static void add_to(emit *e, const char *name, tref y, tref x) {
    emit_op(e, name, MODEL_ADD, NULL, &x, 1, &y, 1, NULL);
}

/* b2 is added once: what the etp ranks give is summed. */
static int adds_b2(const emit *e, const model_layer *w) {
    return w->b2 >= 0 && e->m->split.etp_rank == 0;
}

/* ---- forward ---- */
/* rows -> y [N,h] */
static tref experts_forward(emit *e, const model_layer *w, moe_acts *a) {
    const model *m = e->m;
    int64_t N = a->rows_in.t.shape[0];
    tref y = tref_new_rows(e, "expert_out", m->act, N, m->cfg.hidden);
    emit_linear(e, "experts.w1", MOE_FPROP, 0, a->rows_in, tref_weight(e, w->w1), a->z, &a->rows);
    if (w->b1 >= 0) a->b1 = emit_bias(e, "experts.b1", w->b1, a->z, tref_none(), &a->rows);
    tref in[] = {a->z, a->row_prob}, out[] = {a->act};
    a->swiglu =
        emit_op(e, "experts.swiglu", MODEL_SWIGLU_PROB, mlp_activation(e), in, N_OF(in), out, N_OF(out), &a->rows);
    emit_linear(e, "experts.w2", MOE_FPROP, 0, a->act, tref_weight(e, w->w2), y, &a->rows);
    if (adds_b2(e, w)) a->b2 = emit_bias(e, "experts.b2", w->b2, y, a->row_prob, &a->rows);
    return y;
}

tref moe_forward(emit *e, const model_layer *w, tref x, moe_acts *a) {
    const model *m = e->m;
    int64_t N = m->routers[e->layer].dispatch.max_rows, h = m->cfg.hidden, f = m->local.expert_ffn;
    int shared = w->shared_w1 >= 0, own = apart(e);
    *a = (moe_acts){.rows_in = tref_new_rows(e, "rows_in", m->act, N, h),
                    .row_prob = tref_new_rows(e, "row_prob", MOE_F32, N, 0),
                    .z = tref_new_rows(e, "expert_z", m->act, N, 2 * f),
                    .act = tref_new_rows(e, "expert_act", m->act, N, f)};
    route_forward(e, w, x, &a->route);
    move_layout(e, tokens_own(e, a->route.kept_ids), &a->handle, &a->rows);
    movement go = {.direction = MOE_DISPATCH,
                   .handle = a->handle,
                   .rows = &a->rows,
                   .token = x,
                   .row = a->rows_in,
                   .slot = tokens_own(e, a->route.kept_weights),
                   .row_scalar = a->row_prob};
    move_begin(e, &go);
    if (shared && own) shared_up(e, w, x, &a->shared);
    move_end(e, &go);
    tref y = experts_forward(e, w, a), u = tref_new(e, "moe_out", m->act, x.t.shape[0], h, 0), more = tref_none();
    movement back = {.direction = MOE_COMBINE,
                     .handle = a->handle,
                     .rows = &a->rows,
                     .token = u,
                     .row = y,
                     .slot = tref_none(),
                     .row_scalar = tref_none()};
    move_begin(e, &back);
    if (shared && own) more = shared_down(e, w, &a->shared);
    move_end(e, &back);
    if (shared && own)
        add_to(e, "shared.add", u, more);
    else if (shared)
        shared_forward(e, w, x, &a->shared, u);
    return u;
}

/* ---- backward ---- */
static void experts_weights(emit *e, const model_layer *w, const moe_acts *a, tref dy) {
    emit_wgrad(e, "experts.w2.wgrad", w->w2, dy, a->act, &a->rows);
    emit_wgrad(e, "experts.w1.wgrad", w->w1, a->z, a->rows_in, &a->rows);
}

/* Gradients of the biases; dz is in z. */
static void experts_biases(emit *e, const model_layer *w, const moe_acts *a, tref dy, tref dprob) {
    if (adds_b2(e, w)) emit_bias_bwd(e, "experts.b2", w->b2, &a->b2, dy, a->row_prob, dprob, &a->rows);
    if (w->b1 >= 0) emit_bias_bwd(e, "experts.b1", w->b1, &a->b1, a->z, tref_none(), tref_none(), &a->rows);
}

/* dy -> drows [N,h], and the gradient of the probabilities in dprob [N]; weights 0: those come later. */
static tref experts_backward(emit *e, const model_layer *w, const moe_acts *a, tref dy, tref dprob, int weights) {
    const model *m = e->m;
    int64_t N = dy.t.shape[0];
    tref dact = tref_new_rows(e, "d_expert_act", m->act, N, a->act.t.shape[1]);
    tref drows = tref_new_rows(e, "d_rows_in", m->act, N, m->cfg.hidden);
    emit_linear(e, "experts.w2.dgrad", MOE_DGRAD, 0, dy, tref_weight(e, w->w2), dact, &a->rows);
    if (weights) emit_wgrad(e, "experts.w2.wgrad", w->w2, dy, a->act, &a->rows);
    tref in[] = {dact, a->z, a->row_prob}, out[] = {a->z, dprob}; /* dz takes the place of z */
    emit_op_bwd(e, "experts.swiglu", &a->swiglu, in, N_OF(in), out, N_OF(out), &a->rows);
    experts_biases(e, w, a, dy, dprob);
    emit_linear(e, "experts.w1.dgrad", MOE_DGRAD, 0, a->z, tref_weight(e, w->w1), drows, &a->rows);
    if (weights) emit_wgrad(e, "experts.w1.wgrad", w->w1, a->z, a->rows_in, &a->rows);
    return drows;
}

tref moe_backward(emit *e, const model_layer *w, tref x, const moe_acts *a, tref du) {
    const model *m = e->m;
    int64_t N = a->rows_in.t.shape[0];
    int shared = w->shared_w1 >= 0, own = apart(e), later = move_travels(e);
    shared_later weights;
    tref dy = tref_new_rows(e, "d_expert_out", m->act, N, m->cfg.hidden), more = tref_none();
    tref dprob = tref_new_rows(e, "d_row_prob", MOE_F32, N, 0);
    tref dx = tref_new(e, "d_norm2", m->act, x.t.shape[0], m->cfg.hidden, 0);
    tref dweights = tref_new(e, "d_weights", MOE_F32, tokens_total(e), m->cfg.top_k, 0);
    movement go = {.direction = MOE_DISPATCH,
                   .handle = a->handle,
                   .rows = &a->rows,
                   .token = du,
                   .row = dy,
                   .slot = tref_none(),
                   .row_scalar = tref_none()};
    move_begin(e, &go);
    if (shared && own) more = shared_back(e, w, x, &a->shared, du, &weights);
    move_end(e, &go);
    tref drows = experts_backward(e, w, a, dy, dprob, !later);
    movement back = {.direction = MOE_COMBINE,
                     .handle = a->handle,
                     .rows = &a->rows,
                     .token = dx,
                     .row = drows,
                     .slot = tokens_own(e, dweights),
                     .row_scalar = dprob};
    move_begin(e, &back);
    if (later) experts_weights(e, w, a, dy);
    if (shared && own) shared_weights(e, w, &a->shared, &weights);
    move_end(e, &back);
    route_backward(e, w, &a->route, dweights, dx);
    if (shared && own)
        add_to(e, "shared.d_add", dx, more);
    else if (shared)
        shared_backward(e, w, x, &a->shared, du, dx);
    return dx;
}
