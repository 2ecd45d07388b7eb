/* Backward of moe.attention/0: one key-value head with all its query heads a piece, which owns their gradients.
 * p = e^(score - lse), dv = p^T do, dp = do v^T, ds = p (dp - rowsum(do o)), dq = scale ds k, dk = scale ds^T q.
 * The sink is a score s whose value is 0, so that its dp is 0: ds = -e^(s - lse) rowsum(do o), summed over queries. */
#include "attention.h"

enum { BLOCK = ATTENTION_BLOCK };

typedef struct backward_room {
    float *q, *grad_o, *dq; /* [BLOCK, padded d or dv]; q times scale */
    float *o;               /* [padded dv] */
    float *qt, *grad_ot;    /* [padded d, BLOCK], [padded dv, BLOCK] */
    float *p, *ds;          /* [BLOCK keys, BLOCK queries] */
    float *lse, *dot;       /* [BLOCK] */
    float *k, *v, *dk, *dv; /* [padded seq, padded d or dv] */
} backward_room;
_Static_assert(5 * BLOCK * ATTENTION_MOST_DIM + ATTENTION_MOST_DIM + 2 * BLOCK * (BLOCK + 1) <=
                   (int64_t)(CPU_SCRATCH_BYTES / sizeof(float)),
               "scratch of a block");

static backward_room carve_backward(const attention_call *c, int64_t slab, cpu_worker *w) {
    int64_t tile = BLOCK * c->padded, v_tile = BLOCK * c->v_padded;
    backward_room r;
    r.q = w->scratch;
    r.grad_o = r.q + tile;
    r.dq = r.grad_o + v_tile;
    r.o = r.dq + tile;
    r.qt = r.o + c->v_padded;
    r.grad_ot = r.qt + tile;
    r.p = r.grad_ot + v_tile;
    r.ds = r.p + BLOCK * BLOCK;
    r.lse = r.ds + BLOCK * BLOCK;
    r.dot = r.lse + BLOCK;
    r.k = c->work + slab * attention_slab_floats(c);
    r.v = r.k + c->blocks * tile;
    r.dk = r.v + c->blocks * v_tile;
    r.dv = r.dk + c->blocks * tile;
    return r;
}

/* p and ds from scores (in p) and dp (in ds). */
static void differentiate_block(const backward_room *r, int64_t keys, int64_t lanes, int diagonal) {
    const float *restrict lse = r->lse, *restrict dot = r->dot;
    for (int64_t key = 0; key < keys; key++) {
        float *restrict p = r->p + key * BLOCK, *restrict ds = r->ds + key * BLOCK;
        for (int64_t q = attention_first_lane(key, diagonal); q < lanes; q++) {
            p[q] = vm_exp_negative(p[q] - lse[q]); /* the very scores of forward: none exceeds their lse */
            ds[q] = p[q] * (ds[q] - dot[q]);
        }
    }
}

/* dv += p^T do, dk += ds^T q, dq += ds k for one block of keys. */
static void add_products(const attention_call *c, const backward_room *r, const attention_meeting *m) {
    int64_t d = c->padded, dv = c->v_padded, keys = tile_pad(m->keys), step = m->diagonal ? TILE_N : BLOCK;
    float *key_grad = r->dk + m->block * BLOCK * d, *value_grad = r->dv + m->block * BLOCK * dv;
    for (int64_t key = 0; key < keys; key += step) {
        int64_t rows = cpu_min(keys - key, step), from = m->diagonal ? key : 0, at = key * BLOCK + from;
        if (from >= m->n) break;
        tile_product(rows, dv, m->n - from, r->p + at, BLOCK, 1, r->grad_o + from * dv, dv, value_grad + key * dv, dv,
                     1);
        tile_product(rows, d, m->n - from, r->ds + at, BLOCK, 1, r->q + from * d, d, key_grad + key * d, d, 1);
    }
    for (int64_t q = 0; q < m->lanes; q += step) {
        int64_t rows = cpu_min(m->lanes - q, step), end = m->diagonal ? cpu_min(m->keys, q + step) : m->keys;
        tile_product(rows, d, end, r->ds + q, 1, BLOCK, r->k + m->block * BLOCK * d, d, r->dq + q * d, d, 1);
    }
}

static void backward_keys(const attention_call *c, const attention_queries *q, const attention_meeting *m,
                          const backward_room *r) {
    attention_score(m, c->dim, r->k + m->block * BLOCK * c->padded, r->qt, r->p);
    attention_score(m, c->v_dim, r->v + m->block * BLOCK * c->v_padded, r->grad_ot, r->ds);
    attention_mask(c, m, &q->docs, r->p);
    differentiate_block(r, tile_pad(m->keys), m->lanes, m->diagonal);
    add_products(c, r, m);
}

