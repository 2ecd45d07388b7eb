/* The checks of the operations' arguments, once for all devices: lists, dtypes, shapes, attributes and rows.max, as
 * <moe/ops.h> has them. A device's `sizes` is: the check, then its own saved and workspace bytes; its `backward` begins
 * with op_check_<name>_backward. MOE_E_ARG, or MOE_E_UNSUPPORTED where a limit is passed, with one line that begins
 * with the operation's name. What lies behind `data`, dev_offsets and dev_counts is not read: ids, targets, offsets and
 * slots are the device's to check. `most`: the largest value that the device takes, >= 1; its own limit, so that all
 * devices refuse in the same words. Every check asks for the number of inputs and outputs too. All: thread [any], no
 * allocation; outputs are set on success only. */
#ifndef DEVICE_COMMON_OPS_H
#define DEVICE_COMMON_OPS_H
#include <moe/ops.h>

#include "check.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- parts of a vocabulary: embed and the cross-entropy in parts (ops/loss.c) ---- */
/* The words of a table or of logits of `rows` words: attr, or all of them where it is NULL. Refuses a part that does
 * not lie in the whole. */
moe_status op_vocabulary(const void *attr, const char *op, int64_t rows, moe_vocabulary_attr *out, moe_err *err);

/* ids not [T] I32, table not [V,h] act, x not [T,h] as table; a vocabulary in which the table does not lie */
moe_status op_check_embed(const moe_op_args *a, moe_err *err);
/* the same of dx [T,h] act and dtable [V,h] F32 */
moe_status op_check_embed_backward(const moe_op_args *a, moe_err *err);

/* ---- norms ---- */
/* a, b, s, y of different shape or dtype; s without b or b without s; w not [h] F32; rows of 0 or more than `most`
 * elements; an eps below 0, infinite or NaN */
moe_status op_check_rmsnorm(const moe_op_args *a, int64_t most, moe_err *err);
/* dy, s, dres, dx of different shape or dtype; w or dw not [h] F32; rows of 0 or more than `most` elements */
moe_status op_check_rmsnorm_backward(const moe_op_args *a, int64_t most, moe_err *err);
/* x not [T,W] act, or its output another; an eps as above; segments of 0 or more than `most` elements; segments that do
 * not lie in a row; w not [width] F32 */
moe_status op_check_head_norm(const moe_op_args *a, int64_t most, moe_err *err);
/* the same of dx; dw not [width] F32 */
moe_status op_check_head_norm_backward(const moe_op_args *a, int64_t most, moe_err *err);

/* ---- packed rows [q heads | k heads | v heads] ---- */
/* The attributes of a checked call with every default filled in: v_dim is never 0, amplitude neither. Members that the
 * caller's struct does not reach count as 0. */
moe_attention_attr op_heads_attr(const moe_op_args *a);
/* Elements of a packed row. at: of op_heads_attr. */
int64_t op_heads_width(const moe_attention_attr *at);

/* Either direction. Query heads that are no multiple of the key-value heads; an odd or too large rotary_dim (`most`:
 * its limit), or a rotary part that does not lie in a head; an interleaved above 1; an amplitude that is not finite;
 * pos not [T] I32, inv_freq not [R/2] F32; a row of another width */
moe_status op_check_rope(const moe_op_args *a, int64_t most, moe_err *err);
/* heads as above; head_dim or v_dim above `most`; a negative batch, seq or window, or a product of batch and seq beyond
 * 64 bits; a scale that is 0 or not finite; qkv or o not of batch * seq rows of their width; sinks not [nq] F32, doc
 * not [T] I32 */
moe_status op_check_attention(const moe_op_args *a, uint32_t most, moe_err *err);
/* the same with do and dqkv; dsinks not [nq] F32, or without sinks */
moe_status op_check_attention_backward(const moe_op_args *a, uint32_t most, moe_err *err);
/* moe.mla_pack/0: heads and elements of a part of a head at most; products of three stay below 2^63. */
enum { OP_MLA_MOST = 1 << 18 };
/* heads, nope, rope or v_dim not in [1, OP_MLA_MOST]; q, kv, k_rope, qkv not of their widths, or of different T or
 * dtype
 */
