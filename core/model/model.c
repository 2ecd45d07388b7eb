/* Making a model: checks, instances, parameter table, memory, initial values. */
#include "model/model.h"

#include <math.h>
#include <moe/ops.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ---- */
static moe_status check_sizes(const model_cfg *c, moe_err *err) {
    if (c->hidden < 1 || c->vocab < 1 || c->seq < 1 || c->micro < 1 || !c->layers || !c->heads || !c->head_dim)
        return moe_fail(err, MOE_E_ARG, "hidden, layers, heads, head_dim, vocab, seq_len and micro must be at least 1");
    const int64_t limit = (int64_t)1 << 40; /* elements of one row or column of anything: products stay in 64 bits */
    if (c->micro > limit / c->seq)
        return moe_fail(err, MOE_E_ARG, "micro * seq_len = %lld * %lld is more than 2^40 tokens", (long long)c->micro,
                        (long long)c->seq);
    if (!c->kv_heads || c->heads % c->kv_heads)
        return moe_fail(err, MOE_E_ARG, "heads = %u is not a multiple of kv_heads = %u", c->heads, c->kv_heads);
    if (c->head_dim % 2)
        return moe_fail(err, MOE_E_ARG, "head_dim = %u is odd: rotary pairs need it even", c->head_dim);
    if (c->experts && (c->top_k < 1 || c->top_k > c->experts))
        return moe_fail(err, MOE_E_ARG, "top_k = %u is not within 1..experts = %u", c->top_k, c->experts);
    if (c->experts && c->dense_layers < c->layers && c->expert_ffn < 1)
        return moe_fail(err, MOE_E_ARG, "expert_ffn must be at least 1");
    if ((!c->experts || c->dense_layers) && c->dense_ffn < 1)
        return moe_fail(err, MOE_E_ARG, "dense_ffn must be at least 1 in a model with dense layers");
    return MOE_OK;
}

static moe_status find_ops(model *m, moe_err *err) {
#define OP_NAME(name) MOE_OP_##name,
    static const char *const names[MODEL_N_OPS] = {MODEL_OPS(OP_NAME)};
#undef OP_NAME
    char missing[400] = "";
    for (int i = 0; i < MODEL_N_OPS; i++) {
        m->ops[i] = parts_op(m->parts, names[i]);
        if (m->ops[i]) continue;
        size_t used = strlen(missing);
        snprintf(missing + used, sizeof missing - used, " %s", names[i]);
    }
    if (!missing[0]) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "device/%s lacks the operations:%s", m->parts->cfg.device.desc->id,
                    missing);
}

/* ---- plugin instances ---- */
static moe_status add_router(model *m, uint32_t layer, moe_err *err) {
    const model_cfg *c = &m->cfg;
    model_router *r = &m->routers[layer];
    moe_router_cfg cfg = {.layer = layer,
                          .n_layers = c->layers,
                          .top_k = c->top_k,
                          .n_experts = c->experts,
                          .hidden = c->hidden,
                          .max_tokens = c->micro * c->seq,
                          .seed = c->seed};
    moe_status status = parts_add_router(m->parts, &cfg, err);
    const char *id = m->parts->cfg.routers[layer].desc->id;
    if (!status) status = parts_router_needs(m->parts, layer, &r->needs, err);
    if (status) return status;
    if (r->needs.inputs & ~(uint32_t)MOE_ROUTER_LOGITS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "router/%s asks for inputs 0x%x; this host gives logits only", id,
                        r->needs.inputs);
    if (r->needs.n_losses > MODEL_MAX_LOSSES)
        return moe_fail(err, MOE_E_UNSUPPORTED, "router/%s reports %u losses; this host takes at most %d", id,
                        r->needs.n_losses, MODEL_MAX_LOSSES);
    r->state = calloc(r->needs.n_state + 1, sizeof *r->state);
    r->params = calloc(r->needs.n_params + 1, sizeof *r->params);
    return r->state && r->params ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for router/%s", id);
}

