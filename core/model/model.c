/* Making a model: checks, instances, parameter table, memory, initial values. */
#include "model/model.h"

#include <math.h>
#include <moe/ops.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "model/rope.h"
#include "model/values.h"

/* ---- checks ---- */
static moe_status check_attention(const model_cfg *c, moe_err *err) {
    int mla = c->attention == ATTENTION_MLA;
    if (c->layers > MODEL_MAX_LAYERS)
        return moe_fail(err, MOE_E_ARG, "layers = %u is more than %d", c->layers, MODEL_MAX_LAYERS);
    if (c->rope.dim % 2 || c->rope.dim > c->head_dim || (mla && c->rope.dim == c->head_dim))
        return moe_fail(err, MOE_E_ARG, "%u rotary elements of heads of %u: want an even number, at most head_dim%s",
                        c->rope.dim, c->head_dim, mla ? " - 1" : "");
    if (mla && (c->kv_lora < 1 || c->kv_heads != c->heads || c->qk_norm || c->qkv_bias))
        return moe_fail(err, MOE_E_ARG,
                        "latent attention wants kv_lora >= 1, kv_heads = heads, and no qk_norm or qkv_bias");
    if (c->rope.scaling == ROPE_YARN && (c->rope.original < 1 || c->rope.theta <= 1))
        return moe_fail(err, MOE_E_ARG, "YaRN wants the original length (at least 1) and a base above 1");
    return MOE_OK;
}

static moe_status check_sizes(const model_cfg *c, moe_err *err) {
    if (c->hidden < 1 || c->vocab < 1 || c->seq < 1 || c->micro < 1 || !c->layers || !c->heads || !c->head_dim)
        return moe_fail(err, MOE_E_ARG, "hidden, layers, heads, head_dim, vocab, seq_len and micro must be at least 1");
    const int64_t limit = (int64_t)1 << 40; /* elements of one row or column of anything: products stay in 64 bits */
    if (c->micro > limit / c->seq)
        return moe_fail(err, MOE_E_ARG, "micro * seq_len = %lld * %lld is more than 2^40 tokens", (long long)c->micro,
                        (long long)c->seq);
    if (!c->kv_heads || c->heads % c->kv_heads)
        return moe_fail(err, MOE_E_ARG, "heads = %u is not a multiple of kv_heads = %u", c->heads, c->kv_heads);
    if (c->head_dim % 2 && c->rope.dim == c->head_dim)
        return moe_fail(err, MOE_E_ARG, "head_dim = %u is odd: rotary pairs need it even", c->head_dim);
    moe_status status = check_attention(c, err);
    if (status) return status;
    if (c->experts && (c->top_k < 1 || c->top_k > c->experts))
        return moe_fail(err, MOE_E_ARG, "top_k = %u is not within 1..experts = %u", c->top_k, c->experts);
    if (c->experts && c->dense_layers < c->layers && c->expert_ffn < 1)
        return moe_fail(err, MOE_E_ARG, "expert_ffn must be at least 1");
    if ((!c->experts || c->dense_layers) && c->dense_ffn < 1)
        return moe_fail(err, MOE_E_ARG, "dense_ffn must be at least 1 in a model with dense layers");
    return MOE_OK;
}

static moe_status find_ops(model *m, moe_err *err) {
    const model_cfg *c = &m->cfg;
#define OP_NAME(name, used) MOE_OP_##name,
#define OP_USED(name, used) used,
    static const char *const names[MODEL_N_OPS] = {MODEL_OPS(OP_NAME)};
    const int needed[MODEL_N_OPS] = {MODEL_OPS(OP_USED)};
#undef OP_NAME
#undef OP_USED
    char missing[400] = "";
    for (int i = 0; i < MODEL_N_OPS; i++) {
        m->ops[i] = parts_op(m->parts, names[i]);
        if (m->ops[i] || !needed[i]) continue;
        size_t used = strlen(missing);
        snprintf(missing + used, sizeof missing - used, " %s", names[i]);
    }
    if (!missing[0]) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "device/%s lacks the operations:%s", m->parts->cfg.device.desc->id,
                    missing);
}

