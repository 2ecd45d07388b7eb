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
 * attr NULL: the table is the whole vocabulary. With moe_vocabulary_attr it is a part of one: other words give a row of
 * zeros, and nothing in backward. An id outside of the whole, [0,V) or [0,whole), is MOE_E_DATA and names the token. */
#define MOE_OP_EMBED "moe.embed/0"
/* Words [first, first + V) of `whole` (vocabulary parallelism: Shoeybi et al., arXiv 1909.08053, section 3). */
typedef struct moe_vocabulary_attr {
    uint32_t size, reserved;
    int64_t first, whole;
} moe_vocabulary_attr;

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

/* moe.rope/0: rotary embedding of the query and key heads of packed rows [nq q heads | nkv k heads | nkv v heads]. Of
 * each head the elements [rotary_first, rotary_first + R), R = rotary_dim, turn in pairs (i, i + R/2), or (2i, 2i + 1)
 * where interleaved; angle = pos[t] * inv_freq[i], cosine and sine times `amplitude`; other elements pass.
 * (Su et al., arXiv 2104.09864; amplitude: YaRN, Peng et al., arXiv 2309.00071)
 * forward  in  qkv [T,(nq+nkv)d+nkv*dv] act, pos [T] I32, inv_freq [R/2] F32    out qkv, in place
 * backward in  dqkv, pos, inv_freq                                             out dqkv, in place */
#define MOE_OP_ROPE "moe.rope/0"
/* moe.attention/0: softmax(scale * q k^T) v over the keys 0..i of each sequence (causal), blockwise, query head j
 * reads key-value head j / (nq / nkv). S x S is never stored. (Dao et al., arXiv 2205.14135)
 * window > 0: of these only the keys i - window < j. (Beltagy et al., arXiv 2004.05150)
 * doc: a query sees only keys of its own number; a token of number -1 is padding: no query sees it and its o is 0.
 * sinks: one more logit a query head, which takes part in the softmax and has no value. (Xiao et al., arXiv 2309.17453)
 * forward  in  qkv [T,(nq+nkv)d+nkv*dv] act, sinks? [nq] F32, doc? [T] I32       out o [T,nq*dv] act
 * backward in  do [T,nq*dv] act, qkv, o, sinks?, doc?                 out dqkv as qkv act, dsinks? [nq] F32 +=
 * T = batch * seq. saved: log-sum-exp of each (sequence, head, query). Where act is BF16 a device may round the softmax
 * and its gradient to BF16 before their products; sums stay FP32. */
#define MOE_OP_ATTENTION "moe.attention/0"
typedef struct moe_attention_attr {
    uint32_t size, heads, kv_heads, head_dim; /* nq, nkv, d; nq a multiple of nkv */
    int64_t batch, seq;
    float scale;           /* of q k^T: usually 1/sqrt(d); not 0 */
    uint32_t v_dim;        /* dv: elements of a value head; 0 = head_dim */
    int64_t window;        /* keys that a query sees, itself included; 0 = all before it */
    uint32_t rotary_dim;   /* this and the rest: moe.rope/0 only. even, rotary_first + rotary_dim at most d */
    uint32_t rotary_first; /* first element of a head that turns */
    uint32_t interleaved;  /* 1: pairs (2i, 2i + 1) */
    float amplitude;       /* of cosine and sine; 0 = 1 */
} moe_attention_attr;

/* moe.head_norm/0: RMSNorm of segments of packed rows, in place: in row t, for each i in [0, segments), the elements
 * [first + i*width, + width) become w * x / sqrt(mean(x^2) + eps); others pass. (queries and keys: Henry et al.,
 * arXiv 2010.04245)
 * forward  in  x [T,W] act, w [width] F32            out x, in place
 * backward in  dx [T,W] act (gradient of the result), w   out dx, in place (gradient of the input); dw [width] F32 +=
 * saved: the segments as they came, and their 1/rms. */
#define MOE_OP_HEAD_NORM "moe.head_norm/0"
typedef struct moe_head_norm_attr {
    uint32_t size;
    float eps;
    int64_t first, segments, width; /* elements; first + segments * width <= W */
} moe_head_norm_attr;

