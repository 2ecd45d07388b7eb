/* moe.attention/0: causal attention by blocks, after Dao et al. (arXiv 2205.14135), for grouped query heads.
 * Scores are kept transposed, [key, query]: a vector register then holds queries, so that the softmax runs without
 * horizontal sums and neither keys nor values are ever transposed. Blocks on the diagonal are computed only up to the
 * strip of TILE_N queries that contains it. Scratch holds one block of queries and one of keys. */
#include "heads.h"
#include "tile.h"
#include "vmath.h"

static const char op[] = MOE_OP_ATTENTION;
enum { BLOCK = 64, MOST_DIM = 256 };

typedef struct attention_call {
    const moe_tensor *qkv, *o;       /* [T,(nq+2nkv)d], [T,nq*d] act */
    const moe_tensor *grad_o, *dqkv; /* [T,nq*d], [T,(nq+2nkv)d] act */
    float *lse;                      /* [batch,nq,seq] log of the sum of e^score */
    float *work;                     /* [slabs, 2, padded seq, padded d]: dk and dv of one key-value head */
    int64_t batch, seq, heads, kv_heads, dim, padded, blocks; /* padded: dim; blocks: of queries in a sequence */
    int64_t slabs;                                            /* dk and dv in work */
    float scale;
} attention_call;

/* ---- set-up ---- */
static moe_status check_dim(const moe_op_args *a, moe_err *err) {
    moe_status s = heads_check(a, op, err);
    if (s != MOE_OK) return s;
    const moe_attention_attr *at = a->attr;
    if (at->head_dim > MOST_DIM)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: head_dim is %u, want at most %d", op, at->head_dim, MOST_DIM);
    if (at->batch < 0 || at->seq < 0)
        return moe_fail(err, MOE_E_ARG, "%s: batch %lld, seq %lld", op, (long long)at->batch, (long long)at->seq);
    if (!isfinite(at->scale)) return moe_fail(err, MOE_E_ARG, "%s: scale is %g", op, (double)at->scale);
    return MOE_OK;
}

static void set_sizes(attention_call *c, void *dev, const moe_attention_attr *at) {
    c->batch = at->batch;
    c->seq = at->seq;
    c->heads = at->heads;
    c->kv_heads = at->kv_heads;
    c->dim = at->head_dim;
    c->padded = tile_pad(at->head_dim);
    c->blocks = cpu_blocks(at->seq, BLOCK);
    c->slabs = cpu_min(cpu_threads(dev), c->batch * c->kv_heads);
    c->scale = at->scale;
}

/* Floats of dk and dv of one key-value head. */
static int64_t slab_floats(const attention_call *c) {
    return 2 * c->blocks * BLOCK * c->padded;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = cpu_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = check_dim(a, err);
    if (s != MOE_OK) return s;
    const moe_attention_attr *at = a->attr;
    int64_t tokens = at->batch * at->seq;
    s = cpu_want(&a->in[0], op, "qkv", CPU_ACT, 2, CPU_SHAPE(tokens, heads_width(at)), err);
    if (s == MOE_OK)
        s = cpu_want(&a->out[0], op, "o", a->in[0].dtype, 2, CPU_SHAPE(tokens, (int64_t)at->heads * at->head_dim), err);
    if (s != MOE_OK) return s;
    attention_call c;
    set_sizes(&c, dev, at);
    *saved = (uint64_t)(tokens * c.heads) * sizeof(float);
    *workspace = (uint64_t)(c.slabs * slab_floats(&c)) * sizeof(float);
    return MOE_OK;
}

/* ---- blocks of scores, [key, query] with BLOCK queries a row ---- */
/* First query lane of a key's row that is computed. */
static int64_t first_lane(int64_t key, int diagonal) {
    return diagonal ? key - key % TILE_N : 0;
}

