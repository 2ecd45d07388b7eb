/* The blocks of a layer, each forward with what its backward needs. x: [T,h] of one microbatch, T = micro * seq. The
 * residual stream r and the branch output u are kept apart; the next norm adds them. In backward one gradient d [T,h]
 * goes down the residual stream in place. */
#ifndef CORE_MODEL_BLOCKS_H
#define CORE_MODEL_BLOCKS_H
#include "model/emit.h"

/* embed.c */
tref embed_forward(emit *e, tref ids /* [T] I32 */, op_call *call);
void embed_backward(emit *e, tref ids, const op_call *call, tref d);

/* norm.c: s = r + u, y = norm(s), rows of any width */
typedef struct norm_acts {
    tref sum, y; /* [T,w]; sum is r itself where u is absent */
    op_call call;
} norm_acts;
norm_acts norm_forward(emit *e, const char *name, int64_t weight, float eps, tref r, tref u);
/* d = d + gradient through the norm, in place; has_residual 0: d is overwritten (top of the backward). */
void norm_backward(emit *e, const char *name, int64_t weight, const norm_acts *a, tref dy, tref d, int has_residual);

/* latent.c: x -> packed rows by way of low-rank latents (multi-head latent attention, arXiv 2405.04434, 2.1) */
typedef struct latent_acts {
    tref q_in;       /* what the queries are made of: their normed latents, or x */
    norm_acts q, kv; /* [T,q_lora], [T,kv_lora] */
    op_call pack;
} latent_acts;
void latent_forward(emit *e, const model_layer *w, tref x, tref qkv, latent_acts *a);
void latent_backward(emit *e, const model_layer *w, tref x, const latent_acts *a, tref dqkv, tref dx);

/* attention.c */
typedef struct attention_acts {
    tref qkv, o; /* [T,(nq+nkv)d+nkv dv], [T,nq dv] */
    op_call qkv_bias, q_norm, k_norm, rope, attention, out_bias;
    latent_acts latent;
} attention_acts;
tref attention_forward(emit *e, const model_layer *w, tref x, attention_acts *a);                 /* u [T,h] */
tref attention_backward(emit *e, const model_layer *w, tref x, const attention_acts *a, tref du); /* dx [T,h] */

/* mlp.c: u = W2 (p act(W1 x)), of a dense layer or the shared experts; p [T] F32, or absent */
typedef struct mlp_acts {
    tref z, act; /* [T,2f], [T,f] */
    op_call swiglu;
} mlp_acts;
/* Names of its nodes. */
typedef struct mlp_names {
    const char *w1, *act, *w2, *w2_dgrad, *w2_wgrad, *w1_dgrad, *w1_wgrad;
} mlp_names;
#define MLP_NAMES(p) \
    { p ".w1", p ".swiglu", p ".w2", p ".w2.dgrad", p ".w2.wgrad", p ".w1.dgrad", p ".w1.wgrad" }
extern const mlp_names mlp_dense_names, mlp_shared_names;
/* The activation's attributes, of experts too; NULL = plain SwiGLU. */
const void *mlp_activation(emit *e);
/* into: where u goes; add = 1 adds to it. The same for dx in backward, which also overwrites dp where p is there. */
void mlp_forward(emit *e, const mlp_names *names, int64_t w1, int64_t w2, tref x, tref p, mlp_acts *a, tref into,
                 int add);
void mlp_backward(emit *e, const mlp_names *names, int64_t w1, int64_t w2, tref x, tref p, const mlp_acts *a, tref du,
                  tref dp, tref into, int add);

/* shared.c: the shared experts, all of them one MLP, behind a sigmoid gate where the model has one; adds to u and dx */
typedef struct shared_acts {
    tref gate; /* [T] F32 */
    op_call linear, sigmoid;
    mlp_acts mlp;
} shared_acts;
void shared_forward(emit *e, const model_layer *w, tref x, shared_acts *a, tref u);
void shared_backward(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, tref dx);

/* route.c: x -> chosen experts and their weights */
typedef struct route_acts {
    tref x;                      /* what was projected: x, or x jittered */
    tref logits, ids, weights;   /* [T,E], [T,k], [T,k] as the router left them */
    tref kept_ids, kept_weights; /* after the capacity; without one the same as ids and weights */
    tref saved;
    op_call jitter, linear, bias;
} route_acts;
void route_forward(emit *e, const model_layer *w, tref x, route_acts *a);
/* From the gradient of the weights; adds to dx. */
void route_backward(emit *e, const model_layer *w, const route_acts *a, tref d_weights, tref dx);

/* moe.c */
typedef struct moe_acts {
    route_acts route;
    tref handle;                    /* bytes */
    tref rows_in, row_prob, z, act; /* [N,h], [N], [N,2f], [N,f] */
    rows_ref rows;
    op_call b1, swiglu, b2;
    shared_acts shared;
} moe_acts;
tref moe_forward(emit *e, const model_layer *w, tref x, moe_acts *a);
tref moe_backward(emit *e, const model_layer *w, tref x, const moe_acts *a, tref du);

/* head.c: loss += sum over valid tokens; with training also the gradient dx [T,h] of x, in the same pass. head_logits:
 * all logits [T,V] into logits_out, for generation. */
tref head_loss(emit *e, tref x, tref targets);
void head_logits(emit *e, tref x, tref logits_out);

/* layers.c: a whole microbatch. What forward leaves for backward lives in graph memory; NULL when that is out. */
typedef struct microbatch_acts microbatch_acts;
microbatch_acts *emit_microbatch_forward(emit *e, const batch_refs *batch);
void emit_microbatch_backward(emit *e, const microbatch_acts *acts);
void emit_microbatch_eval(emit *e, const batch_refs *batch);
void emit_microbatch_logits(emit *e, const batch_refs *batch, tref logits_out);

#endif
