/* The rules of the six families, one function each, and the keys of their config.json. Source: the modeling and
 * configuration files of transformers of the families' names. */
#include "hf/family.h"

#include <jansson.h>
#include <math.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

/* ---- what does not fit ---- */
typedef struct misfit {
    char text[360];
    uint32_t n;
} misfit;

__attribute__((format(printf, 3, 4))) static void need(misfit *m, int fits, const char *format, ...) {
    if (fits) return;
    size_t used = strlen(m->text);
    va_list ap;
    if (used && used + 2 < sizeof m->text) used += (size_t)snprintf(m->text + used, sizeof m->text - used, ", ");
    va_start(ap, format);
    if (used + 1 < sizeof m->text) vsnprintf(m->text + used, sizeof m->text - used, format, ap);
    va_end(ap);
    m->n++;
}

/* Of softmax over all experts, k = 1 included: softmax over the chosen is the same as renormalised softmax over all. */
static int renormalised(const hf_routing *r) {
    return r->renormalise || r->after;
}

static uint32_t count_sliding(const model_cfg *c) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->layers; l++) n += (uint32_t)model_layer_slides(c, l);
    return n;
}

static void check_all(misfit *m, const model_cfg *c, const hf_routing *r) {
    need(m, c->experts > 0, "experts = 0");
    need(m, !r->unlike, "%s", r->unlike ? r->unlike : "");
    if (c->attention == ATTENTION_GQA) {
        need(m, c->rope.dim == c->head_dim, "rotary_dim = %u with head_dim = %u", c->rope.dim, c->head_dim);
        need(m, !c->rope.interleaved, "rope_interleaved = true");
        need(m, c->v_dim == c->head_dim, "v_dim = %u", c->v_dim);
        need(m, c->rope.mscale <= 0 && c->rope.mscale_all_dim <= 0, "rope_mscale");
    }
}

static void check_softmax(misfit *m, const hf_routing *r) {
    need(m, !r->sigmoid, "score = sigmoid");
    need(m, !r->expert_bias, "expert_bias = true");
    need(m, fabs(r->scale - 1) < 1e-12, "scale = %g", r->scale);
    need(m, r->groups <= 1, "groups = %u", r->groups);
}

static void check_plain_layers(misfit *m, const model_cfg *c) {
    need(m, !c->router_bias, "router_bias = true");
    need(m, !c->sinks && !c->expert_biases && c->activation == ACTIVATION_SWIGLU, "parts of gpt-oss");
}

static void check_mixtral(misfit *m, const model_cfg *c, const hf_routing *r) {
    uint32_t sliding = count_sliding(c);
    check_softmax(m, r);
    check_plain_layers(m, c);
    need(m, renormalised(r), "renormalise = false without qk_norm");
    need(m, !c->qkv_bias && !c->out_bias, "biases of attention without qk_norm or shared_gate");
    need(m, !c->dense_layers, "dense_layers = %u without qk_norm = head", c->dense_layers);
    need(m, sliding == 0 || sliding == c->layers, "window_pattern that is not all s");
}

static void check_qwen2(misfit *m, const model_cfg *c, const hf_routing *r) {
    check_softmax(m, r);
    check_plain_layers(m, c);
    need(m, c->qk_norm == QK_NORM_NONE, "qk_norm with shared_gate");
    need(m, c->qkv_bias && !c->out_bias, "shared_gate without qkv_bias = true and out_bias = false");
    need(m, (int64_t)c->head_dim * c->heads == c->hidden, "head_dim = %u is not hidden / heads", c->head_dim);
}

static void check_qwen3(misfit *m, const model_cfg *c, const hf_routing *r) {
    check_softmax(m, r);
    check_plain_layers(m, c);
    need(m, c->qkv_bias == c->out_bias, "qkv_bias and out_bias differ");
    need(m, !c->shared_ffn, "shared experts with qk_norm = head");
    need(m, !count_sliding(c), "window with qk_norm = head");
}

