/* Packed rows [q heads | k heads | v heads] of moe.rope/0 and moe.attention/0: their attributes, with what a shorter
 * struct leaves out, and their shape checks. */
#ifndef CPU_OPS_HEADS_H
#define CPU_OPS_HEADS_H
#include <stddef.h>

#include "args.h"

/* Bytes that an attribute struct must reach to hold member m. */
#define HEADS_REACH(m) (offsetof(moe_attention_attr, m) + sizeof(((moe_attention_attr *)0)->m))

/* The attributes of a call with every default filled in: v_dim is never 0, amplitude neither. Members that the caller's
 * struct does not reach count as 0. The struct reaches `scale`. */
static inline moe_attention_attr heads_attr(const moe_op_args *a) {
    const moe_attention_attr *p = a->attr;
    moe_attention_attr at = {.size = sizeof at, .heads = p->heads, .kv_heads = p->kv_heads, .head_dim = p->head_dim};
    at.batch = p->batch;
    at.seq = p->seq;
    at.scale = p->scale;
    if (MOE_REACH(p, moe_attention_attr, v_dim)) at.v_dim = p->v_dim;
    if (MOE_REACH(p, moe_attention_attr, window)) at.window = p->window;
    if (MOE_REACH(p, moe_attention_attr, rotary_dim)) at.rotary_dim = p->rotary_dim;
    if (MOE_REACH(p, moe_attention_attr, rotary_first)) at.rotary_first = p->rotary_first;
    if (MOE_REACH(p, moe_attention_attr, interleaved)) at.interleaved = p->interleaved;
    if (MOE_REACH(p, moe_attention_attr, amplitude)) at.amplitude = p->amplitude;
    if (at.v_dim == 0) at.v_dim = at.head_dim;
    if (at.amplitude == 0.0f) at.amplitude = 1.0f;
    return at;
}

/* Elements of a packed row. */
static inline int64_t heads_width(const moe_attention_attr *at) {
    return ((int64_t)at->heads + at->kv_heads) * at->head_dim + (int64_t)at->kv_heads * at->v_dim;
}

/* Checks that the struct reaches `bytes` (HEADS_REACH, at least that of scale) and what both operations need of it. */
static inline moe_status heads_check(const moe_op_args *a, const char *op, uint64_t bytes, moe_err *err) {
    moe_status s = cpu_want_attr(a, op, bytes, err);
    if (s != MOE_OK) return s;
    const moe_attention_attr *at = a->attr;
    if (at->kv_heads == 0 || at->heads == 0 || at->heads % at->kv_heads)
        return moe_fail(err, MOE_E_ARG, "%s: %u query heads and %u key-value heads: want a multiple", op, at->heads,
                        at->kv_heads);
    if (at->head_dim == 0) return moe_fail(err, MOE_E_ARG, "%s: head_dim is 0", op);
    return MOE_OK;
}
#endif
