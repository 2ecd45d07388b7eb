/* The table of config.json's keys: what each means, the one value that is supported, or that it does not touch the
 * numbers. Meanings are those of transformers' configuration_*.py of the six families. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "hf_config_impl.h"

/* ---- the table ---- */
enum { /* families of a row */
       MIX = 1 << HF_MIXTRAL,
       Q2 = 1 << HF_QWEN2_MOE,
       Q3 = 1 << HF_QWEN3_MOE,
       OLM = 1 << HF_OLMOE,
       DS3 = 1 << HF_DEEPSEEK_V3,
       GPT = 1 << HF_GPT_OSS,
       ALL = (1 << HF_STYLES) - 1,
       GQA = ALL & ~DS3
};
enum { /* what a row's key is */
       INT,
       REAL,
       BOOL,
       ONLY,   /* text: the supported values, compact JSON between bars */
       TAKEN,  /* by a function of its own */
       IGNORED /* no effect on the numbers */
};

typedef struct key_rule {
    const char *key;
    int families, kind;
    size_t to;        /* offset of int64_t, double or bool in hf_config */
    double lo, hi;    /* INT, REAL */
    const char *text; /* default, NULL = required (null in the file is then an error); ONLY: the values */
} key_rule;

#define TO(field) offsetof(hf_config, field)
static const key_rule rules[] = {
    {"model_type", ALL, TAKEN, 0, 0, 0, ""},
    {"hidden_size", ALL, INT, TO(hidden), 1, 1 << 20, NULL},
    {"num_hidden_layers", ALL, INT, TO(layers), 1, 4096, NULL},
    {"num_attention_heads", ALL, INT, TO(heads), 1, 65536, NULL},
    {"num_key_value_heads", MIX | Q3 | GPT, INT, TO(kv_heads), 1, 65536, NULL},
    {"num_key_value_heads", Q2 | OLM | DS3, INT, TO(kv_heads), 1, 65536, "0"}, /* default: as heads */
    {"head_dim", MIX | Q2 | Q3 | OLM, INT, TO(head_dim), 1, 65536, "0"},       /* default: hidden / heads */
    {"head_dim", GPT, INT, TO(head_dim), 1, 65536, NULL},
    {"head_dim", DS3, TAKEN, 0, 0, 0, ""},
    {"qk_head_dim", DS3, TAKEN, 0, 0, 0, ""},
    {"vocab_size", ALL, INT, TO(vocab), 1, 1 << 24, NULL},
    {"max_position_embeddings", ALL, INT, TO(max_positions), 1, 1 << 30, NULL},
    {"rms_norm_eps", ALL, REAL, TO(norm_eps), 1e-30, 1, NULL},
    {"initializer_range", ALL, REAL, TO(init_std), 0, 10, "0.02"},
    {"tie_word_embeddings", ALL, BOOL, TO(tied), 0, 0, "false"},
    /* experts */
    {"num_local_experts", MIX | GPT, INT, TO(experts), 1, 1 << 20, NULL},
    {"num_experts", Q2 | OLM, INT, TO(experts), 1, 1 << 20, NULL},
    {"num_experts", Q3, TAKEN, 0, 0, 0, ""}, /* one of the two, by version */
    {"num_local_experts", Q3, TAKEN, 0, 0, 0, ""},
    {"n_routed_experts", DS3, INT, TO(experts), 1, 1 << 20, NULL},
    {"num_experts_per_tok", ALL, INT, TO(top_k), 1, 1 << 20, NULL},
    {"experts_per_token", GPT, TAKEN, 0, 0, 0, ""},
    {"intermediate_size", MIX | OLM | GPT, INT, TO(expert_ffn), 1, 1 << 24, NULL},
    {"intermediate_size", Q2 | Q3 | DS3, INT, TO(dense_ffn), 1, 1 << 24, NULL},
    {"moe_intermediate_size", Q2 | Q3 | DS3, INT, TO(expert_ffn), 1, 1 << 24, NULL},
    {"shared_expert_intermediate_size", Q2, INT, TO(shared_ffn), 1, 1 << 24, NULL},
    {"n_shared_experts", DS3, INT, TO(shared_experts), 1, 1 << 20, NULL},
    {"first_k_dense_replace", DS3, INT, TO(dense_layers), 0, 4096, NULL},
    {"moe_layer_freq", DS3, ONLY, 0, 0, 0, "1"},
    {"decoder_sparse_step", Q2 | Q3, ONLY, 0, 0, 0, "1"},
    {"mlp_only_layers", Q2 | Q3, TAKEN, 0, 0, 0, ""},
    {"hidden_act", ALL, ONLY, 0, 0, 0, "\"silu\""},
    {"swiglu_alpha", GPT, REAL, TO(alpha), 0, 1000, "1.702"},
    {"swiglu_limit", GPT, REAL, TO(limit), 1e-6, 1e6, "7"},
    /* router */
    {"norm_topk_prob", Q2 | Q3 | OLM | DS3, BOOL, TO(renormalise), 0, 0, NULL},
    {"router_aux_loss_coef", GQA, REAL, TO(aux_coef), 0, 1000, "0"},
    {"output_router_logits", ALL, BOOL, TO(output_router_logits), 0, 0, "false"},
    {"router_jitter_noise", MIX, ONLY, 0, 0, 0, "0|0.0|null"}, /* transformers jitters the experts' input too */
    {"aux_loss_alpha", DS3, REAL, TO(aux_coef), 0, 1000, "0"},
    {"seq_aux", DS3, BOOL, TO(seq_aux), 0, 0, "true"},
    {"n_group", DS3, INT, TO(groups), 1, 65536, NULL},
    {"topk_group", DS3, INT, TO(groups_kept), 1, 65536, NULL},
    {"routed_scaling_factor", DS3, REAL, TO(scale), 0.001, 1000, NULL},
    {"scoring_func", DS3, ONLY, 0, 0, 0, "\"sigmoid\""},
    {"topk_method", DS3, ONLY, 0, 0, 0, "\"noaux_tc\""},
    {"num_nextn_predict_layers", DS3, INT, TO(extra_layers), 0, 4096, "0"},
    /* attention */
    {"attention_bias", Q3 | OLM, BOOL, TO(attention_bias), 0, 0, "false"},
    {"attention_bias", GPT, ONLY, 0, 0, 0, "true"},
    {"attention_bias", MIX | Q2 | DS3, ONLY, 0, 0, 0, "false|null"},
    {"qkv_bias", Q2, BOOL, TO(qkv_bias), 0, 0, "true"},
    {"clip_qkv", OLM, ONLY, 0, 0, 0, "null"},
    {"attention_dropout", ALL, ONLY, 0, 0, 0, "0|0.0|null"},
    {"q_lora_rank", DS3, INT, TO(q_lora), 1, 1 << 20, "0"},
    {"kv_lora_rank", DS3, INT, TO(kv_lora), 1, 1 << 20, NULL},
    {"qk_nope_head_dim", DS3, INT, TO(nope_dim), 1, 65534, NULL},
    {"qk_rope_head_dim", DS3, INT, TO(rope_dim), 2, 65534, NULL},
    {"v_head_dim", DS3, INT, TO(v_dim), 1, 65536, NULL},
    {"sliding_window", MIX | Q2 | GPT, INT, TO(window), 0, 1 << 30, "0"},
    {"sliding_window", Q3, IGNORED, 0, 0, 0, ""}, /* only with use_sliding_window */
    {"use_sliding_window", Q2, BOOL, TO(slides), 0, 0, "false"},
    {"use_sliding_window", Q3, ONLY, 0, 0, 0, "false|null"}, /* which layers slide differs between versions */
    {"max_window_layers", Q2 | Q3, IGNORED, 0, 0, 0, ""},
    {"layer_types", Q2 | GPT, TAKEN, 0, 0, 0, ""},
    /* rotary embedding */
    {"rope_theta", ALL, TAKEN, 0, 0, 0, ""},
    {"rope_scaling", ALL, TAKEN, 0, 0, 0, ""},
    {"rope_parameters", ALL, TAKEN, 0, 0, 0, ""},
    {"rope_interleave", DS3, BOOL, TO(interleaved), 0, 0, "true"},
    {"partial_rotary_factor", GQA, REAL, TO(partial_rotary), 1e-6, 1, "1"},
    {"partial_rotary_factor", DS3, ONLY, 0, 0, 0, "1|1.0|null"},
    {"initial_context_length", GPT, IGNORED, 0, 0, 0, ""}, /* as rope_scaling's original_max_position_embeddings */
    /* what would make it another model */
    {"quantization_config", ALL, ONLY, 0, 0, 0, "null"},
    {"compression_config", ALL, ONLY, 0, 0, 0, "null"},
    {"is_encoder_decoder", ALL, ONLY, 0, 0, 0, "false|null"},
    {"add_cross_attention", ALL, ONLY, 0, 0, 0, "false|null"},
    {"pruned_heads", ALL, ONLY, 0, 0, 0, "{}|null"},
    {"mlp_bias", ALL, ONLY, 0, 0, 0, "false|null"},
    {"pretraining_tp", ALL, ONLY, 0, 0, 0, "1|null"},
    {"ep_size", ALL, IGNORED, 0, 0, 0, ""},
};

