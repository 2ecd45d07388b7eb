/* Router "topk", one call: forward in two passes over the tokens - choose (ids, weights), then measure (losses, which
 * need the counts of the whole unit) - and backward in one. A unit is what a balance loss is formed over: the call's
 * tokens or one sequence. Work on tokens is shared among threads; sums over tokens run afterwards, in token order over
 * live tokens only, so that neither threads nor padding change a bit of them. */
#include <math.h>
#include <stdatomic.h>

#include "topk.h"

#define BLOCK 64 /* tokens a work item */

/* Scratch of one worker. */
typedef struct rows {
    float *x, *p, *q, *h;                /* [padded E] logits, scores, 1 - sigmoid, spare */
    float *top_x, *top_p, *top_q, *best; /* [padded k] the same of the chosen; best: selection scores */
} rows;

typedef struct call {
    const topk *t;
    const float *logits;    /* [T,E] */
    const uint8_t *mask;    /* [T] or NULL */
    const float *bias;      /* [E] or NULL */
    int32_t *ids;           /* [T,k] */
    float *weights;         /* [T,k] */
    const float *d_weights; /* [T,k] */
    float *d_logits;        /* [T,E] */
    double *token[3];       /* [T] each: every token's share of the losses */
    int64_t *count;         /* [E] choices in the unit */
    float *load;            /* [padded E] forward: choices in the unit; backward: d loss / d normalised score */
    double z_scale;         /* backward: 2 z_coef / divisor */
    char *scratch;          /* rows of worker 0, then of worker 1, ... */
    int64_t tokens, unit;   /* T, tokens a unit */
    int64_t begin, end;     /* of the pass that runs */
    _Atomic int64_t bad;    /* least live token with a logit that is not finite; T = none */
    void (*work)(struct call *c, int64_t token, const rows *r);
} call;

/* ---- memory ---- */

static uint64_t round64(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}

static uint64_t rows_bytes(const topk *t) {
    return round64((uint64_t)(4 * row_padded(t->experts) + 4 * row_padded(t->k)) * sizeof(float));
}

uint64_t topk_workspace(const topk *t) {
    uint64_t workers = t->pool ? t->pool->threads : 1, experts = (uint64_t)row_padded(t->experts);
    return 64 + 3 * round64((uint64_t)t->max_tokens * sizeof(double)) + round64(experts * sizeof(int64_t)) +
           round64(experts * sizeof(float)) + workers * rows_bytes(t);
}

static void carve(call *c, void *workspace) {
    const topk *t = c->t;
    char *at = (char *)workspace + (64 - ((uintptr_t)workspace & 63));
    for (int i = 0; i < TOPK_LOSSES; i++, at += round64((uint64_t)t->max_tokens * sizeof(double)))
        c->token[i] = (double *)(void *)at;
    c->count = (int64_t *)(void *)at;
    at += round64((uint64_t)row_padded(t->experts) * sizeof(int64_t));
    c->load = (float *)(void *)at;
    at += round64((uint64_t)row_padded(t->experts) * sizeof(float));
    c->scratch = at;
}

static rows rows_of(const call *c, uint32_t worker) {
    int64_t e = row_padded(c->t->experts), k = row_padded(c->t->k);
    float *at = (float *)(void *)(c->scratch + worker * rows_bytes(c->t)), *top = at + 4 * e;
    return (rows){at, at + e, at + 2 * e, at + 3 * e, top, top + k, top + 2 * k, top + 3 * k};
}

/* ---- passes over tokens ---- */

static int live(const call *c, int64_t token) {
    return !c->mask || c->mask[token] != 0;
}

static void run_block(void *arg, int64_t block, uint32_t worker) {
    call *c = arg;
    rows r = rows_of(c, worker);
    int64_t first = c->begin + block * BLOCK, last = c->end - first < BLOCK ? c->end : first + BLOCK;
    for (int64_t token = first; token < last; token++) c->work(c, token, &r);
}

/* work(token) for begin <= token < end */
static void run_tokens(call *c, int64_t begin, int64_t end, void (*work)(call *, int64_t, const rows *)) {
    int64_t blocks = (end - begin + BLOCK - 1) / BLOCK;
    c->begin = begin;
    c->end = end;
    c->work = work;
    if (c->t->pool && blocks > 1)
        c->t->pool->run(c->t->pool->self, blocks, run_block, c);
    else
        for (int64_t b = 0; b < blocks; b++) run_block(c, b, 0);
}

