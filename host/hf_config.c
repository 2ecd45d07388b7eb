/* The keys of config.json that need more than a row of hf_config_table.c - rotary embedding, layers that slide, dense
 * layers - and what follows from several keys. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hf_config_impl.h"
#include "suggest.h"

/* ---- rotary embedding ---- */
static bool is_rope_key(const char *key) {
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "original_max_position_embeddings",
                                        "beta_fast",
                                        "beta_slow",
                                        "mscale",
                                        "mscale_all_dim",
                                        "attention_factor",
                                        "truncate",
                                        "partial_rotary_factor"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i], key) == 0) return true;
    return false;
}

static void optional_real(hf_reader *r, const char *parent, const json_t *o, const char *key, double lo, double hi,
                          double dflt, double *out) {
    const json_t *value = json_object_get(o, key);
    *out = dflt;
    if (value && !json_is_null(value)) hf_read_real(r, parent, key, value, lo, hi, out);
}

/* YaRN's own keys. A GQA family has no scale of attention of its own: its mscale keys would do half of what they say.
 */
static void read_yarn(hf_reader *r, const char *parent, const json_t *o) {
    hf_config *c = r->c;
    const json_t *original = json_object_get(o, "original_max_position_embeddings");
    const json_t *truncate = json_object_get(o, "truncate");
    static const char *const scales[] = {"mscale", "mscale_all_dim"};
    c->original = c->max_positions;
    if (original && !json_is_null(original))
        hf_read_int(r, parent, "original_max_position_embeddings", original, 1, 1 << 30, &c->original);
    optional_real(r, parent, o, "beta_fast", 1e-6, 1e6, 32, &c->beta_fast);
    optional_real(r, parent, o, "beta_slow", 1e-6, 1e6, 1, &c->beta_slow);
    optional_real(r, parent, o, "attention_factor", 1e-6, 1e6, 0, &c->attention_factor);
    optional_real(r, parent, o, "mscale", 0, 1e6, 0, &c->mscale);
    optional_real(r, parent, o, "mscale_all_dim", 0, 1e6, 0, &c->mscale_all_dim);
    c->truncate = true;
    if (truncate) hf_read_bool(r, parent, "truncate", truncate, &c->truncate);
    for (int i = 0; i < 2 && c->style != HF_DEEPSEEK_V3; i++)
        if (json_number_value(json_object_get(o, scales[i])) > 0)
            hf_refuse(r, parent, scales[i], json_object_get(o, scales[i]), "is supported for deepseek_v3 only");
    if (c->beta_fast <= c->beta_slow)
        hf_refuse(r, parent, "beta_fast", json_object_get(o, "beta_fast"), "is not above beta_slow");
}

static void read_scaling(hf_reader *r, const char *parent, const json_t *o) {
    static const char *const types[] = {"default", "linear", "yarn"};
    hf_config *c = r->c;
    const json_t *type = json_object_get(o, "rope_type");
    const char *key = type ? "rope_type" : "type", *text;
    if (!type) type = json_object_get(o, "type");
    text = type ? json_string_value(type) : "default";
    c->scaling = -1;
    for (int i = 0; i < 3; i++)
        if (text && strcmp(text, types[i]) == 0) c->scaling = i;
    if (c->scaling < 0) {
        hf_refuse(r, parent, key, type, "is not supported; default, linear and yarn are");
        c->scaling = ROPE_PLAIN;
    }
    if (c->scaling == ROPE_YARN) read_yarn(r, parent, o);
    if (c->scaling == ROPE_PLAIN) return;
    const json_t *factor = json_object_get(o, "factor");
    if (factor && !json_is_null(factor))
        hf_read_real(r, parent, "factor", factor, 1, 1e6, &c->factor);
    else if (c->scaling == ROPE_YARN && c->original > 0 && c->max_positions >= c->original)
        c->factor = (double)c->max_positions / (double)c->original; /* as transformers derives it */
    else
        hf_refuse(r, parent, "factor", factor, "is missing");
}

/* The one object that says how positions turn: rope_parameters (transformers 5) or rope_scaling (before). */
static const json_t *rope_object(hf_reader *r, const char **parent) {
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    const json_t *found = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *o = json_object_get(r->root, names[i]);
        if (!o || json_is_null(o)) continue;
        if (!json_is_object(o)) {
            hf_refuse(r, NULL, names[i], o, "is no object");
        } else if (found) {
            hf_refuse(r, NULL, names[i], o, "stands beside %s: which of the two holds?", *parent);
        } else {
            found = o;
            *parent = names[i];
        }
    }
    return found;
}

static void read_theta(hf_reader *r, const char *parent, const json_t *o) {
    const json_t *outer = json_object_get(r->root, "rope_theta"), *inner = json_object_get(o, "rope_theta");
    if (outer && json_is_null(outer)) outer = NULL;
    if (inner && json_is_null(inner)) inner = NULL;
    if (!outer && !inner) {
        err_list_add(r->errs, "%s:1: rope_theta: missing; the families' defaults differ", r->name);
        return;
    }
    if (outer) hf_read_real(r, NULL, "rope_theta", outer, 1, 1e15, &r->c->theta);
    double before = r->c->theta;
    if (inner) hf_read_real(r, parent, "rope_theta", inner, 1, 1e15, &r->c->theta);
    if (inner && outer && fabs(before - r->c->theta) > 0)
        hf_refuse(r, parent, "rope_theta", inner, "contradicts the outer rope_theta = %.15g", before);
}

