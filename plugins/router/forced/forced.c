/* Router "forced": description, options and their contradictions, needs, and the tables that choices are read from.
 * The step calls are in route.c. */
#include "forced.h"

#include <math.h>

#include "options.h"

#define EXPONENT "1"

static const moe_option options[] = {
    {"load", "enum balanced|zipf", "balanced",
     "experts take turns, so that their counts differ by at most one; or are drawn by Zipf's law"},
    {"exponent", "float 0..8", EXPONENT,
     "zipf: the expert of rank r = 1, 2, ... is drawn in proportion to r^-exponent; 0 draws all alike"},
    {"shuffle", "bool", "true",
     "order the experts by lot, differently in each layer; false: by index, expert 0 the hottest"},
};
#define N_OPTIONS (sizeof options / sizeof options[0])

static moe_status read_options(const moe_router_cfg *cfg, int *zipf, int *shuffle, double *exponent, moe_err *err) {
    const router_options o = {options, N_OPTIONS, cfg};
    moe_status s = router_refuse_unknown(&o, err);
    if (!s) s = router_read_word(&o, "load", zipf, err);
    if (!s) s = router_read_word(&o, "shuffle", shuffle, err);
    if (!s) s = router_read_number(&o, "exponent", exponent, err);
    if (!s && !*zipf && *exponent != strtod(EXPONENT, NULL))
        return moe_fail(err, MOE_E_ARG, "exponent = %s has no effect with load = balanced",
                        router_value(&o, "exponent"));
    return s;
}

static moe_status refuse_sizes(const moe_router_cfg *cfg, moe_err *err) {
    moe_status s = router_refuse_sizes(cfg, "forced", err);
    if (!s && cfg->n_experts > FORCED_MAX_EXPERTS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "experts = %u: forced takes at most %d", cfg->n_experts,
                        FORCED_MAX_EXPERTS);
    return s;
}

/* ---- tables ---- */

static moe_random_key key_of(const moe_router_cfg *cfg, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "layers.%u.router.%s", cfg->layer, what);
    return moe_random_key_make(cfg->seed, MOE_RANDOM_SAMPLE, name);
}

/* Fisher-Yates; a place is drawn to 2^-32. */
static void shuffle_order(int32_t *order, int64_t n, moe_random_key key) {
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t word = moe_random_words(key, (uint64_t)i, 0).v[0];
        int64_t j = (int64_t)((word * (uint64_t)(i + 1)) >> 32);
        int32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void forced_destroy(void *self) {
    forced *f = self;
    if (!f) return;
    free(f->tail);
    free(f->order);
    free(f);
}

/* The sums start at the smallest term, so none of them vanishes in its sum. */
static moe_status make_tables(forced *f, int zipf, double exponent, moe_err *err) {
    size_t n = (size_t)f->experts;
    f->order = malloc(n * sizeof *f->order);
    f->tail = zipf ? malloc((n + 1) * sizeof *f->tail) : NULL;
    if (!f->order || (zipf && !f->tail)) return moe_fail(err, MOE_E_NOMEM, "no memory for tables of %zu experts", n);
    for (int64_t e = 0; e < f->experts; e++) f->order[e] = (int32_t)e;
    if (!zipf) return MOE_OK;
    f->tail[n] = 0;
    for (int64_t r = f->experts - 1; r >= 0; r--) f->tail[r] = f->tail[r + 1] + pow((double)(r + 1), -exponent);
    return MOE_OK;
}

/* ---- the table of the kind ---- */

static moe_status forced_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    int zipf = 0, shuffle = 0;
    double exponent = 1;
    moe_status s = refuse_sizes(cfg, err);
    if (!s) s = read_options(cfg, &zipf, &shuffle, &exponent, err);
    if (s) return s;
    forced *f = malloc(sizeof *f);
    if (!f) return moe_fail(err, MOE_E_NOMEM, "no memory for a router of %zu bytes", sizeof *f);
    *f = (forced){.experts = cfg->n_experts,
                  .k = cfg->top_k,
                  .max_tokens = cfg->max_tokens,
                  .layer = cfg->layer,
                  .key = key_of(cfg, "choice"),
                  .pool = router_find_pool(host)};
    if ((s = make_tables(f, zipf, exponent, err))) {
        forced_destroy(f);
        return s;
    }
    if (f->k == 1 && host->log)
        host->log(host->ctx, MOE_LOG_WARN, "top_k = 1: every weight is 1, so the main loss cannot train the router");
    if (shuffle) shuffle_order(f->order, f->experts, key_of(cfg, "order"));
    *self = f;
    return MOE_OK;
}

/* No parameters, state or losses. Nothing is saved: backward needs ids and weights only. */
static moe_status forced_needs(void *self, moe_router_needs *needs, moe_err *err) {
    const forced *f = self;
    if (!MOE_REACH(needs, moe_router_needs, scope))
        return moe_fail(err, MOE_E_ARG, "moe_router_needs has %u bytes, forced fills %zu", needs->size, sizeof *needs);
    memset((char *)needs + sizeof needs->size, 0, needs->size - sizeof needs->size);
    needs->inputs = MOE_ROUTER_LOGITS;
    needs->workspace = forced_workspace(f);
    needs->scope = MOE_SCOPE_TOKEN;
    if (MOE_REACH(needs, moe_router_needs, loss_scope)) needs->loss_scope = MOE_SCOPE_TOKEN;
    return MOE_OK;
}

static const moe_router_v0 table = {
    .size = sizeof(moe_router_v0),
    .create = forced_create,
    .destroy = forced_destroy,
    .needs = forced_needs,
    .route = forced_route,
    .route_bwd = forced_route_bwd,
};
static const moe_desc desc = {
    .size = sizeof(moe_desc),
    .kind = "router",
    .id = "forced",
    .device = "cpu",
    .version = "0.1.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary = "for load tests: experts in turn or drawn by Zipf's law whatever the logits, softmax over the chosen",
    .options = options,
    .n_options = N_OPTIONS,
    .flags = MOE_DETERMINISTIC,
    .vtable = &table,
};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
