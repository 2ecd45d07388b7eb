/* Shared experts: every token's. The gate (Qwen2-MoE) is applied inside the MLP, as a row's probability is inside an
 * expert, so nothing of size [T,h] is scaled. Over tp the gate is every rank's, and its gradient partial, as the MLP
 * behind it is cut. */
#include "model/blocks.h"

static const mlp_names names = MLP_NAMES("shared");

static mlp shared_mlp(const model_layer *w, tref x, const shared_acts *a) {
    return (mlp){&names, w->shared_w1, w->shared_w2, x, a->gate};
}

/* [T,1] as [T]. */
static tref flat(tref t) {
    t.t.ndim = 1;
    return t;
}

/* ---- forward ---- */
/* x [T,h] */
static void up(emit *e, const model_layer *w, tref x, shared_acts *a) {
    a->gate = tref_none();
    if (w->shared_gate >= 0) {
        tref g = tref_new(e, "shared_gate", MOE_F32, x.t.shape[0], 1, 0);
        tref in[] = {x, tref_weight(e, w->shared_gate)}, out[] = {g};
        a->linear = emit_op(e, "shared.gate", MODEL_ROUTER_LINEAR, NULL, in, N_OF(in), out, N_OF(out), NULL);
        a->sigmoid = emit_op(e, "shared.sigmoid", MODEL_SIGMOID, NULL, &g, 1, &g, 1, NULL);
        a->gate = flat(g);
    }
    const mlp f = shared_mlp(w, x, a);
    mlp_up(e, &f, &a->mlp);
}

void shared_forward(emit *e, const model_layer *w, tref x, shared_acts *a, tref u) {
    up(e, w, x, a);
    const mlp f = shared_mlp(w, x, a);
    mlp_down(e, &f, &a->mlp, u, 1);
}

void shared_up(emit *e, const model_layer *w, tref x, shared_acts *a) {
    up(e, w, tokens_gather(e, "tp.shared.gather", x), a);
}

tref shared_down(emit *e, const model_layer *w, const shared_acts *a) {
    const mlp f = shared_mlp(w, tref_none(), a);
    tref u = tref_new(e, "shared_out", e->m->act, tokens_total(e), e->m->cfg.hidden, 0);
    mlp_down(e, &f, &a->mlp, u, 0);
    return tokens_sum(e, "tp.shared.reduce_scatter", u);
}

/* ---- backward ---- */
/* x, du, dx [T,h] */
static void back(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, tref dx, int add, int weights) {
    int gated = w->shared_gate >= 0;
    const mlp f = shared_mlp(w, x, a);
    tref dg = gated ? tref_new(e, "d_shared_gate", MOE_F32, x.t.shape[0], 1, 0) : tref_none();
    mlp_backward(e, &f, &a->mlp, du, gated ? flat(dg) : dg, dx, add, weights);
    if (!gated) return;
    tref y = a->gate;
    y.t.ndim = 2;
    tref squash[] = {dg, y}, squashed[] = {dg};
    emit_op_bwd(e, "shared.sigmoid", &a->sigmoid, squash, N_OF(squash), squashed, N_OF(squashed), NULL);
    tref in[] = {dg, x, tref_weight(e, w->shared_gate)}, out[] = {dx, tref_grad(e, w->shared_gate)};
    emit_op_bwd(e, "shared.gate", &a->linear, in, N_OF(in), out, N_OF(out), NULL);
}

void shared_backward(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, tref dx) {
    back(e, w, x, a, du, dx, 1, 1);
}

tref shared_back(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, shared_later *later) {
    later->du = tokens_gather(e, "tp.d_shared.gather", du);
    later->x = tokens_gather(e, "tp.shared.gather", x);
    tref dx = tref_new(e, "d_shared_in", e->m->act, tokens_total(e), e->m->cfg.hidden, 0);
    back(e, w, later->x, a, later->du, dx, 0, 0);
    return tokens_sum(e, "tp.d_shared.reduce_scatter", dx);
}

void shared_weights(emit *e, const model_layer *w, const shared_acts *a, const shared_later *later) {
    const mlp f = shared_mlp(w, later->x, a);
    mlp_weights(e, &f, &a->mlp, later->du);
}
