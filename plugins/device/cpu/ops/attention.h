/* What both directions of moe.attention/0 share: the call, which blocks of keys a block of queries meets and which of
 * their pairs it sees, and the scores of one such meeting. attention.c checks arguments and runs forward,
 * attention_backward.c backward.
 * Scores are kept transposed, [key, query]: a vector register then holds queries, so that the softmax runs without
 * horizontal sums and neither keys nor values are ever transposed. Meetings on the diagonal are computed only up to the
 * strip of TILE_N queries that contains it. Scratch holds one block of queries and one of keys. */
#ifndef CPU_OPS_ATTENTION_H
#define CPU_OPS_ATTENTION_H
#include <float.h>

#include "tile.h"
#include "vmath.h"

enum { ATTENTION_BLOCK = 64, ATTENTION_MOST_DIM = 256, ATTENTION_PADDING = -1 };

typedef struct attention_call {
    const moe_tensor *qkv, *o;       /* [T,(nq+nkv)d+nkv*dv], [T,nq*dv] act */
    const moe_tensor *grad_o, *dqkv; /* [T,nq*dv], as qkv */
    const float *sinks;              /* [nq], or NULL */
    const int32_t *doc;              /* [T], or NULL */
    float *dsinks;                   /* [nq], or NULL */
    float *lse;                      /* [batch,nq,seq] log of the sum of e^score, the sink's too */
    float *work;                     /* [slabs, attention_slab_floats] */
    float *sink_parts;               /* [batch,nq] dsinks of one sequence */
    int64_t batch, seq, heads, kv_heads, dim, v_dim, window;
    int64_t padded, v_padded; /* dim, v_dim */
    int64_t blocks;           /* of queries in a sequence */
    int64_t slabs;            /* in work: one a thread, or one a key-value head */
    float scale;
} attention_call;

static inline void attention_set(attention_call *c, void *dev, const moe_attention_attr *at) {
    c->batch = at->batch;
    c->seq = at->seq;
    c->heads = at->heads;
    c->kv_heads = at->kv_heads;
    c->dim = at->head_dim;
    c->v_dim = at->v_dim;
    c->window = at->window;
    c->padded = tile_pad(c->dim);
    c->v_padded = tile_pad(c->v_dim);
    c->blocks = cpu_blocks(at->seq, ATTENTION_BLOCK);
    c->slabs = cpu_min(cpu_threads(dev), c->batch * c->kv_heads);
    c->scale = at->scale;
}

/* Floats of one key-value head in backward: k, v, dk and dv, [padded seq, padded d or dv] each. */
static inline int64_t attention_slab_floats(const attention_call *c) {
    return 2 * c->blocks * ATTENTION_BLOCK * (c->padded + c->v_padded);
}

/* Column of a key or value head in a packed row. */
static inline int64_t attention_key_column(const attention_call *c, int64_t kv_head) {
    return (c->heads + kv_head) * c->dim;
}
static inline int64_t attention_value_column(const attention_call *c, int64_t kv_head) {
    return (c->heads + c->kv_heads) * c->dim + kv_head * c->v_dim;
}

/* ---- documents ---- */
/* The numbers of a run of tokens. */
typedef struct attention_docs {
    const int32_t *doc; /* [n], or NULL: no numbers, everything is one document */
    int32_t lo, hi;     /* least and largest; lo > hi: all padding */
    int padding;        /* some token is padding */
} attention_docs;

static inline attention_docs attention_read_docs(const attention_call *c, int64_t first, int64_t n) {
    attention_docs d = {NULL, 0, 0, 0};
    if (!c->doc) return d;
    d = (attention_docs){c->doc + first, INT32_MAX, INT32_MIN, 0};
    for (int64_t i = 0; i < n; i++) {
        int32_t x = d.doc[i];
        int pad = x == ATTENTION_PADDING;
        d.lo = !pad && x < d.lo ? x : d.lo;
        d.hi = !pad && x > d.hi ? x : d.hi;
        d.padding |= pad;
    }
    return d;
}

static inline int attention_is_padding(const attention_docs *d, int64_t i) {
    return d->doc && d->doc[i] == ATTENTION_PADDING;
}

/* tile_load, with rows of zeros for padding: whatever lies there meets a weight of 0, and 0 times NaN is NaN. */
static inline void attention_load(const moe_tensor *t, const attention_docs *d, int64_t first, int64_t n,
                                  int64_t column, int64_t width, float scale, float *to) {
    tile_load(t, first, n, column, width, scale, to);
    if (!d->padding) return;
    int64_t padded = tile_pad(width);
    for (int64_t i = 0; i < n; i++)
        if (attention_is_padding(d, i)) memset(to + i * padded, 0, (size_t)padded * sizeof(float));
}

/* n keys and values of one head from token `first` on. docs: theirs. k [padded n, padded d], v [padded n, padded dv].
 */
static inline void attention_load_keys(const attention_call *c, const attention_docs *docs, int64_t first, int64_t n,
                                       int64_t kv_head, float *k, float *v) {
    attention_load(c->qkv, docs, first, n, attention_key_column(c, kv_head), c->dim, 1.0f, k);
    attention_load(c->qkv, docs, first, n, attention_value_column(c, kv_head), c->v_dim, 1.0f, v);
}

