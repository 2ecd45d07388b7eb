/* Model: sizes, parameters and plugin instances of one rank, and the emission of its layers into a step graph.
 * Every block has its own file with the forward and backward emitters side by side:
 *   embed.c  norm.c (residual + norm)  attention.c  mlp.c (dense and shared)  moe.c (route, dispatch, experts,
 *   combine)  head.c (projection, loss and gradient in row chunks) */
#ifndef CORE_MODEL_MODEL_H
#define CORE_MODEL_MODEL_H
#include "model/config.h"
#include "model/params.h"
#include "parts/parts.h"

enum { MODEL_MAX_LOSSES = 8 };

/* Operations of the device that layers and optimiser use. */
#define MODEL_OPS(X) \
    X(EMBED)         \
    X(RMSNORM)       \
    X(ROPE)          \
    X(ATTENTION) X(ROUTER_LINEAR) X(SWIGLU_PROB) X(CROSS_ENTROPY) X(COUNT_VALID) X(SUMSQ) X(CLIP_COEF) X(ADAMW) X(SGD)
#define MODEL_OP_INDEX(name) MODEL_##name,
enum { MODEL_OPS(MODEL_OP_INDEX) MODEL_N_OPS };
#undef MODEL_OP_INDEX

/* State of a layer's router and what it declared. */
typedef struct model_router {
    moe_router_needs needs;
    moe_dispatcher_needs dispatch;
    void **state;     /* [needs.n_state] device memory, owned by the model */
    uint32_t *params; /* [needs.n_params] numbers in the parameter table */
} model_router;

/* Numbers of a layer's parameters, -1 = has none. */
typedef struct model_layer {
    int64_t norm1, qkv, out, norm2, w1, w2, router, shared_w1, shared_w2;
} model_layer;

typedef struct model {
    model_cfg cfg;
    parts *parts;
    params params;
    const moe_op *ops[MODEL_N_OPS];
    int32_t act; /* dtype of activations */
    int64_t embed, final_norm, head;
    model_layer *layers;   /* [cfg.layers] */
    model_router *routers; /* [cfg.layers] */
    int64_t *counts;       /* device [layers, experts] choices of the step */
    double *stats;         /* device [1 + layers * MODEL_MAX_LOSSES]: loss sum, router losses */
    int32_t *positions;    /* device [micro * seq] */
    float *inv_freq;       /* device [head_dim / 2] */
} model;

/* [main] Checks the sizes, makes routers and dispatchers, lays out and allocates parameters (arenas: params.h) and
 * state, and fills both with their initial values (PARAMS_NONE: neither). Every error names the key or plugin. parts
 * outlive the model. */
moe_status model_create(model **out, const model_cfg *cfg, parts *p, int arenas, moe_err *err);
void model_destroy(model *m); /* NULL is nothing */
/* The BF16 copies again from the master weights, after a load. Waits. */
moe_status model_refresh_copies(model *m, moe_err *err);
/* Number of doubles in stats. */
static inline uint64_t model_n_stats(const model *m) {
    return 1 + (uint64_t)m->cfg.layers * MODEL_MAX_LOSSES;
}

#endif
