/* Router "topk", what all devices share of its set-up: options and their contradictions, and needs. Options that cannot
 * mean what the user wants are refused here, each with one line that names both keys. */
#include <math.h>

#include "options.h"
#include "topk.h"

#define BIAS_RATE "0.001"

const moe_option topk_options[] = {
    {"score", "enum softmax|sigmoid", "softmax", "score of an expert from its logit"},
    {"order", "enum before|after", "before",
     "softmax over all experts before the choice, or over the chosen logits after it (weights then sum to scale)"},
    {"renormalise", "bool", "false", "divide the chosen scores by their sum"},
    {"scale", "float 0.001..1000", "1", "factor on the weights (DeepSeek-V3: 2.5)"},
    {"groups", "int 0..65536", "0", "parts of equal size that the experts form, in order; 0 and 1: no limit by groups"},
    {"groups_kept", "int 0..65536", "0", "groups that the choices of one token may come from: its best by group_score"},
    {"group_score", "enum max|sum2|sum", "max",
     "score of a group: its best score + bias, the sum of its two best, or of its best top_k / groups_kept"},
    {"expert_bias", "bool", "false", "choose by score + bias; after each step the bias moves against the load"},
    {"bias_rate", "float 0..1", BIAS_RATE, "change of the bias a step; 0 freezes it"},
    {"bias_centre", "bool", "false", "subtract the mean of each change, so that the biases keep their sum"},
    {"aux_coef", "float 0..1000", "0", "coefficient of the balance loss; the loss is shown in any case"},
    {"aux_scope", "enum microbatch|sequence|global", "microbatch",
     "tokens over which the balance loss is formed; global: the global batch, whose counts backward waits for"},
    {"z_coef", "float 0..1000", "0", "coefficient of the squared log-sum-exp of the logits"},
    {"jitter", "float 0..0.99", "0", "in training each element of the router's input is multiplied by U(1 - j, 1 + j)"},
};
_Static_assert(sizeof topk_options / sizeof topk_options[0] == TOPK_OPTIONS, "the number in topk.h");

static const char *const losses[] = {"aux_loss", "z_loss", "entropy", NULL};

static moe_status read_options(topk *t, const router_options *o, moe_err *err) {
    int group_score = 0;
    double scale = 1, jitter = 0, groups = 0, kept = 0;
    const struct {
        const char *key;
        int *out;
    } words[] = {{"score", &t->sigmoid},        {"order", &t->after},      {"renormalise", &t->renormalise},
                 {"group_score", &group_score}, {"expert_bias", &t->bias}, {"bias_centre", &t->centre},
                 {"aux_scope", &t->aux_scope}};
    const struct {
        const char *key;
        double *out;
    } numbers[] = {
        {"scale", &scale},          {"groups", &groups},    {"groups_kept", &kept}, {"bias_rate", &t->bias_rate},
        {"aux_coef", &t->aux_coef}, {"z_coef", &t->z_coef}, {"jitter", &jitter}};
    moe_status s = router_refuse_unknown(o, err);
    for (size_t i = 0; !s && i < sizeof words / sizeof words[0]; i++)
        s = router_read_word(o, words[i].key, words[i].out, err);
    for (size_t i = 0; !s && i < sizeof numbers / sizeof numbers[0]; i++)
        s = router_read_number(o, numbers[i].key, numbers[i].out, err);
    t->scale = (float)scale;
    t->jitter = (float)jitter;
    t->groups = (int64_t)groups;
    t->kept = (int64_t)kept;
    t->best_of = group_score + 1; /* of sum, set_groups knows how many */
    return s;
}

static moe_status refuse_sizes(const moe_router_cfg *cfg, moe_err *err) {
    moe_status s = router_refuse_sizes(cfg, "topk", err);
    if (s) return s;
    if (cfg->n_experts > INT32_MAX / 2)
        return moe_fail(err, MOE_E_ARG, "experts = %u: too many for 32-bit ids", cfg->n_experts);
    if (cfg->max_tokens > TOPK_MAX_TOKENS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "max_tokens = %lld: topk takes at most %lld a call",
                        (long long)cfg->max_tokens, (long long)TOPK_MAX_TOKENS);
    return MOE_OK;
}

/* Groups as they were read become groups, kept, per and best_of as the calls use them: kept = 0 without a limit. One
 * group, as model files write it, is no limit and no mistake. */
static moe_status set_groups(topk *t, const router_options *o, moe_err *err) {
    long long experts = t->experts, groups = t->groups, kept = t->kept, k = t->k;
    const char *word = router_value(o, "group_score");
    if (groups == 0 && kept > 0)
        return moe_fail(err, MOE_E_ARG, "groups_kept = %lld has no effect with groups = 0", kept);
    if (groups == 0 && t->best_of != 1)
        return moe_fail(err, MOE_E_ARG, "group_score = %s has no effect with groups = 0", word);
    if (kept > groups) return moe_fail(err, MOE_E_ARG, "groups_kept = %lld is more than groups = %lld", kept, groups);
    if (groups > experts || (groups > 0 && experts % groups != 0))
        return moe_fail(err, MOE_E_ARG, "groups = %lld does not divide experts = %lld", groups, experts);
    if (groups > 1 && kept == 0)
        return moe_fail(err, MOE_E_ARG, "groups = %lld needs groups_kept, from 1 to %lld", groups, groups);
    if (groups <= 1 || kept == groups) {
        t->groups = t->kept = 0;
        t->best_of = 1;
        return MOE_OK;
    }
    long long per = t->per = experts / groups;
    if (t->best_of == 2 && per < 2)
        return moe_fail(err, MOE_E_ARG, "group_score = sum2 with groups = %lld of experts = %lld: one expert a group",
                        groups, experts);
    if (k > kept * per)
        return moe_fail(err, MOE_E_ARG,
                        "top_k = %lld is more than the %lld experts of groups_kept = %lld (groups = %lld)", k,
                        kept * per, kept, groups);
    if (t->best_of <= 2) return MOE_OK;
    if (k % kept != 0)
        return moe_fail(err, MOE_E_ARG, "group_score = sum: groups_kept = %lld does not divide top_k = %lld", kept, k);
    t->best_of = k / kept;
    return MOE_OK;
}

