/* Router "topk", the two step calls: checks of the host's arrays, memory, passes over the tokens, and the sums that
 * make counts and losses. Tokens are shared among threads; what is summed over tokens is exact in integers or summed
 * afterwards in token order over live tokens only, so that neither threads nor padding change a bit. */
#include <math.h>

#include "args.h"
#include "call.h"
#include "unit.h"

#define BLOCK 64 /* tokens a work item */

/* ---- memory ---- */

static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}

static int64_t longer(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static uint64_t rows_bytes(const topk *t) {
    int64_t e = row_padded(t->experts), k = row_padded(t->k), g = row_padded(t->groups);
    uint64_t four = (uint64_t)(4 * e + 4 * k + 2 * g + longer(g, k)) * sizeof(float);
    return round64(four) + round64((uint64_t)e * sizeof(int64_t));
}

static uint32_t workers(const topk *t) {
    return t->pool ? t->pool->threads : 1;
}

uint64_t topk_workspace(const topk *t) {
    uint64_t tokens = (uint64_t)t->max_tokens, experts = (uint64_t)row_padded(t->experts);
    return 64 + 2 * round64(tokens * sizeof(double)) + 2 * round64(experts * sizeof(int64_t)) +
           round64(experts * sizeof(float)) + workers(t) * rows_bytes(t);
}

static void *cut(char **at, int64_t n, size_t size) {
    void *here = *at;
    *at += round64((uint64_t)n * size);
    return here;
}

static void carve(call *c, void *workspace) {
    const topk *t = c->t;
    int64_t e = row_padded(t->experts);
    char *at = (char *)workspace + (64 - ((uintptr_t)workspace & 63));
    c->z = cut(&at, t->max_tokens, sizeof *c->z);
    c->entropy = cut(&at, t->max_tokens, sizeof *c->entropy);
    c->count = cut(&at, e, sizeof *c->count);
    c->total = cut(&at, e, sizeof *c->total);
    c->load = cut(&at, e, sizeof *c->load);
    c->scratch = at;
    memset(c->total, 0, (size_t)e * sizeof *c->total);
}

static rows rows_of(const call *c, uint32_t worker) {
    const topk *t = c->t;
    int64_t e = row_padded(t->experts), k = row_padded(t->k), g = row_padded(t->groups);
    char *base = c->scratch + worker * rows_bytes(t);
    int64_t *share = cut(&base, e, sizeof *share);
    float *at = (float *)(void *)base, *top = at + 4 * e, *group = top + 4 * k;
    return (rows){.x = at,
                  .p = at + e,
                  .q = at + 2 * e,
                  .h = at + 3 * e,
                  .top_x = top,
                  .top_p = top + k,
                  .top_q = top + 2 * k,
                  .best = top + 3 * k,
                  .group = group,
                  .group_best = group + g,
                  .kept = (int32_t *)(void *)(group + 2 * g),
                  .share = share};
}

/* ---- passes over tokens ---- */

static void run_block(void *arg, int64_t block, uint32_t worker) {
    call *c = arg;
    rows r = rows_of(c, worker);
    int64_t first = c->begin + block * BLOCK, last = c->end - first < BLOCK ? c->end : first + BLOCK;
    for (int64_t token = first; token < last; token++) c->work(c, token, &r);
}

/* Workers that a pass over `tokens` tokens uses. */
static uint32_t workers_for(const call *c, int64_t tokens) {
    return tokens > BLOCK ? workers(c->t) : 1;
}

/* work(token) for begin <= token < end; the shares of the workers start from zero */
static void run_tokens(call *c, int64_t begin, int64_t end, void (*work)(call *, int64_t, const rows *)) {
    int64_t blocks = (end - begin + BLOCK - 1) / BLOCK;
    c->begin = begin;
    c->end = end;
    c->work = work;
    for (uint32_t w = 0; c->measure && w < workers_for(c, end - begin); w++)
        memset(rows_of(c, w).share, 0, (size_t)row_padded(c->t->experts) * sizeof(int64_t));
    if (workers_for(c, end - begin) > 1)
        c->t->pool->run(c->t->pool->self, blocks, run_block, c);
    else
        for (int64_t b = 0; b < blocks; b++) run_block(c, b, 0);
}

static moe_status fail_logit(const call *c, moe_err *err) {
    int64_t token = atomic_load(&c->bad), experts = c->t->experts;
    return router_fail_logit(c->t->layer, c->logits + token * experts, token, experts, err);
}

/* count = the unit's choices, total += them; returns the unit's live tokens. */
static int64_t count_unit(call *c, int64_t begin, int64_t end) {
    const topk *t = c->t;
    int64_t tokens = 0;
    memset(c->count, 0, (size_t)t->experts * sizeof *c->count);
    for (int64_t token = begin; token < end; token++) {
        if (!token_live(c, token)) continue;
        tokens++;
        for (int64_t j = 0; j < t->k; j++) c->count[c->ids[token * t->k + j]]++;
    }
    for (int64_t e = 0; e < t->experts; e++) c->total[e] += c->count[e];
    return tokens;
}

/* sum_e count_e sum_t P_te of the pass that has just run. */
static double weigh_shares(const call *c, const int64_t *count) {
    double sum = 0;
    for (int64_t e = 0; e < c->t->experts; e++) {
        int64_t share = 0;
        for (uint32_t w = 0; w < workers_for(c, c->end - c->begin); w++) share += rows_of(c, w).share[e];
        sum += (double)count[e] * (double)share;
    }
    return ldexp(sum, -ROW_SHARE_BITS);
}

/* ---- the calls ---- */

/* What both directions have, of checked arguments. */
static void open_call(call *c, const topk *t, const moe_route_args *a) {
    c->t = t;
    c->tokens = a->logits->shape[0];
    c->unit = t->aux_scope == TOPK_AUX_SEQUENCE ? a->seq_len : c->tokens;
    c->logits = a->logits->data;
    c->mask = router_absent(a->mask) ? NULL : a->mask->data;
    c->ids = a->expert_ids->data;
    atomic_init(&c->bad, c->tokens);
    carve(c, a->workspace);
}

static moe_status open_bias(call *c, const moe_route_args *a, moe_err *err) {
    const topk *t = c->t;
    if (!t->bias) return MOE_OK;
    c->bias = a->state->data;
    for (int64_t e = 0; e < t->experts; e++)
        if (!isfinite(c->bias[e]))
            return moe_fail(err, MOE_E_DATA, "layer %u: expert_bias of expert %lld is %g", t->layer, (long long)e,
                            (double)c->bias[e]);
    return MOE_OK;
}

/* Adds to sum [3] what the unit, of `tokens` live tokens, has measured. The balance loss over the global batch waits
 * for backward, where its counts are known. */
static void add_losses(const call *c, int64_t tokens, double *sum) {
    if (tokens > 0 && c->t->aux_scope != TOPK_AUX_GLOBAL)
        sum[TOPK_AUX] += topk_slope((double)c->t->experts, (double)c->t->k, (double)tokens) * weigh_shares(c, c->count);
    for (int64_t token = c->begin; token < c->end; token++) {
        if (!token_live(c, token)) continue;
        sum[TOPK_Z] += c->z[token];
        sum[TOPK_ENTROPY] += c->entropy[token];
    }
}

moe_status topk_route(const void *self, const moe_route_args *a, moe_err *err) {
    const topk *t = self;
    call c = {0};
    double sum[TOPK_LOSSES] = {0};
    moe_status s = topk_check_route(t, a, err);
    if (s) return s;
    open_call(&c, t, a);
    s = open_bias(&c, a, err);
    if (s) return s;
    c.weights = a->weights->data;
    c.measure = !router_absent(a->losses);
    for (int64_t begin = 0; begin < c.tokens; begin += c.unit) {
        run_tokens(&c, begin, begin + c.unit, token_forward);
        if (atomic_load(&c.bad) < c.tokens) return fail_logit(&c, err);
        int64_t tokens = count_unit(&c, begin, begin + c.unit);
        if (c.measure) add_losses(&c, tokens, sum);
    }
    for (int l = 0; c.measure && l < TOPK_LOSSES; l++) ((double *)a->losses->data)[l] += sum[l];
    for (int64_t e = 0; !router_absent(a->counts) && e < t->experts; e++) ((int64_t *)a->counts->data)[e] += c.total[e];
    return MOE_OK;
}

/* The counts of the global batch, k for each of its tokens: then the balance loss is at least 1 where it should be. */
static moe_status open_batch(call *c, const moe_route_args *a, int64_t divisor, moe_err *err) {
    const topk *t = c->t;
    int64_t sum = 0;
    c->batch = a->batch_counts->data;
    for (int64_t e = 0; e < t->experts; e++) {
        if (c->batch[e] < 0 || c->batch[e] > divisor)
            return moe_fail(err, MOE_E_ARG, "layer %u: batch_counts of expert %lld is %lld of %lld tokens", t->layer,
                            (long long)e, (long long)c->batch[e], (long long)divisor);
        sum += c->batch[e];
    }
    if (sum == t->k * divisor) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "layer %u: batch_counts sum to %lld, not to %lld choices of %lld tokens", t->layer,
                    (long long)sum, (long long)t->k, (long long)divisor);
}

