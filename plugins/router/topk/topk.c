/* Router "topk": description, options and their contradictions, needs, and the expert bias. The step calls are in
 * route.c. Options that cannot mean what the user wants are refused here, each with one line that names both keys. */
#include "topk.h"

#include <math.h>

#define BIAS_RATE "0.001"

static const moe_option options[] = {
    {"score", "enum softmax|sigmoid", "softmax", "score of an expert from its logit"},
    {"order", "enum before|after", "before",
     "softmax over all experts before the choice, or over the chosen logits after it (weights then sum to scale)"},
    {"renormalise", "bool", "false", "divide the chosen scores by their sum"},
    {"scale", "float 0.001..1000", "1", "factor on the weights (DeepSeek-V3: 2.5)"},
    {"expert_bias", "bool", "false", "choose by score + bias; after each step the bias moves against the load"},
    {"bias_rate", "float 0..1", BIAS_RATE, "change of the bias a step; 0 freezes it"},
    {"bias_centre", "bool", "false", "subtract the mean of each change, so that the biases keep their sum"},
    {"aux_coef", "float 0..1000", "0", "coefficient of the balance loss; the loss is shown in any case"},
    {"aux_scope", "enum microbatch|sequence", "microbatch", "tokens over which the balance loss is formed"},
    {"z_coef", "float 0..1000", "0", "coefficient of the squared log-sum-exp of the logits"},
};
#define N_OPTIONS (sizeof options / sizeof options[0])

static const char *const losses[] = {"aux_loss", "z_loss", "entropy", NULL};

static const moe_option *option_find(const char *key) {
    for (uint32_t i = 0; i < N_OPTIONS; i++)
        if (strcmp(options[i].key, key) == 0) return &options[i];
    return NULL;
}

static const char *value_of(const moe_router_cfg *cfg, const char *key) {
    const char *given = moe_kv_find(cfg->kv, cfg->n_kv, key);
    return given ? given : option_find(key)->dflt;
}

/* out = 1 for word `yes`, 0 for `no`; every other word is refused, whatever the host let through. */
static moe_status read_word(const moe_router_cfg *cfg, const char *key, const char *yes, const char *no, int *out,
                            moe_err *err) {
    const char *value = value_of(cfg, key);
    *out = strcmp(value, yes) == 0;
    if (*out || strcmp(value, no) == 0) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s = %s: the words are %s, %s", key, value, no, yes);
}

static moe_status read_number(const moe_router_cfg *cfg, const char *key, double least, double most, double *out,
                              moe_err *err) {
    const char *value = value_of(cfg, key);
    char *end = NULL;
    *out = strtod(value, &end);
    if (end != value && *end == '\0' && *out >= least && *out <= most) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s = %s: not a number from %g to %g", key, value, least, most);
}

static moe_status read_options(topk *t, const moe_router_cfg *cfg, moe_err *err) {
    for (uint64_t i = 0; i < cfg->n_kv; i++)
        if (!option_find(cfg->kv[i].key)) return moe_fail(err, MOE_E_ARG, "%s: unknown key", cfg->kv[i].key);
    double scale = 1;
    moe_status s = MOE_OK;
    if ((s = read_word(cfg, "score", "sigmoid", "softmax", &t->sigmoid, err))) return s;
    if ((s = read_word(cfg, "order", "after", "before", &t->after, err))) return s;
    if ((s = read_word(cfg, "renormalise", "true", "false", &t->renormalise, err))) return s;
    if ((s = read_word(cfg, "expert_bias", "true", "false", &t->bias, err))) return s;
    if ((s = read_word(cfg, "bias_centre", "true", "false", &t->centre, err))) return s;
    if ((s = read_word(cfg, "aux_scope", "sequence", "microbatch", &t->sequence, err))) return s;
    if ((s = read_number(cfg, "scale", 0.001, 1000, &scale, err))) return s;
    if ((s = read_number(cfg, "bias_rate", 0, 1, &t->bias_rate, err))) return s;
    if ((s = read_number(cfg, "aux_coef", 0, 1000, &t->aux_coef, err))) return s;
    if ((s = read_number(cfg, "z_coef", 0, 1000, &t->z_coef, err))) return s;
    t->scale = (float)scale;
    return MOE_OK;
}

static moe_status refuse_sizes(const moe_router_cfg *cfg, moe_err *err) {
    if (cfg->n_experts == 0) return moe_fail(err, MOE_E_ARG, "experts = 0: a router needs at least one expert");
    if (cfg->top_k == 0) return moe_fail(err, MOE_E_ARG, "top_k = 0 with experts = %u: at least 1", cfg->n_experts);
    if (cfg->top_k > cfg->n_experts)
        return moe_fail(err, MOE_E_ARG, "top_k = %u is more than experts = %u", cfg->top_k, cfg->n_experts);
    if (cfg->n_experts > INT32_MAX / 2)
        return moe_fail(err, MOE_E_ARG, "experts = %u: too many for 32-bit ids", cfg->n_experts);
    if (cfg->n_identity > 0)
        return moe_fail(err, MOE_E_UNSUPPORTED, "identity experts = %u: topk has none", cfg->n_identity);
    if (cfg->max_tokens < 0)
        return moe_fail(err, MOE_E_ARG, "max_tokens = %lld is negative", (long long)cfg->max_tokens);
    return MOE_OK;
}

