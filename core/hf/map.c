/* Building the table, and the two orders of a slab. */
#include "hf/map.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

/* ---- families ---- */
static const struct {
    const char *name, *class;
} styles[HF_STYLES] = {
    [HF_MIXTRAL] = {"mixtral", "MixtralForCausalLM"},
    [HF_QWEN2_MOE] = {"qwen2_moe", "Qwen2MoeForCausalLM"},
    [HF_QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM"},
    [HF_OLMOE] = {"olmoe", "OlmoeForCausalLM"},
    [HF_DEEPSEEK_V3] = {"deepseek_v3", "DeepseekV3ForCausalLM"},
    [HF_GPT_OSS] = {"gpt_oss", "GptOssForCausalLM"},
};

const char *hf_style_name(int32_t style) {
    return styles[style].name;
}
const char *hf_style_class(int32_t style) {
    return styles[style].class;
}
int32_t hf_style_from_name(const char *name) {
    for (int32_t i = 0; i < HF_STYLES; i++)
        if (strcmp(styles[i].name, name) == 0) return i;
    return -1;
}

int32_t hf_style_of(const model_cfg *c) {
    if (c->attention == ATTENTION_MLA) return HF_DEEPSEEK_V3;
    if (c->sinks || c->expert_biases || c->activation == ACTIVATION_CLAMPED_SWIGLU) return HF_GPT_OSS;
    if (c->shared_ffn && c->shared_gate) return HF_QWEN2_MOE;
    if (c->qk_norm == QK_NORM_HEAD) return HF_QWEN3_MOE;
    if (c->qk_norm == QK_NORM_FULL) return HF_OLMOE;
    return c->shared_ffn ? HF_DEEPSEEK_V3 : HF_MIXTRAL;
}

/* ---- building ---- */
typedef struct builder {
    const model *m;
    hf_map *map;
    uint32_t room;
    int64_t layer; /* -1: outside of the layers */
    moe_status status;
    moe_err *err;
} builder;

static hf_tensor *append(builder *b) {
    hf_map *map = b->map;
    if (b->status) return NULL;
    if (map->n == b->room) {
        uint32_t room = b->room ? b->room * 2 : 64;
        hf_tensor *at = realloc(map->at, room * sizeof *at);
        if (!at) {
            b->status = moe_fail(b->err, MOE_E_NOMEM, "out of memory for the names of %u tensors", room);
            return NULL;
        }
        map->at = at;
        b->room = room;
    }
    map->at[map->n] = (hf_tensor){.state_layer = -1, .shape = {1, 1, 1, 1}};
    return &map->at[map->n++];
}

static void set_name(const builder *b, hf_tensor *t, const char *format, va_list ap) {
    int used = b->layer < 0 ? 0 : snprintf(t->name, sizeof t->name, "model.layers.%lld.", (long long)b->layer);
    vsnprintf(t->name + used, sizeof t->name - (size_t)used, format, ap);
}

/* Rows [first, first + rows) of a parameter seen as rows of `width` elements; width 0: a vector. id < 0: the model has
 * no such parameter, and the file none. */
__attribute__((format(printf, 6, 7))) static void slice(builder *b, int64_t id, int64_t first, int64_t rows,
                                                        int64_t width, const char *format, ...) {
    hf_tensor *t = id < 0 ? NULL : append(b);
    if (!t) return;
    va_list ap;
    va_start(ap, format);
    set_name(b, t, format, ap);
    va_end(ap);
    int64_t wide = width ? width : 1;
    t->ndim = width ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = wide;
    t->count = rows * wide;
    t->n_parts = 1;
    t->part[0] = (hf_part){id, first * wide, t->count};
}

/* A whole parameter under its own shape. */
__attribute__((format(printf, 3, 4))) static void whole(builder *b, int64_t id, const char *format, ...) {
    hf_tensor *t = id < 0 ? NULL : append(b);
    if (!t) return;
    va_list ap;
    va_start(ap, format);
    set_name(b, t, format, ap);
    va_end(ap);
    const param *p = &b->m->params.at[id];
    t->ndim = p->ndim;
    memcpy(t->shape, p->whole, sizeof t->shape);
    t->count = p->whole[0] * p->whole[1] * p->whole[2] * p->whole[3];
    t->n_parts = 1;
    t->part[0] = (hf_part){id, 0, t->count};
}

/* A stack of E matrices [rows, cols] of ours in another order, as one tensor. */
static void stack(builder *b, int64_t id, int32_t order, int64_t rows, int64_t cols, const char *name) {
    uint32_t before = b->map->n;
    whole(b, id, "%s", name);
    if (b->map->n == before) return;
    hf_tensor *t = &b->map->at[before];
    t->order = order;
    t->rows = rows;
    t->cols = cols;
    if (order == HF_TRANSPOSED || order == HF_INTERLEAVED_TRANSPOSED) {
        t->shape[1] = cols;
        t->shape[2] = rows;
    }
}

static void add_grouped(builder *b, const model_layer *w) {
    const model_cfg *c = &b->m->cfg;
    static const char *const letters[] = {"q", "k", "v"};
    int64_t rows[] = {(int64_t)c->heads * c->head_dim, (int64_t)c->kv_heads * c->head_dim,
                      (int64_t)c->kv_heads * c->v_dim};
    int64_t first = 0;
    for (int i = 0; i < 3; first += rows[i++]) {
        slice(b, w->qkv, first, rows[i], c->hidden, "self_attn.%s_proj.weight", letters[i]);
        slice(b, w->qkv_bias, first, rows[i], 0, "self_attn.%s_proj.bias", letters[i]);
    }
    whole(b, w->q_norm, "self_attn.q_norm.weight");
    whole(b, w->k_norm, "self_attn.k_norm.weight");
}

static void add_latent(builder *b, const model_layer *w) {
    const params *p = &b->m->params;
    whole(b, w->q_down, "self_attn.q_a_proj.weight");
    whole(b, w->q_down_norm, "self_attn.q_a_layernorm.weight");
    whole(b, w->q_up, w->q_down < 0 ? "self_attn.q_proj.weight" : "self_attn.q_b_proj.weight");
    uint32_t before = b->map->n;
    whole(b, w->kv_down, "self_attn.kv_a_proj_with_mqa.weight"); /* and under it the rows of the shared rotary key */
    if (b->map->n > before) {
        hf_tensor *t = &b->map->at[before];
        const param *rope = &p->at[w->k_rope];
        int64_t n = rope->whole[0] * rope->whole[1];
        t->part[t->n_parts++] = (hf_part){w->k_rope, 0, n};
        t->shape[0] += rope->whole[0];
        t->count += n;
    }
    whole(b, w->kv_down_norm, "self_attn.kv_a_layernorm.weight");
    whole(b, w->kv_up, "self_attn.kv_b_proj.weight");
}

static void add_attention(builder *b, const model_layer *w) {
    if (b->m->cfg.attention == ATTENTION_MLA)
        add_latent(b, w);
    else
        add_grouped(b, w);
    whole(b, w->sinks, "self_attn.sinks");
    whole(b, w->out, "self_attn.o_proj.weight");
    whole(b, w->out_bias, "self_attn.o_proj.bias");
}

/* w1 holds rows gate | up. */
static void add_mlp(builder *b, int64_t w1, int64_t w2, int64_t width, const char *prefix) {
    slice(b, w1, 0, width, b->m->cfg.hidden, "%s.gate_proj.weight", prefix);
    slice(b, w1, width, width, b->m->cfg.hidden, "%s.up_proj.weight", prefix);
    whole(b, w2, "%s.down_proj.weight", prefix);
}

/* The router's own parameters and expert bias; its other state is not in files of this kind. */
static void add_router(builder *b, const model_layer *w, const char *gate) {
    const model_router *r = &b->m->routers[b->layer];
    whole(b, w->router, "%s.weight", gate);
    whole(b, w->router_bias, "%s.bias", gate);
    for (uint32_t i = 0; i < r->needs.n_params; i++) whole(b, r->params[i], "%s.%s", gate, r->needs.params[i].name);
    for (uint32_t i = 0; i < r->needs.n_state; i++) {
        const moe_param_spec *s = &r->needs.state[i];
        if (strcmp(s->name, "expert_bias") != 0 || s->dtype != MOE_F32 || s->ndim != 1) continue;
        hf_tensor *t = append(b);
        if (!t) return;
        snprintf(t->name, sizeof t->name, "model.layers.%lld.%s.e_score_correction_bias", (long long)b->layer, gate);
        t->ndim = 1;
        t->shape[0] = t->count = s->shape[0];
        t->state_layer = b->layer;
        t->state = i;
    }
}

static void add_stacked_experts(builder *b, const model_layer *w) {
    const model_cfg *c = &b->m->cfg;
    int64_t f = c->expert_ffn, h = c->hidden;
    stack(b, w->w1, HF_INTERLEAVED_TRANSPOSED, 2 * f, h, "mlp.experts.gate_up_proj");
    stack(b, w->b1, HF_INTERLEAVED, 2 * f, 1, "mlp.experts.gate_up_proj_bias");
    stack(b, w->w2, HF_TRANSPOSED, h, f, "mlp.experts.down_proj");
    stack(b, w->b2, HF_PLAIN, h, 1, "mlp.experts.down_proj_bias");
}

static void add_single_experts(builder *b, const model_layer *w) {
    const model_cfg *c = &b->m->cfg;
    int mixtral = b->map->style == HF_MIXTRAL;
    const char *in = mixtral ? "block_sparse_moe.experts" : "mlp.experts";
    const char *gate = mixtral ? "w1" : "gate_proj", *up = mixtral ? "w3" : "up_proj",
               *down = mixtral ? "w2" : "down_proj";
    int64_t f = c->expert_ffn, h = c->hidden;
    for (int64_t e = 0; e < c->experts && !b->status; e++) {
        long long n = e;
        slice(b, w->w1, e * 2 * f, f, h, "%s.%lld.%s.weight", in, n, gate);
        slice(b, w->w1, e * 2 * f + f, f, h, "%s.%lld.%s.weight", in, n, up);
        slice(b, w->w2, e * h, h, f, "%s.%lld.%s.weight", in, n, down);
        slice(b, w->b1, e * 2 * f, f, 0, "%s.%lld.%s.bias", in, n, gate);
        slice(b, w->b1, e * 2 * f + f, f, 0, "%s.%lld.%s.bias", in, n, up);
        slice(b, w->b2, e * h, h, 0, "%s.%lld.%s.bias", in, n, down);
    }
}

static void add_moe(builder *b, const model_layer *w) {
    int32_t style = b->map->style;
    int single = style == HF_QWEN2_MOE || style == HF_QWEN3_MOE || style == HF_OLMOE;
    add_router(b, w, style == HF_MIXTRAL ? "block_sparse_moe.gate" : style == HF_GPT_OSS ? "mlp.router" : "mlp.gate");
    if (style == HF_GPT_OSS)
        add_stacked_experts(b, w);
    else
        add_single_experts(b, w);
    add_mlp(b, w->shared_w1, w->shared_w2, b->m->cfg.shared_ffn, single ? "mlp.shared_expert" : "mlp.shared_experts");
    whole(b, w->shared_gate, single ? "mlp.shared_expert_gate.weight" : "mlp.shared_experts_gate.weight");
}

static void add_layer(builder *b) {
    const model_cfg *c = &b->m->cfg;
    const model_layer *w = &b->m->layers[b->layer];
    whole(b, w->norm1, "input_layernorm.weight");
    add_attention(b, w);
    whole(b, w->norm2, "post_attention_layernorm.weight");
    if (model_layer_is_moe(c, (uint32_t)b->layer))
        add_moe(b, w);
    else
        add_mlp(b, w->mlp_w1, w->mlp_w2, c->dense_ffn, "mlp");
}

moe_status hf_map_create(const model *m, hf_map **out, moe_err *err) {
    hf_map *map = calloc(1, sizeof *map);
    if (!map) return moe_fail(err, MOE_E_NOMEM, "out of memory for the names of tensors");
    builder b = {.m = m, .map = map, .layer = -1, .err = err};
    map->style = hf_style_of(&m->cfg);
    whole(&b, m->embed, "model.embed_tokens.weight");
    for (uint32_t l = 0; l < m->cfg.layers && !b.status; l++) {
        b.layer = l;
        add_layer(&b);
    }
    b.layer = -1;
    whole(&b, m->final_norm, "model.norm.weight");
    if (!m->cfg.tied) whole(&b, m->head, "lm_head.weight");
    if (b.status)
        hf_map_free(map);
    else
        *out = map;
    return b.status;
}

void hf_map_free(hf_map *map) {
    if (map) free(map->at);
    free(map);
}

/* ---- slabs ---- */
int hf_slab_next(const hf_tensor *t, int64_t limit, hf_slab *s) {
    int64_t begin = s->begin + s->count, first = 0;
    if (begin >= t->count) return 0;
    if (t->order != HF_PLAIN) limit = t->rows * t->cols;
    hf_part all = {-1, 0, t->count};
    const hf_part *part = t->state_layer < 0 ? t->part : &all;
    while (begin >= first + part->count) first += (part++)->count;
    int64_t rest = first + part->count - begin;
    *s = (hf_slab){.begin = begin,
                   .count = rest < limit ? rest : limit,
                   .param = part->param,
                   .first = part->first + begin - first};
    return 1;
}

int64_t hf_slab_most(const hf_map *map, int64_t limit) {
    int64_t most = 1;
    for (uint32_t i = 0; i < map->n; i++) {
        const hf_tensor *t = &map->at[i];
        int64_t n = t->order != HF_PLAIN ? t->rows * t->cols : t->count < limit ? t->count : limit;
        if (n > most) most = n;
    }
    return most;
}

/* Where element (row, column) of our matrix is in the file's. */
static int64_t place(const hf_tensor *t, int64_t row, int64_t column) {
    int64_t half = t->rows / 2;
    if (t->order != HF_TRANSPOSED) row = row < half ? 2 * row : 2 * (row - half) + 1;
    return t->order == HF_INTERLEAVED ? row * t->cols + column : column * t->rows + row;
}

typedef void (*move_fn)(const float *from, float *to, int64_t ours, int64_t theirs);
static void move_out(const float *from, float *to, int64_t ours, int64_t theirs) {
    to[theirs] = from[ours];
}
static void move_in(const float *from, float *to, int64_t ours, int64_t theirs) {
    to[ours] = from[theirs];
}

/* In tiles, so that neither side walks through memory by whole rows. */
static void move_matrix(const hf_tensor *t, const float *from, float *to, move_fn move) {
    enum { TILE = 32 };
    for (int64_t r0 = 0; r0 < t->rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < t->cols; c0 += TILE)
            for (int64_t r = r0; r < t->rows && r < r0 + TILE; r++)
                for (int64_t c = c0; c < t->cols && c < c0 + TILE; c++) move(from, to, r * t->cols + c, place(t, r, c));
}

void hf_gather(const hf_tensor *t, const float *ours, float *theirs, int64_t count) {
    if (t->order == HF_PLAIN)
        memcpy(theirs, ours, (size_t)count * sizeof *theirs);
    else
        move_matrix(t, ours, theirs, move_out);
}

void hf_scatter(const hf_tensor *t, const float *theirs, float *ours, int64_t count) {
    if (t->order == HF_PLAIN)
        memcpy(ours, theirs, (size_t)count * sizeof *ours);
    else
        move_matrix(t, theirs, ours, move_in);
}