static void report_bad(call *c, int64_t token) {
    int64_t seen = atomic_load(&c->bad);
    while (token < seen && !atomic_compare_exchange_weak(&c->bad, &seen, token)) {
    }
}

static moe_status fail_logit(const call *c, moe_err *err) {
    int64_t token = atomic_load(&c->bad), e = 0;
    const float *row = c->logits + token * c->t->experts;
    while (e < c->t->experts - 1 && isfinite(row[e])) e++;
    return moe_fail(err, MOE_E_DATA, "layer %u: logit of token %lld, expert %lld is %s", c->t->layer, (long long)token,
                    (long long)e,
                    isnan(row[e]) ? "nan"
                    : row[e] > 0  ? "inf"
                                  : "-inf");
}

/* Counts the unit's choices; returns its live tokens. */
static int64_t count_unit(call *c, int64_t begin, int64_t end) {
    const topk *t = c->t;
    int64_t tokens = 0;
    memset(c->count, 0, (size_t)t->experts * sizeof *c->count);
    for (int64_t token = begin; token < end; token++) {
        if (!live(c, token)) continue;
        tokens++;
        for (int64_t j = 0; j < t->k; j++) c->count[c->ids[token * t->k + j]]++;
    }
    return tokens;
}

/* load = factor * count, zero in the padding */
static void spread_load(call *c, double factor) {
    int64_t e = 0;
    for (; e < c->t->experts; e++) c->load[e] = (float)(factor * (double)c->count[e]);
    for (; e < row_padded(c->t->experts); e++) c->load[e] = 0;
}

/* ---- the scores of one token ---- */

/* Weights are shares of the chosen scores alone? (softmax: before + renormalise equals after) */
static int relative(const topk *t) {
    return t->after || t->renormalise;
}

/* p = scores up to a factor (q = 1 - sigmoid); returns the sum of p. */
static float score(const topk *t, const float *x, int64_t n, float max, float *p, float *q) {
    return t->sigmoid ? t->rows->sigmoid(x, n, max, p, q) : t->rows->exp(x, n, max, p);
}

/* The scores of the chosen, relative to the largest of them: top_p, top_q; returns the sum. Rows whose chosen experts
 * all lie far below the best one (the bias can do that) keep their ratios. */
static float score_chosen(const topk *t, const int32_t *ids, const rows *r) {
    float max = -INFINITY;
    for (int64_t j = 0; j < t->k; j++) {
        r->top_x[j] = r->x[ids[j]];
        max = fmaxf(max, r->top_x[j]);
    }
    for (int64_t j = t->k; j < row_padded(t->k); j++) r->top_x[j] = -INFINITY;
    return score(t, r->top_x, t->k, max, r->top_p, r->top_q);
}

/* ---- forward ---- */

static void choose_none(const call *c, int64_t token) {
    for (int64_t i = token * c->t->k; i < (token + 1) * c->t->k; i++) {
        c->ids[i] = -1;
        c->weights[i] = 0;
    }
}

/* The k largest of the logits, or of score + bias; equal ones from the lowest index. Without a bias the logits decide,
 * because scores grow with them and round alike only later. Weights never see the bias:
 * softmax p_e = exp(l_e) / sum, sigmoid p_e = 1 / (1 + exp(-l_e)); w_j = scale p_j, or scale p_j / sum of the chosen.
 */
static void choose_token(call *c, int64_t token, const rows *r) {
    const topk *t = c->t;
    int32_t *ids = c->ids + token * t->k;
    float *w = c->weights + token * t->k, max = 0, factor = 1;
    if (!live(c, token)) {
        choose_none(c, token);
        return;
    }
    if (!t->rows->load(c->logits + token * t->experts, t->experts, r->x, &max)) {
        choose_none(c, token);
        report_bad(c, token);
        return;
    }
    if (t->bias || !relative(t)) {
        float sum = score(t, r->x, t->experts, max, r->p, r->q);
        factor = t->sigmoid ? row_unit(max) : 1.0f / sum;
    }
    if (t->bias)
        for (int64_t e = 0; e < t->experts; e++) r->h[e] = r->p[e] * factor + c->bias[e];
    t->rows->top(t->bias ? r->h : r->x, t->experts, t->k, r->best, ids);
    if (relative(t)) {
        float each = t->scale / score_chosen(t, ids, r);
        for (int64_t j = 0; j < t->k; j++) w[j] = r->top_p[j] * each;
    } else {
        for (int64_t j = 0; j < t->k; j++) w[j] = r->p[ids[j]] * factor * t->scale;
    }
}

