/* moe.mla_pack/0: the rows of multi-head latent attention side by side as moe.attention/0 reads them. Every key head
 * ends with the one rotary part of its token; backward sums that part over the heads. */
#include "args.h"

static const char op[] = MOE_OP_MLA_PACK;
_Static_assert(2 * OP_MLA_MOST <= CPU_SCRATCH_FLOATS, "two rotary parts fit scratch");

typedef struct pack_call {
    const moe_tensor *q, *kv, *k_rope, *qkv; /* [T,n(a+r)], [T,n(a+v)], [T,r], [T,2n(a+r)+nv], all act */
    int64_t tokens, heads, nope, rope, v, block;
} pack_call;

static pack_call read_call(const moe_op_args *a, const moe_tensor *parts, const moe_tensor *qkv) {
    const moe_mla_pack_attr *at = a->attr;
    pack_call c = {.q = &parts[0], .kv = &parts[1], .k_rope = &parts[2], .qkv = qkv};
    c.tokens = qkv->shape[0];
    c.heads = at->heads;
    c.nope = at->nope;
    c.rope = at->rope;
    c.v = at->v_dim;
    c.block = cpu_piece_rows(2 * c.heads * (c.nope + c.rope) + c.heads * c.v);
    return c;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_mla_pack(a, err), saved, workspace);
}

/* Copies n elements of `bytes` bytes; returns where the destination ends. */
static char *put(char *to, const char *from, int64_t n, int64_t bytes) {
    memcpy(to, from, (size_t)(n * bytes));
    return to + n * bytes;
}

static void pack_rows(void *arg, int64_t piece, cpu_worker *w) {
    const pack_call *c = arg;
    (void)w;
    const int64_t b = op_act_bytes(c->qkv->dtype), qk = c->heads * (c->nope + c->rope), step = (c->nope + c->v) * b;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        const char *kv = (const char *)c->kv->data + t * c->heads * step; /* [n,a+v] */
        const char *k_rope = (const char *)c->k_rope->data + t * c->rope * b;
        char *to = (char *)c->qkv->data + t * (2 * qk + c->heads * c->v) * b;
        to = put(to, (const char *)c->q->data + t * qk * b, qk, b);
        for (int64_t j = 0; j < c->heads; j++) {
            to = put(to, kv + j * step, c->nope, b);
            to = put(to, k_rope, c->rope, b);
        }
        for (int64_t j = 0; j < c->heads; j++) to = put(to, kv + j * step + c->nope * b, c->v, b);
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    pack_call c = read_call(a, a->in, a->out);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), pack_rows, &c);
    return MOE_OK;
}

/* dk_rope [r] of token t: the rotary ends of the key heads, which begin at element `at`. room [2,r]. */
static void sum_rope(const pack_call *c, int64_t t, int64_t at, float *room) {
    const int64_t r = c->rope;
    float *restrict sum = room; /* [r] */
    memset(sum, 0, (size_t)r * sizeof(float));
    for (int64_t j = 0; j < c->heads; j++) {
        const float *restrict d = cpu_load(c->qkv, at + j * (c->nope + r) + c->nope, r, room + r); /* [r] */
        for (int64_t i = 0; i < r; i++) sum[i] += d[i];
    }
    cpu_store(c->k_rope, t * r, r, sum);
}

static void unpack_rows(void *arg, int64_t piece, cpu_worker *w) {
    const pack_call *c = arg;
    const int64_t b = op_act_bytes(c->qkv->dtype), k = c->nope + c->rope, qk = c->heads * k;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        const int64_t at = t * (2 * qk + c->heads * c->v); /* of the row, in elements */
        const char *from = (const char *)c->qkv->data + at * b, *key = from + qk * b, *value = key + qk * b;
        char *kv = (char *)c->kv->data + t * c->heads * (c->nope + c->v) * b;
        put((char *)c->q->data + t * qk * b, from, qk, b);
        for (int64_t j = 0; j < c->heads; j++) {
            kv = put(kv, key + j * k * b, c->nope, b);
            kv = put(kv, value + j * c->v * b, c->v, b);
        }
        sum_rope(c, t, at + qk, w->scratch);
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_mla_pack_backward(a, err);
    if (s != MOE_OK) return s;
    pack_call c = read_call(a, a->out, a->in);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), unpack_rows, &c);
    return MOE_OK;
}

const moe_op CPU_OP(mla_pack) = {sizeof(moe_op), 0, op, sizes, forward, backward};
