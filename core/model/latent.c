/* Multi-head latent attention up to packed rows: queries, keys and values come from low-rank latents, and all heads
 * share the rotary part of their keys. Over tp the projections up from the latents are cut by heads; the latents are
 * made on every rank, and their gradients are partial. */
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
                                .heads = e->m->local.heads,
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

/* Names of a projection's two backward nodes. */
typedef struct grad_names {
    const char *dgrad, *wgrad;
} grad_names;

/* dx (+)= dy W and W's gradient. */
static void project_gradients(emit *e, grad_names names, int64_t weight, tref dy, tref x, tref dx, int add) {
    emit_linear(e, names.dgrad, MOE_DGRAD, add, dy, tref_weight(e, weight), dx, NULL);
    emit_wgrad(e, names.wgrad, weight, dy, x, NULL);
}

/* One of the two ways down to a latent and up again: x -> down -> norm -> up. */
typedef struct latent_path {
    int64_t down, norm, up; /* parameters */
    const norm_acts *acts;
    grad_names down_names, up_names;
    const char *norm_name;
} latent_path;

static void path_backward(emit *e, const latent_path *p, tref dy, tref x, tref dx, int add) {
    int64_t T = x.t.shape[0], rank = p->acts->y.t.shape[1];
    tref d_normed = tref_new(e, "d_normed_latent", e->m->act, T, rank, 0);
    tref d_latent = tref_new(e, "d_latent", e->m->act, T, rank, 0);
    project_gradients(e, p->up_names, p->up, dy, p->acts->y, d_normed, 0);
    norm_backward(e, p->norm_name, p->norm, p->acts, d_normed, d_latent, 0);
    project_gradients(e, p->down_names, p->down, d_latent, x, dx, add);
}

void latent_backward(emit *e, const model_layer *w, tref x, const latent_acts *a, tref dqkv, tref dx) {
    static const grad_names q_up = {"q_up.dgrad", "q_up.wgrad"}, q_down = {"q_down.dgrad", "q_down.wgrad"};
    static const grad_names kv_up = {"kv_up.dgrad", "kv_up.wgrad"}, kv_down = {"kv_down.dgrad", "kv_down.wgrad"};
    static const grad_names k_rope = {"k_rope.dgrad", "k_rope.wgrad"};
    const latent_path q = {w->q_down, w->q_down_norm, w->q_up, &a->q, q_down, q_up, "q_down_norm"};
    const latent_path kv = {w->kv_down, w->kv_down_norm, w->kv_up, &a->kv, kv_down, kv_up, "kv_down_norm"};
    const params *p = &e->m->params;
    int32_t act = e->m->act;
    int64_t T = x.t.shape[0];
    tref d[] = {tref_new(e, "d_queries", act, T, p->at[w->q_up].shape[0], 0),
                tref_new(e, "d_keys_values", act, T, p->at[w->kv_up].shape[0], 0),
                tref_new(e, "d_k_rope", act, T, p->at[w->k_rope].shape[0], 0)};
    emit_op_bwd(e, "mla_pack", &a->pack, &dqkv, 1, d, N_OF(d), NULL);
    path_backward(e, &kv, d[1], x, dx, 0);
    project_gradients(e, k_rope, w->k_rope, d[2], x, dx, 1);
    if (w->q_down >= 0)
        path_backward(e, &q, d[0], x, dx, 1);
    else
        project_gradients(e, q_up, w->q_up, d[0], x, dx, 1);
}
