/* The table of a model's parameters: names, whole shapes, which part of them a rank has, initial values. */
#include <math.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

typedef struct table_builder {
    model *m;
    moe_status status;
    moe_err *err;
} table_builder;

static void append(table_builder *b, const param *p) {
    int64_t id = b->status ? 0 : params_add(&b->m->params, p);
    if (id == -2)
        b->status = moe_fail(b->err, MOE_E_ARG, "%s and the parameters before it are more than 2^56 numbers", p->name);
    else if (id < 0)
        b->status = moe_fail(b->err, MOE_E_NOMEM, "out of memory for the table of parameters");
}

/* Which part of a tensor a rank has, and with whom it sums gradients. */
typedef struct share {
    param_reduce over;
    int32_t idle; /* param.idle */
    param_cut cut[PARAM_CUTS];
} share;

/* All of it, on every rank of a pipeline stage. */
static share replicated(void) {
    return (share){.over = PARAM_OVER_STAGE};
}

/* A dimension in equal parts over tp: sections of it, of which further ones may be 0. */
static share over_tp(const table_builder *b, int32_t dim, int64_t s0, int64_t s1, int64_t s2) {
    const model_split *s = &b->m->split;
    return (share){.over = PARAM_OVER_DP_CP, .cut = {{dim, 1 + (s1 > 0) + (s2 > 0), s->tp, s->tp_rank, {s0, s1, s2}}}};
}

/* Stacked experts over ep. */
static share over_ep(const table_builder *b) {
    const model_split *s = &b->m->split;
    return (share){.over = PARAM_OVER_EDP, .cut = {{0, 1, s->ep, s->ep_rank, {b->m->cfg.experts}}}};
}

/* And their width over etp, in `sections` of expert_ffn each. */
static share over_ep_etp(const table_builder *b, int32_t dim, int32_t sections) {
    const model_split *s = &b->m->split;
    int64_t f = b->m->cfg.expert_ffn;
    share out = over_ep(b);
    out.cut[1] = (param_cut){dim, sections, s->etp, s->etp_rank, {f, sections > 1 ? f : 0}};
    return out;
}

/* What a parameter is beside its name; d0, d1: of the whole tensor, d1 0 = one dimension. */
typedef struct entry {
    param_class kind;
    share at;
    float std, fill;
    int64_t experts; /* > 0: before the other dimensions */
    int64_t d0, d1;
} entry;