/* Keys of every model that do not touch its numbers: names, tokens, generation, what is returned. */
static const char *const ignored[] = {"architectures",
                                      "auto_map",
                                      "torch_dtype",
                                      "dtype",
                                      "transformers_version",
                                      "use_cache",
                                      "bos_token_id",
                                      "eos_token_id",
                                      "pad_token_id",
                                      "sep_token_id",
                                      "decoder_start_token_id",
                                      "cross_attention_hidden_size",
                                      "tokenizer_class",
                                      "name_or_path",
                                      "id2label",
                                      "label2id",
                                      "num_labels",
                                      "problem_type",
                                      "finetuning_task",
                                      "task_specific_params",
                                      "return_dict",
                                      "use_return_dict",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "torchscript",
                                      "tie_encoder_decoder",
                                      "is_decoder",
                                      "chunk_size_feed_forward",
                                      "use_bfloat16",
                                      "tf_legacy_loss",
                                      "attn_implementation",
                                      "experts_implementation",
                                      "prefix",
                                      "bad_words_ids",
                                      "max_length",
                                      "min_length",
                                      "do_sample",
                                      "early_stopping",
                                      "num_beams",
                                      "num_beam_groups",
                                      "diversity_penalty",
                                      "temperature",
                                      "top_k",
                                      "top_p",
                                      "typical_p",
                                      "repetition_penalty",
                                      "length_penalty",
                                      "no_repeat_ngram_size",
                                      "encoder_no_repeat_ngram_size",
                                      "num_return_sequences",
                                      "output_scores",
                                      "return_dict_in_generate",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "remove_invalid_values",
                                      "exponential_decay_length_penalty",
                                      "suppress_tokens",
                                      "begin_suppress_tokens"};

