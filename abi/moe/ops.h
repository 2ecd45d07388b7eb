/* Operation records "moe.*": inputs, outputs, attributes and formula under each name.
 * T tokens, h hidden, V vocabulary, E experts, k choices a token, N rows in expert order (rows.max), f expert width.
 * `act` = MOE_F32 or MOE_BF16, one dtype for all act tensors of a call. All arithmetic is FP32 (sums marked F64 are
 * FP64). "+=" accumulates into the output; otherwise it is overwritten. "?" marks an optional tensor. T, N may be 0.
 * Every result is independent of the number of compute threads: reductions run over blocks of a fixed size in order.
 * An output may be the same buffer as an input only where "in place" is said. */
#ifndef MOE_OPS_H
#define MOE_OPS_H
#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* moe.embed/0: x[t] = table[ids[t]].
 * forward  in  ids [T] I32, table [V,h] act          out x [T,h] act
 * backward in  ids, dx [T,h] act                     out dtable [V,h] F32 +=  (token order)
 * An id outside [0,V) is MOE_E_DATA and names the token. */
#define MOE_OP_EMBED "moe.embed/0"

/* moe.rmsnorm/0: s = a + b; y = w * s / sqrt(mean(s^2) + eps), per row.  (Zhang & Sennrich 2019, arXiv 1910.07467)
 * forward  in  a [T,h] act, b? [T,h] act, w [h] F32  out s? [T,h] act (absent iff b is), y [T,h] act
 * backward in  dy [T,h] act, s (or a where b is absent) [T,h] act, w [h] F32, dres? [T,h] act
 *          out dx [T,h] act = dres + d(norm); in place on dres; dw [h] F32 +=
 * saved: 1/rms of each row. */
#define MOE_OP_RMSNORM "moe.rmsnorm/0"
typedef struct moe_rmsnorm_attr {
    uint32_t size;
    float eps;
} moe_rmsnorm_attr;

/* moe.rope/0: rotary embedding of the query and key heads of packed rows [q heads | k heads | v heads]; pairs are
 * (i, i + rotary_dim/2); angle = pos[t] * inv_freq[i]; other elements pass. (Su et al., arXiv 2104.09864; half-split)
 * forward  in  qkv [T,(nq+2nkv)d] act, pos [T] I32, inv_freq [rotary_dim/2] F32   out qkv, in place
 * backward in  dqkv, pos, inv_freq                                               out dqkv, in place */
#define MOE_OP_ROPE "moe.rope/0"
/* moe.attention/0: softmax(scale * q k^T) v over the keys 0..i of each sequence (causal), blockwise, query head j
 * reads key-value head j / (nq / nkv). S x S is never stored. (Dao et al., arXiv 2205.14135)
 * forward  in  qkv [T,(nq+2nkv)d] act                                      out o [T,nq*d] act
 * backward in  do [T,nq*d] act, qkv, o                                     out dqkv [T,(nq+2nkv)d] act
 * T = batch * seq. saved: log-sum-exp of each (sequence, head, query). */
#define MOE_OP_ATTENTION "moe.attention/0"
typedef struct moe_attention_attr {
    uint32_t size, heads, kv_heads, head_dim; /* nq, nkv, d; nq a multiple of nkv */
    int64_t batch, seq;
    float scale;         /* usually 1/sqrt(d) */
    uint32_t rotary_dim; /* moe.rope/0 only: even, at most d */
} moe_attention_attr;

/* moe.linear/0: one product in a role, dense or grouped over rows in expert order (w, dw then have a leading G).
 * MOE_FPROP in x [M,K] act, w [N,K] act         out y  [M,N] act  (+)= x w^T
 * MOE_DGRAD in dy [M,N] act, w [N,K] act        out dx [M,K] act  (+)= dy w
 * MOE_WGRAD in dy [M,N] act, x [M,K] act        out dw [N,K] F32  (+)= dy^T x
 * y and dx may be F32 where the inputs are BF16. accumulate: 1 adds to the output. Grouped without accumulate: the
 * rows below dev_offsets[G] are written, padding rows included (as zero); dw of a group without rows is zero.
 * forward only. */
#define MOE_OP_LINEAR "moe.linear/0"
enum { MOE_FPROP, MOE_DGRAD, MOE_WGRAD };
typedef struct moe_linear_attr {
    uint32_t size;
    int32_t role;
    uint32_t accumulate, reserved;
} moe_linear_attr;

/* moe.router_linear/0: logits = x w^T, always in FP32.
 * forward  in  x [T,h] act, w [E,h] F32              out logits [T,E] F32
 * backward in  dlogits [T,E] F32, x, w               out dx [T,h] act +=, dw [E,h] F32 += */
#define MOE_OP_ROUTER_LINEAR "moe.router_linear/0"