moe_status op_check_mla_pack(const moe_op_args *a, moe_err *err);
/* the same of dq, dkv, dk_rope, dqkv */
moe_status op_check_mla_pack_backward(const moe_op_args *a, moe_err *err);

/* ---- products ---- */
/* What a call of moe.linear/0 says, all roles alike. */
typedef struct op_linear_sizes {
    int32_t role; /* MOE_FPROP, MOE_DGRAD, MOE_WGRAD */
    uint32_t accumulate;
    int64_t m, n, k, groups;  /* groups: 0 = dense */
    const moe_tensor *filled; /* of the call's outputs; NULL = absent */
} op_linear_sizes;
/* another role; an accumulate above 1; operands whose M, N, K, groups or dtypes do not agree; rows of 0 groups or of
 * another max than M; filled not [G] I32, or in another call than a grouped wgrad. dev_offsets and dev_counts may be
 * NULL. */
moe_status op_check_linear(const moe_op_args *a, op_linear_sizes *out, moe_err *err);

typedef struct op_router_linear_sizes {
    int64_t t, h, e;
} op_router_linear_sizes;
/* x not [T,h] act, w not [E,h] F32, logits not [T,E] F32 */
moe_status op_check_router_linear(const moe_op_args *a, op_router_linear_sizes *out, moe_err *err);
/* the same of dlogits; dx not as x, dw not as w */
moe_status op_check_router_linear_backward(const moe_op_args *a, op_router_linear_sizes *out, moe_err *err);

/* ---- elements of rows ---- */
/* y not [N,W] act, or its output another; b not [W] F32, or with rows not [G,W] F32; rows of 0 groups or of another max
 * than N; p not [N] F32 */
moe_status op_check_bias(const moe_op_args *a, moe_err *err);
/* the same of dy; db not as b; dp not as p, or without it */
moe_status op_check_bias_backward(const moe_op_args *a, moe_err *err);

/* The attributes of a call; what the caller's struct does not reach, or all where attr is NULL, is 0. */
moe_swiglu_attr op_swiglu_attr(const moe_op_args *a);
/* z not [N,2f] act, a not [N,f] as z, p not [N] F32; rows of another max than N; a limit below 0 or NaN; with a limit
 * an alpha that is not finite */
moe_status op_check_swiglu_prob(const moe_op_args *a, moe_err *err);
/* the same of da; dz not as z, dp not [N] F32 */
moe_status op_check_swiglu_prob_backward(const moe_op_args *a, moe_err *err);

/* x not F32 of 1 to 4 dimensions, y another */
moe_status op_check_sigmoid(const moe_op_args *a, moe_err *err);
/* dy not F32 of 1 to 4 dimensions; y or dx another */
moe_status op_check_sigmoid_backward(const moe_op_args *a, moe_err *err);
/* x not act of 1 to 4 dimensions, y another */
moe_status op_check_add(const moe_op_args *a, moe_err *err);
/* x not [n,T,w] act, y not [T,n*w] as x */
moe_status op_check_join(const moe_op_args *a, moe_err *err);
/* x not [T,h] act, y another; an eps outside [0,1); a negative first_token. `step` may be NULL until the call. */
moe_status op_check_jitter(const moe_op_args *a, moe_err *err);
/* the same of dy and dx */
moe_status op_check_jitter_backward(const moe_op_args *a, moe_err *err);

/* ---- loss ---- */
/* logits not [T,V] act, targets not [T] I32, divisor not [1] I64, loss not [1] F64, dlogits not as logits */
moe_status op_check_cross_entropy(const moe_op_args *a, moe_err *err);
/* logits and targets as above; logits that do not lie in the vocabulary; largest not [T] F32 */
moe_status op_check_cross_entropy_max(const moe_op_args *a, moe_err *err);
/* the same; sums not [T,2] F64 */
moe_status op_check_cross_entropy_sum(const moe_op_args *a, moe_err *err);
/* the same; divisor, loss, dlogits as for the whole */
moe_status op_check_cross_entropy_end(const moe_op_args *a, moe_err *err);
/* targets not [T] I32, count not [1] I64 */
moe_status op_check_count_valid(const moe_op_args *a, moe_err *err);