static void check_olmoe(misfit *m, const model_cfg *c, const hf_routing *r) {
    check_softmax(m, r);
    check_plain_layers(m, c);
    need(m, c->qkv_bias == c->out_bias, "qkv_bias and out_bias differ");
    need(m, !c->shared_ffn, "shared experts with qk_norm = full");
    need(m, !c->dense_layers, "dense_layers = %u with qk_norm = full", c->dense_layers);
    need(m, !count_sliding(c), "window with qk_norm = full");
    need(m, (int64_t)c->head_dim * c->heads == c->hidden, "head_dim = %u is not hidden / heads", c->head_dim);
}

static void check_deepseek(misfit *m, const model_cfg *c, const hf_routing *r) {
    check_plain_layers(m, c);
    need(m, c->attention == ATTENTION_MLA, "shared experts without a gate need attention = mla");
    need(m, r->sigmoid && r->expert_bias, "attention = mla needs score = sigmoid and expert_bias = true");
    need(m, c->shared_ffn && !c->shared_gate && c->expert_ffn && c->shared_ffn % c->expert_ffn == 0,
         "attention = mla needs shared experts of a multiple of expert_ffn, without shared_gate");
    need(m, !c->qkv_bias && !c->out_bias, "biases of attention with mla");
    need(m, !count_sliding(c), "window with mla");
}

static void check_gpt_oss(misfit *m, const model_cfg *c, const hf_routing *r) {
    check_softmax(m, r);
    need(m, renormalised(r), "renormalise = false");
    need(m, c->sinks && c->expert_biases && c->router_bias && c->qkv_bias && c->out_bias,
         "sinks, expert_biases, router_bias, qkv_bias and out_bias are not all true");
    need(m,
         c->activation == ACTIVATION_CLAMPED_SWIGLU && fabsf(c->activation_alpha - 1.702F) < 1e-6F &&
             fabsf(c->activation_limit - 7) < 1e-6F,
         "activation is not clamped_swiglu of alpha 1.702 and limit 7");
    need(m, c->qk_norm == QK_NORM_NONE, "qk_norm with sinks");
    need(m, !c->shared_ffn && !c->dense_layers, "shared experts or dense layers with sinks");
}

moe_status hf_family_check(const model_cfg *c, const hf_routing *r, moe_err *err) {
    static void (*const check[HF_STYLES])(misfit *, const model_cfg *, const hf_routing *) = {
        [HF_MIXTRAL] = check_mixtral, [HF_QWEN2_MOE] = check_qwen2,      [HF_QWEN3_MOE] = check_qwen3,
        [HF_OLMOE] = check_olmoe,     [HF_DEEPSEEK_V3] = check_deepseek, [HF_GPT_OSS] = check_gpt_oss};
    misfit m = {{0}, 0};
    int32_t style = hf_style_of(c);
    check_all(&m, c, r);
    check[style](&m, c, r);
    if (!m.n) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "no family of transformers is this model; the nearest, %s, lacks: %s",
                    hf_style_name(style), m.text);
}

/* ---- config.json ---- */
/* The shortest decimal that gives the same FP32 number, so that 1e-6F is written 1e-06. */
static json_t *real(float x) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break; /* exact: no rounding between */
    }
    return json_real(strtod(text, NULL));
}

/* One sticky flag for all insertions: out of memory is seen once, at the end. */
typedef struct object {
    json_t *root;
    int bad;
} object;

static void set(object *o, const char *key, json_t *value) {
    o->bad |= json_object_set_new(o->root, key, value) != 0;
}
static void set_int(object *o, const char *key, int64_t value) {
    set(o, key, json_integer(value));
}
static void set_bool(object *o, const char *key, int value) {
    set(o, key, json_boolean(value));
}

static int64_t stretched(const rope_cfg *c) {
    return llround((double)c->factor * (double)c->original);
}