/* scores [keys, lanes] = x [keys, d] yt [d, lanes], the strips below the diagonal only. */
static void score_block(const attention_call *c, const float *x, const float *yt, int64_t keys, int64_t lanes,
                        int diagonal, float *scores) {
    for (int64_t q = 0; q < lanes; q += TILE_N) {
        int64_t m = diagonal ? cpu_min(keys, q + TILE_N) : keys;
        tile_product(m, cpu_min(lanes - q, TILE_N), c->dim, x, c->padded, 1, yt + q, BLOCK, scores + q, BLOCK, 0);
    }
}

/* Queries before the key get minus infinity. */
static void mask_block(float *scores, int64_t keys, int64_t lanes) {
    for (int64_t key = 0; key < keys; key++) {
        int64_t end = cpu_min(key, lanes);
        for (int64_t q = first_lane(key, 1); q < end; q++) scores[key * BLOCK + q] = -INFINITY;
    }
}

/* One step of the running softmax: scores become e^(score - m) with the new largest score m; sum follows; keep is what
 * the output so far is to be multiplied with. m, sum, keep: [lanes]. */
static void soften_block(float *restrict scores, int64_t keys, int64_t lanes, int diagonal, float *restrict m,
                         float *restrict sum, float *restrict keep) {
    for (int64_t q = 0; q < lanes; q++) keep[q] = m[q];
    for (int64_t key = 0; key < keys; key++) {
        const float *s = scores + key * BLOCK;
        for (int64_t q = first_lane(key, diagonal); q < lanes; q++) m[q] = s[q] > m[q] ? s[q] : m[q];
    }
    for (int64_t q = 0; q < lanes; q++) {
        keep[q] = vm_exp(keep[q] - m[q]);
        sum[q] *= keep[q];
    }
    for (int64_t key = 0; key < keys; key++) {
        float *s = scores + key * BLOCK;
        for (int64_t q = first_lane(key, diagonal); q < lanes; q++) {
            s[q] = vm_exp(s[q] - m[q]);
            sum[q] += s[q];
        }
    }
}

/* ---- forward: one block of queries of one head ---- */
typedef struct forward_room {
    float *k, *v, *rows;   /* [BLOCK, padded] */
    float *qt, *ot;        /* [padded, BLOCK] */
    float *scores;         /* [BLOCK keys, BLOCK queries] */
    float *m, *sum, *keep; /* [BLOCK] */
} forward_room;

static forward_room carve_forward(float *at, int64_t padded) {
    forward_room r;
    r.k = at;
    r.v = r.k + BLOCK * padded;
    r.rows = r.v + BLOCK * padded;
    r.qt = r.rows + BLOCK * padded;
    r.ot = r.qt + padded * BLOCK;
    r.scores = r.ot + padded * BLOCK;
    r.m = r.scores + BLOCK * BLOCK;
    r.sum = r.m + BLOCK;
    r.keep = r.sum + BLOCK;
    return r;
}

/* ot += v^T p of one block of keys that begins at token `first`. */
static void attend_keys(const attention_call *c, int64_t first, int64_t kv_head, int64_t keys, int64_t lanes,
                        int diagonal, const forward_room *r) {
    int64_t k_column = (c->heads + kv_head) * c->dim, padded_keys = tile_pad(keys);
    tile_load(c->qkv, first, keys, k_column, c->dim, 1.0f, r->k);
    tile_load(c->qkv, first, keys, k_column + c->kv_heads * c->dim, c->dim, 1.0f, r->v);
    score_block(c, r->k, r->qt, padded_keys, lanes, diagonal, r->scores);
    if (diagonal) mask_block(r->scores, padded_keys, lanes);
    soften_block(r->scores, keys, lanes, diagonal, r->m, r->sum, r->keep);
    for (int64_t i = 0; i < c->padded; i++) {
        float *restrict row = r->ot + i * BLOCK;
        for (int64_t q = 0; q < lanes; q++) row[q] *= r->keep[q];
    }
    for (int64_t q = 0; q < lanes; q += TILE_N) {
        int64_t n = diagonal ? cpu_min(keys, q + TILE_N) : keys;
        tile_product(c->padded, cpu_min(lanes - q, TILE_N), n, r->v, 1, c->padded, r->scores + q, BLOCK, r->ot + q,
                     BLOCK, 1);
    }
}

