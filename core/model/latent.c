/* Multi-head latent attention up to packed rows: queries, keys and values come from low-rank latents, and all heads
 * share the rotary part of their keys. */
#include "model/blocks.h"

static const float latent_norm_eps = 1e-6f; /* of the latents' norms, whatever the model's other norms have */

static tref project(emit *e, const char *name, int64_t weight, tref x) {
    tref y = tref_new(e, name, e->m->act, x.t.shape[0], e->m->params.at[weight].shape[0], 0);
    emit_linear(e, name, MOE_FPROP, 0, x, tref_weight(e, weight), y, NULL);
    return y;
}

void latent_forward(emit *e, const model_layer *w, tref x, tref qkv, latent_acts *a) {
    const model_cfg *c = &e->m->cfg;
    moe_mla_pack_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (!attr) return;
    *attr = (moe_mla_pack_attr){.size = sizeof *attr,
                                .heads = c->heads,
                                .nope = c->head_dim - c->rope.dim,
                                .rope = c->rope.dim,
                                .v_dim = c->v_dim};
    a->q_in = x;
    if (w->q_down >= 0) {
        a->q = norm_forward(e, "q_down_norm", w->q_down_norm, latent_norm_eps, project(e, "q_down", w->q_down, x),
                            tref_none());
        a->q_in = a->q.y;
    }
    a->kv = norm_forward(e, "kv_down_norm", w->kv_down_norm, latent_norm_eps, project(e, "kv_down", w->kv_down, x),
                         tref_none());
    tref in[] = {project(e, "q_up", w->q_up, a->q_in), project(e, "kv_up", w->kv_up, a->kv.y),
                 project(e, "k_rope", w->k_rope, x)};
    a->pack = emit_op(e, "mla_pack", MODEL_MLA_PACK, attr, in, N_OF(in), &qkv, 1, NULL);
}

/* dx (+)= dy W and W's gradient. */
static void project_backward(emit *e, const char *name, int64_t weight, tref dy, tref x, tref dx, int add) {
    emit_linear(e, name, MOE_DGRAD, add, dy, tref_weight(e, weight), dx, NULL);
    emit_wgrad(e, name, weight, dy, x, NULL);
}

/* Through the product behind the norm, the norm, and the product before it. */
static void latent_path(emit *e, const char *const *names, const int64_t *weights, tref dy, tref x, const norm_acts *n,
                        tref dx, int add) {
    tref d = tref_new(e, names[1], e->m->act, x.t.shape[0], n->y.t.shape[1], 0);
    tref d_latent = tref_new(e, names[2], e->m->act, x.t.shape[0], n->y.t.shape[1], 0);
    project_backward(e, names[0], weights[0], dy, n->y, d, 0);
    norm_backward(e, names[1], weights[1], n, d, d_latent, 0);
    project_backward(e, names[2], weights[2], d_latent, x, dx, add);
}

void latent_backward(emit *e, const model_layer *w, tref x, const latent_acts *a, tref dqkv, tref dx) {
    static const char *const q_names[] = {"q_up", "q_down_norm", "q_down"};
    static const char *const kv_names[] = {"kv_up", "kv_down_norm", "kv_down"};
    const params *p = &e->m->params;
    int32_t act = e->m->act;
    int64_t T = x.t.shape[0];
    tref d[] = {tref_new(e, "d_queries", act, T, p->at[w->q_up].shape[0], 0),
                tref_new(e, "d_keys_values", act, T, p->at[w->kv_up].shape[0], 0),
                tref_new(e, "d_k_rope", act, T, p->at[w->k_rope].shape[0], 0)};
    emit_op_bwd(e, "mla_pack", &a->pack, &dqkv, 1, d, N_OF(d), NULL);
    latent_path(e, kv_names, (const int64_t[]){w->kv_up, w->kv_down_norm, w->kv_down}, d[1], x, &a->kv, dx, 0);
    project_backward(e, "k_rope", w->k_rope, d[2], x, dx, 1);
    if (w->q_down >= 0)
        latent_path(e, q_names, (const int64_t[]){w->q_up, w->q_down_norm, w->q_down}, d[0], x, &a->q, dx, 1);
    else
        project_backward(e, "q_up", w->q_up, d[0], x, dx, 1);
}
