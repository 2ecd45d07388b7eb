/* Router "topk", one token: forward - scores, groups, choice, weights, share of the losses - and backward. Runs on any
 * worker; nothing here depends on another token, and sums over tokens are exact integers or formed later in order. */
#include <math.h>

#include "call.h"

/* ---- scores ---- */

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
        max = r->top_x[j] > max ? r->top_x[j] : max;
    }
    for (int64_t j = t->k; j < row_padded(t->k); j++) r->top_x[j] = -INFINITY;
    return score(t, r->top_x, t->k, max, r->top_p, r->top_q);
}

static void report_bad(call *c, int64_t token) {
    int64_t seen = atomic_load(&c->bad);
    while (token < seen && !atomic_compare_exchange_weak(&c->bad, &seen, token)) {
    }
}

/* ---- forward ---- */

static void choose_none(const call *c, int64_t token) {
    for (int64_t i = token * c->t->k; i < (token + 1) * c->t->k; i++) {
        c->ids[i] = -1;
        c->weights[i] = 0;
    }
}

/* The token's share of each loss: P_e for the balance loss, lse^2, -sum P log P, with P the scores over their sum. */
static void measure(call *c, int64_t token, float max, float sum, const rows *r) {
    const topk *t = c->t;
    if (t->aux_scope != TOPK_AUX_GLOBAL) t->rows->share(r->p, t->experts, 1.0f / sum, r->share);
    c->entropy[token] = t->sigmoid ? t->rows->sigmoid_entropy(r->x, t->experts, max, r->p, r->q, sum)
                                   : t->rows->exp_entropy(r->x, t->experts, max, r->p, sum);
    if (t->sigmoid) sum = t->rows->exp(r->x, t->experts, max, r->h);
    double lse = (double)max + log((double)sum);
    c->z[token] = lse * lse;
}

/* kept = the t->kept groups of largest score, ties to the lowest, in ascending order. A group's score is the sum of its
 * best_of best s (DeepSeek-V2, arXiv 2405.04434, section 2.1.2: 1; DeepSeek-V3, arXiv 2412.19437, section 2.1.2: k over
 * the groups kept). Scores that round to zero tie. */
static void keep_groups(const topk *t, const float *s, const rows *r) {
    if (t->best_of <= 2) t->rows->groups(s, t->per, t->groups, t->best_of, r->group);
    for (int64_t g = 0; t->best_of > 2 && g < t->groups; g++) {
        t->rows->top(s + g * t->per, t->per, t->best_of, r->best, r->kept);
        r->group[g] = 0;
        for (int64_t j = 0; j < t->best_of; j++) r->group[g] += r->best[j];
    }
    t->rows->top(r->group, t->groups, t->kept, r->group_best, r->kept);
    for (int64_t i = 1; i < t->kept; i++) { /* by insertion: few */
        int32_t g = r->kept[i];
        int64_t j = i;
        for (; j > 0 && r->kept[j - 1] > g; j--) r->kept[j] = r->kept[j - 1];
        r->kept[j] = g;
    }
}

/* ids [k] = the best of the kept groups only: the others are left out of the row, so that no score of theirs, however
 * it compares with a negative bias, can be chosen. sum: scores of which groups are judged by a sum. */
static void choose_in_groups(const topk *t, const float *s, const float *sum, int32_t *ids, const rows *r) {
    int32_t per = (int32_t)t->per;
    keep_groups(t, t->best_of > 1 ? sum : s, r);
    for (int64_t i = 0; i < t->kept; i++)
        memcpy(r->q + i * per, s + (int64_t)r->kept[i] * per, (size_t)per * sizeof *s);
    t->rows->top(r->q, t->kept * per, t->k, r->best, ids);
    for (int64_t j = 0; j < t->k; j++) ids[j] = r->kept[ids[j] / per] * per + ids[j] % per;
}

/* The k largest of the logits, or of score + bias; equal ones from the lowest index. Without a bias the logits decide,
 * because scores grow with them and round alike only later. factor: of p, to make it a score. */