static void read_rope(hf_reader *r) {
    const char *parent = NULL, *key;
    const json_t *o = rope_object(r, &parent);
    json_t *value;
    r->c->factor = 1;
    r->c->truncate = true;
    read_theta(r, parent, o);
    if (!o && r->c->style == HF_GPT_OSS && !json_object_get(r->root, "rope_scaling")) {
        err_list_add(r->errs,
                     "%s:1: rope_scaling: missing; a gpt_oss model without it is YaRN in one version of "
                     "transformers and not in another",
                     r->name);
        return;
    }
    json_object_foreach((json_t *)o, key, value) {
        if (json_is_object(value))
            hf_refuse(r, parent, key, value, "a rotary embedding of its own for some layers is not supported");
        else if (!is_rope_key(key) && !json_is_null(value))
            hf_refuse(r, parent, key, value, "is not known: what it does to the numbers is not supported");
    }
    if (o) read_scaling(r, parent, o);
    const json_t *partial = json_object_get(o, "partial_rotary_factor");
    if (partial && !json_is_null(partial)) {
        double lo = r->c->style == HF_DEEPSEEK_V3 ? 1 : 1e-6;
        hf_read_real(r, parent, "partial_rotary_factor", partial, lo, 1, &r->c->partial_rotary);
    }
}

/* ---- layers ---- */
/* Which layers slide, as letters; false after an error. */
static bool read_types(hf_reader *r, const json_t *types) {
    size_t n = json_array_size(types);
    if (!json_is_array(types) || n != (size_t)r->c->layers) {
        hf_refuse(r, NULL, "layer_types", types, "has not one entry for each of num_hidden_layers = %" PRId64,
                  r->c->layers);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(types, i));
        bool slides = text && strcmp(text, "sliding_attention") == 0;
        if (!slides && (!text || strcmp(text, "full_attention") != 0)) {
            hf_refuse(r, NULL, "layer_types", json_array_get(types, i),
                      "layer %zu: full_attention and sliding_attention are supported", i);
            return false;
        }
        r->c->pattern[i] = slides ? 's' : 'f';
    }
    return true;
}

/* The shortest beginning that, repeated, gives the whole. */
static void shorten(char *pattern) {
    size_t n = strlen(pattern);
    for (size_t period = 1; period < n; period++) {
        size_t i = period;
        while (i < n && pattern[i] == pattern[i % period]) i++;
        if (i == n) pattern[period] = 0;
        if (i == n) return;
    }
}

static void read_window(hf_reader *r) {
    hf_config *c = r->c;
    const json_t *types = json_object_get(r->root, "layer_types");
    if (c->layers < 1 || c->layers > 4096) return; /* said already */
    if (types && json_is_null(types)) types = NULL;
    if (c->style == HF_QWEN3_MOE || c->style == HF_OLMOE || c->style == HF_DEEPSEEK_V3) return;
    for (int64_t l = 0; l < c->layers; l++)
        c->pattern[l] = c->style == HF_MIXTRAL || (c->style == HF_GPT_OSS && l % 2 == 0) ? 's' : 'f';
    if (types && !read_types(r, types)) return;
    if (c->style == HF_QWEN2_MOE && !c->slides) c->window = 0;
    if (c->style == HF_QWEN2_MOE && c->slides && !types)
        hf_refuse(r, NULL, "use_sliding_window", json_object_get(r->root, "use_sliding_window"),
                  "needs layer_types: which layers slide differs between versions of transformers");
    bool some = strchr(c->pattern, 's') != NULL;
    if (some && !c->window && c->style != HF_MIXTRAL)
        hf_refuse(r, NULL, "layer_types", types, "has layers that slide, but there is no window for them%s",
                  c->style == HF_QWEN2_MOE ? " (use_sliding_window, sliding_window)" : " (sliding_window)");
    if (!some || !c->window) {
        c->window = 0;
        c->pattern[0] = 0;
    }
    shorten(c->pattern);
}

/* Layers without experts have to be the first ones. */
static void read_dense(hf_reader *r) {
    const json_t *list = json_object_get(r->root, "mlp_only_layers");
    hf_config *c = r->c;
    if (!list || json_is_null(list) || (c->style != HF_QWEN2_MOE && c->style != HF_QWEN3_MOE)) return;
    size_t n = json_array_size(list);
    bool fits = json_is_array(list) && n <= 4096;
    for (size_t want = 0; fits && want < n; want++) {
        bool there = false;
        for (size_t i = 0; i < n && !there; i++) {
            const json_t *x = json_array_get(list, i);
            there = json_is_integer(x) && json_integer_value(x) == (json_int_t)want;
        }
        fits = there;
    }
    if (!fits)
        hf_refuse(r, NULL, "mlp_only_layers", list,
                  "layers without experts are supported at the beginning only: [0,1,...]");
    else
        c->dense_layers = (int64_t)n;
}

