/* Shared experts: every token's. The gate (Qwen2-MoE) is applied inside the MLP, as a row's probability is inside an
 * expert, so nothing of size [T,h] is scaled. */
#include "model/blocks.h"

/* [T,1] as [T]. */
static tref flat(tref t) {
    t.t.ndim = 1;
    return t;
}

void shared_forward(emit *e, const model_layer *w, tref x, shared_acts *a, tref u) {
    a->gate = tref_none();
    if (w->shared_gate >= 0) {
        tref g = tref_new(e, "shared_gate", MOE_F32, x.t.shape[0], 1, 0);
        tref in[] = {x, tref_weight(e, w->shared_gate)}, out[] = {g};
        a->linear = emit_op(e, "shared.gate", MODEL_ROUTER_LINEAR, NULL, in, N_OF(in), out, N_OF(out), NULL);
        a->sigmoid = emit_op(e, "shared.sigmoid", MODEL_SIGMOID, NULL, &g, 1, &g, 1, NULL);
        a->gate = flat(g);
    }
    mlp_forward(e, &mlp_shared_names, w->shared_w1, w->shared_w2, x, a->gate, &a->mlp, u, 1);
}

void shared_backward(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, tref dx) {
    int gated = w->shared_gate >= 0;
    tref dg = gated ? tref_new(e, "d_shared_gate", MOE_F32, x.t.shape[0], 1, 0) : tref_none();
    mlp_backward(e, &mlp_shared_names, w->shared_w1, w->shared_w2, x, a->gate, &a->mlp, du, gated ? flat(dg) : dg, dx,
                 1);
    if (!gated) return;
    tref y = a->gate;
    y.t.ndim = 2;
    tref squash[] = {dg, y}, squashed[] = {dg};
    emit_op_bwd(e, "shared.sigmoid", &a->sigmoid, squash, N_OF(squash), squashed, N_OF(squashed), NULL);
    tref in[] = {dg, x, tref_weight(e, w->shared_gate)}, out[] = {dx, tref_grad(e, w->shared_gate)};
    emit_op_bwd(e, "shared.gate", &a->linear, in, N_OF(in), out, N_OF(out), NULL);
}