/* moe.mla_pack/0: rows of multi-head latent attention to packed rows [n q heads of a+r | n k heads of a+r | n v heads].
 * Head j of k is [its a elements of kv | k_rope], the same k_rope for all heads. (DeepSeek-V2, arXiv 2405.04434, 2.1)
 * forward  in  q [T,n(a+r)] act, kv [T,n(a+v)] act (head j: a key elements, then v value elements), k_rope [T,r] act
 *          out qkv [T,2n(a+r)+n*v] act
 * backward in  dqkv   out dq, dkv, dk_rope (sum over the heads, FP32) act */
#define MOE_OP_MLA_PACK "moe.mla_pack/0"
typedef struct moe_mla_pack_attr {
    uint32_t size, heads, nope, rope, v_dim; /* n, a, r, v */
    uint32_t reserved;
} moe_mla_pack_attr;

/* moe.bias/0: y += p * b, row by row. With rows: b [G,W], row b[g] for rows of group g (counts of them from its
 * offset); padding rows are left as they are.
 * forward  in  y [N,W] act or F32, b [W] or [G,W] F32, p? [N] F32     out y, in place
 * backward in  dy [N,W] as y, b, p?                                  out db as b F32 +=, dp? [N] F32 += (sum dy * b;
 *          rows outside of the groups' rows are not touched); dy itself is the gradient of y
 * saved: none. dp is absent iff p is. */
#define MOE_OP_BIAS "moe.bias/0"

/* moe.linear/0: one product in a role, dense or grouped over rows in expert order (w, dw then have a leading G).
 * MOE_FPROP in x [M,K] act, w [N,K] act         out y  [M,N] act  (+)= x w^T
 * MOE_DGRAD in dy [M,N] act, w [N,K] act        out dx [M,K] act  (+)= dy w
 * MOE_WGRAD in dy [M,N] act, x [M,K] act        out dw [N,K] F32  (+)= dy^T x, filled? [G] I32, updated
 * y and dx may be F32 where the inputs are BF16. accumulate: 1 adds to the output. Grouped without accumulate: the
 * rows below dev_offsets[G] are written, padding rows included (as zero); dw of a group without rows is zero.
 * filled, for grouped MOE_WGRAD only: block g of dw holds values where filled[g] is 1. Where it is 0 the block is
 * undefined and stands for zeros, which nobody has to write: with few rows most experts have none. A block of a group
 * without rows is neither read nor written. accumulate 0: filled[g] = the group has rows. accumulate 1: a group with
 * rows is added to its block where filled[g] is 1, overwrites it where it is 0, and filled[g] becomes 1; that of a
 * group without rows stays. A precision says whether its device takes it (moe_precision_needs.takes_filled). forward
 * only. */
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

/* moe.swiglu_prob/0: a = p * act(z), z = [gate | up]. (the probability inside the expert: methods, Megatron Core MoE,
 * arXiv 2603.07685 section 4.1)
 * attr NULL or limit 0: act = silu(gate) * up (Shazeer, arXiv 2002.05202). limit > 0 (gpt-oss, arXiv 2508.10925):
 *   g = min(gate, limit), u = max(-limit, min(up, limit)), act = g * sigmoid(alpha * g) * (u + 1); no gradient through
 *   a value that was cut.
 * forward  in  z [N,2f] act, p? [N] F32              out a [N,f] act
 * backward in  da [N,f] act, z, p?                   out dz [N,2f] act, in place on z; dp? [N] F32
 * With rows: the rows below dev_offsets[groups]; padding rows give zero. */
#define MOE_OP_SWIGLU_PROB "moe.swiglu_prob/0"
typedef struct moe_swiglu_attr {
    uint32_t size;
    float alpha, limit;
} moe_swiglu_attr;

/* moe.sigmoid/0: y = 1 / (1 + exp(-x)).
 * forward  in  x [n..] F32   out y F32, in place     backward in  dy, y   out dx = dy y (1 - y) F32, in place on dy */
#define MOE_OP_SIGMOID "moe.sigmoid/0"

/* moe.add/0: y += x.         in x [n..] act          out y as x, in place. forward only. */
#define MOE_OP_ADD "moe.add/0"