/* The token's share of each loss: sum_e n_e P_e, lse^2, -sum P log P, with P the scores over their sum. */
static void measure_token(call *c, int64_t token, const rows *r) {
    const topk *t = c->t;
    float max = 0;
    if (!live(c, token)) return;
    t->rows->load(c->logits + token * t->experts, t->experts, r->x, &max);
    float sum = score(t, r->x, t->experts, max, r->p, r->q);
    c->token[TOPK_AUX][token] = (double)t->rows->dot(r->p, c->load, t->experts) / (double)sum;
    c->token[TOPK_ENTROPY][token] = t->sigmoid ? t->rows->sigmoid_entropy(r->x, t->experts, max, r->p, r->q, sum)
                                               : t->rows->exp_entropy(r->x, t->experts, max, r->p, sum);
    if (t->sigmoid) sum = t->rows->exp(r->x, t->experts, max, r->h);
    double lse = (double)max + log((double)sum);
    c->token[TOPK_Z][token] = lse * lse;
}

/* Adds the sums over live tokens to losses [3]. Of a unit with T_u live tokens the balance loss is
 * E / (K T_u^2) sum_e n_e sum_t P_te (Fedus et al., arXiv 2101.03961, eq. 4, for k choices); it enters T_u times. */
static void add_losses(call *c, double *losses) {
    const topk *t = c->t;
    double sum[TOPK_LOSSES] = {0, 0, 0};
    for (int64_t begin = 0; begin < c->tokens; begin += c->unit) {
        int64_t end = begin + c->unit, tokens = count_unit(c, begin, end);
        if (tokens == 0) continue;
        spread_load(c, 1);
        run_tokens(c, begin, end, measure_token);
        double unit = 0;
        for (int64_t token = begin; token < end; token++) {
            if (!live(c, token)) continue;
            unit += c->token[TOPK_AUX][token];
            sum[TOPK_Z] += c->token[TOPK_Z][token];
            sum[TOPK_ENTROPY] += c->token[TOPK_ENTROPY][token];
        }
        sum[TOPK_AUX] += unit * (double)t->experts / ((double)t->k * (double)tokens);
    }
    for (int i = 0; i < TOPK_LOSSES; i++) losses[i] += sum[i];
}

/* ---- backward ---- */

/* d row += the main loss through the shares of the chosen: w = s p, dl_j = s p_j (dw_j - sum_i p_i dw_i), and for
 * sigmoid times d log(sigmoid) / dl = 1 - sigmoid. */
static void pull_relative(const topk *t, const int32_t *ids, const float *dw, float *d, const rows *r) {
    float sum = score_chosen(t, ids, r), dot = 0;
    for (int64_t j = 0; j < t->k; j++) dot += r->top_p[j] * dw[j];
    dot /= sum;
    for (int64_t j = 0; j < t->k; j++) {
        float slope = t->sigmoid ? r->top_q[j] : 1.0f;
        d[ids[j]] += t->scale * (r->top_p[j] / sum) * (dw[j] - dot) * slope;
    }
}

/* With h_e = dloss/dP_e: dl_e = P_e (h_e - sum P h) + P_e 2 z lse. */
static void pull_softmax(const call *c, const int32_t *ids, const float *dw, float max, float *d, const rows *r) {
    const topk *t = c->t;
    memcpy(r->h, c->load, (size_t)row_padded(t->experts) * sizeof *r->h);
    if (!relative(t))
        for (int64_t j = 0; j < t->k; j++) r->h[ids[j]] += t->scale * dw[j];
    float sum = t->rows->exp(r->x, t->experts, max, r->p), each = 1.0f / sum;
    float shift = (float)(c->z_scale * ((double)max + log((double)sum))) - t->rows->dot(r->p, r->h, t->experts) * each;
    for (int64_t e = 0; e < t->experts; e++) d[e] = r->p[e] * each * (r->h[e] + shift);
}

/* P = s / sum s: dl_e = P_e (h_e - sum P h) (1 - s_e), and the log-sum-exp through its own softmax. */
static void pull_sigmoid(const call *c, const int32_t *ids, const float *dw, float max, float *d, const rows *r) {
    const topk *t = c->t;
    float each = 1.0f / t->rows->sigmoid(r->x, t->experts, max, r->p, r->q);
    float dot = t->rows->dot(r->p, c->load, t->experts) * each;
    for (int64_t e = 0; e < t->experts; e++) d[e] = r->p[e] * each * (c->load[e] - dot) * r->q[e];
    if (c->z_scale > 0) {
        float sum = t->rows->exp(r->x, t->experts, max, r->h);
        float share = (float)(c->z_scale * ((double)max + log((double)sum)) / (double)sum);
        for (int64_t e = 0; e < t->experts; e++) d[e] += share * r->h[e];
    }
    if (relative(t)) return;
    float unit = row_unit(max) * t->scale;
    for (int64_t j = 0; j < t->k; j++) d[ids[j]] += dw[j] * unit * r->p[ids[j]] * r->q[ids[j]];
}

