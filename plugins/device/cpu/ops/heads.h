/* Packed rows [q heads | k heads | v heads] of moe.rope/0 and moe.attention/0: their shape checks. */
#ifndef CPU_OPS_HEADS_H
#define CPU_OPS_HEADS_H
#include "args.h"

/* Elements of a packed row. */
static inline int64_t heads_width(const moe_attention_attr *at) {
    return ((int64_t)at->heads + 2 * (int64_t)at->kv_heads) * at->head_dim;
}

static inline moe_status heads_check(const moe_op_args *a, const char *op, moe_err *err) {
    moe_status s = cpu_want_attr(a, op, sizeof(moe_attention_attr), err);
    if (s != MOE_OK) return s;
    const moe_attention_attr *at = a->attr;
    if (at->kv_heads == 0 || at->heads == 0 || at->heads % at->kv_heads)
        return moe_fail(err, MOE_E_ARG, "%s: %u query heads and %u key-value heads: want a multiple", op, at->heads,
                        at->kv_heads);
    if (at->head_dim == 0) return moe_fail(err, MOE_E_ARG, "%s: head_dim is 0", op);
    return MOE_OK;
}
#endif
