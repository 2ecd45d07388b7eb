/* Sizes of the model, as the recipe gives them. */
#ifndef CORE_MODEL_CONFIG_H
#define CORE_MODEL_CONFIG_H
#include <stdint.h>

typedef struct model_cfg {
    uint32_t layers, dense_layers;      /* the first dense_layers have one MLP instead of experts */
    uint32_t heads, kv_heads, head_dim; /* query heads, key-value heads, elements a head */
    uint32_t experts, top_k;            /* experts 0: every layer is dense */
    int64_t hidden, vocab;
    int64_t expert_ffn, dense_ffn, shared_ffn; /* widths; shared_ffn: of all shared experts together, 0 = none */
    int64_t seq, micro;                        /* tokens a sequence; sequences a microbatch */
    int64_t head_rows;                         /* tokens whose logits exist at a time */
    float rope_theta, norm_eps, init_std;
    int tied; /* the output head is the embedding table */
    uint64_t seed;
} model_cfg;

static inline int model_layer_is_moe(const model_cfg *c, uint32_t layer) {
    return c->experts > 0 && layer >= c->dense_layers;
}
static inline int64_t model_qkv_width(const model_cfg *c) {
    return (int64_t)(c->heads + 2 * c->kv_heads) * c->head_dim;
}
/* Model FLOPs of one token, forward and backward, at this sequence length: 6 x multiply-adds, causal half of the
 * attention counted, router and recompute not (as Megatron counts, arXiv 2603.07685). */
double model_flops_per_token(const model_cfg *c);

#endif
