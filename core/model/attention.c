/* Attention: packed rows [q | k | v] - of one projection, or of latents (latent.c) -, rotary embedding in place,
 * blockwise causal attention, output projection. Over tp it is cut by heads: each rank's are neighbours, so that its
 * query heads read its own key-value heads. */
#include "model/blocks.h"
#include "model/rope.h"

static const moe_attention_attr *attention_attr(emit *e) {
    const model_cfg *c = &e->m->cfg;
    moe_attention_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (attr)
        *attr = (moe_attention_attr){.size = sizeof *attr,
                                     .heads = e->m->local.heads,
                                     .kv_heads = e->m->local.kv_heads,
                                     .head_dim = c->head_dim,
                                     .batch = c->micro,
                                     .seq = c->seq,
                                     .scale = attention_scale(c),
                                     .v_dim = c->v_dim,
                                     .window = model_layer_slides(c, (uint32_t)e->layer) ? c->window : 0,
                                     .rotary_dim = c->rope.dim,
                                     .rotary_first = c->attention == ATTENTION_MLA ? c->head_dim - c->rope.dim : 0,
                                     .interleaved = (uint32_t)c->rope.interleaved,
                                     .amplitude = rope_amplitude(&c->rope)};
    return attr;
}

/* ---- norms of queries and keys ---- */
static op_call head_norm(emit *e, const char *name, int64_t weight, int64_t first, int64_t heads, tref qkv) {
    const model_cfg *c = &e->m->cfg;
    moe_head_norm_attr *attr = graph_alloc(e->g, sizeof *attr);
    int64_t width = c->qk_norm == QK_NORM_FULL ? heads * c->head_dim : c->head_dim;
    if (!attr) return (op_call){0};
    *attr = (moe_head_norm_attr){sizeof *attr, c->norm_eps, first, heads * c->head_dim / width, width};
    tref some = tref_touched(qkv, qkv.t.shape[0] * heads * c->head_dim);
    tref in[] = {some, tref_weight(e, weight)}, out[] = {some};
    return emit_op(e, name, MODEL_HEAD_NORM, attr, in, N_OF(in), out, N_OF(out), NULL);
}

static void head_norm_backward(emit *e, const char *name, int64_t weight, int64_t heads, const op_call *call,
                               tref dqkv) {
    tref some = tref_touched(dqkv, dqkv.t.shape[0] * heads * e->m->cfg.head_dim);
    tref in[] = {some, tref_weight(e, weight)}, out[] = {some, tref_grad(e, weight)};
    emit_op_bwd(e, name, call, in, N_OF(in), out, N_OF(out), NULL);
}

/* ---- x to packed rows, and back ---- */
static void project_forward(emit *e, const model_layer *w, tref x, attention_acts *a) {
    const model_cfg *c = &e->m->cfg;
    if (c->attention == ATTENTION_MLA) {
        latent_forward(e, w, x, a->qkv, &a->latent);
        return;
    }
    emit_linear(e, "qkv", MOE_FPROP, 0, x, tref_weight(e, w->qkv), a->qkv, NULL);
    if (w->qkv_bias >= 0) a->qkv_bias = emit_bias(e, "qkv.bias", w->qkv_bias, a->qkv, tref_none(), NULL);
    if (w->q_norm < 0) return;
    const model_local *own = &e->m->local;
    a->q_norm = head_norm(e, "q_norm", w->q_norm, 0, own->heads, a->qkv);
    a->k_norm = head_norm(e, "k_norm", w->k_norm, (int64_t)own->heads * c->head_dim, own->kv_heads, a->qkv);
}

static void project_backward(emit *e, const model_layer *w, tref x, const attention_acts *a, tref dqkv, tref dx) {
    if (e->m->cfg.attention == ATTENTION_MLA) {
        latent_backward(e, w, x, &a->latent, dqkv, dx);
        return;
    }
    if (w->q_norm >= 0) {
        head_norm_backward(e, "k_norm", w->k_norm, e->m->local.kv_heads, &a->k_norm, dqkv);
        head_norm_backward(e, "q_norm", w->q_norm, e->m->local.heads, &a->q_norm, dqkv);
    }
    if (w->qkv_bias >= 0) emit_bias_bwd(e, "qkv.bias", w->qkv_bias, &a->qkv_bias, dqkv, tref_none(), tref_none(), NULL);
    emit_linear(e, "qkv.dgrad", MOE_DGRAD, 0, dqkv, tref_weight(e, w->qkv), dx, NULL);
    emit_wgrad(e, "qkv.wgrad", w->qkv, dqkv, x, NULL);
}