/* qwen3_moe: transformers 5 writes num_local_experts for num_experts. */
static void read_experts(hf_reader *r) {
    static const char *const names[] = {"num_experts", "num_local_experts"};
    const json_t *value = NULL;
    const char *key = NULL;
    if (r->c->style != HF_QWEN3_MOE) return;
    for (int i = 0; i < 2 && !value; i++) value = json_object_get(r->root, key = names[i]);
    if (!value) {
        err_list_add(r->errs, "%s:1: num_experts: missing; a qwen3_moe model has no default for it", r->name);
        return;
    }
    hf_read_int(r, NULL, key, value, 1, 1 << 20, &r->c->experts);
    hf_check_same(r, names[1], r->c->experts, names[0]);
}

/* ---- what follows from several keys ---- */
static void check_sizes(hf_reader *r) {
    hf_config *c = r->c;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (c->style == HF_DEEPSEEK_V3) {
        hf_check_same(r, "head_dim", c->rope_dim, "qk_rope_head_dim");
        hf_check_same(r, "qk_head_dim", c->nope_dim + c->rope_dim, "qk_nope_head_dim + qk_rope_head_dim");
        hf_check_same(r, "num_key_value_heads", c->heads, "num_attention_heads");
        c->head_dim = c->nope_dim + c->rope_dim;
        c->shared_ffn = c->expert_ffn;
    }
    if (c->style == HF_GPT_OSS) hf_check_same(r, "experts_per_token", c->top_k, "num_experts_per_tok");
    if (c->style == HF_QWEN2_MOE) c->shared_experts = 1;
    if (c->style == HF_MIXTRAL || c->style == HF_GPT_OSS) c->renormalise = true;
    if (c->heads > 0 && !c->head_dim && c->hidden % c->heads != 0)
        hf_refuse(r, NULL, "num_attention_heads", json_object_get(r->root, "num_attention_heads"),
                  "does not divide hidden_size = %" PRId64, c->hidden);
    else if (c->heads > 0 && !c->head_dim)
        c->head_dim = c->hidden / c->heads;
    if (c->top_k == 1 && c->renormalise)
        hf_refuse(r, NULL, "num_experts_per_tok", json_object_get(r->root, "num_experts_per_tok"),
                  "with renormalised weights every weight is 1, and the loss cannot train the router");
    if (c->dense_layers == 0) c->dense_ffn = 0;
    if (c->partial_rotary < 1 && (int64_t)((double)c->head_dim * c->partial_rotary) < 2)
        err_list_add(r->errs, "%s:1: partial_rotary_factor = %g: no pair of %" PRId64 " elements turns", r->name,
                     c->partial_rotary, c->head_dim);
}

static void add_notes(hf_reader *r) {
    const hf_config *c = r->c;
    if (c->extra_layers)
        err_list_add(r->notes,
                     "%s: num_nextn_predict_layers = %" PRId64 ": layers %" PRId64
                     " and on, which predict further tokens, are left out",
                     r->name, c->extra_layers, c->layers);
    if (c->aux_coef > 0 && c->style != HF_DEEPSEEK_V3 && !c->output_router_logits)
        err_list_add(r->notes,
                     "%s: router_aux_loss_coef = %.15g becomes [router] aux_coef, although transformers adds "
                     "a balance loss only with output_router_logits = true",
                     r->name, c->aux_coef);
}

static bool read_type(hf_reader *r) {
    char hint[96], all[160] = "";
    const json_t *value = json_object_get(r->root, "model_type");
    const char *type = json_string_value(value);
    r->c->style = type ? hf_style_from_name(type) : -1;
    if (r->c->style >= 0) return true;
    suggest near = suggest_begin(type ? type : "");
    for (int i = 0; i < HF_STYLES; i++) {
        size_t used = strlen(all);
        suggest_offer(&near, hf_style_name(i));
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", hf_style_name(i));
    }
    hf_refuse(r, NULL, "model_type", value, "is none of %s%s", all, suggest_text(&near, hint, sizeof hint));
    return false;
}

bool hf_config_parse(const char *text, size_t n, const char *name, hf_config *out, err_list *notes, err_list *errs) {
    json_error_t where;
    size_t before = err_list_count(errs);
    *out = (hf_config){.factor = 1, .partial_rotary = 1, .scale = 1};
    hf_reader r = {text, name, n, json_loadb(text, n, JSON_REJECT_DUPLICATES, &where), out, notes, errs};
    if (!r.root)
        err_list_add(errs, "%s:%d:%d: %s", name, where.line, where.column, where.text);
    else if (!json_is_object(r.root))
        err_list_add(errs, "%s:1: is no JSON object", name);
    else if (read_type(&r)) {
        hf_read_table(&r);
        read_experts(&r);
        read_rope(&r);
        read_window(&r);
        read_dense(&r);
        check_sizes(&r);
        add_notes(&r);
    }
    json_decref(r.root);
    return err_list_count(errs) == before;
}
