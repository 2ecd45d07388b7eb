/* Routers over router/topk for tests: every logit is moved by a random factor near one, and (recompute_table) backward
 * routes a second time, as a step that has dropped its activations does, and goes on from what that call gave. A draw
 * is a function of seed, layer, step and token; `drawn` sums up all of them, so that streams can be compared. */
#ifndef TESTS_JITTER_ROUTER_H
#define TESTS_JITTER_ROUTER_H
#include <moe/random.h>
#include <moe/router.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "plugin_open.h"

typedef struct jitter_router {
    const moe_router_v0 *under;
    void *self;
    moe_random_key key;
    uint64_t top_workspace;            /* bytes of topk's own; ours lies behind */
    int64_t tokens, experts, k;        /* at most, of a call */
    _Atomic uint64_t drawn;            /* sum of all words drawn by the first routing */
    _Atomic uint64_t again, different; /* routed a second time; and with another result */
} jitter_router;

static moe_status jitter_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    jitter_router *j = calloc(1, sizeof *j);
    char name[32];
    if (!j) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    snprintf(name, sizeof name, "layers.%u.jitter", cfg->layer);
    j->under = plugin_open("router", "topk")->vtable;
    j->key = moe_random_key_make(cfg->seed, MOE_RANDOM_JITTER, name);
    j->tokens = cfg->max_tokens;
    j->experts = cfg->n_experts;
    j->k = cfg->top_k;
    moe_status status = j->under->create(cfg, host, &j->self, err);
    if (status)
        free(j);
    else
        *self = j;
    return status;
}
static void jitter_destroy(void *self) {
    jitter_router *j = self;
    if (j) j->under->destroy(j->self);
    free(j);
}
static moe_status jitter_needs(void *self, moe_router_needs *needs, moe_err *err) {
    jitter_router *j = self;
    moe_status status = j->under->needs(j->self, needs, err);
    j->top_workspace = (needs->workspace + 63) / 64 * 64;
    needs->workspace = j->top_workspace + (uint64_t)(j->tokens * (j->experts + 2 * j->k)) * 4;
    return status;
}

/* logits * (1 + 0.01 u), u in (-1, 1), for those who train; in the workspace. */
static moe_tensor jitter_logits(const jitter_router *j, const moe_route_args *a, uint64_t *drawn) {
    moe_tensor t = *a->logits;
    const float *in = a->logits->data;
    float *out = (float *)(void *)((char *)a->workspace + j->top_workspace);
    t.data = out;
    for (int64_t i = 0; i < t.shape[0] * j->experts; i++) {
        uint64_t element = (uint64_t)(a->first_token * j->experts + i);
        uint32_t word = moe_random_words(j->key, element, *a->step).v[0];
        out[i] = a->flags & MOE_ROUTE_TRAIN ? in[i] * (1 + 0.01F * (2 * moe_random_unit(word) - 1)) : in[i];
        *drawn += word;
    }
    return t;
}

static moe_status jitter_route(const void *self, const moe_route_args *args, moe_err *err) {
    jitter_router *j = (jitter_router *)(uintptr_t)self; /* of it, only atomics are written */
    uint64_t drawn = 0;
    moe_route_args a = *args;
    moe_tensor logits = jitter_logits(j, args, &drawn);
    a.logits = &logits;
    if ((a.flags & (MOE_ROUTE_TRAIN | MOE_ROUTE_RECOMPUTE)) == MOE_ROUTE_TRAIN) atomic_fetch_add(&j->drawn, drawn);
    return j->under->route(j->self, &a, err);
}

static moe_status jitter_route_bwd(const void *self, const moe_route_args *args, moe_err *err) {
    const jitter_router *j = self;
    uint64_t drawn = 0;
    moe_route_args a = *args;
    moe_tensor logits = jitter_logits(j, args, &drawn);
    a.logits = &logits;
    return j->under->route_bwd(j->self, &a, err);
}

/* Routes again into arrays of its own; counts and losses are what core gives to backward. */
static moe_status recompute_route_bwd(const void *self, const moe_route_args *args, moe_err *err) {
    jitter_router *j = (jitter_router *)(uintptr_t)self;
    moe_route_args a = *args;
    moe_tensor ids = *args->expert_ids, weights = *args->weights;
    uint64_t n = (uint64_t)(ids.shape[0] * j->k);
    char *own = (char *)args->workspace + j->top_workspace + (uint64_t)(j->tokens * j->experts) * 4;
    ids.data = own;
    weights.data = own + (uint64_t)(j->tokens * j->k) * 4;
    memset(own, 0xff, (uint64_t)(2 * j->tokens * j->k) * 4);
    a.flags |= MOE_ROUTE_RECOMPUTE;
    a.expert_ids = &ids;
    a.weights = &weights;
    moe_status status = jitter_route(self, &a, err);
    if (status) return status;
    atomic_fetch_add(&j->again, 1);
    if (memcmp(ids.data, args->expert_ids->data, n * 4) != 0 || memcmp(weights.data, args->weights->data, n * 4) != 0)
        atomic_fetch_add(&j->different, 1);
    return jitter_route_bwd(self, &a, err);
}

static moe_status jitter_end_step(const void *self, const moe_end_step_args *args, moe_err *err) {
    const jitter_router *j = self;
    return j->under->end_step(j->self, args, err);
}

static const moe_router_v0 jitter_table = {.size = sizeof jitter_table,
                                           .create = jitter_create,
                                           .destroy = jitter_destroy,
                                           .needs = jitter_needs,
                                           .route = jitter_route,
                                           .route_bwd = jitter_route_bwd,
                                           .end_step = jitter_end_step};
static const moe_router_v0 recompute_table = {.size = sizeof recompute_table,
                                              .create = jitter_create,
                                              .destroy = jitter_destroy,
                                              .needs = jitter_needs,
                                              .route = jitter_route,
                                              .route_bwd = recompute_route_bwd,
                                              .end_step = jitter_end_step};
#endif
