/* The MoE layer: route -> layout -> dispatch -> experts -> combine, and its backward. The probability of a choice goes
 * out with its row and is applied inside the expert (y = sum W2 (p * act(W1 x))), so no row is stored twice, with and
 * without it. Routing is in route.c, movements are in moves.c. */
#include "model/blocks.h"
#include "model/moves.h"

tref moe_forward(emit *e, const model_layer *w, tref x, moe_acts *a) {
    const model *m = e->m;
    const model_cfg *c = &m->cfg;
    int64_t T = x.t.shape[0], N = m->routers[e->layer].dispatch.max_rows, f = c->expert_ffn;
    *a = (moe_acts){.rows_in = tref_new(e, "rows_in", m->act, N, c->hidden, 0),
                    .row_prob = tref_new(e, "row_prob", MOE_F32, N, 0, 0),
                    .z = tref_new(e, "expert_z", m->act, N, 2 * f, 0),
                    .act = tref_new(e, "expert_act", m->act, N, f, 0)};
    route_forward(e, w, x, &a->route);
    move_layout(e, a->route.kept_ids, &a->handle, &a->rows);
    move_rows(e, MOE_DISPATCH, a->handle, &a->rows, x, a->rows_in, a->route.kept_weights, a->row_prob);
    emit_linear(e, "experts.w1", MOE_FPROP, 0, a->rows_in, tref_weight(e, w->w1), a->z, &a->rows);
    if (w->b1 >= 0) a->b1 = emit_bias(e, "experts.b1", w->b1, a->z, tref_none(), &a->rows);
    tref in[] = {a->z, a->row_prob}, out[] = {a->act};
    a->swiglu =
        emit_op(e, "experts.swiglu", MODEL_SWIGLU_PROB, mlp_activation(e), in, N_OF(in), out, N_OF(out), &a->rows);
    tref y = tref_new(e, "expert_out", m->act, N, c->hidden, 0), u = tref_new(e, "moe_out", m->act, T, c->hidden, 0);
    emit_linear(e, "experts.w2", MOE_FPROP, 0, a->act, tref_weight(e, w->w2), y, &a->rows);
    if (w->b2 >= 0) a->b2 = emit_bias(e, "experts.b2", w->b2, y, a->row_prob, &a->rows);
    move_rows(e, MOE_COMBINE, a->handle, &a->rows, u, y, tref_none(), tref_none());
    if (w->shared_w1 >= 0) shared_forward(e, w, x, &a->shared, u);
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
    if (w->b2 >= 0) emit_bias_bwd(e, "experts.b2", w->b2, &a->b2, dy, a->row_prob, dprob, &a->rows);
    if (w->b1 >= 0) emit_bias_bwd(e, "experts.b1", w->b1, &a->b1, a->z, tref_none(), tref_none(), &a->rows);
    emit_linear(e, "experts.w1.dgrad", MOE_DGRAD, 0, a->z, tref_weight(e, w->w1), drows, &a->rows);
    emit_wgrad(e, "experts.w1.wgrad", w->w1, a->z, a->rows_in, &a->rows);
    move_rows(e, MOE_COMBINE, a->handle, &a->rows, dx, drows, dweights, dprob);
    route_backward(e, w, &a->route, dweights, dx);
    if (w->shared_w1 >= 0) shared_backward(e, w, x, &a->shared, du, dx);
    return dx;
}
