/* Packed rows [q heads | k heads | v heads]: their attributes, with what a shorter struct leaves out, and the checks of
 * moe.rope/0 and moe.attention/0; see ../ops.h. */
#include <math.h>
#include <stddef.h>

#include "../ops.h"

/* Bytes that an attribute struct must reach to hold member m. */
#define REACH(m) (offsetof(moe_attention_attr, m) + sizeof(((moe_attention_attr *)0)->m))

moe_attention_attr op_heads_attr(const moe_op_args *a) {
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

int64_t op_heads_width(const moe_attention_attr *at) {
    return ((int64_t)at->heads + at->kv_heads) * at->head_dim + (int64_t)at->kv_heads * at->v_dim;
}

/* The struct reaches `bytes` (REACH, at least that of scale), and what both operations need of it. */
static moe_status read_heads(const moe_op_args *a, const char *op, uint64_t bytes, moe_attention_attr *at,
                             moe_err *err) {
    moe_status s = op_want_attr(a, op, bytes, err);
    if (s != MOE_OK) return s;
    *at = op_heads_attr(a);
    if (at->kv_heads == 0 || at->heads == 0 || at->heads % at->kv_heads)
        return moe_fail(err, MOE_E_ARG, "%s: %u query heads and %u key-value heads: want a multiple", op, at->heads,
                        at->kv_heads);
    if (at->head_dim == 0) return moe_fail(err, MOE_E_ARG, "%s: head_dim is 0", op);
    return MOE_OK;
}

/* ---- moe.rope/0 ---- */
static moe_status read_rope(const moe_op_args *a, int64_t most, moe_attention_attr *at, moe_err *err) {
    static const char op[] = MOE_OP_ROPE;
    moe_status s = read_heads(a, op, REACH(rotary_dim), at, err);
    if (s != MOE_OK) return s;
    if (at->rotary_dim % 2 || at->rotary_dim > at->head_dim)
        return moe_fail(err, MOE_E_ARG, "%s: rotary_dim is %u, want an even number up to head_dim %u", op,
                        at->rotary_dim, at->head_dim);
    if (at->rotary_first > at->head_dim - at->rotary_dim)
        return moe_fail(err, MOE_E_ARG, "%s: rotary_first is %u and rotary_dim %u, want a sum up to head_dim %u", op,
                        at->rotary_first, at->rotary_dim, at->head_dim);
    if (at->interleaved > 1) return moe_fail(err, MOE_E_ARG, "%s: interleaved is %u, want 0 or 1", op, at->interleaved);
    if (!isfinite(at->amplitude))
        return moe_fail(err, MOE_E_ARG, "%s: amplitude is %g, want a finite number", op, (double)at->amplitude);
    if (at->rotary_dim > most)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: rotary_dim is %u, want at most %lld", op, at->rotary_dim,
                        (long long)most);
    return MOE_OK;
}

moe_status op_check_rope(const moe_op_args *a, int64_t most, moe_err *err) {
    static const char op[] = MOE_OP_ROPE;
    moe_attention_attr at;
    moe_status s = op_want_lists(a, op, 3, 3, 1, 1, err);
    if (s == MOE_OK) s = read_rope(a, most, &at, err);
    if (s != MOE_OK) return s;
    s = op_want(&a->in[0], op, "qkv", OP_ACT, 2, OP_SHAPE(OP_ANY, op_heads_width(&at)), err);
    if (s == MOE_OK) s = op_want(&a->in[1], op, "pos", MOE_I32, 1, OP_SHAPE(a->in[0].shape[0]), err);
    if (s == MOE_OK) s = op_want(&a->in[2], op, "inv_freq", MOE_F32, 1, OP_SHAPE(at.rotary_dim / 2), err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "qkv (output)", a->in[0].dtype, 2, a->in[0].shape, err);
    return s;
}

/* ---- moe.attention/0 ---- */
static const char attention[] = MOE_OP_ATTENTION;

