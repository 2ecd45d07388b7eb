/* A whole plugin that is valid C11 and valid C++11: what headers.sh compiles as both, so that every macro of the ABI is
 * used in both. It does nothing useful. */
#include <moe/plugin.h>

static moe_status create(const moe_scheduler_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    if (!MOE_REACH(host, moe_host, service)) return moe_fail(err, MOE_E_UNSUPPORTED, "no services");
    if (host->service && host->service(host->ctx, "moe.device/0")) *self = NULL;
    return moe_kv_int(cfg->kv, cfg->n_kv, "depth", 1) > 0 && moe_kv_is(cfg->kv, cfg->n_kv, "mode", "plain")
               ? MOE_OK
               : moe_fail(err, MOE_E_ARG, "depth %g", moe_kv_float(cfg->kv, cfg->n_kv, "depth", 1));
}

static void destroy(void *self) {
    (void)self;
}

static moe_status shape(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    (void)self;
    (void)err;
    out->n_buckets = in->n_layers;
    return MOE_OK;
}

static moe_status order(const void *self, const moe_sched_view *view, uint32_t *order_out, moe_err *err) {
    const moe_random_key key = moe_random_key_make(1, MOE_RANDOM_SAMPLE, "order");
    (void)self;
    (void)err;
    for (uint32_t i = 0; i < view->n_nodes; i++) order_out[i] = moe_random_words(key, i, 0).v[0];
    return moe_random_normal(1, 2) < 9 ? MOE_OK : MOE_E_INTERNAL;
}

static const moe_option options[] = {{"depth", "int 1..8", "1", "how far"}, {"mode", "enum plain|odd", "plain", "how"}};
static const moe_scheduler_v0 table = {(uint32_t)sizeof(moe_scheduler_v0), 0, create, destroy, shape, order, NULL};
static const moe_desc desc = {
    (uint32_t)sizeof(moe_desc), 0,     "scheduler", "whole", "any", "1.0", "nobody", "MIT", "compiles", options, 2,
    MOE_DETERMINISTIC,          &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