/* ---- meetings: a block of queries of one sequence and a block of its keys ---- */
typedef struct attention_queries {
    int64_t start, block;    /* first token of the sequence; block in it */
    int64_t first, n, lanes; /* first token; queries; lanes that are computed */
    attention_docs docs;
} attention_queries;

typedef struct attention_meeting {
    int64_t block, first, keys; /* of keys: block in the sequence, first token, number */
    int64_t n, lanes;           /* of queries */
    int64_t ahead;              /* tokens from the first key to the first query */
    int diagonal;               /* the same block: keys behind their query are masked */
    int edge;                   /* some query is `window` or more tokens ahead of some key */
    int mixed;                  /* some pair differs in document, or is padding */
    attention_docs docs;        /* of the keys */
} attention_meeting;

static inline attention_queries attention_take_queries(const attention_call *c, int64_t sequence, int64_t block) {
    attention_queries q = {.start = sequence * c->seq, .block = block};
    q.first = q.start + block * ATTENTION_BLOCK;
    q.n = cpu_min(c->seq - block * ATTENTION_BLOCK, ATTENTION_BLOCK);
    q.lanes = tile_pad(q.n);
    q.docs = attention_read_docs(c, q.first, q.n);
    return q;
}

/* First block with a key inside the window of some query. */
static inline int64_t attention_first_block(const attention_call *c, int64_t block) {
    int64_t key = c->window > 0 ? block * ATTENTION_BLOCK - c->window + 1 : 0;
    return key > 0 ? key / ATTENTION_BLOCK : 0;
}

/* The meeting with block `block` of keys, at most q->block. 0: no query sees a key of it. */
static inline int attention_meet(const attention_call *c, const attention_queries *q, int64_t block,
                                 attention_meeting *m) {
    *m = (attention_meeting){.block = block, .n = q->n, .lanes = q->lanes, .diagonal = block == q->block};
    m->first = q->start + block * ATTENTION_BLOCK;
    m->keys = cpu_min(c->seq - block * ATTENTION_BLOCK, ATTENTION_BLOCK);
    m->ahead = q->first - m->first;
    m->edge = c->window > 0 && m->ahead + q->n - 1 >= c->window;
    if (!c->doc) return 1;
    const attention_docs *a = &q->docs, *b = &m->docs;
    m->docs = attention_read_docs(c, m->first, m->keys);
    m->mixed = a->padding || b->padding || a->lo != a->hi || b->lo != b->hi || a->lo != b->lo;
    return a->lo <= a->hi && b->lo <= b->hi && a->lo <= b->hi && b->lo <= a->hi;
}

/* ---- blocks of scores, [key, query] with ATTENTION_BLOCK queries a row ---- */
/* First query lane of a key's row that is computed. */
static inline int64_t attention_first_lane(int64_t key, int diagonal) {
    return diagonal ? key - key % TILE_N : 0;
}

/* scores [padded keys, lanes] = x [padded keys, d] yt [d, lanes], the strips below the diagonal only. padded: d. */
static inline void attention_score(const attention_meeting *m, int64_t d, const float *x, const float *yt,
                                   float *scores) {
    int64_t keys = tile_pad(m->keys);
    for (int64_t q = 0; q < m->lanes; q += TILE_N) {
        int64_t rows = m->diagonal ? cpu_min(keys, q + TILE_N) : keys;
        tile_product(rows, cpu_min(m->lanes - q, TILE_N), d, x, tile_pad(d), 1, yt + q, ATTENTION_BLOCK, scores + q,
                     ATTENTION_BLOCK, 0);
    }
}

/* Pairs of different documents get minus infinity, and those with padding. docs: of the queries. */
static inline void attention_mask_docs(const attention_meeting *m, const attention_docs *docs, float *scores) {
    for (int64_t key = 0; key < m->keys; key++) {
        float *restrict s = scores + key * ATTENTION_BLOCK;
        const int32_t *restrict doc = docs->doc;
        int32_t own = m->docs.doc[key];
        int64_t from = attention_first_lane(key, m->diagonal);
        if (own == ATTENTION_PADDING)
            for (int64_t q = from; q < m->n; q++) s[q] = -INFINITY;
        else
            for (int64_t q = from; q < m->n; q++) s[q] = doc[q] == own ? s[q] : -INFINITY;
    }
}

/* Scores of pairs that the query does not see become minus infinity. docs: of the queries. */
static inline void attention_mask(const attention_call *c, const attention_meeting *m, const attention_docs *docs,
                                  float *scores) {
    int64_t keys = tile_pad(m->keys);
    for (int64_t key = 0; m->diagonal && key < keys; key++) {
        int64_t end = cpu_min(key, m->lanes);
        for (int64_t q = attention_first_lane(key, 1); q < end; q++) scores[key * ATTENTION_BLOCK + q] = -INFINITY;
    }
    for (int64_t key = 0; m->edge && key < keys; key++) {
        int64_t from = attention_first_lane(key, m->diagonal), out = key + c->window - m->ahead;
        for (int64_t q = out > from ? out : from; q < m->lanes; q++) scores[key * ATTENTION_BLOCK + q] = -INFINITY;
    }
    if (m->mixed) attention_mask_docs(m, docs, scores);
}

/* Backward of one call whose arguments are checked. */
#define attention_run_backward CPU_SYMBOL(attention_run_backward)
void attention_run_backward(cpu_device *dev, attention_call *c);
#endif