/* moe.swiglu_prob/0: a = p * silu(gate) * up, z = [gate | up]. (Shazeer, arXiv 2002.05202; the probability inside the
 * expert: methods, Megatron Core MoE, arXiv 2603.07685 section 4.1)
 * forward  in  z [N,2f] act, p? [N] F32              out a [N,f] act
 * backward in  da [N,f] act, z, p?                   out dz [N,2f] act, in place on z; dp? [N] F32
 * With rows: the rows below dev_offsets[groups]; padding rows give zero. */
#define MOE_OP_SWIGLU_PROB "moe.swiglu_prob/0"

/* moe.cross_entropy/0: loss += sum over valid tokens of logsumexp(l) - l[target]; gradient in the same pass.
 * forward  in  logits [T,V] act or F32, targets [T] I32 (-1 = not valid), divisor? [1] I64
 *          out loss [1] F64 +=, dlogits? [T,V] as logits = (softmax - onehot) / divisor, 0 where not valid; in place
 * A target outside [-1,V) is MOE_E_DATA. forward only: it is both. */
#define MOE_OP_CROSS_ENTROPY "moe.cross_entropy/0"

/* moe.count_valid/0: in targets [T] I32              out count [1] I64 += number of targets >= 0. forward only. */
#define MOE_OP_COUNT_VALID "moe.count_valid/0"

/* ---- rows to experts and back ---- */
/* moe.expert_rows/0: stable counting sort of the chosen (token, slot) pairs by expert; ids < 0 and ids of experts
 * outside [first, first + G) get no row. Row order inside an expert: by token, then slot.
 * forward  in  ids [T,k] I32
 *          out slot_row [T,k] I64 (row, or -1), row_slot [N] I64 (t*k + slot; -1 in padding rows and past the end),
 *              offsets [G+1] I64, counts [G] I64
 * forward only. More rows than N is MOE_E_OVERFLOW; an id >= n_experts, or an expert chosen twice by a token, is
 * MOE_E_DATA. */
#define MOE_OP_EXPERT_ROWS "moe.expert_rows/0"
typedef struct moe_expert_rows_attr {
    uint32_t size, first, groups, n_experts; /* G = groups */
    int64_t align;                           /* rows of an expert begin at multiples of it; >= 1 */
} moe_expert_rows_attr;

/* moe.permute/0: copies token rows into expert order; padding rows become zero.
 * forward  in  x [T,h] act, row_slot [N] I64, slot_scalar? [T,k] F32   out y [N,h] act, row_scalar? [N] F32
 * needs rows; k from attr. forward only: its backward is moe.unpermute/0. */
#define MOE_OP_PERMUTE "moe.permute/0"
/* moe.unpermute/0: x[t] = sum over slots 0..k-1 in order of y[slot_row[t,slot]], in FP32; slots without a row add 0.
 * forward  in  y [N,h] act, slot_row [T,k] I64, row_scalar? [N] F32    out x [T,h] act, slot_scalar? [T,k] F32
 * slot_scalar is 0 where the slot has no row. forward only: its backward is moe.permute/0. */
#define MOE_OP_UNPERMUTE "moe.unpermute/0"
typedef struct moe_permute_attr {
    uint32_t size, k;
} moe_permute_attr;

/* ---- optimiser; tensors are flat ---- */
/* moe.sumsq/0: in g [n] F32                          out sum [1] F64 += sum of squares. forward only. */
#define MOE_OP_SUMSQ "moe.sumsq/0"
/* moe.clip_coef/0: norm = sqrt(sum); coef = min(1, max_norm / norm), 1 where max_norm is 0.
 * in sum [1] F64                                     out stats [2] F32 = {norm, coef}
 * A norm that is not finite: coef is NaN, and moe.adamw/0 and moe.sgd/0 leave everything unchanged. forward only. */
#define MOE_OP_CLIP_COEF "moe.clip_coef/0"
typedef struct moe_clip_attr {
    uint32_t size;
    float max_norm;
} moe_clip_attr;
/* moe.adamw/0 (Loshchilov & Hutter, arXiv 1711.05101), FP32 master weights:
 *   g = coef * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *   w -= lr * ((m / c1) / (sqrt(v / c2) + eps) + weight_decay * w)
 * forward  in  grad [n] F32, hyper [4] F32 = {lr, c1 = 1 - b1^t, c2 = 1 - b2^t, 0}, stats [2] F32 (clip_coef)
 *          out w [n] F32, m [n] F32, v [n] F32 (all updated), copy? [n] BF16 = w rounded to nearest even
 * forward only. */
#define MOE_OP_ADAMW "moe.adamw/0"
typedef struct moe_adamw_attr {
    uint32_t size;
    float beta1, beta2, eps, weight_decay;
} moe_adamw_attr;
/* moe.sgd/0: w -= lr * (coef * grad + weight_decay * w). in grad, hyper, stats; out w, copy?. attr moe_adamw_attr,
 * of which weight_decay is read. forward only. */
#define MOE_OP_SGD "moe.sgd/0"

#ifdef __cplusplus
}
#endif
#endif
