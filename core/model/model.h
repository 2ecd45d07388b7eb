/* Model: sizes, parameters and plugin instances of one rank, and the emission of its layers into a step graph.
 * Every block has its own file with the forward and backward emitters side by side:
 *   embed.c  tokens.c (own and all)  norm.c (residual + norm)  attention.c  latent.c (its latents)  mlp.c  shared.c
 * route.c (projection, choice, capacity)  moe.c (dispatch, experts, combine)  moves.c  head.c (projection, loss and
 * gradient in row chunks) layers.c strings them together. table.c: the parameters. */
#ifndef CORE_MODEL_MODEL_H
#define CORE_MODEL_MODEL_H
#include "mesh/groups.h"
#include "model/config.h"
#include "model/params.h"
#include "parts/needs.h"
#include "parts/parts.h"

enum { MODEL_MAX_LOSSES = NEEDS_MAX_LOSSES };

/* Operations of the device: X(name, whether the model m of sizes c uses it). */
#define MODEL_OPS(X)                                                                 \
    X(EMBED, 1)                                                                      \
    X(RMSNORM, 1)                                                                    \
    X(ROPE, 1)                                                                       \
    X(ATTENTION, 1)                                                                  \
    X(ROUTER_LINEAR, 1)                                                              \
    X(SWIGLU_PROB, 1)                                                                \
    X(CROSS_ENTROPY, m->split.tp == 1)                                               \
    X(CROSS_ENTROPY_MAX, m->split.tp > 1)                                            \
    X(CROSS_ENTROPY_SUM, m->split.tp > 1)                                            \
    X(CROSS_ENTROPY_END, m->split.tp > 1)                                            \
    X(JOIN, m->split.tp > 1)                                                         \
    X(ADD, c->shared_ffn > 0 && (m->split.tp > 1 || m->split.ep * m->split.etp > 1)) \
    X(COUNT_VALID, 1)                                                                \
    X(SUMSQ, 1)                                                                      \
    X(CLIP_COEF, 1)                                                                  \
    X(ADAMW, 1)                                                                      \
    X(SGD, 1)                                                                        \
    X(HEAD_NORM, c->qk_norm != QK_NORM_NONE)                                         \
    X(MLA_PACK, c->attention == ATTENTION_MLA)                                       \
    X(BIAS, c->qkv_bias || c->out_bias || c->expert_biases || c->router_bias)        \
    X(SIGMOID, c->shared_gate)                                                       \
    X(JITTER, model_has_jitter(m))                                                   \
    X(CAPACITY, c->capacity > 0)                                                     \
    X(FIRST_FAULT, parts_async(m->parts, &m->parts->cfg.device))
#define MODEL_OP_INDEX(name, used) MODEL_##name,
enum { MODEL_OPS(MODEL_OP_INDEX) MODEL_N_OPS };
#undef MODEL_OP_INDEX

/* State of a layer's router and what it declared. */
typedef struct model_router {
    moe_router_needs needs;
    moe_dispatcher_needs dispatch;
    void **state;     /* [needs.n_state] device memory, owned by the model */
    uint32_t *params; /* [needs.n_params] numbers in the parameter table */
} model_router;

/* Parameters of a layer: X(field, name in the table after "layers.N."). */
#define MODEL_LAYER_PARAMS(X)                 \
    X(norm1, "norm1")                         \
    X(qkv, "attention.qkv")                   \
    X(qkv_bias, "attention.qkv_bias")         \
    X(q_norm, "attention.q_norm")             \
    X(k_norm, "attention.k_norm")             \
    X(q_down, "attention.q_down")             \
    X(q_down_norm, "attention.q_down_norm")   \
    X(q_up, "attention.q_up")                 \
    X(kv_down, "attention.kv_down")           \
    X(kv_down_norm, "attention.kv_down_norm") \
    X(k_rope, "attention.k_rope")             \
    X(kv_up, "attention.kv_up")               \
    X(sinks, "attention.sinks")               \
    X(out, "attention.out")                   \
    X(out_bias, "attention.out_bias")         \
    X(norm2, "norm2")                         \
    X(mlp_w1, "mlp.w1")                       \
    X(mlp_w2, "mlp.w2")                       \
    X(router, "router.weight")                \
    X(router_bias, "router.logit_bias")       \
    X(w1, "experts.w1")                       \
    X(b1, "experts.b1")                       \
    X(w2, "experts.w2")                       \
    X(b2, "experts.b2")                       \
    X(shared_w1, "shared.w1")                 \
    X(shared_w2, "shared.w2")                 \
    X(shared_gate, "shared.gate")