static void add(table_builder *b, const entry *e, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void add(table_builder *b, const entry *e, const char *format, ...) {
    param p = {.kind = e->kind, .over = e->at.over, .std = e->std, .fill = e->fill, .experts = e->experts};
    memcpy(p.cut, e->at.cut, sizeof p.cut);
    p.idle = e->at.idle;
    va_list ap;
    va_start(ap, format);
    vsnprintf(p.name, sizeof p.name, format, ap);
    va_end(ap);
    if (e->experts) p.whole[p.ndim++] = e->experts;
    p.whole[p.ndim++] = e->d0;
    if (e->d1) p.whole[p.ndim++] = e->d1;
    append(b, &p);
}

static void add_router_params(table_builder *b, uint32_t l) {
    const model_router *r = &b->m->routers[l];
    for (uint32_t i = 0; i < r->needs.n_params; i++) {
        const moe_param_spec *s = &r->needs.params[i];
        param p = {.kind = s->ndim > 1 ? PARAM_MATRIX : PARAM_VECTOR, .ndim = s->ndim, .over = PARAM_OVER_STAGE};
        needs_parse_init(s->init, &p.std, &p.fill);
        memcpy(p.shape, s->shape, sizeof p.shape);
        snprintf(p.name, sizeof p.name, "layers.%u.router.%s", l, s->name);
        append(b, &p);
    }
}

/* Output projections start smaller by 1/sqrt(2 L), so that the residual stream keeps its scale (Radford et al. 2019).
 */
static float out_std(const model_cfg *c) {
    return c->init_std / sqrtf(2 * (float)c->layers);
}

static void add_matrix(table_builder *b, uint32_t l, const char *name, share at, int64_t rows, int64_t columns,
                       float std) {
    add(b, &(entry){PARAM_LINEAR, at, std, 0, 0, rows, columns}, "layers.%u.%s", l, name);
}

static void add_vector(table_builder *b, uint32_t l, const char *name, share at, int64_t n, float fill) {
    add(b, &(entry){PARAM_VECTOR, at, 0, fill, 0, n, 0}, "layers.%u.%s", l, name);
}

static void add_grouped(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t d = c->head_dim, full = c->qk_norm == QK_NORM_FULL, kv = c->kv_heads;
    share qkv = over_tp(b, 0, c->heads * d, kv * d, kv * c->v_dim);
    add_matrix(b, l, "attention.qkv", qkv, model_qkv_width(c), c->hidden, c->init_std);
    if (c->qkv_bias) add_vector(b, l, "attention.qkv_bias", qkv, model_qkv_width(c), 0);
    if (!c->qk_norm) return;
    add_vector(b, l, "attention.q_norm", replicated(), full ? (int64_t)c->heads * d : d, 1);
    add_vector(b, l, "attention.k_norm", replicated(), full ? kv * d : d, 1);
}

static void add_latent(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->heads * (c->head_dim - c->rope.dim + c->v_dim);
    if (c->q_lora) {
        add_matrix(b, l, "attention.q_down", replicated(), c->q_lora, c->hidden, c->init_std);
        add_vector(b, l, "attention.q_down_norm", replicated(), c->q_lora, 1);
    }
    add_matrix(b, l, "attention.q_up", over_tp(b, 0, q, 0, 0), q, c->q_lora ? c->q_lora : c->hidden, c->init_std);
    add_matrix(b, l, "attention.kv_down", replicated(), c->kv_lora, c->hidden, c->init_std);
    add_vector(b, l, "attention.kv_down_norm", replicated(), c->kv_lora, 1);
    add_matrix(b, l, "attention.k_rope", replicated(), c->rope.dim, c->hidden, c->init_std);
    add_matrix(b, l, "attention.kv_up", over_tp(b, 0, kv, 0, 0), kv, c->kv_lora, c->init_std);
}

static void add_attention(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t width = (int64_t)c->heads * c->v_dim;
    if (c->attention == ATTENTION_MLA)
        add_latent(b, l);
    else
        add_grouped(b, l);
    if (c->sinks) add_vector(b, l, "attention.sinks", over_tp(b, 0, c->heads, 0, 0), c->heads, 0);
    add_matrix(b, l, "attention.out", over_tp(b, 1, width, 0, 0), c->hidden, width, out_std(c));
    if (c->out_bias) add_vector(b, l, "attention.out_bias", replicated(), c->hidden, 0);
}

/* Rows gate | up, and the product behind them. */
static void add_mlp(table_builder *b, uint32_t l, const char *w1, const char *w2, int64_t width) {
    const model_cfg *c = &b->m->cfg;
    add_matrix(b, l, w1, over_tp(b, 0, width, width, 0), 2 * width, c->hidden, c->init_std);
    add_matrix(b, l, w2, over_tp(b, 1, width, 0, 0), c->hidden, width, out_std(c));
}

static void add_experts(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t h = c->hidden, E = c->experts, f = c->expert_ffn;
    add(b, &(entry){PARAM_MATRIX, replicated(), c->init_std, 0, 0, E, h}, "layers.%u.router.weight", l);
    if (c->router_bias) add_vector(b, l, "router.logit_bias", replicated(), E, 0);
    add_router_params(b, l);
    add(b, &(entry){PARAM_LINEAR, over_ep_etp(b, 1, 2), c->init_std, 0, E, 2 * f, h}, "layers.%u.experts.w1", l);
    add(b, &(entry){PARAM_LINEAR, over_ep_etp(b, 2, 1), out_std(c), 0, E, h, f}, "layers.%u.experts.w2", l);
    if (c->expert_biases) {
        share b2 = over_ep(b);
        b2.idle = b->m->split.etp_rank > 0;
        add(b, &(entry){PARAM_VECTOR, over_ep_etp(b, 1, 2), 0, 0, E, 2 * f, 0}, "layers.%u.experts.b1", l);
        add(b, &(entry){PARAM_VECTOR, b2, 0, 0, E, h, 0}, "layers.%u.experts.b2", l);
    }
    if (!c->shared_ffn) return;
    add_mlp(b, l, "shared.w1", "shared.w2", c->shared_ffn);
    if (c->shared_gate)
        add(b, &(entry){PARAM_MATRIX, replicated(), c->init_std, 0, 0, 1, h}, "layers.%u.shared.gate", l);
}

static void add_layer(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    add_vector(b, l, "norm1", replicated(), c->hidden, 1);
    add_attention(b, l);
    add_vector(b, l, "norm2", replicated(), c->hidden, 1);
    if (model_layer_is_moe(c, l))
        add_experts(b, l);
    else
        add_mlp(b, l, "mlp.w1", "mlp.w2", c->dense_ffn);
}

static int64_t find(const model *m, uint32_t layer, const char *name) {
    char full[112];
    snprintf(full, sizeof full, "layers.%u.%s", layer, name);
    return params_find(&m->params, full);
}

static void find_layer(model *m, uint32_t l) {
#define FIND(field, name) m->layers[l].field = find(m, l, name);
    MODEL_LAYER_PARAMS(FIND)
#undef FIND
    for (uint32_t i = 0; i < m->routers[l].needs.n_params; i++) {
        char name[88];
        snprintf(name, sizeof name, "router.%s", m->routers[l].needs.params[i].name);
        m->routers[l].params[i] = (uint32_t)find(m, l, name);
    }
}

moe_status model_build_table(model *m, moe_err *err) {
    const model_cfg *c = &m->cfg;
    table_builder b = {.m = m, .err = err};
    const entry vocabulary = {PARAM_LINEAR, over_tp(&b, 0, c->vocab, 0, 0), c->init_std, 0, 0, c->vocab, c->hidden};
    add(&b, &vocabulary, "embed");
    for (uint32_t l = 0; l < c->layers; l++) add_layer(&b, l);
    add(&b, &(entry){PARAM_VECTOR, replicated(), 0, 1, 0, c->hidden, 0}, "final_norm");
    if (!c->tied) add(&b, &vocabulary, "head");
    if (b.status) return b.status;
    for (int over = 0; over < PARAM_REDUCES; over++) {
        mesh_axis axis = model_reduce_axis((param_reduce)over);
        m->params.members[over] = m->place.mesh->degree[axis];
        m->params.index[over] = mesh_coord(m->place.mesh, axis, m->place.rank);
    }
    params_layout(&m->params, m->parts->precision_needs.weight_dtype);
    m->embed = params_find(&m->params, "embed");
    m->final_norm = params_find(&m->params, "final_norm");
    m->head = c->tied ? m->embed : params_find(&m->params, "head");
    for (uint32_t l = 0; l < c->layers; l++) find_layer(m, l);
    return MOE_OK;
}
