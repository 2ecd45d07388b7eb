/* The blocks of a layer, each forward with what its backward needs. T = micro * seq tokens of one microbatch, t = T /
 * tp of them this rank's own. Every block takes and gives own tokens; between them the residual stream r and the branch
 * output u are kept apart, and the next norm adds them. In backward one gradient d [t,h] goes down the residual stream
 * in place. Blocks that are cut over tp work on all T tokens inside. */
#ifndef CORE_MODEL_BLOCKS_H
#define CORE_MODEL_BLOCKS_H
#include "model/emit.h"

/* tokens.c: own tokens and all of them. With one tp rank they are the same, and these emit nothing. */
int64_t tokens_total(const emit *e);                      /* T */
tref tokens_own(const emit *e, tref all);                 /* [T,w] -> the rows of the own tokens */
tref tokens_gather(emit *e, const char *name, tref own);  /* [t,w] -> a new [T,w] */
void tokens_fill(emit *e, const char *name, tref all);    /* [T,w] of which the own rows are there */
tref tokens_sum(emit *e, const char *name, tref partial); /* [T,w] of each tp rank -> own rows of the sum */

/* embed.c */
tref embed_forward(emit *e, tref ids /* [T] I32 */, op_call *call); /* [t,h] */
void embed_backward(emit *e, tref ids, const op_call *call, tref d);

/* norm.c: s = r + u, y = norm(s), rows of any width */
typedef struct norm_acts {
    tref sum, y; /* rows as r; sum is r itself where u is absent */
    op_call call;
} norm_acts;
norm_acts norm_forward(emit *e, const char *name, int64_t weight, float eps, tref r, tref u);
/* d = d + gradient through the norm, in place; has_residual 0: d is overwritten (top of the backward). */
void norm_backward(emit *e, const char *name, int64_t weight, const norm_acts *a, tref dy, tref d, int has_residual);

/* latent.c: x [T,h] -> packed rows by way of low-rank latents (multi-head latent attention, arXiv 2405.04434, 2.1). The
 * latents are every tp rank's, the projections up from them are cut by heads: gradients of what is below are partial.
 */
typedef struct latent_acts {
    tref q_in;       /* what the queries are made of: their normed latents, or x */
    norm_acts q, kv; /* [T,q_lora], [T,kv_lora] */
    op_call pack;
} latent_acts;
void latent_forward(emit *e, const model_layer *w, tref x, tref qkv, latent_acts *a);
void latent_backward(emit *e, const model_layer *w, tref x, const latent_acts *a, tref dqkv, tref dx);

/* attention.c */
typedef struct attention_acts {
    tref qkv, o; /* [T,(nq+nkv)d+nkv dv], [T,nq dv], of this rank's heads */
    op_call qkv_bias, q_norm, k_norm, rope, attention, out_bias;
    latent_acts latent;
} attention_acts;
tref attention_forward(emit *e, const model_layer *w, tref x, attention_acts *a);                 /* u [t,h] */
tref attention_backward(emit *e, const model_layer *w, tref x, const attention_acts *a, tref du); /* dx [t,h] */

/* mlp.c: u = W2 (p act(W1 x)), of a dense layer or the shared experts; p [T] F32, or absent. x, u, dx are [T,h]; with
 * several tp ranks u and dx are partial sums. */
typedef struct mlp_acts {
    tref z, act; /* [T,2f], [T,f]; f of this rank */
    op_call swiglu;
} mlp_acts;
/* Names of its nodes. */
typedef struct mlp_names {
    const char *w1, *act, *w2, *w2_dgrad, *w2_wgrad, *w1_dgrad, *w1_wgrad;
} mlp_names;
#define MLP_NAMES(p) \
    { p ".w1", p ".swiglu", p ".w2", p ".w2.dgrad", p ".w2.wgrad", p ".w1.dgrad", p ".w1.wgrad" }