/* ---- the block ---- */
/* Row of packed queries, keys and values of this rank's heads. */
static int64_t qkv_width(const model *m) {
    int64_t q = m->local.heads, kv = m->local.kv_heads;
    return (q + kv) * m->cfg.head_dim + kv * m->cfg.v_dim;
}

/* Packed rows as the rotary embedding sees them: the elements that turn. */
static tref turning(const emit *e, tref qkv) {
    const model_local *own = &e->m->local;
    return tref_touched(qkv, qkv.t.shape[0] * (int64_t)(own->heads + own->kv_heads) * e->m->cfg.rope.dim);
}

tref attention_forward(emit *e, const model_layer *w, tref x, attention_acts *a) {
    const model *m = e->m;
    int64_t T = tokens_total(e), inner = m->params.at[w->out].shape[1];
    const moe_attention_attr *attr = attention_attr(e);
    x = tokens_gather(e, "tp.attention.gather", x);
    *a = (attention_acts){.qkv = tref_new(e, "qkv", m->act, T, qkv_width(m), 0),
                          .o = tref_new(e, "attention", m->act, T, inner, 0)};
    tref u = tref_new(e, "attention_out", m->act, T, m->cfg.hidden, 0);
    project_forward(e, w, x, a);
    tref turn[] = {turning(e, a->qkv), e->positions, e->inv_freq}, turned[] = {turning(e, a->qkv)};
    a->rope = emit_op(e, "rope", MODEL_ROPE, attr, turn, N_OF(turn), turned, N_OF(turned), NULL);
    tref in[] = {a->qkv, w->sinks >= 0 ? tref_weight(e, w->sinks) : tref_none(), e->docs}, out[] = {a->o};
    a->attention = emit_op(e, "attention", MODEL_ATTENTION, attr, in, N_OF(in), out, N_OF(out), NULL);
    emit_linear(e, "out", MOE_FPROP, 0, a->o, tref_weight(e, w->out), u, NULL);
    u = tokens_sum(e, "tp.attention.reduce_scatter", u);
    if (w->out_bias >= 0) a->out_bias = emit_bias(e, "out.bias", w->out_bias, u, tref_none(), NULL);
    return u;
}

/* All tokens of x are gathered again rather than kept from forward, as in dense_backward. */
tref attention_backward(emit *e, const model_layer *w, tref x, const attention_acts *a, tref du) {
    const model *m = e->m;
    int64_t T = tokens_total(e);
    int sinks = w->sinks >= 0;
    tref d_o = tref_new(e, "d_attention", m->act, T, a->o.t.shape[1], 0);
    tref dqkv = tref_new(e, "d_qkv", m->act, T, a->qkv.t.shape[1], 0);
    tref dx = tref_new(e, "d_norm1", m->act, T, m->cfg.hidden, 0);
    if (w->out_bias >= 0) emit_bias_bwd(e, "out.bias", w->out_bias, &a->out_bias, du, tref_none(), tref_none(), NULL);
    du = tokens_gather(e, "tp.d_attention.gather", du);
    x = tokens_gather(e, "tp.attention.gather", x);
    emit_linear(e, "out.dgrad", MOE_DGRAD, 0, du, tref_weight(e, w->out), d_o, NULL);
    emit_wgrad(e, "out.wgrad", w->out, du, a->o, NULL);
    tref in[] = {d_o, a->qkv, a->o, sinks ? tref_weight(e, w->sinks) : tref_none(), e->docs};
    tref out[] = {dqkv, sinks ? tref_grad(e, w->sinks) : tref_none()};
    emit_op_bwd(e, "attention", &a->attention, in, N_OF(in), out, N_OF(out), NULL);
    tref turn[] = {turning(e, dqkv), e->positions, e->inv_freq}, turned[] = {turning(e, dqkv)};
    emit_op_bwd(e, "rope", &a->rope, turn, N_OF(turn), turned, N_OF(turned), NULL);
    project_backward(e, w, x, a, dqkv, dx);
    return tokens_sum(e, "tp.d_attention.reduce_scatter", dx);
}