/* o = ot / sum, lse = m + log(sum) for n queries from token `first` on. */
static void finish_queries(const attention_call *c, int64_t first, int64_t head, int64_t n, float *lse,
                           const forward_room *r) {
    int64_t lanes = tile_pad(n);
    for (int64_t q = 0; q < lanes; q++) r->keep[q] = 1.0f / r->sum[q];
    for (int64_t i = 0; i < c->padded; i++) {
        float *restrict row = r->ot + i * BLOCK;
        for (int64_t q = 0; q < lanes; q++) row[q] *= r->keep[q];
    }
    tile_transpose(r->ot, BLOCK, c->padded, lanes, r->rows, c->padded);
    for (int64_t q = 0; q < n; q++) {
        lse[q] = r->m[q] + logf(r->sum[q]);
        cpu_store(c->o, cpu_row_at(first + q, c->heads * c->dim) + head * c->dim, c->dim, r->rows + q * c->padded);
    }
}

/* Piece i: the blocks of one head follow each other, so that its keys stay in the cache; the longest comes first. */
static void attend(void *arg, int64_t i, cpu_worker *w) {
    const attention_call *c = arg;
    int64_t block = c->blocks - 1 - i % c->blocks, which = i / c->blocks;
    int64_t head = which % c->heads, start = which / c->heads * c->seq, kv_head = head / (c->heads / c->kv_heads);
    int64_t first = start + block * BLOCK, n = cpu_min(c->seq - block * BLOCK, BLOCK), lanes = tile_pad(n);
    forward_room r = carve_forward(w->scratch, c->padded);
    tile_load(c->qkv, first, n, head * c->dim, c->dim, c->scale, r.rows);
    tile_transpose(r.rows, c->padded, lanes, c->padded, r.qt, BLOCK);
    memset(r.ot, 0, (size_t)(c->padded * BLOCK) * sizeof(float));
    for (int64_t q = 0; q < BLOCK; q++) {
        r.m[q] = -INFINITY;
        r.sum[q] = 0.0f;
    }
    for (int64_t j = 0; j < block; j++) attend_keys(c, start + j * BLOCK, kv_head, BLOCK, lanes, 0, &r);
    attend_keys(c, first, kv_head, n, lanes, 1, &r);
    finish_queries(c, first, head, n, c->lse + which * c->seq + block * BLOCK, &r);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    attention_call c = {.qkv = &a->in[0], .o = &a->out[0], .lse = a->saved};
    set_sizes(&c, dev, a->attr);
    cpu_run(dev, c.blocks * c.batch * c.heads, attend, &c);
    return MOE_OK;
}

/* ---- backward: one key-value head with all its query heads ----
 * p = e^(score - lse), dv = p^T do, dp = do v^T, ds = p (dp - rowsum(do o)), dq = scale ds k, dk = scale ds^T q. */
typedef struct backward_room {
    float *k, *v, *q, *grad_o, *dq; /* [BLOCK, padded]; q times scale */
    float *qt, *grad_ot;            /* [padded, BLOCK] */
    float *p, *ds;                  /* [BLOCK keys, BLOCK queries] */
    float *lse, *dot;               /* [BLOCK] */
    float *dk, *dv;                 /* [padded seq, padded] */
} backward_room;

static backward_room carve_backward(const attention_call *c, int64_t slab, cpu_worker *w) {
    int64_t tile = BLOCK * c->padded;
    backward_room r;
    r.k = w->scratch;
    r.v = r.k + tile;
    r.q = r.v + tile;
    r.grad_o = r.q + tile;
    r.dq = r.grad_o + tile;
    r.qt = r.dq + tile;
    r.grad_ot = r.qt + tile;
    r.p = r.grad_ot + tile;
    r.ds = r.p + BLOCK * BLOCK;
    r.lse = r.ds + BLOCK * BLOCK;
    r.dot = r.lse + BLOCK;
    r.dk = c->work + slab * slab_floats(c);
    r.dv = r.dk + c->blocks * BLOCK * c->padded;
    return r;
}

