/* Contradictions inside [model] and [capacity], keys of them without effect, and sizes that follow from others. */
#include <string.h>

#include "recipe_impl.h"

static void check_heads(recipe *r) {
    int64_t hidden = recipe_int(r, "model", "hidden"), heads = recipe_int(r, "model", "heads");
    if (recipe_int(r, "model", "kv_heads") == 0) recipe_derive(r, "model", "kv_heads", heads);
    if (heads % recipe_int(r, "model", "kv_heads") != 0)
        recipe_conflict(r, "model", "kv_heads", "heads = %lld is no multiple of kv_heads = %lld", (long long)heads,
                        (long long)recipe_int(r, "model", "kv_heads"));
    if (recipe_int(r, "model", "head_dim") == 0) {
        if (hidden % heads != 0) {
            recipe_conflict(r, "model", "heads", "hidden = %lld is no multiple of heads = %lld; give head_dim",
                            (long long)hidden, (long long)heads);
            return;
        }
        if (hidden / heads % 2 != 0) {
            recipe_conflict(r, "model", "heads",
                            "head_dim = hidden / heads = %lld is odd; the rotary embedding turns pairs of elements",
                            (long long)(hidden / heads));
            return;
        }
        recipe_derive(r, "model", "head_dim", hidden / heads);
    } else if (recipe_int(r, "model", "head_dim") % 2 != 0) {
        recipe_conflict(r, "model", "head_dim", "%lld is odd; the rotary embedding turns pairs of elements",
                        (long long)recipe_int(r, "model", "head_dim"));
    }
}

static void refuse_all(recipe *r, const char *section, const char *const *keys, size_t n, const char *why) {
    for (size_t i = 0; i < n; i++) recipe_refuse_useless(r, section, keys[i], why);
}

/* ---- rotary embedding ---- */
static void check_rope(recipe *r) {
    static const char *const yarn[] = {"rope_original",       "rope_beta_fast",        "rope_beta_slow", "rope_mscale",
                                       "rope_mscale_all_dim", "rope_attention_factor", "rope_truncate"};
    bool mla = recipe_is_word(r, "model", "attention", "mla");
    int64_t dim = recipe_int(r, "model", "rotary_dim"), head = recipe_int(r, "model", "head_dim");
    if (dim == 0 && mla) recipe_conflict(r, "model", "rotary_dim", "missing: attention = mla needs it");
    if (dim == 0 && !mla) recipe_derive(r, "model", "rotary_dim", head);
    if (dim % 2) recipe_conflict(r, "model", "rotary_dim", "%lld is odd; it turns pairs of elements", (long long)dim);
    if (dim > head || (mla && dim == head))
        recipe_conflict(r, "model", "rotary_dim", "%lld is not below head_dim = %lld", (long long)dim, (long long)head);
    if (recipe_is_word(r, "model", "rope_scaling", "none"))
        recipe_refuse_useless(r, "model", "rope_factor", "rope_scaling = none");
    if (!recipe_is_word(r, "model", "rope_scaling", "yarn")) {
        refuse_all(r, "model", yarn, sizeof yarn / sizeof yarn[0], "only rope_scaling = yarn has it");
        return;
    }
    if (recipe_int(r, "model", "rope_original") == 0)
        recipe_conflict(r, "model", "rope_original", "missing: rope_scaling = yarn needs it");
    bool scale = recipe_float(r, "model", "rope_mscale") > 0, all = recipe_float(r, "model", "rope_mscale_all_dim") > 0;
    if (scale && (!all || recipe_float(r, "model", "rope_attention_factor") > 0))
        recipe_conflict(r, "model", "rope_mscale",
                        "has no effect: it needs rope_mscale_all_dim, and no "
                        "rope_attention_factor");
    if (all && !scale && !mla)
        recipe_conflict(r, "model", "rope_mscale_all_dim", "has no effect: it needs rope_mscale with attention = gqa");
    if (recipe_float(r, "model", "rope_beta_fast") <= recipe_float(r, "model", "rope_beta_slow"))
        recipe_conflict(r, "model", "rope_beta_fast", "%g is not above rope_beta_slow = %g",
                        recipe_float(r, "model", "rope_beta_fast"), recipe_float(r, "model", "rope_beta_slow"));
}

/* ---- attention ---- */
static void check_attention(recipe *r) {
    static const char *const latent[] = {"q_lora", "kv_lora"};
    static const char *const grouped[] = {"qk_norm", "qkv_bias"};
    const char *pattern = recipe_string(r, "model", "window_pattern");
    if (recipe_is_word(r, "model", "attention", "gqa")) {
        refuse_all(r, "model", latent, sizeof latent / sizeof latent[0], "attention = gqa");
        if (recipe_int(r, "model", "v_dim") != recipe_int(r, "model", "head_dim"))
            recipe_refuse_useless(r, "model", "v_dim", "attention = gqa has values of head_dim elements");
    } else {
        refuse_all(r, "model", grouped, sizeof grouped / sizeof grouped[0], "attention = mla");
        if (recipe_int(r, "model", "kv_heads") != recipe_int(r, "model", "heads"))
            recipe_conflict(r, "model", "kv_heads", "attention = mla has as many as heads = %lld",
                            (long long)recipe_int(r, "model", "heads"));
        if (recipe_int(r, "model", "kv_lora") == 0)
            recipe_conflict(r, "model", "kv_lora", "missing: attention = mla needs it");
    }
    if (recipe_int(r, "model", "v_dim") == 0) recipe_derive(r, "model", "v_dim", recipe_int(r, "model", "head_dim"));
    if (recipe_int(r, "model", "window") == 0)
        recipe_refuse_useless(r, "model", "window_pattern", "window = 0, every layer sees all");
    else if (!strchr(pattern, 's'))
        recipe_conflict(r, "model", "window", "has no effect: no layer of window_pattern = %.40s slides", pattern);
    if (!*pattern || pattern[strspn(pattern, "sf")])
        recipe_conflict(r, "model", "window_pattern", "'%.40s' has other letters than s and f, or none", pattern);
}

