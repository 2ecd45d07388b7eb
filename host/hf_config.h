/* config.json of a Hugging Face model, read strictly: each key is in the table of hf_config.c with what it means, the
 * one value that is supported, or that it does not touch the numbers. What the table does not know is refused. Pure
 * functions on memory: no files. core/hf/family.h writes such a file. */
#ifndef HOST_HF_CONFIG_H
#define HOST_HF_CONFIG_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "errors.h"

/* Values as the file gives them, defaults of transformers added; what a family does not have is 0. */
typedef struct hf_config {
    int32_t style; /* HF_MIXTRAL, ... (hf/map.h) */
    int64_t hidden, layers, heads, kv_heads, head_dim, vocab, max_positions;
    int64_t experts, top_k, expert_ffn, dense_ffn, dense_layers, shared_experts, shared_ffn; /* of one shared expert */
    int64_t q_lora, kv_lora, nope_dim, rope_dim, v_dim;                                      /* latent attention */
    int64_t window, groups, groups_kept;
    int64_t extra_layers; /* past the model's: for prediction of further tokens */
    double norm_eps, init_std, theta, partial_rotary, aux_coef, scale, alpha, limit;
    bool tied, renormalise, attention_bias, qkv_bias, interleaved, seq_aux, output_router_logits;
    bool slides;                         /* use_sliding_window */
    char pattern[4097];                  /* window_pattern: s and f, its shortest period; "" without a window */
    int32_t scaling;                     /* ROPE_* (model/config.h) */
    int64_t original;                    /* of YaRN */
    double factor, beta_fast, beta_slow; /* of linear scaling and YaRN */
    double mscale, mscale_all_dim, attention_factor;
    bool truncate;
} hf_config;

/* Reads n bytes of text. name: what errors call the file. False when there was an error; errs then has all of them,
 * "NAME:LINE: KEY = VALUE: reason". notes: what was left out on purpose, and may matter. [any thread] */
bool hf_config_parse(const char *text, size_t n, const char *name, hf_config *out, err_list *notes, err_list *errs);

/* Writes the recipe. source: the file, for a comment; weights: absolute folder; run: [run] name, NULL = from the file's
 * name. */
void hf_config_print(const hf_config *c, const char *source, const char *weights, const char *run, FILE *to);
#endif
