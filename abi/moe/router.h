/* Kind "router": scores -> chosen experts and weights, the backward of that, balance losses, and its own parameters
 * and state. One instance a layer and rank; instances are const inside a step: calls for different microbatches may
 * overlap. A router is plain C over arrays in the memory of its device. */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_router_cfg {
    uint32_t size, layer, n_layers, top_k;
    uint32_t n_experts;  /* E: the columns of logits and the entries of counts */
    uint32_t n_identity; /* ids n_experts .. n_experts + n_identity - 1 return their input. They have no column in
                          * logits and no entry in counts in version 0, and 0 is the only value given today */
    int64_t hidden, max_tokens; /* max_tokens: of one call */
    const moe_kv *kv;           /* [n_kv] */
    uint64_t n_kv, seed;
} moe_router_cfg;

/* init: "zeros", "ones", "normal SIGMA" */
typedef struct moe_param_spec {
    const char *name, *init;
    int32_t ndim, dtype;
    int64_t shape[4];
} moe_param_spec;

enum {                        /* moe_router_needs.inputs */
       MOE_ROUTER_LOGITS = 1, /* core owns the projection [E,h] ("router.weight") and computes logits in FP32 */
       MOE_ROUTER_HIDDEN = 2,
       MOE_ROUTER_TOKEN_IDS = 4
};
enum { MOE_SCOPE_TOKEN, MOE_SCOPE_SEQUENCE, MOE_SCOPE_MICROBATCH, MOE_SCOPE_GLOBAL }; /* what a result depends on */

typedef struct moe_router_needs {
    uint32_t size, inputs;     /* bit set MOE_ROUTER_* */
    uint64_t workspace, saved; /* bytes, host-allocated at the device's info.alignment: workspace a call; saved a
                                * (layer, microbatch) until backward */
    /* params are trained (FP32 in compute, replicated); state is MOE_F32 or MOE_I64, never cast, not trained. The
     * host owns both and writes them to checkpoints under layers.N.router.NAME. Arrays owned by the instance. */
    const moe_param_spec *params, *state;
    uint32_t n_params, n_state;
    /* losses: each is a SUM over routed tokens; the host divides by the global count of tokens that are not padding.
     * Names in one array: "aux_loss", "z_loss", "entropy" are shown under the metrics of that name. */
    const char *const *losses;
    uint32_t n_losses, scope; /* scope: MOE_SCOPE_*, what the choice of one token depends on */
    /* MOE_SCOPE_*: what the gradient of the losses at one token depends on. Where it is the microbatch, another
     * split of the global batch has other gradients. A router that does not know the field leaves 0: token. */
    uint32_t loss_scope;
    /* e > 0: in training core multiplies every element of x by its own number from U(1 - e, 1 + e) before the
     * projection (moe.jitter/0), for routers that read logits. 0 = none */
    float input_jitter;
} moe_router_needs;

enum { MOE_ROUTE_TRAIN = 1, MOE_ROUTE_RECOMPUTE = 2 }; /* without TRAIN: evaluation, no jitter */

typedef struct moe_route_args { /* new arguments append */
    uint32_t size, flags;       /* MOE_ROUTE_* */
    void *stream;
    const uint64_t *step; /* optimiser step, from 1. MOE_SPACE_HOST memory at an address that stays: a synchronous call
                           * reads it when it runs, an asynchronous one on the device in stream order */
    uint64_t microbatch;
    int64_t first_token; /* global index of row 0 inside this step: key for random numbers */
    int64_t seq_len;     /* rows t with equal t / seq_len are one sequence; divides T */
    /* in; absent where not asked for. mask [T] U8, 0 = padding: no choice (ids -1, weights 0), no count, no loss;
     * absent = all live */
    const moe_tensor *logits;    /* [T,E] F32; in backward as route saw them */
    const moe_tensor *hidden;    /* [T,h] */
    const moe_tensor *token_ids; /* [T] I32 */
    const moe_tensor *mask;
    const moe_tensor *params, *state; /* [n_params], [n_state], as declared; state is read only here */
    /* out. ids are distinct within a token and in [0, n_experts + n_identity), or -1 = none. */
    const moe_tensor *expert_ids; /* [T,k] I32 */
    const moe_tensor *weights;    /* [T,k] F32; 0 where the id is -1 */
    const moe_tensor *counts;     /* [E] I64 += choices of each expert; absent in evaluation and recompute */
    const moe_tensor *losses;     /* [n_losses] F64 += ; absent in evaluation and recompute */
    void *saved, *workspace;
    /* backward only */
    const moe_tensor *divisor; /* [1] I64: routed tokens of the global batch, padding not counted. Loss terms enter the
                                * gradient as coefficient * d(sum over tokens) / divisor */
    const moe_tensor *d_weights; /* [T,k] F32, in */
    const moe_tensor *d_logits;  /* [T,E] F32, out, overwritten */
    const moe_tensor *d_hidden;  /* [T,h], out, accumulates; absent where not asked for */
    const moe_tensor *d_params;  /* [n_params] F32, accumulate */
    /* backward only, present iff loss_scope is MOE_SCOPE_GLOBAL: [E] I64, choices of each expert over the whole global
     * batch. Losses that need it are added to `losses` by route_bwd, where `losses` is present too */
    const moe_tensor *batch_counts;
    /* device memory, the moe_fault (device.h) of this call: where an asynchronous router reports bad logits, by token
     * and expert; NULL = by status */
    void *fault;
} moe_route_args;

typedef struct moe_end_step_args { /* new arguments append */
    uint32_t size, reserved;
    void *stream;
    const uint64_t *step;     /* as in moe_route_args */
    const moe_tensor *state;  /* [n_state] as declared, updated */
    const moe_tensor *counts; /* [E] I64 summed over all microbatches and ranks */
    /* [2] F32 device memory = {gradient norm, clip coefficient} of moe.clip_coef/0: a coefficient that is NaN means
     * that the step is skipped and state must stay as it is */
    const moe_tensor *update;
} moe_end_step_args;

typedef struct moe_router_v0 {
    uint32_t size, reserved;
    /* [main] refuses what it does not support (k > E, options that contradict each other) */
    moe_status (*create)(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err);
    void (*destroy)(void *self);                                            /* [main] idle */
    moe_status (*needs)(void *self, moe_router_needs *needs, moe_err *err); /* [main] pure; caller sets size */
    /* [step] NaN or infinite logits of a live token: MOE_E_DATA, names layer and token */
    moe_status (*route)(const void *self, const moe_route_args *args, moe_err *err);
    moe_status (*route_bwd)(const void *self, const moe_route_args *args,
                            moe_err *err); /* [step] ids, weights, saved as route left them */
    /* [step] (optional: NULL) once an optimiser step: updates state. Never called for evaluation. */
    moe_status (*end_step)(const void *self, const moe_end_step_args *args, moe_err *err);
    const void *(*extension)(const void *self, const char *id); /* [any] (optional: NULL) */
} moe_router_v0;

#ifdef __cplusplus
}
#endif
#endif