/* ---- errors with the line of the key ---- */

/* The line of "key" at a depth of objects within valid JSON; parent NULL: of the outermost one. 1 when not there. */
static int line_of(const hf_reader *r, const char *parent, const char *key) {
    int depth = 0, line = 1, inside = parent == NULL;
    size_t length = strlen(key);
    for (size_t i = 0; i < r->n; i++) {
        char ch = r->text[i];
        if (ch == '\n') line++;
        if (ch == '{' || ch == '[') depth++;
        if (ch == '}' || ch == ']') depth--;
        if (depth < 2 && ch == '}' && parent) inside = 0;
        if (ch != '"') continue;
        size_t begin = i + 1, end = begin;
        while (end < r->n && r->text[end] != '"') end += r->text[end] == '\\' ? 2 : 1;
        i = end;
        size_t after = end + 1;
        while (after < r->n && strchr(" \t\r\n", r->text[after]) && r->text[after]) after++;
        if (after >= r->n || r->text[after] != ':') continue;
        const char *word = r->text + begin;
        if (parent && depth == 1) inside = strlen(parent) == end - begin && memcmp(word, parent, end - begin) == 0;
        if (inside && depth == (parent ? 2 : 1) && end - begin == length && memcmp(word, key, length) == 0) return line;
    }
    return 1;
}

/* "config.json:12: key = value: reason"; parent: the object that holds the key, NULL = the outermost. */
void hf_refuse(hf_reader *r, const char *parent, const char *key, const json_t *value, const char *format, ...) {
    char why[300];
    va_list ap;
    va_start(ap, format);
    vsnprintf(why, sizeof why, format, ap);
    va_end(ap);
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
    err_list_add(r->errs, "%s:%d: %s%s%s = %.80s%s: %s", r->name, line_of(r, parent, key), parent ? parent : "",
                 parent ? "." : "", key, text ? text : "(absent)", text && strlen(text) > 80 ? "..." : "", why);
    free(text);
}