static moe_status add_dispatcher(model *m, uint32_t layer, moe_err *err) {
    const model_cfg *c = &m->cfg;
    moe_dispatcher_cfg cfg = {.layer = layer,
                              .top_k = c->top_k,
                              .n_experts = c->experts,
                              .ep_size = 1,
                              .hidden = c->hidden,
                              .max_tokens = c->micro * c->seq,
                              .row_align = m->parts->precision_needs.row_align};
    moe_status status = parts_add_dispatcher(m->parts, &cfg, err);
    return status ? status : parts_dispatcher_needs(m->parts, layer, &m->routers[layer].dispatch, err);
}

/* ---- the parameter table ---- */
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
        float std = strncmp(s->init, "normal ", 7) == 0 ? strtof(s->init + 7, NULL) : 0;
        param p = {.kind = s->ndim > 1 ? PARAM_MATRIX : PARAM_VECTOR, .ndim = s->ndim, .std = std};
        p.fill = strcmp(s->init, "ones") == 0 ? 1 : 0;
        memcpy(p.shape, s->shape, sizeof p.shape);
        snprintf(p.name, sizeof p.name, "layers.%u.router.%s", l, s->name);
        append(b, &p);
    }
}

/* Output projections start smaller by 1/sqrt(2 L), so that the residual stream keeps its scale (Radford et al. 2019).
 */
static void add_layer(table_builder *b, uint32_t l) {
    const model_cfg *c = &b->m->cfg;
    int64_t h = c->hidden, inner = (int64_t)c->heads * c->head_dim;
    float std = c->init_std, out = c->init_std / sqrtf(2 * (float)c->layers);
    add(b, PARAM_VECTOR, 0, 1, 0, h, 0, "layers.%u.norm1", l);
    add(b, PARAM_LINEAR, std, 0, 0, model_qkv_width(c), h, "layers.%u.attention.qkv", l);
    add(b, PARAM_LINEAR, out, 0, 0, h, inner, "layers.%u.attention.out", l);
    add(b, PARAM_VECTOR, 0, 1, 0, h, 0, "layers.%u.norm2", l);
    if (!model_layer_is_moe(c, l)) {
        add(b, PARAM_LINEAR, std, 0, 0, 2 * c->dense_ffn, h, "layers.%u.mlp.w1", l);
        add(b, PARAM_LINEAR, out, 0, 0, h, c->dense_ffn, "layers.%u.mlp.w2", l);
        return;
    }
    add(b, PARAM_MATRIX, std, 0, 0, c->experts, h, "layers.%u.router.weight", l);
    add_router_params(b, l);
    add(b, PARAM_LINEAR, std, 0, c->experts, 2 * c->expert_ffn, h, "layers.%u.experts.w1", l);
    add(b, PARAM_LINEAR, out, 0, c->experts, h, c->expert_ffn, "layers.%u.experts.w2", l);
    if (!c->shared_ffn) return;
    add(b, PARAM_LINEAR, std, 0, 0, 2 * c->shared_ffn, h, "layers.%u.shared.w1", l);
    add(b, PARAM_LINEAR, out, 0, 0, h, c->shared_ffn, "layers.%u.shared.w2", l);
}

static int64_t find(const model *m, uint32_t layer, const char *name) {
    char full[112];
    snprintf(full, sizeof full, "layers.%u.%s", layer, name);
    return params_find(&m->params, full);
}

static void find_layer(model *m, uint32_t l) {
    int moe = model_layer_is_moe(&m->cfg, l);
    m->layers[l] = (model_layer){.norm1 = find(m, l, "norm1"),
                                 .qkv = find(m, l, "attention.qkv"),
                                 .out = find(m, l, "attention.out"),
                                 .norm2 = find(m, l, "norm2"),
                                 .w1 = find(m, l, moe ? "experts.w1" : "mlp.w1"),
                                 .w2 = find(m, l, moe ? "experts.w2" : "mlp.w2"),
                                 .router = find(m, l, "router.weight"),
                                 .shared_w1 = find(m, l, "shared.w1"),
                                 .shared_w2 = find(m, l, "shared.w2")};
    for (uint32_t i = 0; i < m->routers[l].needs.n_params; i++) {
        char name[88];
        snprintf(name, sizeof name, "router.%s", m->routers[l].needs.params[i].name);
        m->routers[l].params[i] = (uint32_t)find(m, l, name);
    }
}