/* ---- feed-forward layers ---- */
static void check_dense(recipe *r) {
    static const char *const useless[] = {"top_k",      "expert_ffn",    "dense_layers", "shared_experts",
                                          "shared_ffn", "expert_biases", "router_bias",  "shared_gate"};
    static const char *const capacity[] = {"factor", "drop", "scope", "pad"};
    refuse_all(r, "model", useless, sizeof useless / sizeof useless[0], "experts = 0, every layer is dense");
    refuse_all(r, "capacity", capacity, sizeof capacity / sizeof capacity[0], "[model] experts = 0");
    if (recipe_int(r, "model", "dense_ffn") == 0)
        recipe_conflict(r, "model", "dense_ffn", "missing: with experts = 0 every layer is dense");
    for (size_t i = 0; i < r->n_plugins; i++) {
        const recipe_plugin *p = &r->plugins[i];
        if (strcmp(p->kind, "router") != 0 && strcmp(p->kind, "dispatcher") != 0) continue;
        if (p->n_options)
            err_list_add(r->errs, "%s: has no effect: [model] experts = 0", p->options[0].where_key);
        else if (p->named || strchr(p->section, ':'))
            err_list_add(r->errs, "%s: has no effect: [model] experts = 0", p->where);
    }
}

static void check_capacity(recipe *r) {
    static const char *const with_factor[] = {"drop", "scope", "pad"};
    if (recipe_float(r, "capacity", "factor") <= 0)
        refuse_all(r, "capacity", with_factor, sizeof with_factor / sizeof with_factor[0], "factor = 0, nothing drops");
}

static void check_experts(recipe *r) {
    int64_t experts = recipe_int(r, "model", "experts"), top_k = recipe_int(r, "model", "top_k");
    int64_t layers = recipe_int(r, "model", "layers"), dense = recipe_int(r, "model", "dense_layers");
    if (top_k == 0)
        recipe_conflict(r, "model", "top_k", "missing: experts = %lld needs top_k of at least 1", (long long)experts);
    if (top_k > experts)
        recipe_conflict(r, "model", "top_k", "top_k = %lld is more than experts = %lld", (long long)top_k,
                        (long long)experts);
    if (recipe_int(r, "model", "expert_ffn") == 0)
        recipe_conflict(r, "model", "expert_ffn", "missing: experts = %lld needs it", (long long)experts);
    if (dense >= layers)
        recipe_conflict(r, "model", "dense_layers", "dense_layers = %lld leaves none of layers = %lld to the experts",
                        (long long)dense, (long long)layers);
    if (dense > 0 && recipe_int(r, "model", "dense_ffn") == 0)
        recipe_conflict(r, "model", "dense_ffn", "missing: dense_layers = %lld needs it", (long long)dense);
    if (dense == 0) recipe_refuse_useless(r, "model", "dense_ffn", "dense_layers = 0, no layer is dense");
    if (recipe_int(r, "model", "shared_experts") > 0 && recipe_int(r, "model", "shared_ffn") == 0)
        recipe_conflict(r, "model", "shared_ffn", "missing: shared_experts = %lld needs it",
                        (long long)recipe_int(r, "model", "shared_experts"));
    if (recipe_int(r, "model", "shared_experts") == 0) {
        recipe_refuse_useless(r, "model", "shared_ffn", "shared_experts = 0");
        recipe_refuse_useless(r, "model", "shared_gate", "shared_experts = 0");
    }
    check_capacity(r);
}

void recipe_check_model(recipe *r) {
    static const char *const clamped[] = {"activation_alpha", "activation_limit"};
    check_heads(r);
    check_attention(r);
    check_rope(r);
    if (recipe_is_word(r, "model", "activation", "swiglu"))
        refuse_all(r, "model", clamped, sizeof clamped / sizeof clamped[0], "activation = swiglu");
    if (recipe_slot(r, "model", "weights")->v.i > 1)
        recipe_conflict(r, "model", "weights", "one folder, not %lld",
                        (long long)recipe_slot(r, "model", "weights")->v.i);
    if (recipe_int(r, "model", "experts") == 0)
        check_dense(r);
    else
        check_experts(r);
    if (!recipe_faulty(r, "data") && recipe_is_word(r, "data", "format", "bytes") &&
        recipe_int(r, "model", "vocab") < 256)
        recipe_conflict(r, "model", "vocab", "%lld ids are too few for [data] format = bytes, which has 256",
                        (long long)recipe_int(r, "model", "vocab"));
}
