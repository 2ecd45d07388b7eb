/* The table of a model's parameters: names, shapes, initial values. */
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

static void add(table_builder *b, param_class kind, float std, float fill, int64_t experts, int64_t d0, int64_t d1,
                const char *format, ...) __attribute__((format(printf, 8, 9)));

/* experts > 0 puts it before the other dimensions; d1 0 = one dimension. */
static void add(table_builder *b, param_class kind, float std, float fill, int64_t experts, int64_t d0, int64_t d1,
                const char *format, ...) {
    param p = {.kind = kind, .std = std, .fill = fill, .experts = experts};
    va_list ap;
    va_start(ap, format);
    vsnprintf(p.name, sizeof p.name, format, ap);
    va_end(ap);
    if (experts) p.shape[p.ndim++] = experts;
    p.shape[p.ndim++] = d0;
    if (d1) p.shape[p.ndim++] = d1;
    append(b, &p);
}

static void add_router_params(table_builder *b, uint32_t l) {
    const model_router *r = &b->m->routers[l];
    for (uint32_t i = 0; i < r->needs.n_params; i++) {
        const moe_param_spec *s = &r->needs.params[i];
        param p = {.kind = s->ndim > 1 ? PARAM_MATRIX : PARAM_VECTOR, .ndim = s->ndim};
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

static void add_matrix(table_builder *b, uint32_t l, const char *name, int64_t rows, int64_t columns, float std) {
    add(b, PARAM_LINEAR, std, 0, 0, rows, columns, "layers.%u.%s", l, name);
}

static void add_vector(table_builder *b, uint32_t l, const char *name, int64_t n, float fill) {
    add(b, PARAM_VECTOR, 0, fill, 0, n, 0, "layers.%u.%s", l, name);
}

static void add_grouped(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t d = c->head_dim, full = c->qk_norm == QK_NORM_FULL;
    add_matrix(b, l, "attention.qkv", model_qkv_width(c), c->hidden, c->init_std);
    if (c->qkv_bias) add_vector(b, l, "attention.qkv_bias", model_qkv_width(c), 0);
    if (!c->qk_norm) return;
    add_vector(b, l, "attention.q_norm", full ? (int64_t)c->heads * d : d, 1);
    add_vector(b, l, "attention.k_norm", full ? (int64_t)c->kv_heads * d : d, 1);
}

static void add_latent(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t n = c->heads, nope = c->head_dim - c->rope.dim;
    if (c->q_lora) {
        add_matrix(b, l, "attention.q_down", c->q_lora, c->hidden, c->init_std);
        add_vector(b, l, "attention.q_down_norm", c->q_lora, 1);
    }
    add_matrix(b, l, "attention.q_up", n * c->head_dim, c->q_lora ? c->q_lora : c->hidden, c->init_std);
    add_matrix(b, l, "attention.kv_down", c->kv_lora, c->hidden, c->init_std);
    add_vector(b, l, "attention.kv_down_norm", c->kv_lora, 1);
    add_matrix(b, l, "attention.k_rope", c->rope.dim, c->hidden, c->init_std);
    add_matrix(b, l, "attention.kv_up", n * (nope + c->v_dim), c->kv_lora, c->init_std);
}

static void add_attention(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    if (c->attention == ATTENTION_MLA)
        add_latent(b, l);
    else
        add_grouped(b, l);
    if (c->sinks) add_vector(b, l, "attention.sinks", c->heads, 0);
    add_matrix(b, l, "attention.out", c->hidden, (int64_t)c->heads * c->v_dim, out_std(c));
    if (c->out_bias) add_vector(b, l, "attention.out_bias", c->hidden, 0);
}

static void add_experts(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t h = c->hidden, E = c->experts, f = c->expert_ffn;
    add(b, PARAM_MATRIX, c->init_std, 0, 0, E, h, "layers.%u.router.weight", l);
    if (c->router_bias) add_vector(b, l, "router.logit_bias", E, 0);
    add_router_params(b, l);
    add(b, PARAM_LINEAR, c->init_std, 0, E, 2 * f, h, "layers.%u.experts.w1", l);
    add(b, PARAM_LINEAR, out_std(c), 0, E, h, f, "layers.%u.experts.w2", l);
    if (c->expert_biases) {
        add(b, PARAM_VECTOR, 0, 0, E, 2 * f, 0, "layers.%u.experts.b1", l);
        add(b, PARAM_VECTOR, 0, 0, E, h, 0, "layers.%u.experts.b2", l);
    }
    if (!c->shared_ffn) return;
    add_matrix(b, l, "shared.w1", 2 * c->shared_ffn, h, c->init_std);
    add_matrix(b, l, "shared.w2", h, c->shared_ffn, out_std(c));
    if (c->shared_gate) add(b, PARAM_MATRIX, c->init_std, 0, 0, 1, h, "layers.%u.shared.gate", l);
}

static void add_layer(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    add_vector(b, l, "norm1", c->hidden, 1);
    add_attention(b, l);
    add_vector(b, l, "norm2", c->hidden, 1);
    if (model_layer_is_moe(c, l)) {
        add_experts(b, l);
        return;
    }
    add_matrix(b, l, "mlp.w1", 2 * c->dense_ffn, c->hidden, c->init_std);
    add_matrix(b, l, "mlp.w2", c->hidden, c->dense_ffn, out_std(c));
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
    add(&b, PARAM_LINEAR, c->init_std, 0, 0, c->vocab, c->hidden, "embed");
    for (uint32_t l = 0; l < c->layers; l++) add_layer(&b, l);
    add(&b, PARAM_VECTOR, 0, 1, 0, c->hidden, 0, "final_norm");
    if (!c->tied) add(&b, PARAM_LINEAR, c->init_std, 0, 0, c->vocab, c->hidden, "head");
    if (b.status) return b.status;
    params_layout(&m->params, m->parts->precision_needs.weight_dtype);
    m->embed = params_find(&m->params, "embed");
    m->final_norm = params_find(&m->params, "final_norm");
    m->head = c->tied ? m->embed : params_find(&m->params, "head");
    for (uint32_t l = 0; l < c->layers; l++) find_layer(m, l);
    return MOE_OK;
}
