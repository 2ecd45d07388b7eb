/* Grouped-query attention: one projection to packed [q | k | v], rotary embedding in place, blockwise causal
 * attention, output projection. */
#include <math.h>

#include "model/blocks.h"

static const moe_attention_attr *attention_attr(emit *e) {
    const model_cfg *c = &e->m->cfg;
    moe_attention_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (attr)
        *attr = (moe_attention_attr){.size = sizeof *attr,
                                     .heads = c->heads,
                                     .kv_heads = c->kv_heads,
                                     .head_dim = c->head_dim,
                                     .batch = c->micro,
                                     .seq = c->seq,
                                     .scale = 1 / sqrtf((float)c->head_dim),
                                     .rotary_dim = c->head_dim};
    return attr;
}

tref attention_forward(emit *e, const model_layer *w, tref x, attention_acts *a) {
    const model *m = e->m;
    int64_t T = x.t.shape[0], inner = (int64_t)m->cfg.heads * m->cfg.head_dim;
    const moe_attention_attr *attr = attention_attr(e);
    a->qkv = tref_new(e, "qkv", m->act, T, model_qkv_width(&m->cfg), 0);
    a->o = tref_new(e, "attention", m->act, T, inner, 0);
    tref u = tref_new(e, "attention_out", m->act, T, m->cfg.hidden, 0);
    emit_linear(e, "qkv", MOE_FPROP, 0, x, tref_weight(e, w->qkv), a->qkv, NULL);
    tref turn[] = {a->qkv, e->positions, e->inv_freq}, turned[] = {a->qkv};
    a->rope = emit_op(e, "rope", MODEL_ROPE, attr, turn, N_OF(turn), turned, N_OF(turned), NULL);
    tref in[] = {a->qkv}, out[] = {a->o};
    a->attention = emit_op(e, "attention", MODEL_ATTENTION, attr, in, N_OF(in), out, N_OF(out), NULL);
    emit_linear(e, "out", MOE_FPROP, 0, a->o, tref_weight(e, w->out), u, NULL);
    return u;
}

tref attention_backward(emit *e, const model_layer *w, tref x, const attention_acts *a, tref du) {
    const model *m = e->m;
    int64_t T = x.t.shape[0];
    tref d_o = tref_new(e, "d_attention", m->act, T, a->o.t.shape[1], 0);
    tref dqkv = tref_new(e, "d_qkv", m->act, T, a->qkv.t.shape[1], 0);
    tref dx = tref_new(e, "d_norm1", m->act, T, m->cfg.hidden, 0);
    emit_linear(e, "out.dgrad", MOE_DGRAD, 0, du, tref_weight(e, w->out), d_o, NULL);
    emit_wgrad(e, "out.wgrad", w->out, du, a->o, NULL);
    tref in[] = {d_o, a->qkv, a->o}, out[] = {dqkv};
    emit_op_bwd(e, "attention", &a->attention, in, N_OF(in), out, N_OF(out), NULL);
    tref turn[] = {dqkv, e->positions, e->inv_freq}, turned[] = {dqkv};
    emit_op_bwd(e, "rope", &a->rope, turn, N_OF(turn), turned, N_OF(turned), NULL);
    emit_linear(e, "qkv.dgrad", MOE_DGRAD, 0, dqkv, tref_weight(e, w->qkv), dx, NULL);
    emit_wgrad(e, "qkv.wgrad", w->qkv, dqkv, x, NULL);
    return dx;
}