/* moe.join/0: y[t] = the rows t of x[0], x[1], .. side by side.
 * forward  in  x [n,T,w] act                         out y [T,n*w] act. forward only. */
#define MOE_OP_JOIN "moe.join/0"

/* moe.jitter/0: y[t,i] = x[t,i] * (1 + eps (2u - 1)), u in (0,1) = moe_random_unit of word i % 4 of
 * moe_random_words(key, (first_token + t) * ceil(h / 4) + i / 4, *step). Forward and backward of a step draw the same
 * numbers. (input jitter: Fedus et al., arXiv 2101.03961)
 * forward  in  x [T,h] act   out y [T,h] act         backward in  dy [T,h] act   out dx [T,h] act += */
#define MOE_OP_JITTER "moe.jitter/0"
typedef struct moe_jitter_attr {
    uint32_t size;
    float eps;
    uint32_t key[2];      /* moe_random_key */
    int64_t first_token;  /* number of row 0 in the global batch */
    const uint64_t *step; /* MOE_SPACE_HOST, as in moe_route_args */
} moe_jitter_attr;

/* moe.cross_entropy/0: loss += sum over valid tokens of logsumexp(l) - l[target]; gradient in the same pass.
 * forward  in  logits [T,V] act or F32, targets [T] I32 (-1 = not valid), divisor? [1] I64
 *          out loss [1] F64 +=, dlogits? [T,V] as logits = (softmax - onehot) / divisor, 0 where not valid; in place
 * A target outside [-1,V) is MOE_E_DATA. forward only: it is both. */
#define MOE_OP_CROSS_ENTROPY "moe.cross_entropy/0"

/* The same where each rank has the logits of a part of the vocabulary, in three calls between which the ranks reduce
 * [T] and [T,2] numbers; the loss is then the same on all of them, and the gradient that of their own part. attr
 * moe_vocabulary_attr, or NULL: the part is the whole. Rows without
 * a valid target have 0 everywhere. A target outside [-1,whole) is MOE_E_DATA. All are forward only.
 * moe.cross_entropy_max/0: the largest logit of each row's part. The ranks take the maximum.
 * in  logits [T,V] act or F32, targets [T] I32                         out largest [T] F32
 * moe.cross_entropy_sum/0: {sum of e^(l - largest), l[target] or 0 where another part has it}. The ranks add.
 * in  logits, targets, largest                                         out sums [T,2] F64
 * moe.cross_entropy_end/0:
 * in  logits, targets, largest, sums, divisor? [1] I64
 * out loss [1] F64 +=, dlogits? [T,V] as logits, in place; both as in moe.cross_entropy/0 */
#define MOE_OP_CROSS_ENTROPY_MAX "moe.cross_entropy_max/0"
#define MOE_OP_CROSS_ENTROPY_SUM "moe.cross_entropy_sum/0"
#define MOE_OP_CROSS_ENTROPY_END "moe.cross_entropy_end/0"

/* moe.count_valid/0: in targets [T] I32              out count [1] I64 += number of targets >= 0. forward only. */
#define MOE_OP_COUNT_VALID "moe.count_valid/0"

/* ---- rows to experts and back ---- */
/* moe.expert_rows/0: stable counting sort of the chosen (token, slot) pairs by expert; the id -1 (none) and ids of
 * experts outside [first, first + G) get no row. Row order inside an expert: by token, then slot.
 * forward  in  ids [T,k] I32
 *          out slot_row [T,k] I64 (row, or -1), row_slot [N] I64 (t*k + slot; -1 in padding rows and past the end),
 *              offsets [G+1] I64, counts [G] I64
 * forward only. More rows than N is MOE_E_OVERFLOW; an id below -1 or >= n_experts, or an expert chosen twice by a
 * token, is MOE_E_DATA. */
#define MOE_OP_EXPERT_ROWS "moe.expert_rows/0"
typedef struct moe_expert_rows_attr {
    uint32_t size, first, groups, n_experts; /* G = groups */
    int64_t align;                           /* rows of an expert begin at multiples of it; >= 1 */
    int64_t min_rows; /* every expert takes this many rows at least, its own first; the others are padding rows */
} moe_expert_rows_attr;