/* ---- rows to experts and back ---- */
/* min_rows, or 0 where the struct does not reach it. */
int64_t op_expert_rows_least(const moe_expert_rows_attr *at);
/* no expert, or experts beyond n_experts; an align below 1, a negative min_rows; a row_slot too short for min_rows of
 * every expert; ids not [T,k] I32, slot_row not [T,k] I64, row_slot not [N] I64, offsets not [G+1] I64, counts not [G]
 * I64 */
moe_status op_check_expert_rows(const moe_op_args *a, moe_err *err);
/* 0 or more than `most` experts; another drop; a capacity or scope below 1; a T that is no multiple of scope; ids not
 * [T,k] I32, weights not [T,k] F32, their outputs others; n not [2] I64 */
moe_status op_check_capacity(const moe_op_args *a, uint32_t most, moe_err *err);
/* a k of 0; x not [T,h] act, row_slot not [N] I64, y not [N,h] as x; slot_scalar not [T,k] F32, row_scalar not [N] F32,
 * one without the other; no rows, or of another max than N */
moe_status op_check_permute(const moe_op_args *a, moe_err *err);
/* a k of 0; y not [N,h] act, slot_row not [T,k] I64, x not [T,h] as y or F32; scalars as above; rows of another max
 * than N */
moe_status op_check_unpermute(const moe_op_args *a, moe_err *err);

/* ---- rows to the ranks of experts (ops/dispatch.c) ---- */
/* ids not [T,k] I32; row not [S] I64 of more than n_experts >= 1 numbers */
moe_status op_check_expert_counts(const moe_op_args *a, moe_err *err);
/* experts no multiple of ep_size, or another ep_rank; an align below 1, a negative min_rows or limit, another overflow;
 * all not [M,S] I64, M a multiple of ep_size; outputs of other shapes */
moe_status op_check_dispatch_plan(const moe_op_args *a, moe_err *err);
/* ids not [M,T,k] I32, tokens not [M] I64, kept or first not [M,E] I64; experts beyond E, or none; slot_row not as ids,
 * I64, row_slot not [N] I64 */
moe_status op_check_dispatch_slots(const moe_op_args *a, moe_err *err);
/* ids not [T,k] I32, slot_row as it in I64; kept not [ep_size * etp_size,E] I64, first as it; E no multiple of ep_size,
 * a member beyond the last, a negative slot; offsets and outputs of other shapes */
moe_status op_check_exchange_maps(const moe_op_args *a, moe_err *err);
/* rows not [A] I64, A no divisor of members; a member beyond the last, negative bytes; sent, far not [1] I64 */
moe_status op_check_sent(const moe_op_args *a, moe_err *err);
/* x not act of 1 to 4 dimensions, y not act of its shape */
moe_status op_check_convert(const moe_op_args *a, moe_err *err);

/* ---- optimiser ---- */
/* g not [n] F32, sum not [1] F64; filled not [G] I32, or n no multiple of G */
moe_status op_check_sumsq(const moe_op_args *a, moe_err *err);
/* sum not [1] F64, stats not [2] F32; a max_norm below 0 or NaN */
moe_status op_check_clip_coef(const moe_op_args *a, moe_err *err);
/* faults not [n,4] I64, first not [4] I64 */
moe_status op_check_first_fault(const moe_op_args *a, moe_err *err);
/* grad not [n] F32, hyper not [4] F32, stats not [2] F32; w, m, v not as grad; copy not [n] BF16; filled as above; a
 * beta outside [0,1), an eps below 0 or NaN */
moe_status op_check_adamw(const moe_op_args *a, moe_err *err);
/* the same without m, v, betas and eps */
moe_status op_check_sgd(const moe_op_args *a, moe_err *err);

/* ---- for measuring ---- */
/* x not [N] F32, y another */
moe_status op_check_fma(const moe_op_args *a, moe_err *err);
/* the same; a streaming above 1 */
moe_status op_check_copy(const moe_op_args *a, moe_err *err);

#ifdef __cplusplus
}
#endif
#endif
