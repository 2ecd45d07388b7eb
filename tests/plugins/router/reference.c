/* FP64 formulas: see reference.h. */
#include "reference.h"

#include <math.h>
#include <string.h>

double ref_lse(const double *x, int64_t experts) {
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < experts; e++) max = fmax(max, x[e]);
    for (int64_t e = 0; e < experts; e++) sum += exp(x[e] - max);
    return max + log(sum);
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static void scores(const ref_options *o, const double *x, int64_t experts, double *out) {
    double lse = ref_lse(x, experts);
    for (int64_t e = 0; e < experts; e++) out[e] = o->sigmoid ? sigmoid(x[e]) : exp(x[e] - lse);
}

void ref_selection(const ref_options *o, const double *x, const float *bias, int64_t experts, double *out) {
    scores(o, x, experts, out);
    for (int64_t e = 0; e < experts; e++) out[e] = bias ? out[e] + (double)bias[e] : x[e];
}

/* The sum of the n largest of x [size], by taking them away one by one. */
static double best_sum(const double *x, int64_t size, int64_t n) {
    double rest[REF_MAX_EXPERTS], sum = 0;
    memcpy(rest, x, (size_t)size * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        int64_t best = 0;
        for (int64_t e = 1; e < size; e++) best = rest[e] > rest[best] ? e : best;
        sum += rest[best];
        rest[best] = -INFINITY;
    }
    return sum;
}

double ref_groups(const ref_options *o, const double *x, const float *bias, int64_t experts, char *allowed) {
    double s[REF_MAX_EXPERTS], group[REF_MAX_EXPERTS], last = INFINITY, next = -INFINITY;
    int64_t per = o->kept ? experts / o->groups : experts;
    memset(allowed, !o->kept, (size_t)experts);
    scores(o, x, experts, s);
    for (int64_t e = 0; e < experts && bias; e++) s[e] += (double)bias[e];
    for (int64_t g = 0; g < o->groups; g++) group[g] = best_sum(s + g * per, per, o->best_of);
    for (int64_t i = 0; i < o->groups; i++) {
        int64_t best = 0;
        for (int64_t g = 1; g < o->groups; g++) best = group[g] > group[best] ? g : best;
        if (i < o->kept) memset(allowed + best * per, 1, (size_t)per);
        if (i < o->kept) last = group[best];
        if (i == o->kept) next = group[best];
        group[best] = -INFINITY;
    }
    return last - next;
}

void ref_weights(const ref_options *o, const double *x, int64_t experts, const int32_t *ids, int64_t k, double *out) {
    double s[REF_MAX_EXPERTS], chosen[REF_MAX_EXPERTS], sum = 0;
    scores(o, x, experts, s);
    for (int64_t j = 0; j < k; j++) chosen[j] = x[ids[j]];
    double lse = ref_lse(chosen, k);
    for (int64_t j = 0; j < k; j++) out[j] = o->after ? exp(chosen[j] - lse) : s[ids[j]];
    for (int64_t j = 0; j < k; j++) sum += out[j];
    for (int64_t j = 0; j < k; j++) out[j] *= o->scale / (o->renormalise ? sum : 1);
}

void ref_shares(const ref_options *o, const double *x, int64_t experts, double *out) {
    double sum = 0;
    scores(o, x, experts, out);
    for (int64_t e = 0; e < experts; e++) sum += out[e];
    for (int64_t e = 0; e < experts; e++) out[e] /= sum;
}

/* E / (K T_u^2) sum_e n_e S_e, times T_u, of one unit; z and entropy are added as they come. */
static void add_unit(const ref_options *o, const float *logits, const uint8_t *mask, const int32_t *ids, int64_t begin,
                     int64_t end, int64_t experts, int64_t k, double out[3]) {
    double s[REF_MAX_EXPERTS] = {0}, n[REF_MAX_EXPERTS] = {0}, x[REF_MAX_EXPERTS], p[REF_MAX_EXPERTS], live = 0;
    for (int64_t t = begin; t < end; t++) {
        if (mask && !mask[t]) continue;
        live++;
        for (int64_t e = 0; e < experts; e++) x[e] = (double)logits[t * experts + e];
        ref_shares(o, x, experts, p);
        for (int64_t e = 0; e < experts; e++) s[e] += p[e];
        for (int64_t j = 0; j < k; j++) n[ids[t * k + j]]++;
        out[1] += ref_lse(x, experts) * ref_lse(x, experts);
        for (int64_t e = 0; e < experts; e++) out[2] -= p[e] > 0 ? p[e] * log(p[e]) : 0;
    }
    for (int64_t e = 0; e < experts && live > 0 && !o->global; e++)
        out[0] += live * ((double)experts / ((double)k * live * live)) * s[e] * n[e];
}

void ref_losses(const ref_options *o, const float *logits, const uint8_t *mask, const int32_t *ids, int64_t tokens,
                int64_t seq_len, int64_t experts, int64_t k, double out[3]) {
    int64_t unit = o->sequence ? seq_len : tokens;
    memset(out, 0, 3 * sizeof *out);
    for (int64_t t = 0; t < tokens; t += unit) add_unit(o, logits, mask, ids, t, t + unit, experts, k, out);
}

double ref_global_loss(const ref_options *o, const float *logits, const uint8_t *mask, const int64_t *batch,
                       int64_t tokens, int64_t experts, int64_t k, double divisor) {
    double x[REF_MAX_EXPERTS], p[REF_MAX_EXPERTS], sum = 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (mask && !mask[t]) continue;
        for (int64_t e = 0; e < experts; e++) x[e] = (double)logits[t * experts + e];
        ref_shares(o, x, experts, p);
        for (int64_t e = 0; e < experts; e++) sum += (double)batch[e] * p[e];
    }
    return (double)experts / ((double)k * divisor) * sum;
}

double ref_token_loss(const ref_options *o, const double *x, const int32_t *ids, const float *dw, int64_t experts,
                      int64_t k, const int64_t *load, int64_t unit_tokens, double divisor) {
    double w[REF_MAX_EXPERTS], p[REF_MAX_EXPERTS], main_loss = 0, aux = 0, lse = ref_lse(x, experts);
    ref_weights(o, x, experts, ids, k, w);
    ref_shares(o, x, experts, p);
    for (int64_t j = 0; j < k; j++) main_loss += w[j] * (double)dw[j];
    for (int64_t e = 0; e < experts; e++)
        aux += (double)experts / ((double)k * (double)unit_tokens) * (double)load[e] * p[e];
    return main_loss + (o->aux_coef * aux + o->z_coef * lse * lse) / divisor;
}