static void pull_token(call *c, int64_t token, const rows *r) {
    const topk *t = c->t;
    const int32_t *ids = c->ids + token * t->k;
    const float *dw = c->d_weights + token * t->k;
    float *d = c->d_logits + token * t->experts, max = 0;
    memset(d, 0, (size_t)t->experts * sizeof *d);
    if (!live(c, token)) return;
    if (!t->rows->load(c->logits + token * t->experts, t->experts, r->x, &max)) {
        report_bad(c, token);
        return;
    }
    int whole = t->aux_coef > 0 || t->z_coef > 0 || !relative(t); /* else only the chosen matter */
    if (whole && t->sigmoid) pull_sigmoid(c, ids, dw, max, d, r);
    if (whole && !t->sigmoid) pull_softmax(c, ids, dw, max, d, r);
    if (relative(t)) pull_relative(t, ids, dw, d, r);
}

/* ---- the calls ---- */

static int absent(const moe_tensor *x) {
    return !x || (!x->data && x->ndim == 0);
}

/* Is x of this dtype and shape [a] (b < 0) or [a,b], with data unless it is empty? */
static int shaped(const moe_tensor *x, int32_t dtype, int64_t a, int64_t b) {
    if (!x || x->dtype != dtype || x->ndim != (b < 0 ? 1 : 2) || x->shape[0] != a) return 0;
    if (b >= 0 && x->shape[1] != b) return 0;
    return x->data != NULL || a == 0;
}

static moe_status fail_shape(const topk *t, const char *name, const char *dtype, int64_t a, int64_t b, moe_err *err) {
    if (b < 0) return moe_fail(err, MOE_E_ARG, "layer %u: %s is not %s [%lld]", t->layer, name, dtype, (long long)a);
    return moe_fail(err, MOE_E_ARG, "layer %u: %s is not %s [%lld,%lld]", t->layer, name, dtype, (long long)a,
                    (long long)b);
}

/* What both directions take: logits, mask, units, workspace. */
static moe_status open_call(call *c, const topk *t, const moe_route_args *a, moe_err *err) {
    if (!MOE_REACH(a, moe_route_args, d_logits))
        return moe_fail(err, MOE_E_ARG, "layer %u: moe_route_args of %u bytes lacks d_logits", t->layer, a->size);
    int64_t tokens = a->logits ? a->logits->shape[0] : -1;
    if (tokens < 0 || tokens > t->max_tokens)
        return moe_fail(err, MOE_E_ARG, "layer %u: %lld tokens, declared were at most %lld", t->layer,
                        (long long)tokens, (long long)t->max_tokens);
    if (!shaped(a->logits, MOE_F32, tokens, t->experts)) return fail_shape(t, "logits", "F32", tokens, t->experts, err);
    if (!absent(a->mask) && !shaped(a->mask, MOE_U8, tokens, -1)) return fail_shape(t, "mask", "U8", tokens, -1, err);
    if (!shaped(a->expert_ids, MOE_I32, tokens, t->k)) return fail_shape(t, "expert_ids", "I32", tokens, t->k, err);
    if (t->sequence && tokens > 0 && (a->seq_len <= 0 || tokens % a->seq_len != 0))
        return moe_fail(err, MOE_E_ARG, "layer %u: aux_scope = sequence, but %lld tokens are no sequences of %lld",
                        t->layer, (long long)tokens, (long long)a->seq_len);
    if (!a->workspace) return moe_fail(err, MOE_E_ARG, "layer %u: no workspace", t->layer);
    c->t = t;
    c->tokens = tokens;
    c->unit = t->sequence ? a->seq_len : tokens;
    c->logits = a->logits->data;
    c->mask = absent(a->mask) ? NULL : a->mask->data;
    c->ids = a->expert_ids->data;
    atomic_init(&c->bad, tokens);
    carve(c, a->workspace);
    return MOE_OK;
}