int model_has_jitter(const model *m) {
    for (uint32_t l = 0; l < m->cfg.layers; l++)
        if (m->routers[l].needs.input_jitter > 0) return 1;
    return 0;
}

int model_needs_batch_counts(const model *m) {
    for (uint32_t l = 0; l < m->cfg.layers; l++)
        if (m->routers[l].needs.loss_scope == MOE_SCOPE_GLOBAL) return 1;
    return 0;
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
    r->state = calloc(r->needs.n_state + 1, sizeof *r->state);
    r->params = calloc(r->needs.n_params + 1, sizeof *r->params);
    return r->state && r->params ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for router/%s", id);
}

/* Rows of a microbatch that all members of a dispatcher hold together have where every expert is padded to its
 * capacity, and room for them. */
static moe_status room_for_rows(const model *m, moe_dispatcher_cfg *cfg, moe_err *err) {
    const model_cfg *c = &m->cfg;
    const model_split *s = &m->split;
    uint32_t members = s->ep * s->etp;
    if (c->capacity_pad) {
        if (members % s->tp)
            return moe_fail(err, MOE_E_UNSUPPORTED,
                            "[capacity] pad = true wants etp * ep = %u * %u to be a multiple of tp = %u, so that the "
                            "members of a dispatcher have whole microbatches",
                            s->etp, s->ep, s->tp);
        cfg->min_rows = model_capacity_of(c).rows * (members / s->tp);
    }
    if (c->recv != RECV_CAPACITY) return MOE_OK;
    double rows = ceil((double)c->recv_factor * (double)m->local.tokens * members * c->top_k / s->ep);
    cfg->recv_rows = (int64_t)rows + m->local.experts * (cfg->row_align - 1);
    return MOE_OK;
}

static moe_status add_dispatcher(model *m, uint32_t layer, moe_err *err) {
    const model_cfg *c = &m->cfg;
    const model_split *s = &m->split;
    moe_dispatcher_cfg cfg = {.layer = layer,
                              .top_k = c->top_k,
                              .n_experts = c->experts,
                              .ep_rank = s->ep_rank,
                              .ep_size = s->ep,
                              .etp_rank = s->etp_rank,
                              .etp_size = s->etp,
                              .hidden = c->hidden,
                              .max_tokens = m->local.tokens,
                              .row_align = m->parts->precision_needs.row_align,
                              .overflow = c->overflow,
                              .node_size = m->place.node_size,
                              .group = m->place.groups->of[MESH_ETP_EP],
                              .layout_group = m->place.groups->layout,
                              .host_counts = c->recv == RECV_EXACT,
                              .first_rank = mesh_first(m->place.mesh, MESH_ETP_EP, m->place.rank),
                              .shared = &m->parts->dispatcher_shared};
    moe_status room = room_for_rows(m, &cfg, err);
    if (room) return room;
    moe_status status = parts_add_dispatcher(m->parts, &cfg, err);
    return status ? status : parts_dispatcher_needs(m->parts, layer, &m->routers[layer].dispatch, err);
}

