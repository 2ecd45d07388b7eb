/* One microbatch through all layers, and back. */
#include "model/blocks.h"

typedef struct layer_acts {
    norm_acts norm1, norm2;
    attention_acts attention;
    mlp_acts mlp;
    moe_acts moe;
} layer_acts;

static tref layer_forward(emit *e, const model_layer *w, layer_acts *a, tref *r, tref u) {
    const model *m = e->m;
    a->norm1 = norm_forward(e, "norm1", w->norm1, m->cfg.norm_eps, *r, u);
    u = attention_forward(e, w, a->norm1.y, &a->attention);
    a->norm2 = norm_forward(e, "norm2", w->norm2, m->cfg.norm_eps, a->norm1.sum, u);
    *r = a->norm2.sum;
    if (model_layer_is_moe(&m->cfg, (uint32_t)e->layer)) return moe_forward(e, w, a->norm2.y, &a->moe);
    return dense_forward(e, w, a->norm2.y, &a->mlp);
}

static void layer_backward(emit *e, const model_layer *w, const layer_acts *a, tref d) {
    const model *m = e->m;
    tref dx;
    if (model_layer_is_moe(&m->cfg, (uint32_t)e->layer))
        dx = moe_backward(e, w, a->norm2.y, &a->moe, d);
    else
        dx = dense_backward(e, w, a->norm2.y, &a->mlp, d);
    norm_backward(e, "norm2", w->norm2, &a->norm2, dx, d, 1);
    dx = attention_backward(e, w, a->norm1.y, &a->attention, d);
    norm_backward(e, "norm1", w->norm1, &a->norm1, dx, d, 1);
}

struct microbatch_acts {
    batch_refs batch;
    op_call embed;
    norm_acts last;
    tref dy; /* gradient of the last norm's output, from the head */
    layer_acts layers[];
};

/* Up to and with the last norm; acts [layers] NULL where nothing is kept. */
static norm_acts body_forward(emit *e, const batch_refs *batch, op_call *embed, layer_acts *acts) {
    const model *m = e->m;
    layer_acts scratch;
    e->phase = MOE_SCHED_FORWARD;
    e->layer = -1;
    e->docs = batch->docs;
    e->mask = batch->mask;
    tref r = embed_forward(e, batch->ids, embed), u = tref_none();
    for (uint32_t l = 0; l < m->cfg.layers && !e->g->status; l++) {
        e->layer = (int32_t)l;
        u = layer_forward(e, &m->layers[l], acts ? &acts[l] : &scratch, &r, u);
    }
    e->layer = -1;
    return norm_forward(e, "final_norm", m->final_norm, m->cfg.norm_eps, r, u);
}

microbatch_acts *emit_microbatch_forward(emit *e, const batch_refs *batch) {
    microbatch_acts *a = graph_alloc(e->g, sizeof *a + e->m->cfg.layers * sizeof a->layers[0]);
    if (!a) return NULL;
    a->batch = *batch;
    a->last = body_forward(e, batch, &a->embed, a->layers);
    a->dy = head_loss(e, a->last.y, batch->targets);
    return a;
}

void emit_microbatch_backward(emit *e, const microbatch_acts *a) {
    const model *m = e->m;
    if (!a) return;
    e->phase = MOE_SCHED_BACKWARD;
    e->docs = a->batch.docs;
    e->mask = a->batch.mask;
    tref d = tref_new(e, "d_residual", m->act, m->local.tokens, m->cfg.hidden, 0);
    norm_backward(e, "final_norm", m->final_norm, &a->last, a->dy, d, 0);
    for (uint32_t l = m->cfg.layers; l-- > 0 && !e->g->status;) {
        e->layer = (int32_t)l;
        layer_backward(e, &m->layers[l], &a->layers[l], d);
    }
    e->layer = -1;
    embed_backward(e, a->batch.ids, &a->embed, d);
}

void emit_microbatch_eval(emit *e, const batch_refs *batch) {
    op_call embed;
    norm_acts last = body_forward(e, batch, &embed, NULL);
    head_loss(e, last.y, batch->targets);
}

void emit_microbatch_logits(emit *e, const batch_refs *batch, tref logits_out) {
    op_call embed;
    norm_acts last = body_forward(e, batch, &embed, NULL);
    head_logits(e, last.y, logits_out);
}