/* Divisor and batch are read here, when the call runs. A call without a live token needs neither. */
static moe_status open_divisor(call *c, const moe_route_args *a, moe_err *err) {
    const topk *t = c->t;
    int64_t token = 0;
    c->divisor = 1;
    while (token < c->tokens && !token_live(c, token)) token++;
    if (token == c->tokens || (t->aux_coef <= 0 && t->z_coef <= 0)) return MOE_OK;
    moe_status s = topk_check_divisor(t, a, err);
    if (s) return s;
    int64_t divisor = *(const int64_t *)a->divisor->data;
    if (divisor <= 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: divisor is %lld valid tokens", t->layer, (long long)divisor);
    c->divisor = (double)divisor;
    c->z_scale = 2 * t->z_coef / c->divisor;
    if (t->aux_scope != TOPK_AUX_GLOBAL) return MOE_OK;
    c->measure = !router_absent(a->losses);
    return open_batch(c, a, divisor, err);
}

/* load_e = d loss / d P_te for the tokens of one unit, zero in the padding: aux_coef / divisor * slope * n_e */
static void spread_load(call *c, int64_t begin) {
    const topk *t = c->t;
    const int64_t *count = c->batch ? c->batch : c->count;
    double tokens = c->divisor;
    if (!c->batch) tokens = (double)longer(count_unit(c, begin, begin + c->unit), 1);
    double factor = t->aux_coef / c->divisor * topk_slope((double)t->experts, (double)t->k, tokens);
    int64_t e = 0;
    for (; e < t->experts; e++) c->load[e] = (float)(factor * (double)count[e]);
    for (; e < row_padded(t->experts); e++) c->load[e] = 0;
}

moe_status topk_route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    const topk *t = self;
    call c = {0};
    moe_status s = topk_check_backward(t, a, err);
    if (s || a->logits->shape[0] == 0) return s;
    open_call(&c, t, a);
    s = open_divisor(&c, a, err);
    if (!s) s = router_check_ids(t->layer, c.ids, c.mask, c.tokens, t->k, t->experts, err);
    if (s) return s;
    c.d_weights = a->d_weights->data;
    c.d_logits = a->d_logits->data;
    for (int64_t begin = 0; begin < c.tokens; begin += c.unit) {
        spread_load(&c, begin);
        run_tokens(&c, begin, begin + c.unit, token_backward);
    }
    if (atomic_load(&c.bad) < c.tokens) return fail_logit(&c, err);
    if (c.measure)
        ((double *)a->losses->data)[TOPK_AUX] +=
            topk_slope((double)t->experts, (double)t->k, c.divisor) * weigh_shares(&c, c.batch);
    return MOE_OK;
}
