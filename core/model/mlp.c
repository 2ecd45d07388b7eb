/* Gated MLP over all tokens: the dense layers' and the shared experts'. Over tp, W1 is cut by its rows (of gate and of
 * up) and W2 by its columns, so that one sum over the ranks is enough (Shoeybi et al., arXiv 1909.08053, section 3). */
#include "model/blocks.h"

const void *mlp_activation(emit *e) {
    const model_cfg *c = &e->m->cfg;
    if (c->activation == ACTIVATION_SWIGLU) return NULL;
    moe_swiglu_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (attr) *attr = (moe_swiglu_attr){sizeof *attr, c->activation_alpha, c->activation_limit};
    return attr;
}

void mlp_up(emit *e, const mlp *f, mlp_acts *a) {
    const model *m = e->m;
    int64_t T = f->x.t.shape[0], width = m->params.at[f->w2].shape[1];
    a->z = tref_new(e, "mlp_z", m->act, T, 2 * width, 0);
    a->act = tref_new(e, "mlp_act", m->act, T, width, 0);
    emit_linear(e, f->names->w1, MOE_FPROP, 0, f->x, tref_weight(e, f->w1), a->z, NULL);
    tref in[] = {a->z, f->p}, out[] = {a->act};
    a->swiglu = emit_op(e, f->names->act, MODEL_SWIGLU_PROB, mlp_activation(e), in, N_OF(in), out, N_OF(out), NULL);
}

void mlp_down(emit *e, const mlp *f, const mlp_acts *a, tref into, int add) {
    emit_linear(e, f->names->w2, MOE_FPROP, add, a->act, tref_weight(e, f->w2), into, NULL);
}

void mlp_backward(emit *e, const mlp *f, const mlp_acts *a, tref du, tref dp, tref into, int add, int weights) {
    tref dact = tref_new(e, "d_mlp_act", e->m->act, a->act.t.shape[0], a->act.t.shape[1], 0);
    emit_linear(e, f->names->w2_dgrad, MOE_DGRAD, 0, du, tref_weight(e, f->w2), dact, NULL);
    if (weights) emit_wgrad(e, f->names->w2_wgrad, f->w2, du, a->act, NULL);
    tref in[] = {dact, a->z, f->p}, out[] = {a->z, dp}; /* dz takes the place of z */
    emit_op_bwd(e, f->names->act, &a->swiglu, in, N_OF(in), out, N_OF(out), NULL);
    emit_linear(e, f->names->w1_dgrad, MOE_DGRAD, add, a->z, tref_weight(e, f->w1), into, NULL);
    if (weights) emit_wgrad(e, f->names->w1_wgrad, f->w1, a->z, f->x, NULL);
}

void mlp_weights(emit *e, const mlp *f, const mlp_acts *a, tref du) {
    emit_wgrad(e, f->names->w2_wgrad, f->w2, du, a->act, NULL);
    emit_wgrad(e, f->names->w1_wgrad, f->w1, a->z, f->x, NULL);
}

/* ---- of a dense layer ---- */
static const mlp_names dense_names = MLP_NAMES("mlp");

tref dense_forward(emit *e, const model_layer *w, tref x, mlp_acts *a) {
    const mlp f = {&dense_names, w->mlp_w1, w->mlp_w2, tokens_gather(e, "tp.mlp.gather", x), tref_none()};
    tref u = tref_new(e, "mlp_out", e->m->act, f.x.t.shape[0], e->m->cfg.hidden, 0);
    mlp_up(e, &f, a);
    mlp_down(e, &f, a, u, 0);
    return tokens_sum(e, "tp.mlp.reduce_scatter", u);
}

/* All tokens of x are gathered again rather than kept from forward: T * h elements a layer are worth more than a
 * collective call that runs beside the products. */
tref dense_backward(emit *e, const model_layer *w, tref x, const mlp_acts *a, tref du) {
    du = tokens_gather(e, "tp.d_mlp.gather", du);
    const mlp f = {&dense_names, w->mlp_w1, w->mlp_w2, tokens_gather(e, "tp.mlp.gather", x), tref_none()};
    tref dx = tref_new(e, "d_norm2", e->m->act, f.x.t.shape[0], e->m->cfg.hidden, 0);
    mlp_backward(e, &f, a, du, tref_none(), dx, 0, 1);
    return tokens_sum(e, "tp.d_mlp.reduce_scatter", dx);
}
