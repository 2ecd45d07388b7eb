/* See options.h. */
#include "options.h"

#include <math.h>

static const moe_option *find(const router_options *o, const char *key) {
    for (uint32_t i = 0; i < o->n; i++)
        if (strcmp(o->schema[i].key, key) == 0) return &o->schema[i];
    return NULL;
}

const char *router_value(const router_options *o, const char *key) {
    const char *given = moe_kv_find(o->cfg->kv, o->cfg->n_kv, key);
    return given ? given : find(o, key)->dflt;
}

moe_status router_refuse_unknown(const router_options *o, moe_err *err) {
    for (uint64_t i = 0; i < o->cfg->n_kv; i++)
        if (!find(o, o->cfg->kv[i].key)) return moe_fail(err, MOE_E_ARG, "%s: unknown key", o->cfg->kv[i].key);
    return MOE_OK;
}

moe_status router_read_word(const router_options *o, const char *key, int *out, moe_err *err) {
    const char *value = router_value(o, key), *type = find(o, key)->type;
    const char *words = strcmp(type, "bool") == 0 ? "false|true" : type + strlen("enum ");
    size_t length = strlen(value);
    *out = 0;
    for (const char *word = words; word; word = strchr(word, '|'), word += word != NULL) {
        if (strcspn(word, "|") == length && strncmp(word, value, length) == 0) return MOE_OK;
        ++*out;
    }
    return moe_fail(err, MOE_E_ARG, "%s = %s: the words are %s", key, value, words);
}

moe_status router_read_number(const router_options *o, const char *key, double *out, moe_err *err) {
    const char *value = router_value(o, key), *type = find(o, key)->type, *range = strchr(type, ' ');
    double least = strtod(range, NULL), most = strtod(strstr(range, "..") + 2, NULL);
    char *end = NULL;
    *out = strtod(value, &end);
    int whole = strncmp(type, "int", 3) != 0 || *out == floor(*out);
    if (end != value && *end == '\0' && *out >= least && *out <= most && whole) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s = %s: not a number from%s", key, value, range);
}

moe_status router_refuse_sizes(const moe_router_cfg *cfg, const char *id, moe_err *err) {
    if (cfg->n_experts == 0) return moe_fail(err, MOE_E_ARG, "experts = 0: a router needs at least one expert");
    if (cfg->top_k == 0) return moe_fail(err, MOE_E_ARG, "top_k = 0 with experts = %u: at least 1", cfg->n_experts);
    if (cfg->top_k > cfg->n_experts)
        return moe_fail(err, MOE_E_ARG, "top_k = %u is more than experts = %u", cfg->top_k, cfg->n_experts);
    if (cfg->n_identity > 0)
        return moe_fail(err, MOE_E_UNSUPPORTED, "identity experts = %u: %s has none", cfg->n_identity, id);
    if (cfg->max_tokens < 0)
        return moe_fail(err, MOE_E_ARG, "max_tokens = %lld is negative", (long long)cfg->max_tokens);
    return MOE_OK;
}

const moe_parallel *router_find_pool(const moe_host *host) {
    const moe_device_service *dev = host->service ? host->service(host->ctx, "moe.device/0") : NULL;
    if (!dev || !MOE_REACH(dev->table, moe_device_v0, extension) || !dev->table->extension) return NULL;
    const moe_parallel *pool = dev->table->extension(dev->self, "moe.parallel/0");
    return pool && pool->threads > 1 ? pool : NULL;
}
