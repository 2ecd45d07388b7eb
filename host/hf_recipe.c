/* From the values of a config.json to the text of a recipe. */
#include <hf/map.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hf_config.h"

/* The shortest decimal that reads back as x; large numbers without an exponent. */
static void print_real(FILE *to, const char *key, double x) {
    char text[40], plain[40];
    int digits = 1;
    for (; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        double back = strtod(text, NULL);
        if (!(back < x) && !(back > x)) break;
    }
    for (; strstr(text, "e+") && digits <= 15; digits++) {
        snprintf(plain, sizeof plain, "%.*g", digits, x);
        if (!strchr(plain, 'e')) memcpy(text, plain, sizeof text);
    }
    fprintf(to, "%s = %s\n", key, text);
}

static void print_int(FILE *to, const char *key, int64_t x) {
    fprintf(to, "%s = %" PRId64 "\n", key, x);
}

static void print_flag(FILE *to, const char *key, bool on) {
    if (on) fprintf(to, "%s = true\n", key);
}

static void print_rope(const hf_config *c, FILE *to) {
    print_real(to, "rope_theta", c->theta);
    if (c->style == HF_DEEPSEEK_V3) {
        print_int(to, "rotary_dim", c->rope_dim);
        print_flag(to, "rope_interleaved", c->interleaved);
    } else if (c->partial_rotary < 1) {
        print_int(to, "rotary_dim", (int64_t)((double)c->head_dim * c->partial_rotary)); /* cut, as transformers does */
    }
    if (c->scaling == ROPE_PLAIN) return;
    fprintf(to, "rope_scaling = %s\n", c->scaling == ROPE_YARN ? "yarn" : "linear");
    print_real(to, "rope_factor", c->factor);
    if (c->scaling != ROPE_YARN) return;
    print_int(to, "rope_original", c->original);
    print_real(to, "rope_beta_fast", c->beta_fast);
    print_real(to, "rope_beta_slow", c->beta_slow);
    if (c->mscale > 0) print_real(to, "rope_mscale", c->mscale);
    if (c->mscale_all_dim > 0) print_real(to, "rope_mscale_all_dim", c->mscale_all_dim);
    if (c->attention_factor > 0) print_real(to, "rope_attention_factor", c->attention_factor);
    if (!c->truncate) fprintf(to, "rope_truncate = false\n");
}

static void print_attention(const hf_config *c, FILE *to) {
    int gpt = c->style == HF_GPT_OSS;
    print_int(to, "heads", c->heads);
    print_int(to, "kv_heads", c->kv_heads);
    print_int(to, "head_dim", c->head_dim);
    if (c->style == HF_DEEPSEEK_V3) {
        fprintf(to, "attention = mla\n");
        if (c->q_lora) print_int(to, "q_lora", c->q_lora);
        print_int(to, "kv_lora", c->kv_lora);
        print_int(to, "v_dim", c->v_dim);
    }
    if (c->style == HF_QWEN3_MOE) fprintf(to, "qk_norm = head\n");
    if (c->style == HF_OLMOE) fprintf(to, "qk_norm = full\n");
    print_flag(to, "qkv_bias", gpt || c->attention_bias || c->qkv_bias);
    print_flag(to, "out_bias", gpt || c->attention_bias);
    print_flag(to, "sinks", gpt);
    if (c->window) print_int(to, "window", c->window);
    if (c->window && strcmp(c->pattern, "s") != 0) fprintf(to, "window_pattern = %s\n", c->pattern);
    print_rope(c, to);
}

static void print_layers(const hf_config *c, FILE *to) {
    int gpt = c->style == HF_GPT_OSS;
    print_int(to, "experts", c->experts);
    print_int(to, "top_k", c->top_k);
    print_int(to, "expert_ffn", c->expert_ffn);
    if (c->dense_layers) {
        print_int(to, "dense_layers", c->dense_layers);
        print_int(to, "dense_ffn", c->dense_ffn);
    }
    if (c->shared_experts) {
        print_int(to, "shared_experts", c->shared_experts);
        print_int(to, "shared_ffn", c->shared_ffn);
    }
    print_flag(to, "shared_gate", c->style == HF_QWEN2_MOE);
    print_flag(to, "expert_biases", gpt);
    print_flag(to, "router_bias", gpt);
    if (!gpt) return;
    fprintf(to, "activation = clamped_swiglu\n");
    print_real(to, "activation_alpha", c->alpha);
    print_real(to, "activation_limit", c->limit);
}

static void print_model(const hf_config *c, const char *weights, FILE *to) {
    fprintf(to, "\n[model]\n");
    print_int(to, "hidden", c->hidden);
    print_int(to, "layers", c->layers);
    print_int(to, "vocab", c->vocab);
    print_attention(c, to);
    print_layers(c, to);
    print_real(to, "norm_eps", c->norm_eps);
    print_real(to, "init_std", c->init_std);
    print_flag(to, "tied", c->tied);
    fprintf(to, "weights = %s\n", weights);
}

static void print_router(const hf_config *c, FILE *to) {
    int deepseek = c->style == HF_DEEPSEEK_V3;
    fprintf(to, "\n[router]\nplugin = topk\n");
    if (deepseek) fprintf(to, "score = sigmoid\nexpert_bias = true\n");
    if (c->style == HF_GPT_OSS)
        fprintf(to, "order = after\n");
    else
        print_flag(to, "renormalise", c->renormalise);
    if (deepseek) print_real(to, "scale", c->scale);
    if (deepseek && c->groups > 1) {
        print_int(to, "groups", c->groups);
        print_int(to, "groups_kept", c->groups_kept);
        fprintf(to, "group_score = sum2\n");
    }
    if (c->aux_coef <= 0) return;
    if (!deepseek)
        fprintf(to,
                "; transformers forms this loss over all layers at once, times top_k; here every layer has its own\n");
    print_real(to, "aux_coef", c->aux_coef);
    if (deepseek && c->seq_aux) fprintf(to, "aux_scope = sequence\n");
}

void hf_config_print(const hf_config *c, const char *source, const char *weights, const char *run, FILE *to) {
    fprintf(to, "; The model of %s (%s). Complete but for the data: fill in [data],\n", source,
            hf_style_name(c->style));
    fprintf(to, "; then steps, batch and learning rate as the work needs them.\n\n[run]\n");
    if (run) fprintf(to, "name = %s\n", run);
    fprintf(to, "steps = 100\n\n[data]\n");
    fprintf(to, "; train = FILES    files or globs of token ids made with the model's tokenizer, between commas\n");
    fprintf(to, "format = megatron\n");
    print_int(to, "seq_len", c->max_positions < 4096 ? c->max_positions : 4096);
    print_model(c, weights, to);
    print_router(c, to);
    fprintf(to, "\n[optimizer]\nlr = 1e-5\n\n[batch]\nglobal = 8\nmicro = 1\n");
}
