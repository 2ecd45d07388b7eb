/* Router "topk", what all devices share of its calls: checks of the host's arrays as far as they are seen without their
 * data. */
#include "args.h"
#include "topk.h"

/* What both directions take: logits, mask, ids, sequences, workspace. */
static moe_status check_call(const topk *t, const moe_route_args *a, moe_err *err) {
    if (!MOE_REACH(a, moe_route_args, d_logits))
        return moe_fail(err, MOE_E_ARG, "layer %u: moe_route_args of %u bytes lacks d_logits", t->layer, a->size);
    int64_t tokens = a->logits ? a->logits->shape[0] : -1;
    if (tokens < 0 || tokens > t->max_tokens)
        return moe_fail(err, MOE_E_ARG, "layer %u: %lld tokens, declared were at most %lld", t->layer,
                        (long long)tokens, (long long)t->max_tokens);
    moe_status s = router_expect(t->layer, a->logits, "logits", MOE_F32, tokens, t->experts, err);
    if (!s && !router_absent(a->mask)) s = router_expect(t->layer, a->mask, "mask", MOE_U8, tokens, -1, err);
    if (!s) s = router_expect(t->layer, a->expert_ids, "expert_ids", MOE_I32, tokens, t->k, err);
    if (s) return s;
    if (t->aux_scope == TOPK_AUX_SEQUENCE && tokens > 0 && (a->seq_len <= 0 || tokens % a->seq_len != 0))
        return moe_fail(err, MOE_E_ARG, "layer %u: aux_scope = sequence, but %lld tokens are no sequences of %lld",
                        t->layer, (long long)tokens, (long long)a->seq_len);
    if (!a->workspace) return moe_fail(err, MOE_E_ARG, "layer %u: no workspace", t->layer);
    return MOE_OK;
}

static moe_status check_losses(const topk *t, const moe_tensor *losses, moe_err *err) {
    return router_absent(losses) ? MOE_OK : router_expect(t->layer, losses, "losses", MOE_F64, TOPK_LOSSES, -1, err);
}

moe_status topk_check_route(const topk *t, const moe_route_args *a, moe_err *err) {
    moe_status s = check_call(t, a, err);
    if (s) return s;
    if (t->bias) s = router_expect(t->layer, a->state, "expert_bias", MOE_F32, t->experts, -1, err);
    if (!s) s = router_expect(t->layer, a->weights, "weights", MOE_F32, a->logits->shape[0], t->k, err);
    if (!s && !router_absent(a->counts)) s = router_expect(t->layer, a->counts, "counts", MOE_I64, t->experts, -1, err);
    return s ? s : check_losses(t, a->losses, err);
}

moe_status topk_check_backward(const topk *t, const moe_route_args *a, moe_err *err) {
    moe_status s = check_call(t, a, err);
    if (s) return s;
    const int64_t tokens = a->logits->shape[0];
    s = router_expect(t->layer, a->d_weights, "d_weights", MOE_F32, tokens, t->k, err);
    return s ? s : router_expect(t->layer, a->d_logits, "d_logits", MOE_F32, tokens, t->experts, err);
}

moe_status topk_check_divisor(const topk *t, const moe_route_args *a, moe_err *err) {
    moe_status s = router_expect(t->layer, a->divisor, "divisor", MOE_I64, 1, -1, err);
    if (s || t->aux_scope != TOPK_AUX_GLOBAL) return s;
    s = check_losses(t, a->losses, err);
    const moe_tensor *counts = MOE_REACH(a, moe_route_args, batch_counts) ? a->batch_counts : NULL;
    return s ? s : router_expect(t->layer, counts, "batch_counts", MOE_I64, t->experts, -1, err);
}

static int is_vector(const moe_tensor *t, int32_t dtype, int64_t n) {
    return t && t->data && t->dtype == dtype && t->ndim == 1 && t->shape[0] == n;
}

moe_status topk_check_end_step(const topk *t, const moe_end_step_args *a, moe_err *err) {
    if (!MOE_REACH(a, moe_end_step_args, update))
        return moe_fail(err, MOE_E_ARG, "layer %u: moe_end_step_args of %u bytes lacks update", t->layer, a->size);
    if (!is_vector(a->state, MOE_F32, t->experts))
        return moe_fail(err, MOE_E_ARG, "layer %u: expert_bias is not F32 [%lld]", t->layer, (long long)t->experts);
    if (!is_vector(a->counts, MOE_I64, t->experts))
        return moe_fail(err, MOE_E_ARG, "layer %u: counts is not I64 [%lld]", t->layer, (long long)t->experts);
    if (!is_vector(a->update, MOE_F32, 2)) return moe_fail(err, MOE_E_ARG, "layer %u: update is not F32 [2]", t->layer);
    return MOE_OK;
}