static json_t *rope_scaling(const rope_cfg *c, int always) {
    static const char *const types[] = {"default", "linear", "yarn"};
    if (c->scaling == ROPE_PLAIN && !always) return json_null();
    object o = {json_object(), 0};
    set(&o, "rope_type", json_string(types[c->scaling]));
    if (c->scaling != ROPE_PLAIN) set(&o, "factor", real(c->factor));
    if (c->scaling == ROPE_YARN) {
        set_int(&o, "original_max_position_embeddings", c->original);
        set(&o, "beta_fast", real(c->beta_fast));
        set(&o, "beta_slow", real(c->beta_slow));
        set_bool(&o, "truncate", c->truncate);
        if (c->attention_factor > 0) set(&o, "attention_factor", real(c->attention_factor));
        if (c->mscale > 0) set(&o, "mscale", real(c->mscale));
        if (c->mscale_all_dim > 0) set(&o, "mscale_all_dim", real(c->mscale_all_dim));
    }
    if (!o.bad) return o.root;
    json_decref(o.root);
    return NULL;
}

static void set_common(object *o, const model_cfg *c, int32_t style, int32_t dtype) {
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    set(o, "architectures", json_pack("[s]", hf_style_class(style)));
    set(o, "model_type", json_string(hf_style_name(style)));
    set(o, "torch_dtype", json_string(dtype == MOE_F32 ? "float32" : "bfloat16"));
    set(o, "hidden_act", json_string("silu"));
    set_int(o, "vocab_size", c->vocab);
    set_int(o, "hidden_size", c->hidden);
    set_int(o, "num_hidden_layers", c->layers);
    set_int(o, "num_attention_heads", c->heads);
    set_int(o, "num_key_value_heads", c->kv_heads);
    set_int(o, "num_experts_per_tok", c->top_k);
    set_int(o, "max_position_embeddings", c->rope.scaling == ROPE_YARN ? stretched(&c->rope) : c->seq);
    set(o, "rms_norm_eps", real(c->norm_eps));
    set(o, "initializer_range", real(c->init_std));
    set(o, "rope_theta", real(c->rope.theta));
    set(o, "rope_scaling", rope_scaling(&c->rope, style == HF_GPT_OSS)); /* null would be its default, YaRN */
    set_bool(o, "tie_word_embeddings", c->tied);
    set(o, "attention_dropout", json_real(0));
    for (int i = 0; i < 3; i++) set(o, ids[i], json_null()); /* the classes' defaults name tokens of other models */
}

static json_t *prefix_list(uint32_t n) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *layer_types(const model_cfg *c) {
    json_t *list = json_array();
    for (uint32_t l = 0; l < c->layers; l++)
        json_array_append_new(list, json_string(model_layer_slides(c, l) ? "sliding_attention" : "full_attention"));
    return list;
}

static void set_qwen(object *o, const model_cfg *c, const hf_routing *r) {
    set_int(o, "num_experts", c->experts);
    set_int(o, "moe_intermediate_size", c->expert_ffn);
    set_int(o, "intermediate_size", c->dense_ffn ? c->dense_ffn : c->expert_ffn);
    set_int(o, "decoder_sparse_step", 1);
    set(o, "mlp_only_layers", prefix_list(c->dense_layers));
    set_bool(o, "norm_topk_prob", renormalised(r));
    set(o, "router_aux_loss_coef", json_real(r->aux_coef));
}

static void set_qwen2(object *o, const model_cfg *c, const hf_routing *r) {
    int slides = count_sliding(c) > 0;
    set_qwen(o, c, r);
    set_int(o, "shared_expert_intermediate_size", c->shared_ffn);
    set_bool(o, "qkv_bias", 1);
    set_bool(o, "use_sliding_window", slides);
    set(o, "sliding_window", slides ? json_integer(c->window) : json_null());
    set(o, "layer_types", layer_types(c));
}

static void set_qwen3(object *o, const model_cfg *c, const hf_routing *r) {
    set_qwen(o, c, r);
    set_int(o, "head_dim", c->head_dim);
    set_bool(o, "attention_bias", c->qkv_bias);
    set_bool(o, "use_sliding_window", 0);
    set(o, "sliding_window", json_null());
}

