/* From the recipe's [model], [capacity] and [optimizer] to core's structs. */
#include <string.h>

#include "wire_impl.h"

/* The index of an enum's word: keys.c and the enums of core have the same order. */
static int choice(const recipe *r, const char *section, const char *key) {
    return (int)recipe_int(r, section, key);
}

static uint32_t u32(const recipe *r, const char *key) {
    return (uint32_t)recipe_int(r, "model", key);
}
static float f32(const recipe *r, const char *key) {
    return (float)recipe_float(r, "model", key);
}

static void wire_attention(model_cfg *m, const recipe *r) {
    const char *pattern = recipe_string(r, "model", "window_pattern");
    size_t period = strlen(pattern);
    m->attention = choice(r, "model", "attention");
    m->q_lora = u32(r, "q_lora");
    m->kv_lora = u32(r, "kv_lora");
    m->v_dim = u32(r, "v_dim");
    m->qk_norm = choice(r, "model", "qk_norm");
    m->qkv_bias = recipe_bool(r, "model", "qkv_bias");
    m->out_bias = recipe_bool(r, "model", "out_bias");
    m->sinks = recipe_bool(r, "model", "sinks");
    m->window = recipe_int(r, "model", "window");
    for (uint32_t l = 0; l < m->layers && m->window; l++)
        if (pattern[l % period] == 's') m->sliding[l / 64] |= (uint64_t)1 << (l % 64);
}

static void wire_rope(rope_cfg *c, const recipe *r) {
    *c = (rope_cfg){.theta = f32(r, "rope_theta"),
                    .dim = u32(r, "rotary_dim"),
                    .interleaved = recipe_bool(r, "model", "rope_interleaved"),
                    .scaling = choice(r, "model", "rope_scaling"),
                    .factor = f32(r, "rope_factor"),
                    .original = recipe_int(r, "model", "rope_original"),
                    .beta_fast = f32(r, "rope_beta_fast"),
                    .beta_slow = f32(r, "rope_beta_slow"),
                    .mscale = f32(r, "rope_mscale"),
                    .mscale_all_dim = f32(r, "rope_mscale_all_dim"),
                    .attention_factor = f32(r, "rope_attention_factor"),
                    .truncate = recipe_bool(r, "model", "rope_truncate")};
}

static void wire_layers(model_cfg *m, const recipe *r) {
    m->activation = choice(r, "model", "activation");
    m->activation_alpha = f32(r, "activation_alpha");
    m->activation_limit = f32(r, "activation_limit");
    m->expert_biases = recipe_bool(r, "model", "expert_biases");
    m->router_bias = recipe_bool(r, "model", "router_bias");
    m->shared_gate = recipe_bool(r, "model", "shared_gate");
    m->capacity = (float)recipe_float(r, "capacity", "factor");
    m->capacity_drop = choice(r, "capacity", "drop");
    m->capacity_scope = choice(r, "capacity", "scope");
    m->capacity_pad = recipe_bool(r, "capacity", "pad");
    m->recv = choice(r, "memory", "recv");
    m->recv_factor = (float)recipe_get(r, "memory", "recv")->v.f;
    m->overflow = choice(r, "memory", "overflow");
}

void wire_model(model_cfg *m, const recipe *r) {
    *m = (model_cfg){.layers = u32(r, "layers"),
                     .dense_layers = u32(r, "dense_layers"),
                     .heads = u32(r, "heads"),
                     .kv_heads = u32(r, "kv_heads"),
                     .head_dim = u32(r, "head_dim"),
                     .experts = u32(r, "experts"),
                     .top_k = u32(r, "top_k"),
                     .hidden = recipe_int(r, "model", "hidden"),
                     .vocab = recipe_int(r, "model", "vocab"),
                     .expert_ffn = recipe_int(r, "model", "expert_ffn"),
                     .dense_ffn = recipe_int(r, "model", "dense_ffn"),
                     .shared_ffn = recipe_int(r, "model", "shared_experts") * recipe_int(r, "model", "shared_ffn"),
                     .seq = recipe_int(r, "data", "seq_len"),
                     .micro = recipe_int(r, "batch", "micro"),
                     .head_rows = recipe_int(r, "memory", "head_rows"),
                     .norm_eps = f32(r, "norm_eps"),
                     .init_std = f32(r, "init_std"),
                     .tied = recipe_bool(r, "model", "tied"),
                     .seed = (uint64_t)recipe_int(r, "run", "seed"),
                     .documents = recipe_bool(r, "data", "documents")};
    wire_attention(m, r);
    wire_rope(&m->rope, r);
    wire_layers(m, r);
}

void wire_optimizer(trainer_cfg *t, const recipe *r) {
    t->optimizer = (optimizer_cfg){.kind = choice(r, "optimizer", "kind"),
                                   .beta1 = (float)recipe_float(r, "optimizer", "beta1"),
                                   .beta2 = (float)recipe_float(r, "optimizer", "beta2"),
                                   .eps = (float)recipe_float(r, "optimizer", "eps"),
                                   .weight_decay = (float)recipe_float(r, "optimizer", "weight_decay"),
                                   .clip = (float)recipe_float(r, "optimizer", "clip"),
                                   .distributed = recipe_bool(r, "optimizer", "distributed")};
    t->lr = (lr_config){.schedule = choice(r, "optimizer", "schedule"),
                        .lr = recipe_float(r, "optimizer", "lr"),
                        .min_fraction = recipe_float(r, "optimizer", "min_lr"),
                        .warmup = recipe_int(r, "optimizer", "warmup"),
                        .decay = recipe_int(r, "optimizer", "decay"),
                        .total = recipe_int(r, "run", "steps")};
}