/* Who wants the counts of an asynchronous layout on the host, of whom only [memory] recv = exact tells them. */
static moe_status check_counts(const model *m, moe_err *err) {
    const parts_cfg *p = &m->parts->cfg;
    const moe_desc *all[] = {p->precision.desc, p->dispatcher.desc};
    for (int i = 0; i < 2 && parts_async(m->parts, &p->device); i++) {
        if (!all[i] || !(all[i]->flags & MOE_HOST_COUNTS)) continue;
        if (m->cfg.recv != RECV_EXACT)
            return moe_fail(err, MOE_E_UNSUPPORTED,
                            "%s/%s needs the numbers of rows on the host: [memory] recv = exact", all[i]->kind,
                            all[i]->id);
        if (!parts_async(m->parts, &p->dispatcher))
            return moe_fail(err, MOE_E_UNSUPPORTED,
                            "%s/%s needs the numbers of rows on the host, before dispatcher/%s has run", all[i]->kind,
                            all[i]->id, p->dispatcher.desc->id);
    }
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
    if (!status) status = d->alloc(self, MOE_SPACE_DEVICE, c->rope.dim / 2 * 4, (void **)&m->inv_freq, err);
    if (!status) status = d->alloc(self, MOE_SPACE_DEVICE, 2 * sizeof *m->drops, (void **)&m->drops, err);
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

/* This rank's elements, and the copies that products read. */
static moe_status init_params(model *m, const value_mover *v, float *scratch, moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < m->params.n; i++)
        for (int64_t e = 0; e < param_pieces(&m->params.at[i]) && !status; e++) {
            param_piece piece;
            param_piece_at(&m->params.at[i], e, &piece);
            if (!piece.count) continue;
            param_piece_init(&m->params.at[i], &piece, m->cfg.seed, scratch);
            status = values_put_own(v, &m->params.at[i], PARAM_MASTER, piece.offset, piece.count, scratch, err);
        }
    return status;
}

/* State of a router as it declares it: a function of (seed, name, element) alone, as a parameter is. */
static moe_status init_one_state(model *m, void *stream, uint32_t l, uint32_t i, moe_err *err) {
    const moe_param_spec *s = &m->routers[l].needs.state[i];
    param p = {.kind = PARAM_VECTOR};
    param_piece piece = {.count = 1};
    needs_parse_init(s->init, &p.std, &p.fill);
    if (p.std == 0 && p.fill == 0) return MOE_OK; /* alloc has given zeros */
    for (int d = 0; d < s->ndim; d++) piece.count *= s->shape[d];
    snprintf(piece.name, sizeof piece.name, "layers.%u.router.%.63s", l, s->name);
    int wide = s->dtype == MOE_I64;
    float *values = malloc((size_t)piece.count * sizeof *values);
    int64_t *whole = wide ? malloc((size_t)piece.count * sizeof *whole) : NULL;
    moe_status status =
        values && (whole || !wide) ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %s", s->name);
    if (!status) param_piece_init(&p, &piece, m->cfg.seed, values);
    for (int64_t k = 0; k < piece.count && !status && wide; k++) whole[k] = (int64_t)values[k];
    if (!status)
        status = upload(m, stream, m->routers[l].state[i], wide ? (const void *)whole : values, spec_bytes(s), err);
    free(values);
    free(whole);
    return status;
}

static moe_status init_state(model *m, void *stream, moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t l = 0; l < m->cfg.layers; l++)
        for (uint32_t i = 0; i < m->routers[l].needs.n_state && !status; i++)
            status = init_one_state(m, stream, l, i, err);
    return status;
}

static moe_status init_tables(model *m, void *stream, float *scratch, moe_err *err) {
    const model_cfg *c = &m->cfg;
    int64_t tokens = c->micro * c->seq;
    int32_t *pos = (int32_t *)scratch;
    for (int64_t t = 0; t < tokens; t++) pos[t] = (int32_t)(t % c->seq);
    moe_status status = upload(m, stream, m->positions, pos, (uint64_t)tokens * 4, err);
    uint32_t half = c->rope.dim / 2;
    rope_frequencies(&c->rope, scratch);
    return status ? status : upload(m, stream, m->inv_freq, scratch, half * 4, err);
}

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t largest_piece(const model *m) {
    int64_t n = 1;
    for (uint32_t i = 0; i < m->params.n; i++) {
        const param *p = &m->params.at[i];
        n = largest(n, p->count / (p->experts ? p->experts : 1));
    }
    return n;
}

static moe_status initialise(model *m, moe_err *err) {
    int64_t n = largest(largest_piece(m), largest(m->cfg.micro * m->cfg.seq, m->cfg.head_dim));
    float *scratch = malloc((size_t)n * sizeof *scratch);
    value_mover v = {0};
    moe_status status =
        scratch ? values_open(&v, m, n, err) : moe_fail(err, MOE_E_NOMEM, "out of memory for the initial values");
    if (!status) status = init_params(m, &v, scratch, err);
    if (!status) status = init_state(m, v.stream, err);
    if (!status) status = init_tables(m, v.stream, scratch, err);
    values_close(&v);
    free(scratch);
    return status;
}