/* p and ds from scores (in p) and dp (in ds). */
static void differentiate_block(const backward_room *r, int64_t keys, int64_t lanes, int diagonal) {
    const float *restrict lse = r->lse, *restrict dot = r->dot;
    for (int64_t key = 0; key < keys; key++) {
        float *restrict p = r->p + key * BLOCK, *restrict ds = r->ds + key * BLOCK;
        for (int64_t q = first_lane(key, diagonal); q < lanes; q++) {
            p[q] = vm_exp(p[q] - lse[q]);
            ds[q] = p[q] * (ds[q] - dot[q]);
        }
    }
}

/* dv += p^T do, dk += ds^T q, dq += ds k for one block of keys, n queries of which lanes are computed. */
static void add_products(const attention_call *c, const backward_room *r, int64_t keys, int64_t n, int diagonal,
                         float *dk, float *dv) {
    int64_t d = c->padded, padded_keys = tile_pad(keys), lanes = tile_pad(n), step = diagonal ? TILE_N : BLOCK;
    for (int64_t key = 0; key < padded_keys; key += step) {
        int64_t m = cpu_min(padded_keys - key, step), from = diagonal ? key : 0, at = key * BLOCK + from;
        if (from >= n) break;
        tile_product(m, d, n - from, r->p + at, BLOCK, 1, r->grad_o + from * d, d, dv + key * d, d, 1);
        tile_product(m, d, n - from, r->ds + at, BLOCK, 1, r->q + from * d, d, dk + key * d, d, 1);
    }
    for (int64_t q = 0; q < lanes; q += step) {
        int64_t m = cpu_min(lanes - q, step), end = diagonal ? cpu_min(keys, q + step) : keys;
        tile_product(m, d, end, r->ds + q, 1, BLOCK, r->k, d, r->dq + q * d, d, 1);
    }
}

static void backward_keys(const attention_call *c, const backward_room *r, int64_t start, int64_t block,
                          int64_t kv_head, int64_t n, int diagonal) {
    int64_t k_column = (c->heads + kv_head) * c->dim, first = start + block * BLOCK;
    int64_t keys = cpu_min(c->seq - block * BLOCK, BLOCK), lanes = tile_pad(n);
    tile_load(c->qkv, first, keys, k_column, c->dim, 1.0f, r->k);
    tile_load(c->qkv, first, keys, k_column + c->kv_heads * c->dim, c->dim, 1.0f, r->v);
    score_block(c, r->k, r->qt, tile_pad(keys), lanes, diagonal, r->p);
    score_block(c, r->v, r->grad_ot, tile_pad(keys), lanes, diagonal, r->ds);
    if (diagonal) mask_block(r->p, tile_pad(keys), lanes);
    differentiate_block(r, tile_pad(keys), lanes, diagonal);
    add_products(c, r, keys, n, diagonal, r->dk + block * BLOCK * c->padded, r->dv + block * BLOCK * c->padded);
}

/* Loads what a block of n queries brings: q, do, lse, rowsum(do o). */
static void load_queries(const attention_call *c, const backward_room *r, int64_t first, int64_t head, int64_t n,
                         const float *lse) {
    int64_t lanes = tile_pad(n), width = c->heads * c->dim;
    tile_load(c->qkv, first, n, head * c->dim, c->dim, c->scale, r->q);
    tile_transpose(r->q, c->padded, lanes, c->padded, r->qt, BLOCK);
    tile_load(c->grad_o, first, n, head * c->dim, c->dim, 1.0f, r->grad_o);
    tile_transpose(r->grad_o, c->padded, lanes, c->padded, r->grad_ot, BLOCK);
    for (int64_t q = 0; q < lanes; q++) {
        r->lse[q] = r->dot[q] = 0.0f;
        if (q >= n) continue;
        const float *o = cpu_load(c->o, cpu_row_at(first + q, width) + head * c->dim, c->dim, r->dq); /* [d] */
        r->lse[q] = lse[q];
        r->dot[q] = vm_dot(o, r->grad_o + q * c->padded, c->dim);
    }
    memset(r->dq, 0, (size_t)(BLOCK * c->padded) * sizeof(float));
}