/* moe.capacity/0: at most `capacity` choices of an expert in each run of `scope` tokens stay; the others are dropped.
 * MOE_DROP_PROB keeps those of the largest weight, ties to the earlier token; MOE_DROP_POSITION the first in order of
 * token. (Fedus et al., arXiv 2101.03961, 2.2; Megatron Core MoE's capacity factor and drop policies)
 * forward  in  ids [T,k] I32, weights [T,k] F32
 *          out kept_ids [T,k] I32 (-1 = dropped or none), kept_weights [T,k] F32 (0 there), n [2] I64 += {choices,
 *              dropped}. Not in place. A weight of a choice that is NaN, or an id below -1 or >= n_experts, is
 *              MOE_E_DATA.
 * forward only: a dropped choice has no row, and so no gradient. */
#define MOE_OP_CAPACITY "moe.capacity/0"
enum { MOE_DROP_PROB, MOE_DROP_POSITION };
typedef struct moe_capacity_attr {
    uint32_t size, n_experts;
    int32_t drop; /* MOE_DROP_* */
    uint32_t reserved;
    int64_t capacity, scope; /* choices of an expert a scope; tokens a scope, divides T; both >= 1 */
} moe_capacity_attr;

/* moe.permute/0: copies token rows into expert order; padding rows become zero.
 * forward  in  x [T,h] act, row_slot [N] I64, slot_scalar? [T,k] F32   out y [N,h] act, row_scalar? [N] F32
 * needs rows; k from attr. forward only: its backward is moe.unpermute/0. */
#define MOE_OP_PERMUTE "moe.permute/0"
/* moe.unpermute/0: x[t] = sum over slots 0..k-1 in order of y[slot_row[t,slot]], in FP32; slots without a row add 0.
 * forward  in  y [N,h] act, slot_row [T,k] I64, row_scalar? [N] F32    out x [T,h] act or F32, slot_scalar? [T,k] F32
 * slot_scalar is 0 where the slot has no row. forward only: its backward is moe.permute/0. */
#define MOE_OP_UNPERMUTE "moe.unpermute/0"
typedef struct moe_permute_attr {
    uint32_t size, k;
} moe_permute_attr;

/* ---- rows to the ranks of experts: what dispatchers plan with, so that no count has to be read by the host ----
 * A group has M = ep_size * etp members, member m = ep * etp + i; expert e of E lives on all etp members of ep rank
 * e / G, G = E / ep_size. Rows of an expert are in order of members, then tokens, then slots. S > E: numbers behind the
 * first E + 1 of a member are the caller's own. `layer` is named in messages. All are forward only. A call that has
 * reported to `fault` gives the results of a routing in which this member, or (moe.dispatch_plan/0) nobody, has chosen
 * anything, so that what follows it stays within its buffers. */

/* moe.expert_counts/0: choices of each expert by this member's tokens.
 * in  ids [T,k] I32                                  out row [S] I64: {choices of expert e [E], T}
 * An id below -1 or >= E, or an expert chosen twice by a token, is MOE_E_DATA. */
#define MOE_OP_EXPERT_COUNTS "moe.expert_counts/0"
typedef struct moe_expert_counts_attr {
    uint32_t size, n_experts; /* E */
    int64_t layer;
} moe_expert_counts_attr;

/* moe.dispatch_plan/0: from the rows of all members (moe.expert_counts/0), the same on each: which rows there are.
 * in  all [M,S] I64
 * out kept [M,E] I64: choices of e by member m that get a row; first [M,E] I64: the first of these rows, at the ep rank
 *     of e; all_offsets [ep_size,G+1] I64: of every ep rank, as in moe_rows; offsets [G+1], counts [G] I64: those of
 *     ep_rank; tokens [M] I64
 * Experts begin at multiples of align and take min_rows at least. Where an ep rank needs more than `limit` rows,
 * aligned ends included: MOE_OVERFLOW_STOP is MOE_E_OVERFLOW (a fault has the ep rank as token, the rows needed as
 * value). MOE_OVERFLOW_DROP: experts take rows in order of number; expert g keeps the first min(choices, room of g)
 * rows of its order, room of g = (limit - rows of the experts before g - least rows of the experts after g), down to
 * align, where the least rows of an expert are min_rows, aligned. So the last rows of the order are dropped, and ends
 * never pass limit. */
