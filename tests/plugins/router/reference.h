/* Plain FP64 formulas of the topk router, written for reading; what the plugin is held against. */
#ifndef TESTS_ROUTER_REFERENCE_H
#define TESTS_ROUTER_REFERENCE_H
#include <stdint.h>

typedef struct ref_options {
    int sigmoid, after, renormalise, bias, sequence, global;
    double scale, aux_coef, z_coef;
    int64_t groups, kept, best_of; /* kept 0: no groups */
} ref_options;

enum { REF_MAX_EXPERTS = 512 };

/* x [E] logits of a token -> selection scores [E] (bias NULL = none). */
void ref_selection(const ref_options *o, const double *x, const float *bias, int64_t experts, double *out);
/* allowed [E] = 1 for the experts of the kept groups. Returns by how much the last kept group beats the first other. */
double ref_groups(const ref_options *o, const double *x, const float *bias, int64_t experts, char *allowed);
/* Weights [k] of given ids. */
void ref_weights(const ref_options *o, const double *x, int64_t experts, const int32_t *ids, int64_t k, double *out);
/* P [E]: scores over their sum. */
void ref_shares(const ref_options *o, const double *x, int64_t experts, double *out);
double ref_lse(const double *x, int64_t experts);

/* aux_loss, z_loss, entropy as route reports them: sums over live tokens, no coefficient; no aux_loss if global. mask
 * NULL = all live. */
void ref_losses(const ref_options *o, const float *logits, const uint8_t *mask, const int32_t *ids, int64_t tokens,
                int64_t seq_len, int64_t experts, int64_t k, double out[3]);

/* The aux_loss that backward reports if global: E / (k N) sum_e batch_e sum_t P_te. */
double ref_global_loss(const ref_options *o, const float *logits, const uint8_t *mask, const int64_t *batch,
                       int64_t tokens, int64_t experts, int64_t k, double divisor);

/* What the logits [E] of one token add to sum(w * dw) + (aux_coef aux_loss + z_coef z_loss) / divisor, at fixed ids;
 * load [E]: choices in the token's unit, of unit_tokens live tokens (of the global batch and divisor, if global). */
double ref_token_loss(const ref_options *o, const double *x, const int32_t *ids, const float *dw, int64_t experts,
                      int64_t k, const int64_t *load, int64_t unit_tokens, double divisor);

#endif
