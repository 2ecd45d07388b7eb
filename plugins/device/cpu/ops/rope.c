/* moe.rope/0: turns pairs of elements of every query and key head by pos * inv_freq[i]. Sines and cosines, times the
 * amplitude, are made once a token and used by all its heads; backward, the transpose, turns the other way. */
#include "act.h"

static const char op[] = MOE_OP_ROPE;
enum { AHEAD = 2 }; /* rows that are fetched before their turn */
enum { MOST_ROTARY = CPU_SCRATCH_FLOATS / 4 };

typedef struct rope_call {
    const moe_tensor *in, *out;                     /* [T,(nq+nkv)d+nkv*dv] act */
    const int32_t *pos;                             /* [T] */
    const float *inv_freq;                          /* [half] */
    int64_t tokens, width, heads, dim, half, block; /* heads: of queries and keys */
    int64_t first;                                  /* element of a head */
    int interleaved;                                /* pairs (2i, 2i + 1) */
    float cosine_factor, sine_factor;               /* amplitude; the sine's is negative in backward */
} rope_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_rope(a, MOST_ROTARY, err), saved, workspace);
}

/* Turns the pairs (lo[i], hi[i]) of n elements from i on. */
ACT_INLINE void turn_part(void *lo, void *hi, const float *sine, const float *cosine, int64_t i, int64_t n,
                          int narrow) {
    vm_vector x = act_load(lo, i, n, narrow), y = act_load(hi, i, n, narrow);
    vm_vector s = act_load(sine, i, n, 0), c = act_load(cosine, i, n, 0);
    act_store(lo, i, n, x * c - y * s, narrow);
    act_store(hi, i, n, y * c + x * s, narrow);
}

/* The heads of token t, halves against each other. */
ACT_INLINE void turn_halves(const rope_call *c, int64_t t, const float *sine, const float *cosine, int narrow) {
    const int64_t half = c->half, act = narrow ? 2 : 4, ahead = t + AHEAD < c->tokens ? AHEAD * c->width * act : 0;
    char *lo = act_at(c->out, cpu_row_at(t, c->width) + c->first, narrow);
    for (int64_t j = 0; j < c->heads; j++, lo += c->dim * act) {
        char *hi = lo + half * act;
        int64_t i = 0;
        if (ahead) act_fetch(lo + ahead, 2 * half * act);
        for (; i + VM_LANES <= half; i += VM_LANES) turn_part(lo, hi, sine, cosine, i, VM_LANES, narrow);
        if (i < half) turn_part(lo, hi, sine, cosine, i, half - i, narrow);
    }
}

/* Turns the pairs (head[2i], head[2i + 1]): head [2 half]. */
static void turn_pairs(float *restrict head, const float *restrict sine, const float *restrict cosine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float x = head[2 * i], y = head[2 * i + 1];
        head[2 * i] = x * cosine[i] - y * sine[i];
        head[2 * i + 1] = y * cosine[i] + x * sine[i];
    }
}

/* The heads of token t, neighbours against each other. */
static void turn_neighbours(const rope_call *c, int64_t t, const float *sine, const float *cosine, float *room) {
    int64_t at = cpu_row_at(t, c->width) + c->first, n = 2 * c->half;
    for (int64_t j = 0; j < c->heads; j++, at += c->dim) {
        float *head = cpu_store_begin(c->out, at, room); /* [2 half] */
        cpu_load(c->out, at, n, room);
        turn_pairs(head, sine, cosine, c->half);
        cpu_store_end(c->out, at, n, head);
    }
}

static void turn_tokens(void *arg, int64_t piece, cpu_worker *w) {
    const rope_call *c = arg;
    float *restrict sine = w->scratch, *restrict cosine = sine + c->half; /* [half] */
    int64_t bytes = c->width * op_act_bytes(c->in->dtype), end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        if (c->in->data != c->out->data)
            memcpy((char *)c->out->data + t * bytes, (const char *)c->in->data + t * bytes, (size_t)bytes);
        float pos = (float)c->pos[t];
        for (int64_t i = 0; i < c->half; i++) {
            vm_sincos(pos * c->inv_freq[i], &sine[i], &cosine[i]);
            sine[i] *= c->sine_factor;
            cosine[i] *= c->cosine_factor;
        }
        if (c->interleaved)
            turn_neighbours(c, t, sine, cosine, w->scratch + 2 * c->half);
        else if (c->out->dtype == MOE_F32)
            turn_halves(c, t, sine, cosine, 0);
        else
            turn_halves(c, t, sine, cosine, 1);
    }
}

/* sign: 1 forward, -1 backward. */
static void run(void *dev, const moe_op_args *a, float sign) {
    moe_attention_attr at = op_heads_attr(a);
    rope_call c = {.in = &a->in[0], .out = &a->out[0], .pos = a->in[1].data, .inv_freq = a->in[2].data};
    c.tokens = a->in[0].shape[0];
    c.width = a->in[0].shape[1];
    c.heads = (int64_t)at.heads + at.kv_heads;
    c.dim = at.head_dim;
    c.half = at.rotary_dim / 2;
    c.block = cpu_piece_rows(c.width);
    c.first = at.rotary_first;
    c.interleaved = at.interleaved != 0;
    c.cosine_factor = at.amplitude;
    c.sine_factor = sign * at.amplitude;
    cpu_run(dev, cpu_blocks(c.tokens, c.block), turn_tokens, &c);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    run(dev, a, 1.0f);
    return MOE_OK;
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_rope(a, MOST_ROTARY, err);
    if (s != MOE_OK) return s;
    run(dev, a, -1.0f);
    return MOE_OK;
}

const moe_op CPU_OP(rope) = {sizeof(moe_op), 0, op, sizes, forward, backward};