#define MOE_OP_DISPATCH_PLAN "moe.dispatch_plan/0"
typedef struct moe_dispatch_plan_attr {
    uint32_t size, n_experts, ep_rank, ep_size;
    int32_t overflow; /* MOE_OVERFLOW_* (dispatcher.h) */
    uint32_t reserved;
    int64_t align, min_rows, limit; /* limit: at least what min_rows of G experts takes */
    int64_t layer;
} moe_dispatch_plan_attr;

/* moe.dispatch_slots/0: the rows of slots whose expert is in [first, first + groups); others have none.
 * in  ids [M,T,k] I32, tokens [M] I64 (at most T: later ones are not read), kept [M,E], first [M,E] I64 (of a plan)
 * out slot_row [M,T,k] I64 (row, or -1: also for an id outside of [0,E)), row_slot? [N] I64 (index of the slot in
 *     slot_row; -1 in other rows)
 * Of one member, of several, or of all: M is that of the tensors. MOE_E_DATA: rows beyond N. */
#define MOE_OP_DISPATCH_SLOTS "moe.dispatch_slots/0"
typedef struct moe_dispatch_slots_attr {
    uint32_t size, first, groups, reserved;
} moe_dispatch_slots_attr;

/* moe.exchange_maps/0: where each row lies in the arrays that an all-to-all of rows takes and gives, there and back.
 * The array of the way there is [rows that this member sends, by expert | rows that come from others, by member]; that
 * of the way back [rows that have come, by member, own ones too | rows that others return, by member]; rows that one
 * member gives another are by expert, then in order. What a member gives itself stays where it is: it does not travel.
 * slot 0: all parts follow each other. slot > 0: a part has `slot` rows, used or not, so that the host knows where each
 * lies: [ep_size parts | M parts], [M parts | M parts].
 * in  ids [T,k] I32, slot_row [T,k] I64 (moe.dispatch_slots/0 of this member), kept [M,E], first [M,E] I64, offsets
 *     [G+1] I64
 * out parts [MOE_PARTS,M] I64, runs [2,2] I64: {0, rows that are sent}, {0, rows that come}, unused ones included;
 *     sent_slot [A] I64: slot of a row that is sent, -1 = unused; landed_row [B] I64: row in expert order of one that
 *     has come, -1 = unused; row_from [N] I64: place (way there) of a row in expert order, -1 = padding, offsets[G] of
 *     them; slot_at [T,k*etp] I64: place (way back) of what each of the etp members returns for a slot, -1 = nothing
 * MOE_E_DATA: a part, A, B or N too small. */
#define MOE_OP_EXCHANGE_MAPS "moe.exchange_maps/0"
typedef struct moe_exchange_maps_attr {
    uint32_t size, me, ep_size, etp_size; /* me: this member */
    int64_t slot;
} moe_exchange_maps_attr;
/* Rows of `parts`: payload rows that are given to member m and that come from it (0 for me); where these begin, there
 * and back, in rows of the arrays (of me: where its own lie). */
enum {
    MOE_PART_GIVES,
    MOE_PART_GETS,
    MOE_PART_OUT_AT,    /* of the way there: sent to m */
    MOE_PART_IN_AT,     /* come from m */
    MOE_PART_LANDED_AT, /* of the way back: come from m, to be returned */
    MOE_PART_RETURN_AT, /* returned by m */
    MOE_PARTS
};

/* moe.sent/0: payload of an exchange. Member m, which is member first_rank + m of a world whose nodes have node_size
 * ranks, is given rows[m * A / members] rows of `bytes` bytes; me gives itself nothing.
 * in  rows [A] I64, A divides members                 out sent? [1] I64 += bytes to all, far? [1] I64 += bytes to
 * members on other nodes; MOE_SPACE_HOST, written in stream order */