/* Loads what a block of queries brings: q, do, lse, rowsum(do o). Of padding they are all 0. lse [n]. */
static void load_queries(const attention_call *c, const attention_queries *q, int64_t head, const float *lse,
                         const backward_room *r) {
    int64_t width = c->heads * c->v_dim, column = head * c->v_dim;
    attention_load(c->qkv, &q->docs, q->first, q->n, head * c->dim, c->dim, c->scale, r->q);
    tile_transpose(r->q, c->padded, q->lanes, c->padded, r->qt, BLOCK);
    attention_load(c->grad_o, &q->docs, q->first, q->n, column, c->v_dim, 1.0f, r->grad_o);
    tile_transpose(r->grad_o, c->v_padded, q->lanes, c->v_padded, r->grad_ot, BLOCK);
    for (int64_t i = 0; i < q->lanes; i++) {
        r->lse[i] = r->dot[i] = 0.0f;
        if (i >= q->n || attention_is_padding(&q->docs, i)) continue;
        const float *o = cpu_load(c->o, cpu_row_at(q->first + i, width) + column, c->v_dim, r->o); /* [dv] */
        r->lse[i] = lse[i];
        r->dot[i] = vm_dot(o, r->grad_o + i * c->v_padded, c->v_dim);
    }
    memset(r->dq, 0, (size_t)(BLOCK * c->padded) * sizeof(float));
}

/* Gradient of the head's sink from one block of queries. */
static float differentiate_sink(const attention_call *c, const attention_queries *q, int64_t head,
                                const backward_room *r) {
    float sum = 0.0f;
    for (int64_t i = 0; i < q->n; i++)
        if (!attention_is_padding(&q->docs, i)) sum -= vm_exp(c->sinks[head] - r->lse[i]) * r->dot[i];
    return sum;
}

static void backward_queries(const attention_call *c, int64_t sequence, int64_t head, int64_t block,
                             const backward_room *r) {
    attention_queries q = attention_take_queries(c, sequence, block);
    int64_t which = sequence * c->heads + head, width = c->dqkv->shape[1];
    load_queries(c, &q, head, c->lse + which * c->seq + block * BLOCK, r);
    for (int64_t j = attention_first_block(c, block); j <= block; j++) {
        attention_meeting m;
        if (attention_meet(c, &q, j, &m)) backward_keys(c, &q, &m, r);
    }
    for (int64_t i = 0; i < q.n; i++) {
        float *restrict dq = r->dq + i * c->padded; /* [d] */
        for (int64_t e = 0; e < c->dim; e++) dq[e] *= c->scale;
        cpu_store(c->dqkv, cpu_row_at(q.first + i, width) + head * c->dim, c->dim, dq);
    }
    if (c->dsinks) c->sink_parts[which] += differentiate_sink(c, &q, head, r);
}

/* Keys and values of one head, which every block of queries meets, one after the other: rows of qkv lie a power of two
 * apart more often than not, and would push each other out of the cache. Their gradients become 0. */
static void load_keys(const attention_call *c, int64_t sequence, int64_t kv_head, const backward_room *r) {
    for (int64_t block = 0; block < c->blocks; block++) {
        int64_t first = sequence * c->seq + block * BLOCK, n = cpu_min(c->seq - block * BLOCK, BLOCK);
        attention_docs docs = attention_read_docs(c, first, n);
        attention_load_keys(c, &docs, first, n, kv_head, r->k + block * BLOCK * c->padded,
                            r->v + block * BLOCK * c->v_padded);
    }
    memset(r->dk, 0, (size_t)(c->blocks * BLOCK * (c->padded + c->v_padded)) * sizeof(float));
}

/* Piece i: one key-value head of one sequence. */
static void attend_backward(void *arg, int64_t i, cpu_worker *w) {
    const attention_call *c = arg;
    int64_t sequence = i / c->kv_heads, kv_head = i % c->kv_heads, group = c->heads / c->kv_heads;
    int64_t slab = c->slabs < c->batch * c->kv_heads ? (int64_t)w->index : i; /* one a thread, or one a piece */
    backward_room r = carve_backward(c, slab, w);
    load_keys(c, sequence, kv_head, &r);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        if (c->dsinks) c->sink_parts[sequence * c->heads + head] = 0.0f;
        for (int64_t block = 0; block < c->blocks; block++) backward_queries(c, sequence, head, block, &r);
    }
    for (int64_t t = 0; t < c->seq; t++) {
        int64_t row = cpu_row_at(sequence * c->seq + t, c->dqkv->shape[1]);
        cpu_store(c->dqkv, row + attention_key_column(c, kv_head), c->dim, r.dk + t * c->padded);
        cpu_store(c->dqkv, row + attention_value_column(c, kv_head), c->v_dim, r.dv + t * c->v_padded);
    }
}

void attention_run_backward(cpu_device *dev, attention_call *c) {
    if (c->seq == 0) return;
    c->sink_parts = c->work + c->slabs * attention_slab_floats(c);
    cpu_run(dev, c->batch * c->kv_heads, attend_backward, c);
    for (int64_t head = 0; c->dsinks && head < c->heads; head++)
        for (int64_t b = 0; b < c->batch; b++) c->dsinks[head] += c->sink_parts[b * c->heads + head];
}
