/* A router of one choice a slot, the first experts, whose first call in step 3 never returns: a rank of several that is
 * lost inside of a plugin. The others' calls go on. */
#include <moe/plugin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct router {
    int64_t experts, k;
} router;

static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    router *r = malloc(sizeof *r);
    (void)host;
    if (!r) return moe_fail(err, MOE_E_NOMEM, "no memory");
    *r = (router){cfg->n_experts, cfg->top_k};
    *self = r;
    return MOE_OK;
}
static void destroy(void *self) {
    free(self);
}
static moe_status needs(void *self, moe_router_needs *n, moe_err *err) {
    (void)self;
    (void)err;
    memset((char *)n + sizeof n->size, 0, n->size - sizeof n->size);
    n->inputs = MOE_ROUTER_LOGITS;
    n->scope = MOE_SCOPE_TOKEN;
    return MOE_OK;
}

static moe_status route(const void *self, const moe_route_args *a, moe_err *err) {
    static atomic_int lost;
    const router *r = self;
    (void)err;
    if (a->step && *a->step == 3 && !atomic_exchange(&lost, 1))
        for (;;) pause();
    for (int64_t i = 0; i < a->logits->shape[0] * r->k; i++) {
        ((int32_t *)a->expert_ids->data)[i] = (int32_t)(i % r->k);
        ((float *)a->weights->data)[i] = 1.0F / (float)r->k;
        if (a->counts && a->counts->data) ((int64_t *)a->counts->data)[i % r->k]++;
    }
    return MOE_OK;
}
static moe_status route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    const router *r = self;
    (void)err;
    memset(a->d_logits->data, 0, (size_t)(a->logits->shape[0] * r->experts) * sizeof(float));
    return MOE_OK;
}

static const moe_router_v0 table = {
    .size = sizeof table, .create = create, .destroy = destroy, .needs = needs, .route = route, .route_bwd = route_bwd};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "router",
                              .id = "late",
                              .device = "cpu",
                              .version = "1.0",
                              .vendor = "tests",
                              .license = "MIT",
                              .summary = "never returns in step 3, once",
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