static moe_status open_bias(call *c, const moe_route_args *a, moe_err *err) {
    const topk *t = c->t;
    if (!t->bias) return MOE_OK;
    if (!shaped(a->state, MOE_F32, t->experts, -1)) return fail_shape(t, "expert_bias", "F32", t->experts, -1, err);
    c->bias = a->state->data;
    for (int64_t e = 0; e < t->experts; e++)
        if (!isfinite(c->bias[e]))
            return moe_fail(err, MOE_E_DATA, "layer %u: expert_bias of expert %lld is %g", t->layer, (long long)e,
                            (double)c->bias[e]);
    return MOE_OK;
}

moe_status topk_route(const void *self, const moe_route_args *a, moe_err *err) {
    const topk *t = self;
    call c = {0};
    moe_status s = open_call(&c, t, a, err);
    if (!s) s = open_bias(&c, a, err);
    if (s) return s;
    if (!shaped(a->weights, MOE_F32, c.tokens, t->k)) return fail_shape(t, "weights", "F32", c.tokens, t->k, err);
    if (!absent(a->counts) && !shaped(a->counts, MOE_I64, t->experts, -1))
        return fail_shape(t, "counts", "I64", t->experts, -1, err);
    if (!absent(a->losses) && !shaped(a->losses, MOE_F64, TOPK_LOSSES, -1))
        return fail_shape(t, "losses", "F64", TOPK_LOSSES, -1, err);
    c.weights = a->weights->data;
    run_tokens(&c, 0, c.tokens, choose_token);
    if (atomic_load(&c.bad) < c.tokens) return fail_logit(&c, err);
    if (!absent(a->losses)) add_losses(&c, a->losses->data);
    if (!absent(a->counts)) {
        int64_t *counts = a->counts->data;
        count_unit(&c, 0, c.tokens);
        for (int64_t e = 0; e < t->experts; e++) counts[e] += c.count[e];
    }
    return MOE_OK;
}

/* The host's array is not trusted with memory: an id out of range would be an index. */
static moe_status check_ids(const call *c, moe_err *err) {
    for (int64_t i = 0; i < c->tokens * c->t->k; i++)
        if (live(c, i / c->t->k) && (c->ids[i] < 0 || c->ids[i] >= c->t->experts))
            return moe_fail(err, MOE_E_ARG, "layer %u: id of token %lld, choice %lld is %d, route leaves 0..%lld",
                            c->t->layer, (long long)(i / c->t->k), (long long)(i % c->t->k), c->ids[i],
                            (long long)c->t->experts - 1);
    return MOE_OK;
}

/* The divisor is read here, when the call runs. A batch without a live token has divisor 0 and needs none. */
static moe_status open_divisor(const call *c, const moe_route_args *a, double *out, moe_err *err) {
    const topk *t = c->t;
    int64_t token = 0;
    *out = 1;
    while (token < c->tokens && !live(c, token)) token++;
    if (token == c->tokens || (t->aux_coef <= 0 && t->z_coef <= 0)) return MOE_OK;
    if (!shaped(a->divisor, MOE_I64, 1, -1)) return fail_shape(t, "divisor", "I64", 1, -1, err);
    int64_t divisor = *(const int64_t *)a->divisor->data;
    if (divisor <= 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: divisor is %lld valid tokens", t->layer, (long long)divisor);
    *out = (double)divisor;
    return MOE_OK;
}

moe_status topk_route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    const topk *t = self;
    call c = {0};
    double divisor = 1;
    moe_status s = open_call(&c, t, a, err);
    if (s) return s;
    if (!shaped(a->d_weights, MOE_F32, c.tokens, t->k)) return fail_shape(t, "d_weights", "F32", c.tokens, t->k, err);
    if (!shaped(a->d_logits, MOE_F32, c.tokens, t->experts))
        return fail_shape(t, "d_logits", "F32", c.tokens, t->experts, err);
    if (c.tokens == 0) return MOE_OK;
    if ((s = open_divisor(&c, a, &divisor, err)) || (s = check_ids(&c, err))) return s;
    c.d_weights = a->d_weights->data;
    c.d_logits = a->d_logits->data;
    c.z_scale = 2 * t->z_coef / divisor;
    for (int64_t begin = 0; begin < c.tokens; begin += c.unit) {
        int64_t tokens = count_unit(&c, begin, begin + c.unit);
        double slope = (double)t->experts / ((double)t->k * (double)(tokens > 0 ? tokens : 1));
        spread_load(&c, t->aux_coef / divisor * slope);
        run_tokens(&c, begin, begin + c.unit, pull_token);
    }
    return atomic_load(&c.bad) < c.tokens ? fail_logit(&c, err) : MOE_OK;
}
