/* Router "topk" for the CPU: description, life, and the expert bias. The step calls are in route.c. */
#include "topk.h"

#include <math.h>

#include "options.h"
#include "rows.h"

static const row_ops *find_rows(void) {
#ifdef TOPK_AVX2
    if (__builtin_cpu_supports("avx2")) return &row_ops_avx2;
#endif
    return &row_ops_plain;
}

static moe_status topk_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    topk seen;
    moe_status s = topk_configure(cfg, host, &seen, err);
    if (s) return s;
    seen.rows = find_rows();
    seen.pool = router_find_pool(host);
    topk *t = malloc(sizeof *t);
    if (!t) return moe_fail(err, MOE_E_NOMEM, "no memory for a router of %zu bytes", sizeof *t);
    *t = seen;
    *self = t;
    return MOE_OK;
}

static void topk_destroy(void *self) {
    free(self);
}

static moe_status topk_needs(void *self, moe_router_needs *needs, moe_err *err) {
    return topk_tell_needs(self, topk_workspace(self), needs, err);
}

/* bias_e += rate * sign(mean - n_e), in FP32, the comparison exact in integers; with bias_centre the changes lose their
 * mean. A step that is skipped moves nothing. (Wang et al., arXiv 2408.15664, algorithm 1; DeepSeek-V3, arXiv
 * 2412.19437, section 2.1.2) */
static moe_status topk_end_step(const void *self, const moe_end_step_args *a, moe_err *err) {
    const topk *t = self;
    if (!t->bias) return MOE_OK;
    moe_status s = topk_check_end_step(t, a, err);
    if (s) return s;
    if (isnan(((const float *)a->update->data)[1])) return MOE_OK;
    const int64_t *n = a->counts->data;
    float *bias = a->state->data;
    int64_t sum = 0, signs = 0;
    for (int64_t e = 0; e < t->experts; e++) {
        if (n[e] < 0)
            return moe_fail(err, MOE_E_ARG, "layer %u: count of expert %lld is %lld", t->layer, (long long)e,
                            (long long)n[e]);
        sum += n[e];
    }
    int64_t mean = sum / t->experts, rest = sum % t->experts; /* the mean is mean + rest / E */
    for (int64_t e = 0; e < t->experts; e++) signs += n[e] > mean ? -1 : n[e] < mean || rest > 0;
    double shift = t->centre ? (double)signs / (double)t->experts : 0;
    for (int64_t e = 0; e < t->experts; e++) {
        int sign = n[e] > mean ? -1 : n[e] < mean || rest > 0;
        bias[e] = (float)(bias[e] + t->bias_rate * (sign - shift));
    }
    return MOE_OK;
}

static const moe_router_v0 table = {
    .size = sizeof(moe_router_v0),
    .create = topk_create,
    .destroy = topk_destroy,
    .needs = topk_needs,
    .route = topk_route,
    .route_bwd = topk_route_bwd,
    .end_step = topk_end_step,
};
static const moe_desc desc = {
    .size = sizeof(moe_desc),
    .kind = "router",
    .id = "topk",
    .device = "cpu",
    .version = TOPK_VERSION,
    .vendor = "moehost",
    .license = "MIT",
    .summary = TOPK_SUMMARY,
    .options = topk_options,
    .n_options = TOPK_OPTIONS,
    .flags = MOE_DETERMINISTIC,
    .vtable = &table,
};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
