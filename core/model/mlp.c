/* Gated MLP over all tokens: the dense layers' and the shared experts'. */
#include "model/blocks.h"

const mlp_names mlp_dense_names = MLP_NAMES("mlp"), mlp_shared_names = MLP_NAMES("shared");

const void *mlp_activation(emit *e) {
    const model_cfg *c = &e->m->cfg;
    if (c->activation == ACTIVATION_SWIGLU) return NULL;
    moe_swiglu_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (attr) *attr = (moe_swiglu_attr){sizeof *attr, c->activation_alpha, c->activation_limit};
    return attr;
}

void mlp_forward(emit *e, const mlp_names *names, int64_t w1, int64_t w2, tref x, tref p, mlp_acts *a, tref into,
                 int add) {
    const model *m = e->m;
    int64_t T = x.t.shape[0], f = m->params.at[w2].shape[1];
    a->z = tref_new(e, "mlp_z", m->act, T, 2 * f, 0);
    a->act = tref_new(e, "mlp_act", m->act, T, f, 0);
    emit_linear(e, names->w1, MOE_FPROP, 0, x, tref_weight(e, w1), a->z, NULL);
    tref in[] = {a->z, p}, out[] = {a->act};
    a->swiglu = emit_op(e, names->act, MODEL_SWIGLU_PROB, mlp_activation(e), in, N_OF(in), out, N_OF(out), NULL);
    emit_linear(e, names->w2, MOE_FPROP, add, a->act, tref_weight(e, w2), into, NULL);
}

void mlp_backward(emit *e, const mlp_names *names, int64_t w1, int64_t w2, tref x, tref p, const mlp_acts *a, tref du,
                  tref dp, tref into, int add) {
    tref dact = tref_new(e, "d_mlp_act", e->m->act, a->act.t.shape[0], a->act.t.shape[1], 0);
    emit_linear(e, names->w2_dgrad, MOE_DGRAD, 0, du, tref_weight(e, w2), dact, NULL);
    emit_wgrad(e, names->w2_wgrad, w2, du, a->act, NULL);
    tref in[] = {dact, a->z, p}, out[] = {a->z, dp}; /* dz takes the place of z */
    emit_op_bwd(e, names->act, &a->swiglu, in, N_OF(in), out, N_OF(out), NULL);
    emit_linear(e, names->w1_dgrad, MOE_DGRAD, add, a->z, tref_weight(e, w1), into, NULL);
    emit_wgrad(e, names->w1_wgrad, w1, a->z, x, NULL);
}
