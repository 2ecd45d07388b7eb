/* The smallest router: each token goes to the k experts of largest logit, with the softmax over these k as weights.
 * A whole plugin in one file - copy it, rename it, change choose(). README.md walks through it. */
#include <math.h>
#include <moe/plugin.h>

typedef struct router { /* one a layer and rank; const inside a step */
    int64_t experts, k;
    uint32_t layer;
} router;

/* Refuse here what you cannot do: the run then stops before it starts, with your line. */
static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)host; /* services and the log; not needed here */
    if (cfg->top_k < 2 || cfg->top_k > cfg->n_experts)
        return moe_fail(err, MOE_E_ARG,
                        "top_k = %u, experts = %u: needs 2 <= top_k <= experts (one weight alone is always 1)",
                        cfg->top_k, cfg->n_experts);
    if (cfg->n_identity > 0) return moe_fail(err, MOE_E_UNSUPPORTED, "template has no identity experts");
    router *r = malloc(sizeof *r);
    if (!r) return moe_fail(err, MOE_E_NOMEM, "no memory");
    *r = (router){cfg->n_experts, cfg->top_k, cfg->layer};
    *self = r;
    return MOE_OK;
}

static void destroy(void *self) {
    free(self);
}

/* What the host is to hand over and to hold. Logits only; no workspace, parameters, state or losses. */
static moe_status needs(void *self, moe_router_needs *n, moe_err *err) {
    (void)self, (void)err;
    memset((char *)n + sizeof n->size, 0, n->size - sizeof n->size); /* its size is the caller's: never write past it */
    n->inputs = MOE_ROUTER_LOGITS;
    n->scope = MOE_SCOPE_TOKEN;
    /* A field that came after the first headers: the struct of an older host may end before it. */
    if (MOE_REACH(n, moe_router_needs, loss_scope)) n->loss_scope = MOE_SCOPE_TOKEN;
    return MOE_OK;
}

/* ids [k]: the k largest of x [E], largest first, the lowest index among equals. */
static void choose(const router *r, const float *x, int32_t *ids) {
    for (int64_t j = 0; j < r->k; j++) {
        int32_t best = -1;
        for (int32_t e = 0; e < r->experts; e++) {
            int taken = 0;
            for (int64_t i = 0; i < j; i++) taken |= ids[i] == e;
            if (!taken && (best < 0 || x[e] > x[best])) best = e;
        }
        ids[j] = best;
    }
}

static moe_status route(const void *self, const moe_route_args *a, moe_err *err) {
    const router *r = self;
    const float *logits = a->logits->data;                                   /* [T,E] */
    const uint8_t *mask = a->mask && a->mask->data ? a->mask->data : NULL;   /* [T], 0 = padding */
    int64_t *counts = a->counts && a->counts->data ? a->counts->data : NULL; /* [E] */
    int32_t *ids = a->expert_ids->data;                                      /* [T,k] */
    float *w = a->weights->data;                                             /* [T,k] */
    int64_t tokens = a->logits->shape[0], total = tokens * r->experts;
    for (int64_t i = 0; i < total; i++)
        if (!isfinite(logits[i]) && (!mask || mask[i / r->experts]))
            return moe_fail(err, MOE_E_DATA, "layer %u: logit of token %lld, expert %lld is %g", r->layer,
                            (long long)(i / r->experts), (long long)(i % r->experts), (double)logits[i]);
    for (int64_t t = 0; t < tokens; t++, logits += r->experts, ids += r->k, w += r->k) {
        float sum = 0;
        if (!mask || mask[t]) choose(r, logits, ids);
        for (int64_t j = 0; j < r->k; j++) {
            if (mask && !mask[t]) ids[j] = -1;
            w[j] = ids[j] < 0 ? 0 : expf(logits[ids[j]] - logits[ids[0]]);
            sum += w[j];
            if (ids[j] >= 0 && counts) counts[ids[j]]++;
        }
        for (int64_t j = 0; j < r->k && sum > 0; j++) w[j] /= sum;
    }
    return MOE_OK;
}

/* dl_j = w_j (dw_j - sum_i w_i dw_i) for the chosen, zero for all others. */
static moe_status route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    (void)err;
    const router *r = self;
    const int32_t *ids = a->expert_ids->data;
    const float *w = a->weights->data, *dw = a->d_weights->data;
    float *d = a->d_logits->data;
    for (int64_t t = 0; t < a->logits->shape[0]; t++, d += r->experts, ids += r->k, w += r->k, dw += r->k) {
        float dot = 0;
        for (int64_t e = 0; e < r->experts; e++) d[e] = 0;
        for (int64_t j = 0; j < r->k; j++) dot += ids[j] < 0 ? 0 : w[j] * dw[j];
        for (int64_t j = 0; j < r->k; j++)
            if (ids[j] >= 0) d[ids[j]] = w[j] * (dw[j] - dot);
    }
    return MOE_OK;
}

static const moe_router_v0 table = {sizeof(moe_router_v0), 0, create, destroy, needs, route, route_bwd, NULL, NULL};
static const moe_desc desc = {.size = sizeof(moe_desc),
                              .kind = "router",
                              .id = "template",
                              .device = "cpu",
                              .version = "0.1.0",
                              .vendor = "you",
                              .license = "yours",
                              .summary = "the k largest logits, softmax over them",
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