static moe_status build_table(model *m, moe_err *err) {
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

/* ---- memory and initial values ---- */
static uint64_t spec_bytes(const moe_param_spec *s) {
    uint64_t n = s->dtype == MOE_I64 ? 8 : 4;
    for (int i = 0; i < s->ndim; i++) n *= (uint64_t)s->shape[i];
    return n;
}

static moe_status alloc_state(model *m, moe_err *err) {
    const moe_device_v0 *d = m->parts->device;
    void *self = m->parts->device_self;
    const model_cfg *c = &m->cfg;
    uint64_t tokens = (uint64_t)(c->micro * c->seq);
    moe_status status =
        d->alloc(self, MOE_SPACE_DEVICE, (uint64_t)c->layers * c->experts * 8, (void **)&m->counts, err);
    if (!status) status = d->alloc(self, MOE_SPACE_DEVICE, model_n_stats(m) * 8, (void **)&m->stats, err);
    if (!status) status = d->alloc(self, MOE_SPACE_DEVICE, tokens * 4, (void **)&m->positions, err);
    if (!status) status = d->alloc(self, MOE_SPACE_DEVICE, c->head_dim / 2 * 4, (void **)&m->inv_freq, err);
    for (uint32_t l = 0; l < c->layers && !status; l++)
        for (uint32_t i = 0; i < m->routers[l].needs.n_state && !status; i++)
            status = d->alloc(self, MOE_SPACE_DEVICE, spec_bytes(&m->routers[l].needs.state[i]),
                              &m->routers[l].state[i], err);
    return status;
}

/* Copies host values to device memory and waits. */
static moe_status upload(const model *m, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err) {
    const moe_device_v0 *d = m->parts->device;
    moe_status status = d->copy(m->parts->device_self, stream, dst, src, bytes, err);
    return status ? status : d->stream_sync(m->parts->device_self, stream, err);
}

static moe_status init_params(model *m, void *stream, float *scratch, moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < m->params.n; i++)
        for (int64_t e = 0; e < param_pieces(&m->params.at[i]) && !status; e++) {
            param_piece piece;
            param_piece_at(&m->params.at[i], e, &piece);
            param_piece_init(&m->params.at[i], &piece, m->cfg.seed, scratch);
            status = upload(m, stream, m->params.master + piece.offset, scratch, (uint64_t)piece.count * 4, err);
        }
    return status;
}

static moe_status init_tables(model *m, void *stream, float *scratch, moe_err *err) {
    const model_cfg *c = &m->cfg;
    int64_t tokens = c->micro * c->seq;
    int32_t *pos = (int32_t *)scratch;
    for (int64_t t = 0; t < tokens; t++) pos[t] = (int32_t)(t % c->seq);
    moe_status status = upload(m, stream, m->positions, pos, (uint64_t)tokens * 4, err);
    uint32_t half = c->head_dim / 2;
    for (uint32_t i = 0; i < half; i++)
        scratch[i] = (float)pow((double)c->rope_theta, -2.0 * (double)i / (double)c->head_dim);
    return status ? status : upload(m, stream, m->inv_freq, scratch, half * 4, err);
}

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t largest_param(const model *m) {
    int64_t n = 1;
    for (uint32_t i = 0; i < m->params.n; i++) n = largest(n, m->params.at[i].count / param_pieces(&m->params.at[i]));
    return n;
}

static moe_status initialise(model *m, moe_err *err) {
    const moe_device_v0 *d = m->parts->device;
    void *self = m->parts->device_self, *stream = NULL;
    int64_t n = largest(largest_param(m), largest(m->cfg.micro * m->cfg.seq, m->cfg.head_dim));
    float *scratch = malloc((size_t)n * sizeof *scratch);
    moe_status status = scratch ? d->stream_create(self, "init", &stream, err)
                                : moe_fail(err, MOE_E_NOMEM, "out of memory for the initial values");
    if (!status) status = init_params(m, stream, scratch, err);
    if (!status) status = init_tables(m, stream, scratch, err);
    if (stream) d->stream_destroy(self, stream);
    free(scratch);
    return status ? status : model_refresh_copies(m, err);
}