#define MOE_OP_SENT "moe.sent/0"
typedef struct moe_sent_attr {
    uint32_t size, members, me, first_rank, node_size, reserved; /* node_size 0: all are on one node */
    int64_t bytes;
} moe_sent_attr;

/* moe.convert/0: y = x in another dtype, rounded to nearest even; a NaN stays one. With the same dtype a copy.
 * in  x [n..] act                                    out y [n..] act, each of its own dtype */
#define MOE_OP_CONVERT "moe.convert/0"

/* ---- optimiser; tensors are flat ---- */
/* filled? [G] I32, the last input of moe.sumsq/0, moe.adamw/0 and moe.sgd/0, where the precision takes it
 * (moe.linear/0): the gradient is G blocks of n / G elements, of which those with filled 0 count as zeros and are not
 * read. Results have the bits of a gradient that holds these zeros.
 * moe.sumsq/0: in g [n] F32, filled? [G] I32         out sum [1] F64 += sum of squares. forward only. */
#define MOE_OP_SUMSQ "moe.sumsq/0"
/* moe.clip_coef/0: norm = sqrt(sum); coef = min(1, max_norm / norm), 1 where max_norm is 0.
 * in sum [1] F64                                     out stats [2] F32 = {norm, coef}
 * A norm that is not finite: coef is NaN, and moe.adamw/0 and moe.sgd/0 leave everything unchanged. So it is where the
 * `fault` of the call has a code that is not 0: here it is read, as what moe.first_fault/0 has found. forward only. */
#define MOE_OP_CLIP_COEF "moe.clip_coef/0"
typedef struct moe_clip_attr {
    uint32_t size;
    float max_norm;
} moe_clip_attr;
/* moe.first_fault/0: of the moe_fault of n calls the first with a code that is not 0. Asynchronous devices only need
 * it. in  faults [n,4] I64 = {code, token, value, layer} of each       out first [4] I64 = {code, token, value, its
 * number in faults}; {0, 0, 0, 0} where there is none. forward only. */
#define MOE_OP_FIRST_FAULT "moe.first_fault/0"
/* moe.adamw/0 (Loshchilov & Hutter, arXiv 1711.05101), FP32 master weights:
 *   g = coef * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *   w -= lr * ((m / c1) / (sqrt(v / c2) + eps) + weight_decay * w)
 * forward  in  grad [n] F32, hyper [4] F32 = {lr, c1 = 1 - b1^t, c2 = 1 - b2^t, 0}, stats [2] F32 (clip_coef),
 *              filled? [G] I32
 *          out w [n] F32, m [n] F32, v [n] F32 (all updated), copy? [n] BF16 = w rounded to nearest even
 * forward only. */
#define MOE_OP_ADAMW "moe.adamw/0"
typedef struct moe_adamw_attr {
    uint32_t size;
    float beta1, beta2, eps, weight_decay;
} moe_adamw_attr;
/* moe.sgd/0: w -= lr * (coef * grad + weight_decay * w). in grad, hyper, stats, filled?; out w, copy?. attr
 * moe_adamw_attr, of which weight_decay is read. forward only. */
#define MOE_OP_SGD "moe.sgd/0"

/* ---- what the device can do at most: for measuring, no model needs them ---- */
/* moe.fma/0: y = x after `rounds` times x <- x * factor + term, in registers: memory is read and written once, the
 * arithmetic is 2 N rounds FLOP. Fused (one rounding) where the instruction set has it.
 * forward  in  x [N] F32                             out y [N] F32, in place. forward only. */
#define MOE_OP_FMA "moe.fma/0"
typedef struct moe_fma_attr {
    uint32_t size, rounds;
    float factor, term;
} moe_fma_attr;
/* moe.copy/0: y = x by all compute threads together: as a plain copy (memcpy) of large parts, or, streaming, past the
 * caches where the device can, which is what memory gives at most.
 * forward  in  x [N] F32                             out y [N] F32. forward only. */
#define MOE_OP_COPY "moe.copy/0"
typedef struct moe_copy_attr {
    uint32_t size, streaming; /* 0 or 1 */
} moe_copy_attr;

#ifdef __cplusplus
}
#endif
#endif