static void backward_queries(const attention_call *c, const backward_room *r, int64_t sequence, int64_t head,
                             int64_t kv_head, int64_t block) {
    int64_t start = sequence * c->seq, first = start + block * BLOCK, n = cpu_min(c->seq - block * BLOCK, BLOCK);
    load_queries(c, r, first, head, n, c->lse + (sequence * c->heads + head) * c->seq + block * BLOCK);
    for (int64_t j = 0; j <= block; j++) backward_keys(c, r, start, j, kv_head, n, j == block);
    int64_t width = c->dqkv->shape[1];
    for (int64_t q = 0; q < n; q++) {
        float *restrict dq = r->dq + q * c->padded; /* [d] */
        for (int64_t i = 0; i < c->dim; i++) dq[i] *= c->scale;
        cpu_store(c->dqkv, cpu_row_at(first + q, width) + head * c->dim, c->dim, dq);
    }
}

static void attend_backward(void *arg, int64_t i, cpu_worker *w) {
    const attention_call *c = arg;
    int64_t sequence = i / c->kv_heads, kv_head = i % c->kv_heads, group = c->heads / c->kv_heads;
    int64_t slab = c->slabs < c->batch * c->kv_heads ? (int64_t)w->index : i; /* one a thread, or one a piece */
    backward_room r = carve_backward(c, slab, w);
    memset(r.dk, 0, (size_t)slab_floats(c) * sizeof(float));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t block = 0; block < c->blocks; block++) backward_queries(c, &r, sequence, head, kv_head, block);
    for (int64_t t = 0; t < c->seq; t++) {
        int64_t at = cpu_row_at(sequence * c->seq + t, c->dqkv->shape[1]) + (c->heads + kv_head) * c->dim;
        cpu_store(c->dqkv, at, c->dim, r.dk + t * c->padded);
        cpu_store(c->dqkv, at + c->kv_heads * c->dim, c->dim, r.dv + t * c->padded);
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = cpu_want_lists(a, op, 3, 3, 1, 1, err);
    if (s == MOE_OK) s = check_dim(a, err);
    if (s != MOE_OK) return s;
    const moe_attention_attr *at = a->attr;
    int64_t tokens = at->batch * at->seq, width = (int64_t)at->heads * at->head_dim;
    s = cpu_want(&a->in[1], op, "qkv", CPU_ACT, 2, CPU_SHAPE(tokens, heads_width(at)), err);
    if (s == MOE_OK) s = cpu_want(&a->in[0], op, "do", a->in[1].dtype, 2, CPU_SHAPE(tokens, width), err);
    if (s == MOE_OK) s = cpu_want(&a->in[2], op, "o", a->in[1].dtype, 2, CPU_SHAPE(tokens, width), err);
    if (s == MOE_OK) s = cpu_want(&a->out[0], op, "dqkv", a->in[1].dtype, 2, a->in[1].shape, err);
    if (s != MOE_OK) return s;
    attention_call c = {.grad_o = &a->in[0], .qkv = &a->in[1], .o = &a->in[2], .dqkv = &a->out[0], .lse = a->saved};
    c.work = a->workspace;
    set_sizes(&c, dev, at);
    cpu_run(dev, c.seq > 0 ? c.batch * c.kv_heads : 0, attend_backward, &c);
    return MOE_OK;
}

const moe_op CPU_OP(attention) = {sizeof(moe_op), 0, op, sizes, forward, backward};