/* What the scheduler wants of the graph's shape, and the buckets of gradients that follow. */
static moe_status cut_buckets(model *m, const model_use *use, moe_err *err) {
    const moe_shape_in in = {.size = sizeof in,
                             .n_layers = m->cfg.layers,
                             .n_microbatches = use->n_micro,
                             .pp = 1,
                             .grad_bytes = (uint64_t)m->params.begin[PARAM_CLASSES] * 4,
                             .memory_limit = use->memory_limit};
    moe_shape_out shape = {sizeof shape, 1, 1, 1};
    moe_status status = MOE_OK;
    if (use->n_micro) status = m->parts->scheduler->shape(m->parts->scheduler_self, &in, &shape, err);
    if (!status && (shape.pieces_fwd != 1 || shape.pieces_bwd != 1 || !shape.n_buckets))
        status =
            moe_fail(err, MOE_E_UNSUPPORTED,
                     "scheduler/%s asks for %u and %u pieces and %u buckets; this version runs 1 and 1 pieces and at "
                     "least 1 bucket",
                     m->parts->cfg.scheduler.desc->id, shape.pieces_fwd, shape.pieces_bwd, shape.n_buckets);
    if (!status && params_slice(&m->params, shape.n_buckets, use->distributed))
        status = moe_fail(err, MOE_E_NOMEM, "out of memory for %u buckets", shape.n_buckets);
    if (!status && use->n_micro && m->parts->precision_needs.takes_filled) params_flag(&m->params);
    return status;
}

/* ---- life ---- */
static model_split split_of(const model_place *at) {
    const uint32_t *d = at->mesh->degree;
    return (model_split){.tp = d[MESH_TP],
                         .tp_rank = mesh_coord(at->mesh, MESH_TP, at->rank),
                         .ep = d[MESH_EP],
                         .ep_rank = mesh_coord(at->mesh, MESH_EP, at->rank),
                         .etp = d[MESH_ETP],
                         .etp_rank = mesh_coord(at->mesh, MESH_ETP, at->rank)};
}

moe_status model_create(model **out, const model_cfg *cfg, const model_place *place, parts *p, const model_use *use,
                        moe_err *err) {
    model *m = calloc(1, sizeof *m);
    if (!m) return moe_fail(err, MOE_E_NOMEM, "out of memory for the model");
    m->cfg = *cfg;
    m->place = *place;
    m->split = split_of(place);
    model_cfg_complete(&m->cfg);
    m->parts = p;
    m->act = p->precision_needs.act_dtype;
    m->layers = calloc(cfg->layers + 1, sizeof *m->layers);
    m->routers = calloc(cfg->layers + 1, sizeof *m->routers);
    moe_status status = m->layers && m->routers ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for the model");
    if (!status) status = check_sizes(&m->cfg, err);
    if (!status) status = model_localise(&m->cfg, &m->split, &m->local, err);
    for (uint32_t l = 0; l < cfg->layers && !status; l++) {
        if (!model_layer_is_moe(cfg, l)) continue;
        status = add_router(m, l, err);
        if (!status) status = add_dispatcher(m, l, err);
    }
    if (!status && cfg->experts) status = check_counts(m, err);
    if (!status) status = find_ops(m, err);
    if (!status) status = model_build_table(m, err);
    if (!status) status = cut_buckets(m, use, err);
    if (!status && !use->plan_only) status = params_alloc(&m->params, use->arenas, p->device, p->device_self, err);
    if (!status && !use->plan_only) status = alloc_state(m, err);
    if (!status && !use->plan_only) status = initialise(m, err);
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
    d->free(self, MOE_SPACE_DEVICE, m->inv_freq, c->rope.dim / 2 * 4);
    d->free(self, MOE_SPACE_DEVICE, m->drops, 2 * sizeof *m->drops);
    params_free(&m->params, d, self);
    free(m->layers);
    free(m->routers);
    free(m);
}
