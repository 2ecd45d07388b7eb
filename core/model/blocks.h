/* The blocks of a layer, each forward with what its backward needs. x: [T,h] of one microbatch, T = micro * seq. The
 * residual stream r and the branch output u are kept apart; the next norm adds them. In backward one gradient d [T,h]
 * goes down the residual stream in place. */
#ifndef CORE_MODEL_BLOCKS_H
#define CORE_MODEL_BLOCKS_H
#include "model/emit.h"

/* embed.c */
tref embed_forward(emit *e, tref ids /* [T] I32 */);
void embed_backward(emit *e, tref ids, tref d);

/* norm.c: s = r + u, y = norm(s) */
typedef struct norm_acts {
    tref sum, y; /* [T,h]; sum is r itself where u is absent */
    op_call call;
} norm_acts;
norm_acts norm_forward(emit *e, const char *name, int64_t weight, tref r, tref u);
/* d = d + gradient through the norm, in place; has_residual 0: d is overwritten (top of the backward). */
void norm_backward(emit *e, const char *name, int64_t weight, const norm_acts *a, tref dy, tref d, int has_residual);

/* attention.c */
typedef struct attention_acts {
    tref qkv, o; /* [T,(nq+2nkv)d], [T,nq d] */
    op_call rope, attention;
} attention_acts;
tref attention_forward(emit *e, const model_layer *w, tref x, attention_acts *a);                 /* u [T,h] */
tref attention_backward(emit *e, const model_layer *w, tref x, const attention_acts *a, tref du); /* dx [T,h] */

/* mlp.c: u = W2 (silu(W1g x) * (W1u x)), dense or shared expert */
typedef struct mlp_acts {
    tref z, act; /* [T,2f], [T,f] */
    op_call swiglu;
} mlp_acts;
/* into: where u goes; add = 1 adds to it. The same for dx in backward. */
void mlp_forward(emit *e, const char *name, int64_t w1, int64_t w2, tref x, mlp_acts *a, tref into, int add);
void mlp_backward(emit *e, const char *name, int64_t w1, int64_t w2, tref x, const mlp_acts *a, tref du, tref into,
                  int add);

/* moe.c */
typedef struct moe_acts {
    tref logits, ids, weights, route_saved, handle; /* [T,E], [T,k], [T,k], bytes, bytes */
    tref rows_in, row_prob, z, act;                 /* [N,h], [N], [N,2f], [N,f] */
    rows_ref rows;
    op_call router_linear, swiglu;
    mlp_acts shared;
} moe_acts;
tref moe_forward(emit *e, const model_layer *w, tref x, moe_acts *a);
tref moe_backward(emit *e, const model_layer *w, tref x, const moe_acts *a, tref du);

/* head.c: loss += sum over valid tokens; with training also the gradient dx [T,h] of x, in the same pass.
 * logits_out (absent = drop them): all logits [T,V], for generation. */
tref head_loss(emit *e, tref x, tref targets);
void head_logits(emit *e, tref x, tref logits_out);

/* layers.c: a whole microbatch. */
void emit_microbatch_train(emit *e, tref ids, tref targets);
void emit_microbatch_eval(emit *e, tref ids, tref targets);
void emit_microbatch_logits(emit *e, tref ids, tref logits_out);

#endif
