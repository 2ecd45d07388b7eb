/* Router "topk" for the CPU: the k best experts of each token by softmax or sigmoid score, balance losses, and an
 * expert bias that balances without a loss. topk.c: options, description, needs, bias; route.c: one call forward and
 * backward; token.c: what happens to one token; rows.c: arithmetic over a row. Formulas: at the functions. */
#ifndef ROUTER_TOPK_H
#define ROUTER_TOPK_H
#include <moe/plugin.h>

#include "rows.h"

/* Words of the options, in the order of the schema. */
enum { TOPK_GROUP_MAX, TOPK_GROUP_SUM2, TOPK_GROUP_SUM };
enum { TOPK_AUX_MICROBATCH, TOPK_AUX_SEQUENCE, TOPK_AUX_GLOBAL };

/* One instance; const after create. E experts, k choices a token. */
typedef struct topk {
    int64_t experts, k, max_tokens;
    uint32_t layer;
    int sigmoid;     /* score: sigmoid(logit), else softmax over all experts */
    int after;       /* softmax over the chosen logits only */
    int renormalise; /* chosen scores are divided by their sum */
    int bias, centre;
    int aux_scope; /* TOPK_AUX_*: the tokens over which a balance loss is formed */
    /* Choices of a token come from its `kept` best of `groups` groups of `per` experts; a group's score is the sum of
     * its `best_of` best. kept = 0: from all experts. */
    int64_t groups, kept, per, best_of;
    float scale, jitter;
    double bias_rate, aux_coef, z_coef;
    const row_ops *rows;
    const moe_parallel *pool; /* NULL: the caller's thread only */
    moe_param_spec state;     /* "expert_bias" [E] F32 */
} topk;

enum { TOPK_AUX, TOPK_Z, TOPK_ENTROPY, TOPK_LOSSES }; /* order of the losses */

/* Most tokens of one call: sums of their shares stay exact in 63 bits (token.c). */
#define TOPK_MAX_TOKENS (INT64_C(1) << 26)

/* Bytes of workspace that a call of route or route_bwd uses, alignment slack included. */
uint64_t topk_workspace(const topk *t);

/* The two step calls of moe_router_v0. [step] Tokens are shared among the threads of moe.parallel/0 where the device
 * has it; every result is the same for any number of threads. On error counts and losses are untouched. */
moe_status topk_route(const void *self, const moe_route_args *args, moe_err *err);
moe_status topk_route_bwd(const void *self, const moe_route_args *args, moe_err *err);

#endif