/* An option without effect, or one that leaves the router untrained, is a mistake of the recipe. */
static moe_status refuse_contradictions(const topk *t, const moe_router_cfg *cfg, moe_err *err) {
    if (t->sigmoid && t->after)
        return moe_fail(err, MOE_E_ARG, "score = sigmoid contradicts order = after: only a softmax has an order");
    if (t->k == 1 && (t->after || t->renormalise))
        return moe_fail(err, MOE_E_ARG,
                        "top_k = 1 contradicts %s: every weight would be the constant %g and the main "
                        "loss could not train the router",
                        t->after ? "order = after" : "renormalise = true", (double)t->scale);
    if (!t->bias && t->bias_rate != strtod(BIAS_RATE, NULL))
        return moe_fail(err, MOE_E_ARG, "bias_rate = %s has no effect with expert_bias = false",
                        value_of(cfg, "bias_rate"));
    if (!t->bias && t->centre)
        return moe_fail(err, MOE_E_ARG, "bias_centre = true has no effect with expert_bias = false");
    return MOE_OK;
}

static const moe_parallel *find_pool(const moe_host *host) {
    const moe_device_service *dev = host->service ? host->service(host->ctx, "moe.device/0") : NULL;
    if (!dev || !MOE_REACH(dev->table, moe_device_v0, extension) || !dev->table->extension) return NULL;
    const moe_parallel *pool = dev->table->extension(dev->self, "moe.parallel/0");
    return pool && pool->threads > 1 ? pool : NULL;
}

static const row_ops *find_rows(void) {
#ifdef TOPK_AVX2
    if (__builtin_cpu_supports("avx2")) return &row_ops_avx2;
#endif
    return &row_ops_plain;
}

static moe_status topk_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    topk seen = {.experts = cfg->n_experts, .k = cfg->top_k, .max_tokens = cfg->max_tokens, .layer = cfg->layer};
    moe_status s = refuse_sizes(cfg, err);
    if (!s) s = read_options(&seen, cfg, err);
    if (!s) s = refuse_contradictions(&seen, cfg, err);
    if (s) return s;
    if (seen.bias && seen.k == seen.experts && host->log)
        host->log(host->ctx, MOE_LOG_WARN, "expert_bias cannot change the load while top_k equals the experts");
    seen.rows = find_rows();
    seen.pool = find_pool(host);
    seen.state = (moe_param_spec){"expert_bias", "zeros", 1, MOE_F32, {cfg->n_experts, 1, 1, 1}};
    topk *t = malloc(sizeof *t);
    if (!t) return moe_fail(err, MOE_E_NOMEM, "no memory for a router of %zu bytes", sizeof *t);
    *t = seen;
    *self = t;
    return MOE_OK;
}

static void topk_destroy(void *self) {
    free(self);
}

/* The balance loss of a token depends on its neighbours as soon as it enters the gradient; the z-loss never does. */
static uint32_t loss_scope(const topk *t) {
    if (t->aux_coef == 0) return MOE_SCOPE_TOKEN;
    return t->sequence ? MOE_SCOPE_SEQUENCE : MOE_SCOPE_MICROBATCH;
}

/* Nothing is saved: backward forms the scores again from the logits, which the host holds anyway. */
static moe_status topk_needs(void *self, moe_router_needs *needs, moe_err *err) {
    const topk *t = self;
    if (!MOE_REACH(needs, moe_router_needs, scope))
        return moe_fail(err, MOE_E_ARG, "moe_router_needs has %u bytes, topk fills %zu", needs->size, sizeof *needs);
    needs->inputs = MOE_ROUTER_LOGITS;
    needs->workspace = topk_workspace(t);
    needs->saved = 0;
    needs->params = NULL;
    needs->n_params = 0;
    needs->state = t->bias ? &t->state : NULL;
    needs->n_state = t->bias ? 1 : 0;
    needs->losses = losses;
    needs->n_losses = TOPK_LOSSES;
    needs->scope = MOE_SCOPE_TOKEN;
    if (MOE_REACH(needs, moe_router_needs, loss_scope)) needs->loss_scope = loss_scope(t);
    return MOE_OK;
}

static int is_vector(const moe_tensor *t, int32_t dtype, int64_t n) {
    return t && t->data && t->dtype == dtype && t->ndim == 1 && t->shape[0] == n;
}

/* bias_e += rate * sign(mean - n_e), in FP32, the comparison exact in integers; with bias_centre the changes lose their
 * mean. A step that is skipped moves nothing. (Wang et al., arXiv 2408.15664, algorithm 1; DeepSeek-V3, arXiv
 * 2412.19437, section 2.1.2) */
static moe_status topk_end_step(const void *self, const moe_end_step_args *a, moe_err *err) {
    const topk *t = self;
    if (!t->bias) return MOE_OK;
    if (!MOE_REACH(a, moe_end_step_args, update))
        return moe_fail(err, MOE_E_ARG, "layer %u: moe_end_step_args of %u bytes lacks update", t->layer, a->size);
    if (!is_vector(a->state, MOE_F32, t->experts))
        return moe_fail(err, MOE_E_ARG, "layer %u: expert_bias is not F32 [%lld]", t->layer, (long long)t->experts);
    if (!is_vector(a->counts, MOE_I64, t->experts))
        return moe_fail(err, MOE_E_ARG, "layer %u: counts is not I64 [%lld]", t->layer, (long long)t->experts);
    if (!is_vector(a->update, MOE_F32, 2)) return moe_fail(err, MOE_E_ARG, "layer %u: update is not F32 [2]", t->layer);
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
    .version = "0.1.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary = "top-k of softmax or sigmoid scores, with balance loss, z-loss and expert bias",
    .options = options,
    .n_options = N_OPTIONS,
    .flags = MOE_DETERMINISTIC,
    .vtable = &table,
};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