static moe_status read_attention_attr(const moe_op_args *a, uint32_t most, moe_attention_attr *at, moe_err *err) {
    moe_status s = read_heads(a, attention, REACH(scale), at, err);
    if (s != MOE_OK) return s;
    if (at->head_dim > most)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: head_dim is %u, want at most %u", attention, at->head_dim, most);
    if (at->v_dim > most)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: v_dim is %u, want at most %u", attention, at->v_dim, most);
    int64_t tokens;
    if (at->batch < 0 || at->seq < 0 || __builtin_mul_overflow(at->batch, at->seq, &tokens))
        return moe_fail(err, MOE_E_ARG, "%s: batch %lld, seq %lld", attention, (long long)at->batch,
                        (long long)at->seq);
    if (!isfinite(at->scale) || at->scale == 0.0f)
        return moe_fail(err, MOE_E_ARG, "%s: scale is %g, want a finite number that is not 0", attention,
                        (double)at->scale);
    if (at->window < 0)
        return moe_fail(err, MOE_E_ARG, "%s: window is %lld, want 0 or more", attention, (long long)at->window);
    return MOE_OK;
}

/* The attributes, and qkv, which is in[i]. */
static moe_status read_attention(const moe_op_args *a, uint32_t i, uint32_t most, moe_attention_attr *at,
                                 moe_err *err) {
    moe_status s = read_attention_attr(a, most, at, err);
    if (s != MOE_OK) return s;
    return op_want(&a->in[i], attention, "qkv", OP_ACT, 2, OP_SHAPE(at->batch * at->seq, op_heads_width(at)), err);
}

/* The two optional tensors, which begin at in[i]. */
static moe_status check_optional(const moe_op_args *a, uint32_t i, const moe_attention_attr *at, moe_err *err) {
    const moe_tensor *sinks = op_optional(a->in, a->n_in, i), *doc = op_optional(a->in, a->n_in, i + 1);
    moe_status s = MOE_OK;
    if (sinks) s = op_want(sinks, attention, "sinks", MOE_F32, 1, OP_SHAPE(at->heads), err);
    if (s == MOE_OK && doc) s = op_want(doc, attention, "doc", MOE_I32, 1, OP_SHAPE(at->batch * at->seq), err);
    return s;
}

/* o or its gradient: for each row of qkv one of all heads' values. */
static moe_status check_o(const moe_tensor *o, const char *name, const moe_tensor *qkv, const moe_attention_attr *at,
                          moe_err *err) {
    const int64_t shape[] = {qkv->shape[0], (int64_t)at->heads * at->v_dim};
    return op_want(o, attention, name, qkv->dtype, 2, shape, err);
}

moe_status op_check_attention(const moe_op_args *a, uint32_t most, moe_err *err) {
    moe_attention_attr at;
    moe_status s = op_want_lists(a, attention, 1, 3, 1, 1, err);
    if (s == MOE_OK) s = read_attention(a, 0, most, &at, err);
    if (s == MOE_OK) s = check_optional(a, 1, &at, err);
    return s == MOE_OK ? check_o(&a->out[0], "o", &a->in[0], &at, err) : s;
}

moe_status op_check_attention_backward(const moe_op_args *a, uint32_t most, moe_err *err) {
    moe_attention_attr at;
    moe_status s = op_want_lists(a, attention, 3, 5, 1, 2, err);
    if (s == MOE_OK) s = read_attention(a, 1, most, &at, err);
    if (s == MOE_OK) s = check_o(&a->in[0], "do", &a->in[1], &at, err);
    if (s == MOE_OK) s = check_o(&a->in[2], "o", &a->in[1], &at, err);
    if (s == MOE_OK) s = check_optional(a, 3, &at, err);
    if (s == MOE_OK) s = op_want(&a->out[0], attention, "dqkv", a->in[1].dtype, 2, a->in[1].shape, err);
    const moe_tensor *dsinks = s == MOE_OK ? op_optional(a->out, a->n_out, 1) : NULL;
    if (dsinks) s = op_want(dsinks, attention, "dsinks", MOE_F32, 1, OP_SHAPE(at.heads), err);
    if (s == MOE_OK && dsinks && !op_optional(a->in, a->n_in, 3))
        s = moe_fail(err, MOE_E_ARG, "%s: dsinks is given, sinks is not", attention);
    return s;
}
