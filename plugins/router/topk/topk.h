/* Router "topk": the k best experts of each token by softmax or sigmoid score, balance losses, and an expert bias that
 * balances without a loss. For all devices: settings.c (options, needs), checks.c (arguments of the calls), elements.h
 * (scores of an element). For the CPU: topk.c: description, bias; route.c: one call forward and backward; token.c: what
 * happens to one token; rows.c: arithmetic over a row. Formulas: at the functions. ../topk_cuda is the same for CUDA.
 */
#ifndef ROUTER_TOPK_H
#define ROUTER_TOPK_H
#include <moe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOPK_VERSION "0.3.0"
#define TOPK_SUMMARY \
    "top-k of softmax or sigmoid scores, within groups, with balance loss, z-loss, expert bias and jitter"

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
    moe_param_spec state; /* "expert_bias" [E] F32 */
    /* the CPU's only */
    const struct row_ops *rows; /* rows.h */
    const moe_parallel *pool;   /* NULL: the caller's thread only */
} topk;

enum { TOPK_AUX, TOPK_Z, TOPK_ENTROPY, TOPK_LOSSES }; /* order of the losses */

/* Most tokens of one call: sums of their shares stay exact in 63 bits. */
#define TOPK_MAX_TOKENS (INT64_C(1) << 26)

/* ---- for all devices; [main] */
enum { TOPK_OPTIONS = 14 };
extern const moe_option topk_options[]; /* [TOPK_OPTIONS] */
/* *out but for what one device has alone. Refuses what the options cannot mean; warns through the host's log. */
moe_status topk_configure(const moe_router_cfg *cfg, const moe_host *host, topk *out, moe_err *err);
/* The needs of an instance whose calls use `workspace` bytes. Nothing is saved: backward forms the scores again. */
moe_status topk_tell_needs(const topk *t, uint64_t workspace, moe_router_needs *needs, moe_err *err);

/* ---- for all devices; [step] MOE_E_ARG names the array that has another shape or dtype. No data is read. */
moe_status topk_check_route(const topk *t, const moe_route_args *a, moe_err *err);
moe_status topk_check_backward(const topk *t, const moe_route_args *a, moe_err *err);
/* Of a backward with a loss in the gradient: divisor and, over the global batch, batch_counts and losses. */
moe_status topk_check_divisor(const topk *t, const moe_route_args *a, moe_err *err);
moe_status topk_check_end_step(const topk *t, const moe_end_step_args *a, moe_err *err);

/* ---- for the CPU ---- */
/* Bytes of workspace that a call of route or route_bwd uses, alignment slack included. */
uint64_t topk_workspace(const topk *t);

/* The two step calls of moe_router_v0. [step] Tokens are shared among the threads of moe.parallel/0 where the device
 * has it; every result is the same for any number of threads. On error counts and losses are untouched. */
moe_status topk_route(const void *self, const moe_route_args *args, moe_err *err);
moe_status topk_route_bwd(const void *self, const moe_route_args *args, moe_err *err);

#ifdef __cplusplus
}
#endif
#endif