/* ---- values ---- */
static int is_in_bars(const char *bars, const char *text) {
    size_t n = strlen(text);
    for (const char *at = bars; at;) {
        if (strncmp(at, text, n) == 0 && (at[n] == '|' || at[n] == 0)) return 1;
        at = strchr(at, '|');
        if (at) at++;
    }
    return 0;
}

/* parent: of value, for errors. False and an error when it is no number of that range. */
bool hf_read_real(hf_reader *r, const char *parent, const char *key, const json_t *value, double lo, double hi,
                  double *out) {
    double x = json_number_value(value);
    if (!json_is_number(value))
        hf_refuse(r, parent, key, value, "is no number");
    else if (!(x >= lo && x <= hi))
        hf_refuse(r, parent, key, value, "is outside %.15g..%.15g", lo, hi);
    else {
        *out = x;
        return true;
    }
    return false;
}

bool hf_read_int(hf_reader *r, const char *parent, const char *key, const json_t *value, double lo, double hi,
                 int64_t *out) {
    double x;
    if (!json_is_integer(value))
        hf_refuse(r, parent, key, value, "is no whole number");
    else if (hf_read_real(r, parent, key, value, lo, hi, &x)) {
        *out = json_integer_value(value);
        return true;
    }
    return false;
}

bool hf_read_bool(hf_reader *r, const char *parent, const char *key, const json_t *value, bool *out) {
    if (!json_is_boolean(value)) {
        hf_refuse(r, parent, key, value, "is neither true nor false");
        return false;
    }
    *out = json_is_true(value);
    return true;
}

static void set_default(hf_config *c, const key_rule *k) {
    void *to = (char *)c + k->to;
    if (k->kind == INT) *(int64_t *)to = strtoll(k->text, NULL, 10);
    if (k->kind == REAL) *(double *)to = strtod(k->text, NULL);
    if (k->kind == BOOL) *(bool *)to = strcmp(k->text, "true") == 0;
}

static void read_rule(hf_reader *r, const key_rule *k) {
    const json_t *value = json_object_get(r->root, k->key);
    void *to = (char *)r->c + k->to;
    if (k->kind == TAKEN || k->kind == IGNORED || (k->kind == ONLY && !value)) return;
    if (k->kind == ONLY) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        if (!text || !is_in_bars(k->text, text))
            hf_refuse(r, NULL, k->key, value, "is not supported; this must be %s", k->text);
        free(text);
        return;
    }
    if (!value || (json_is_null(value) && k->text)) {
        if (k->text)
            set_default(r->c, k);
        else
            err_list_add(r->errs, "%s:1: %s: missing; a %s model has no default for it", r->name, k->key,
                         hf_style_name(r->c->style));
        return;
    }
    if (k->kind == INT) hf_read_int(r, NULL, k->key, value, k->lo, k->hi, to);
    if (k->kind == REAL) hf_read_real(r, NULL, k->key, value, k->lo, k->hi, to);
    if (k->kind == BOOL) hf_read_bool(r, NULL, k->key, value, to);
}

static bool is_known(const hf_reader *r, const char *key) {
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(rules[i].key, key) == 0 && rules[i].families & 1 << r->c->style) return true;
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        if (strcmp(ignored[i], key) == 0) return true;
    return key[0] == '_';
}

static void refuse_unknown(hf_reader *r) {
    const char *key;
    json_t *value;
    json_object_foreach(r->root, key, value) {
        if (is_known(r, key) || json_is_null(value)) continue;
        hf_refuse(r, NULL, key, value, "is not known for %s models: what it does to the numbers is not supported",
                  hf_style_name(r->c->style));
    }
}

/* A key that says again what others say. */
void hf_check_same(hf_reader *r, const char *key, int64_t expected, const char *of) {
    const json_t *value = json_object_get(r->root, key);
    if (!value || json_is_null(value)) return;
    if (!json_is_integer(value) || json_integer_value(value) != expected)
        hf_refuse(r, NULL, key, value, "contradicts %s = %" PRId64, of, expected);
}

void hf_read_table(hf_reader *r) {
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].families & 1 << r->c->style) read_rule(r, &rules[i]);
    refuse_unknown(r);
}