static void choose(const call *c, float factor, int32_t *ids, const rows *r) {
    const topk *t = c->t;
    const float *s = r->x, *sum = r->p;
    if (t->bias) {
        for (int64_t e = 0; e < t->experts; e++) r->h[e] = r->p[e] * factor + c->bias[e];
        s = sum = r->h;
    }
    if (t->kept)
        choose_in_groups(t, s, sum, ids, r);
    else
        t->rows->top(s, t->experts, t->k, r->best, ids);
}

/* Weights never see the bias: softmax p_e = exp(l_e) / sum, sigmoid p_e = 1 / (1 + exp(-l_e)); w_j = scale p_j, or
 * scale p_j / sum of the chosen. */
void token_forward(call *c, int64_t token, const rows *r) {
    const topk *t = c->t;
    int32_t *ids = c->ids + token * t->k;
    float *w = c->weights + token * t->k, max = 0, factor = 1;
    if (!token_live(c, token)) {
        choose_none(c, token);
        return;
    }
    if (!t->rows->load(c->logits + token * t->experts, t->experts, r->x, &max)) {
        choose_none(c, token);
        report_bad(c, token);
        return;
    }
    if (t->bias || t->best_of > 1 || c->measure || !relative(t)) {
        float sum = score(t, r->x, t->experts, max, r->p, r->q);
        factor = t->sigmoid ? row_unit(max) : 1.0f / sum;
        if (c->measure) measure(c, token, max, sum, r);
    }
    choose(c, factor, ids, r);
    if (relative(t)) {
        float each = t->scale / score_chosen(t, ids, r);
        for (int64_t j = 0; j < t->k; j++) w[j] = r->top_p[j] * each;
    } else {
        for (int64_t j = 0; j < t->k; j++) w[j] = r->p[ids[j]] * factor * t->scale;
    }
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
    if (c->measure) t->rows->share(r->p, t->experts, each, r->share);
}

/* P = s / sum s: dl_e = P_e (h_e - sum P h) (1 - s_e), and the log-sum-exp through its own softmax. */
static void pull_sigmoid(const call *c, const int32_t *ids, const float *dw, float max, float *d, const rows *r) {
    const topk *t = c->t;
    float each = 1.0f / t->rows->sigmoid(r->x, t->experts, max, r->p, r->q);
    float dot = t->rows->dot(r->p, c->load, t->experts) * each;
    for (int64_t e = 0; e < t->experts; e++) d[e] = r->p[e] * each * (c->load[e] - dot) * r->q[e];
    if (c->measure) t->rows->share(r->p, t->experts, each, r->share);
    if (c->z_scale > 0) {
        float sum = t->rows->exp(r->x, t->experts, max, r->h);
        float share = (float)(c->z_scale * ((double)max + log((double)sum)) / (double)sum);
        for (int64_t e = 0; e < t->experts; e++) d[e] += share * r->h[e];
    }
    if (relative(t)) return;
    float unit = row_unit(max) * t->scale;
    for (int64_t j = 0; j < t->k; j++) d[ids[j]] += dw[j] * unit * r->p[ids[j]] * r->q[ids[j]];
}

/* Which experts were chosen, groups included, is constant in the gradient. */
void token_backward(call *c, int64_t token, const rows *r) {
    const topk *t = c->t;
    const int32_t *ids = c->ids + token * t->k;
    const float *dw = c->d_weights + token * t->k;
    float *d = c->d_logits + token * t->experts, max = 0;
    memset(d, 0, (size_t)t->experts * sizeof *d);
    if (!token_live(c, token)) return;
    if (!t->rows->load(c->logits + token * t->experts, t->experts, r->x, &max)) {
        report_bad(c, token);
        return;
    }
    int whole = t->aux_coef > 0 || t->z_coef > 0 || !relative(t); /* else only the chosen matter */
    if (whole && t->sigmoid) pull_sigmoid(c, ids, dw, max, d, r);
    if (whole && !t->sigmoid) pull_softmax(c, ids, dw, max, d, r);
    if (relative(t)) pull_relative(t, ids, dw, d, r);
}
