/* What follows from a model's sizes. */
#include "model/config.h"

#include <math.h>
#include <moe/options.h>

#include "model/model.h"

void model_cfg_complete(model_cfg *c) {
    if (!c->v_dim) c->v_dim = c->head_dim;
    if (!c->rope.dim) c->rope.dim = c->head_dim;
    if (c->rope.factor < 1) c->rope.factor = 1;
    if (c->activation != ACTIVATION_CLAMPED_SWIGLU) return;
    if (c->activation_alpha <= 0) c->activation_alpha = 1.702f;
    if (c->activation_limit <= 0) c->activation_limit = 7;
}

/* ceil(factor * tokens * k / experts) as Megatron Core counts it, at least 1, and at most every token of the scope. */
model_capacity model_capacity_of(const model_cfg *c) {
    model_capacity cap = {.scope = c->capacity_scope == CAPACITY_SEQUENCE ? c->seq : c->seq * c->micro};
    if (c->capacity <= 0 || !c->experts) return cap;
    double share = ceil((double)c->capacity * (double)cap.scope * c->top_k / c->experts);
    cap.choices = share < 1 ? 1 : share > (double)cap.scope ? cap.scope : (int64_t)share;
    cap.rows = cap.choices * (c->seq * c->micro / cap.scope);
    return cap;
}

/* ---- this rank's part ---- */
/* whole / n, or an error that names both. */
static int64_t divide(const char *what, int64_t whole, const char *degree, uint32_t n, moe_status *status,
                      moe_err *err) {
    if (!*status && whole % n)
        *status = moe_fail(err, MOE_E_ARG, "%s = %lld is not a multiple of %s = %u", what, (long long)whole, degree, n);
    return whole / n;
}

moe_status model_localise(const model_cfg *c, const model_split *s, model_local *out, moe_err *err) {
    moe_status status = MOE_OK;
    if (s->tp > 1 && c->qk_norm == QK_NORM_FULL)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "tp = %u: a norm over all heads of the queries (qk_norm = full) cannot be cut by heads", s->tp);
    *out = (model_local){
        .tokens = divide("micro * seq_len", c->micro * c->seq, "tp", s->tp, &status, err),
        .heads = (uint32_t)divide("heads", c->heads, "tp", s->tp, &status, err),
        .kv_heads = (uint32_t)divide("kv_heads", c->kv_heads, "tp", s->tp, &status, err),
        .vocab = divide("vocab", c->vocab, "tp", s->tp, &status, err),
        .dense_ffn = divide("dense_ffn", c->dense_ffn, "tp", s->tp, &status, err),
        .shared_ffn = divide("shared_ffn", c->shared_ffn, "tp", s->tp, &status, err),
        .experts = divide("experts", c->experts, "ep", s->ep, &status, err),
        .expert_ffn = divide("expert_ffn", c->expert_ffn, "etp", s->etp, &status, err),
    };
    out->first_token = out->tokens * s->tp_rank;
    out->first_vocab = out->vocab * s->tp_rank;
    out->first_expert = out->experts * s->ep_rank;
    return status;
}
