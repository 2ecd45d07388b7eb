/* Which family of transformers models computes exactly what a model computes, and its config.json. The reader of
 * config.json is host/hf_config.h; a test takes one through the other. */
#ifndef CORE_HF_FAMILY_H
#define CORE_HF_FAMILY_H
#include "hf/map.h"

/* What the MoE layers' router does, as far as transformers' routers differ. */
typedef struct hf_routing {
    const char *unlike; /* NULL, or what of this router no family has: "router/quantile", "[router:0-2] differs" */
    int sigmoid;        /* score from a logit; else softmax */
    int after;          /* softmax over the chosen */
    int renormalise;    /* chosen scores are divided by their sum */
    int expert_bias;    /* choice by score + bias */
    double scale;       /* of the weights */
    uint32_t groups, groups_kept; /* choice within the best groups of experts; 0 or 1: without groups */
    double aux_coef;              /* as the file's router_aux_loss_coef */
} hf_routing;

/* MOE_OK where the family of hf_style_of computes the same logits; else MOE_E_UNSUPPORTED and everything that does not
 * fit, by the recipe's keys. */
moe_status hf_family_check(const model_cfg *c, const hf_routing *r, moe_err *err);
/* Text of config.json in new memory, which the caller frees; for a model that passed hf_family_check. dtype: MOE_F32 or
 * MOE_BF16. max_position_embeddings is the length of the recipe's sequences, or with YaRN the stretched length. */
moe_status hf_config_text(const model_cfg *c, const hf_routing *r, int32_t dtype, char **out, moe_err *err);
#endif