/* Numbers of a layer's parameters in the table, -1 = has none. */
#define MODEL_LAYER_FIELD(field, name) int64_t field;
typedef struct model_layer {
    MODEL_LAYER_PARAMS(MODEL_LAYER_FIELD)
} model_layer;
#undef MODEL_LAYER_FIELD

/* Where a rank stands. */
typedef struct model_place {
    const mesh *mesh;         /* borrowed, as groups */
    uint32_t rank, node_size; /* node_size: ranks that share a node, 0 = all */
    const mesh_groups *groups;
} model_place;

typedef struct model {
    model_cfg cfg;
    model_place place;
    model_split split;
    model_local local;
    parts *parts;
    params params;
    const moe_op *ops[MODEL_N_OPS]; /* NULL where the device lacks one that this model does not use */
    int32_t act;                    /* dtype of activations */
    int64_t embed, final_norm, head;
    model_layer *layers;   /* [cfg.layers] */
    model_router *routers; /* [cfg.layers] */
    int64_t *counts;       /* device [layers, experts] choices of the step */
    double *stats;         /* device [1 + layers * MODEL_MAX_LOSSES]: loss sum, router losses */
    int64_t *drops;        /* device [2]: choices and dropped ones of the step, with a capacity */
    int32_t *positions;    /* device [micro * seq] */
    float *inv_freq;       /* device [rope.dim / 2] */
} model;

/* What a run does with a model. */
typedef struct model_use {
    int arenas;       /* PARAMS_*: what its programs need */
    int distributed;  /* 1: moments, and masters beside copies, are cut over the ranks that hold the same weights */
    int plan_only;    /* 1: no memory, and no values */
    uint32_t n_micro; /* microbatches a step; 0: no training, and the scheduler is not asked for a shape */
    uint64_t memory_limit; /* bytes, for the scheduler; 0 = none */
} model_use;

/* [main] Checks the sizes, makes routers and dispatchers, lays out and allocates parameters and state, and fills both
 * with their initial values. Every error names the key or plugin. parts and what place points to outlive the model.
 * Collective over the ranks: a dispatcher may make groups. */
moe_status model_create(model **out, const model_cfg *cfg, const model_place *place, parts *p, const model_use *use,
                        moe_err *err);
void model_destroy(model *m); /* NULL is nothing */
/* Where the ranks are that hold the same elements. */
static inline mesh_axis model_reduce_axis(param_reduce over) {
    return over == PARAM_OVER_STAGE ? MESH_STAGE : over == PARAM_OVER_DP_CP ? MESH_DP_CP : MESH_EDP;
}
/* table.c: fills params and layers from cfg and what the routers declared. */
moe_status model_build_table(model *m, moe_err *err);
/* Rows of an expert at most, and at least where it pads; 0 = dropless. A choice's scope is `scope` tokens. */
typedef struct model_capacity {
    int64_t choices, scope, rows; /* of an expert in a scope; tokens; rows of an expert in all scopes of a microbatch */
} model_capacity;
model_capacity model_capacity_of(const model_cfg *c);
/* Does a router want its input jittered in training? */
int model_has_jitter(const model *m);
/* Does a router's loss need the counts of the whole global batch before the first backward? */
int model_needs_batch_counts(const model *m);
/* Number of doubles in stats. */
static inline uint64_t model_n_stats(const model *m) {
    return 1 + (uint64_t)m->cfg.layers * MODEL_MAX_LOSSES;
}

#endif