moe_status model_refresh_copies(model *m, moe_err *err) {
    const params *p = &m->params;
    if (!p->copy) return MOE_OK;
    const moe_device_v0 *d = m->parts->device;
    void *self = m->parts->device_self, *stream = NULL;
    enum { CHUNK = 1 << 16 };
    float *in = malloc(CHUNK * sizeof *in);
    uint16_t *out = malloc(CHUNK * sizeof *out);
    moe_status status = in && out ? d->stream_create(self, "copies", &stream, err)
                                  : moe_fail(err, MOE_E_NOMEM, "out of memory for the weight copies");
    for (int64_t i = 0; i < p->begin[PARAM_LINEAR + 1] && !status; i += CHUNK) {
        int64_t n = p->begin[PARAM_LINEAR + 1] - i < CHUNK ? p->begin[PARAM_LINEAR + 1] - i : CHUNK;
        status = upload(m, stream, in, p->master + i, (uint64_t)n * 4, err);
        params_round_bf16(in, out, n);
        if (!status) status = upload(m, stream, p->copy + i, out, (uint64_t)n * 2, err);
    }
    if (stream) d->stream_destroy(self, stream);
    free(in);
    free(out);
    return status;
}

/* ---- life ---- */
moe_status model_create(model **out, const model_cfg *cfg, parts *p, int arenas, moe_err *err) {
    model *m = calloc(1, sizeof *m);
    if (!m) return moe_fail(err, MOE_E_NOMEM, "out of memory for the model");
    m->cfg = *cfg;
    m->parts = p;
    m->act = p->precision_needs.act_dtype;
    m->layers = calloc(cfg->layers + 1, sizeof *m->layers);
    m->routers = calloc(cfg->layers + 1, sizeof *m->routers);
    moe_status status = m->layers && m->routers ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for the model");
    if (!status) status = check_sizes(cfg, err);
    if (!status) status = find_ops(m, err);
    for (uint32_t l = 0; l < cfg->layers && !status; l++) {
        if (!model_layer_is_moe(cfg, l)) continue;
        status = add_router(m, l, err);
        if (!status) status = add_dispatcher(m, l, err);
    }
    if (!status) status = build_table(m, err);
    if (!status && arenas != PARAMS_NONE) status = params_alloc(&m->params, arenas, p->device, p->device_self, err);
    if (!status && arenas != PARAMS_NONE) status = alloc_state(m, err);
    if (!status && arenas != PARAMS_NONE) status = initialise(m, err);
    if (status)
        model_destroy(m);
    else
        *out = m;
    return status;
}

void model_destroy(model *m) {
    if (!m) return;
    const moe_device_v0 *d = m->parts->device;
    void *self = m->parts->device_self;
    const model_cfg *c = &m->cfg;
    for (uint32_t l = 0; m->routers && l < c->layers; l++) {
        model_router *r = &m->routers[l];
        for (uint32_t i = 0; r->state && i < r->needs.n_state; i++)
            d->free(self, MOE_SPACE_DEVICE, r->state[i], spec_bytes(&r->needs.state[i]));
        free(r->state);
        free(r->params);
    }
    d->free(self, MOE_SPACE_DEVICE, m->counts, (uint64_t)c->layers * c->experts * 8);
    d->free(self, MOE_SPACE_DEVICE, m->stats, model_n_stats(m) * 8);
    d->free(self, MOE_SPACE_DEVICE, m->positions, (uint64_t)(c->micro * c->seq) * 4);
    d->free(self, MOE_SPACE_DEVICE, m->inv_freq, c->head_dim / 2 * 4);
    params_free(&m->params, d, self);
    free(m->layers);
    free(m->routers);
    free(m);
}
