/* Router "topk" for device cuda: description, life, and sizes. See topk_cuda.h. */
#include "options.h"
#include "topk_cuda.h"

enum { BLOCK_BYTES = 96 << 10, MOST_BYTES = 224 << 10, MOST_WARPS = 4, ROUND_BYTES = 4 << 20 };

static int64_t round8(int64_t n) {
    return (n + 7) & ~INT64_C(7);
}
static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}

/* Rows of shared memory, and units of a launch. */
static moe_status plan(topk_cuda *c, moe_err *err) {
    const topk *t = &c->t;
    const int64_t e = round8(t->experts), k = round8(t->k), share = 8 * e, row = 4 * (4 * e + 5 * k + t->groups);
    if (share + row > MOST_BYTES)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "experts = %lld with top_k = %lld: a row takes %lld bytes of shared memory on device cuda, "
                        "there are %d",
                        (long long)t->experts, (long long)t->k, (long long)(share + row), MOST_BYTES);
    const int64_t warps = (BLOCK_BYTES - share) / row, units = ROUND_BYTES / (16 * e);
    const int64_t most = t->aux_scope == TOPK_AUX_SEQUENCE && t->max_tokens > 0 ? t->max_tokens : 1;
    c->padded = (int)e;
    c->k_padded = (int)k;
    c->row_bytes = (int)row;
    c->warps = (int)(warps < 1 ? 1 : warps > MOST_WARPS ? MOST_WARPS : warps);
    c->units = (int)(units < 1 ? 1 : units < most ? units : most);
    return MOE_OK;
}

uint64_t topk_cuda_workspace(const topk_cuda *c) {
    const uint64_t cells = (uint64_t)c->units * (uint64_t)c->padded;
    return 64 + 2 * round64(8 * cells) + round64(16 * (uint64_t)c->t.max_tokens) + round64(4 * cells);
}

static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    topk_cuda seen;
    moe_status s = topk_configure(cfg, host, &seen.t, err);
    if (!s) s = plan(&seen, err);
    if (s) return s;
    topk_cuda *c = malloc(sizeof *c);
    if (!c) return moe_fail(err, MOE_E_NOMEM, "no memory for a router of %zu bytes", sizeof *c);
    *c = seen;
    *self = c;
    return MOE_OK;
}

static void destroy(void *self) {
    free(self);
}

static moe_status needs(void *self, moe_router_needs *needs, moe_err *err) {
    const topk_cuda *c = self;
    return topk_tell_needs(&c->t, topk_cuda_workspace(c), needs, err);
}

static const moe_router_v0 table = {
    .size = sizeof(moe_router_v0),
    .create = create,
    .destroy = destroy,
    .needs = needs,
    .route = topk_cuda_route,
    .route_bwd = topk_cuda_route_bwd,
    .end_step = topk_cuda_end_step,
};
static const moe_desc desc = {
    .size = sizeof(moe_desc),
    .kind = "router",
    .id = "topk",
    .device = "cuda",
    .version = TOPK_VERSION,
    .vendor = "moehost",
    .license = "MIT",
    .summary = TOPK_SUMMARY,
    .options = topk_options,
    .n_options = TOPK_OPTIONS,
    .flags = MOE_ASYNC | MOE_DETERMINISTIC | MOE_GRAPH_SAFE,
    .vtable = &table,
};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
