/* One call of route or route_bwd in the making: what route.c prepares and token.c works on. A unit is what a balance
 * loss is formed over: one sequence, or all tokens of the call. Shared by these two files only. */
#ifndef ROUTER_TOPK_CALL_H
#define ROUTER_TOPK_CALL_H
#include <stdatomic.h>

#include "rows.h"
#include "topk.h"

/* Scratch of one worker. */
typedef struct rows {
    float *x, *p, *q, *h;                /* [padded E] logits, scores, 1 - sigmoid, spare */
    float *top_x, *top_p, *top_q, *best; /* [padded k] the same of the chosen; best: selection scores */
    float *group, *group_best;           /* [padded groups] scores of the groups, of the kept ones */
    int32_t *kept;                       /* [padded max(groups, k)] the kept groups, ascending */
    int64_t *share;                      /* [padded E] sum of normalised scores in the unit, 2^-ROW_SHARE_BITS */
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
    double *z, *entropy;    /* [T] forward: every live token's share of these losses */
    int64_t *count, *total; /* [E] choices in the unit, in the call */
    float *load;            /* [padded E] backward: d loss / d normalised score */
    double divisor;         /* backward: live tokens of the global batch */
    double z_scale;         /* backward: 2 z_coef / divisor */
    const int64_t *batch;   /* [E] backward: choices in the global batch, where the balance loss is formed over it */
    int measure;            /* forward: z, entropy and shares are wanted; backward: shares are */
    char *scratch;          /* rows of worker 0, then of worker 1, ... */
    int64_t tokens, unit;   /* T, tokens a unit */
    int64_t begin, end;     /* of the pass that runs */
    _Atomic int64_t bad;    /* least live token with a logit that is not finite; T = none */
    void (*work)(struct call *c, int64_t token, const rows *r);
} call;

/* Padding takes no part in anything. */
static inline int token_live(const call *c, int64_t token) {
    return !c->mask || c->mask[token] != 0;
}

/* ids and weights of one token, and, with `measure`, what it adds to the losses. */
void token_forward(call *c, int64_t token, const rows *r);
/* d_logits of one token, overwritten; with `measure` its shares. */
void token_backward(call *c, int64_t token, const rows *r);

#endif