/* An option without effect, or one that leaves the router untrained, is a mistake of the recipe. */
static moe_status refuse_contradictions(const topk *t, const router_options *o, moe_err *err) {
    if (t->sigmoid && t->after)
        return moe_fail(err, MOE_E_ARG, "score = sigmoid contradicts order = after: only a softmax has an order");
    if (t->k == 1 && (t->after || t->renormalise))
        return moe_fail(err, MOE_E_ARG,
                        "top_k = 1 contradicts %s: every weight would be the constant %g and the main "
                        "loss could not train the router",
                        t->after ? "order = after" : "renormalise = true", (double)t->scale);
    if (!t->bias && t->bias_rate != strtod(BIAS_RATE, NULL))
        return moe_fail(err, MOE_E_ARG, "bias_rate = %s has no effect with expert_bias = false",
                        router_value(o, "bias_rate"));
    if (!t->bias && t->centre)
        return moe_fail(err, MOE_E_ARG, "bias_centre = true has no effect with expert_bias = false");
    if (t->aux_scope == TOPK_AUX_GLOBAL && t->aux_coef <= 0)
        return moe_fail(
            err, MOE_E_ARG,
            "aux_scope = global has no effect with aux_coef = %s, and would make backward wait for the counts "
            "of the global batch",
            router_value(o, "aux_coef"));
    return MOE_OK;
}

moe_status topk_configure(const moe_router_cfg *cfg, const moe_host *host, topk *out, moe_err *err) {
    topk seen = {.experts = cfg->n_experts, .k = cfg->top_k, .max_tokens = cfg->max_tokens, .layer = cfg->layer};
    const router_options o = {topk_options, TOPK_OPTIONS, cfg};
    moe_status s = refuse_sizes(cfg, err);
    if (!s) s = read_options(&seen, &o, err);
    if (!s) s = set_groups(&seen, &o, err);
    if (!s) s = refuse_contradictions(&seen, &o, err);
    if (s) return s;
    if (seen.bias && seen.k == seen.experts && host->log)
        host->log(host->ctx, MOE_LOG_WARN, "expert_bias cannot change the load while top_k equals the experts");
    seen.state = (moe_param_spec){"expert_bias", "zeros", 1, MOE_F32, {cfg->n_experts, 1, 1, 1}};
    *out = seen;
    return MOE_OK;
}

/* The balance loss of a token depends on its neighbours as soon as it enters the gradient; the z-loss never does. */
static uint32_t loss_scope(const topk *t) {
    static const uint32_t scopes[] = {MOE_SCOPE_MICROBATCH, MOE_SCOPE_SEQUENCE, MOE_SCOPE_GLOBAL};
    return t->aux_coef > 0 ? scopes[t->aux_scope] : MOE_SCOPE_TOKEN;
}

/* Nothing is saved: backward forms the scores again from the logits, which the host holds anyway. */
moe_status topk_tell_needs(const topk *t, uint64_t workspace, moe_router_needs *needs, moe_err *err) {
    if (!MOE_REACH(needs, moe_router_needs, scope))
        return moe_fail(err, MOE_E_ARG, "moe_router_needs has %u bytes, topk fills %zu", needs->size, sizeof *needs);
    /* An older host would leave these two out without a word. */
    if (t->aux_scope == TOPK_AUX_GLOBAL && !MOE_REACH(needs, moe_router_needs, loss_scope))
        return moe_fail(err, MOE_E_UNSUPPORTED, "aux_scope = global: this host has no loss_scope");
    if (t->jitter > 0 && !MOE_REACH(needs, moe_router_needs, input_jitter))
        return moe_fail(err, MOE_E_UNSUPPORTED, "jitter = %g: this host has no input_jitter", (double)t->jitter);
    needs->inputs = MOE_ROUTER_LOGITS;
    needs->workspace = workspace;
    needs->saved = 0;
    needs->params = NULL;
    needs->n_params = 0;
    needs->state = t->bias ? &t->state : NULL;
    needs->n_state = t->bias ? 1 : 0;
    needs->losses = losses;
    needs->n_losses = TOPK_LOSSES;
    needs->scope = MOE_SCOPE_TOKEN;
    if (MOE_REACH(needs, moe_router_needs, loss_scope)) needs->loss_scope = loss_scope(t);
    if (MOE_REACH(needs, moe_router_needs, input_jitter)) needs->input_jitter = t->jitter;
    return MOE_OK;
}