static void set_mixtral(object *o, const model_cfg *c, const hf_routing *r) {
    set_int(o, "num_local_experts", c->experts);
    set_int(o, "intermediate_size", c->expert_ffn);
    set_int(o, "head_dim", c->head_dim);
    set(o, "sliding_window", count_sliding(c) ? json_integer(c->window) : json_null());
    set(o, "router_jitter_noise", json_real(0));
    set(o, "router_aux_loss_coef", json_real(r->aux_coef));
}

static void set_olmoe(object *o, const model_cfg *c, const hf_routing *r) {
    set_int(o, "num_experts", c->experts);
    set_int(o, "intermediate_size", c->expert_ffn);
    set_bool(o, "norm_topk_prob", renormalised(r));
    set_bool(o, "attention_bias", c->qkv_bias);
    set(o, "clip_qkv", json_null());
    set(o, "router_aux_loss_coef", json_real(r->aux_coef));
}

static void set_deepseek(object *o, const model_cfg *c, const hf_routing *r) {
    set_int(o, "n_routed_experts", c->experts);
    set_int(o, "n_shared_experts", c->shared_ffn / c->expert_ffn);
    set_int(o, "moe_intermediate_size", c->expert_ffn);
    set_int(o, "intermediate_size", c->dense_ffn ? c->dense_ffn : c->expert_ffn);
    set_int(o, "first_k_dense_replace", c->dense_layers);
    set_int(o, "moe_layer_freq", 1);
    set(o, "q_lora_rank", c->q_lora ? json_integer(c->q_lora) : json_null());
    set_int(o, "kv_lora_rank", c->kv_lora);
    set_int(o, "qk_nope_head_dim", c->head_dim - c->rope.dim);
    set_int(o, "qk_rope_head_dim", c->rope.dim);
    set_int(o, "v_head_dim", c->v_dim);
    set_int(o, "n_group", r->groups > 1 ? r->groups : 1);
    set_int(o, "topk_group", r->groups > 1 ? r->groups_kept : 1);
    set(o, "routed_scaling_factor", json_real(r->scale));
    set_bool(o, "norm_topk_prob", r->renormalise);
    set(o, "scoring_func", json_string("sigmoid"));
    set(o, "topk_method", json_string("noaux_tc"));
    set_int(o, "num_nextn_predict_layers", 0);
    set_bool(o, "rope_interleave", c->rope.interleaved);
    set_bool(o, "attention_bias", 0);
}

static void set_gpt_oss(object *o, const model_cfg *c, const hf_routing *r) {
    set_int(o, "num_local_experts", c->experts);
    set_int(o, "intermediate_size", c->expert_ffn);
    set_int(o, "head_dim", c->head_dim);
    set(o, "sliding_window", count_sliding(c) ? json_integer(c->window) : json_null());
    set(o, "layer_types", layer_types(c));
    set_bool(o, "attention_bias", 1);
    set(o, "swiglu_limit", real(c->activation_limit));
    set(o, "router_aux_loss_coef", json_real(r->aux_coef));
}

moe_status hf_config_text(const model_cfg *c, const hf_routing *r, int32_t dtype, char **out, moe_err *err) {
    static void (*const fill[HF_STYLES])(object *, const model_cfg *, const hf_routing *) = {
        [HF_MIXTRAL] = set_mixtral, [HF_QWEN2_MOE] = set_qwen2,      [HF_QWEN3_MOE] = set_qwen3,
        [HF_OLMOE] = set_olmoe,     [HF_DEEPSEEK_V3] = set_deepseek, [HF_GPT_OSS] = set_gpt_oss};
    int32_t style = hf_style_of(c);
    object o = {json_object(), 0};
    o.bad = !o.root;
    set_common(&o, c, style, dtype);
    fill[style](&o, c, r);
    char *text = o.bad ? NULL : json_dumps(o.root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(o.root);
    if (!text) return moe_fail(err, MOE_E_NOMEM, "out of memory for config.json");
    *out = text;
    return MOE_OK;
}