/* One of them: names, parameters, input and gate. */
typedef struct mlp {
    const mlp_names *names;
    int64_t w1, w2;
    tref x, p;
} mlp;
/* The activation's attributes, of experts too; NULL = plain SwiGLU. */
const void *mlp_activation(emit *e);
/* Up to act, and from there; into: where u goes; add = 1 adds to it. The same for dx in backward, which also overwrites
 * dp where p is there. weights 0: the weight gradients come later, by mlp_weights. */
void mlp_up(emit *e, const mlp *f, mlp_acts *a);
void mlp_down(emit *e, const mlp *f, const mlp_acts *a, tref into, int add);
void mlp_backward(emit *e, const mlp *f, const mlp_acts *a, tref du, tref dp, tref into, int add, int weights);
void mlp_weights(emit *e, const mlp *f, const mlp_acts *a, tref du);
/* That of a dense layer, [t,h] to [t,h]. */
tref dense_forward(emit *e, const model_layer *w, tref x, mlp_acts *a);
tref dense_backward(emit *e, const model_layer *w, tref x, const mlp_acts *a, tref du);

/* shared.c: the shared experts, all of them one MLP, behind a sigmoid gate where the model has one. x, u, du, dx [t,h].
 * Either in one piece, which adds to u and dx; or apart, in two pieces for the time in which rows travel, and in
 * buffers of their own, which the caller adds. */
typedef struct shared_acts {
    tref gate; /* [T] F32 */
    op_call linear, sigmoid;
    mlp_acts mlp;
} shared_acts;
void shared_forward(emit *e, const model_layer *w, tref x, shared_acts *a, tref u);
void shared_up(emit *e, const model_layer *w, tref x, shared_acts *a);
tref shared_down(emit *e, const model_layer *w, const shared_acts *a); /* u */
/* What the weight gradients are made of, [T,h]. */
typedef struct shared_later {
    tref x, du;
} shared_later;
void shared_backward(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, tref dx);
tref shared_back(emit *e, const model_layer *w, tref x, const shared_acts *a, tref du, shared_later *later); /* dx */
void shared_weights(emit *e, const model_layer *w, const shared_acts *a, const shared_later *later);

/* route.c: x [t,h] -> chosen experts and their weights of all T tokens, the same on every tp rank, so that losses,
 * counts and capacity see whole microbatches */
typedef struct route_acts {
    tref x;                      /* [t,h] what was projected: x, or x jittered */
    tref logits, ids, weights;   /* [T,E], [T,k], [T,k] as the router left them */
    tref kept_ids, kept_weights; /* after the capacity; without one the same as ids and weights */
    tref saved;
    op_call jitter, linear, bias;
} route_acts;
void route_forward(emit *e, const model_layer *w, tref x, route_acts *a);
/* From the gradient of the weights [T,k], of which the own rows are there; adds to dx [t,h]. */
void route_backward(emit *e, const model_layer *w, const route_acts *a, tref d_weights, tref dx);

/* moe.c */
typedef struct moe_acts {
    route_acts route;
    tref handle;                    /* bytes */
    tref rows_in, row_prob, z, act; /* [N,h], [N], [N,2f], [N,f]; f of this rank */
    rows_ref rows;
    op_call b1, swiglu, b2;
    shared_acts shared;
} moe_acts;
tref moe_forward(emit *e, const model_layer *w, tref x, moe_acts *a);
tref moe_backward(emit *e, const model_layer *w, tref x, const moe_acts *a, tref du);

/* head.c: loss += sum over valid tokens of all T, the same on every tp rank; with training also the gradient dx [t,h]
 * of x [t,h], in the same pass. head_logits: all logits [T,V] into logits_out, for generation. */
tref head_loss(emit *e, tref x, tref targets);
void head_logits(emit *e, tref x, tref logits_out);

/* layers.c: a whole microbatch. What forward leaves for backward lives in graph memory; NULL when that is out. */
typedef struct microbatch_acts microbatch_acts;
microbatch_acts *emit_microbatch_forward(emit *e, const batch_refs *batch);
void emit_microbatch_backward(emit *e, const microbatch_acts *acts);
void emit_microbatch_eval(emit *e, const batch_refs *batch);
void emit_microbatch_logits(emit *e, const batch_refs *batch, tref logits_out);

#endif
