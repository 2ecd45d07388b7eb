/* moe.attention/0: causal attention by blocks, after Dao et al. (arXiv 2205.14135), for grouped query heads; a window,
 * documents and sinks on top. Here: the checks and forward. What both directions share is in attention.h. */
#include "attention.h"

static const char op[] = MOE_OP_ATTENTION;
enum { BLOCK = ATTENTION_BLOCK };

/* ---- set-up ---- */
static void take_optional(const moe_op_args *a, uint32_t i, attention_call *c) {
    const moe_tensor *sinks = op_optional(a->in, a->n_in, i), *doc = op_optional(a->in, a->n_in, i + 1);
    c->sinks = sinks ? sinks->data : NULL;
    c->doc = doc ? doc->data : NULL;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_attention(a, ATTENTION_MOST_DIM, err);
    if (s != MOE_OK) return s;
    attention_call c;
    moe_attention_attr at = op_heads_attr(a);
    attention_set(&c, dev, &at);
    int64_t parts = op_optional(a->in, a->n_in, 1) ? c.batch * c.heads : 0;
    *saved = (uint64_t)(c.batch * c.seq * c.heads) * sizeof(float);
    *workspace = (uint64_t)(c.slabs * attention_slab_floats(&c) + parts) * sizeof(float);
    return MOE_OK;
}

/* ---- forward: one block of queries of one head ---- */
typedef struct forward_room {
    float *k, *v;          /* [BLOCK, padded d], [BLOCK, padded dv] */
    float *rows;           /* [BLOCK, padded d or dv] */
    float *qt, *ot;        /* [padded d, BLOCK], [padded dv, BLOCK] */
    float *scores;         /* [BLOCK keys, BLOCK queries] */
    float *m, *sum, *keep; /* [BLOCK] */
} forward_room;

static forward_room carve_forward(const attention_call *c, float *at) {
    forward_room r;
    r.k = at;
    r.v = r.k + BLOCK * c->padded;
    r.rows = r.v + BLOCK * c->v_padded;
    r.qt = r.rows + BLOCK * (c->padded > c->v_padded ? c->padded : c->v_padded);
    r.ot = r.qt + c->padded * BLOCK;
    r.scores = r.ot + c->v_padded * BLOCK;
    r.m = r.scores + BLOCK * BLOCK;
    r.sum = r.m + BLOCK;
    r.keep = r.sum + BLOCK;
    return r;
}

/* One step of the running softmax: scores become e^(score - m) with the new largest score m; sum follows; keep is what
 * the output so far is to be multiplied with. m is never minus infinity, so that a query that has not seen a key yet
 * keeps its sum of 0. Here: VM_LANES queries, whose m and sum stay in registers. */
static inline void soften_lanes(float *restrict scores, int64_t keys, float *restrict m, float *restrict sum,
                                float *restrict keep) {
    vm_vector most = vm_load(m), odd = most;
    for (int64_t key = 0; key + 1 < keys; key += 2) { /* one largest of even keys, one of odd: half the wait */
        most = vm_larger(vm_load(scores + key * BLOCK), most);
        odd = vm_larger(vm_load(scores + (key + 1) * BLOCK), odd);
    }
    if (keys % 2) most = vm_larger(vm_load(scores + (keys - 1) * BLOCK), most);
    most = vm_larger(odd, most);
    for (int64_t lane = 0; lane < VM_LANES; lane++) keep[lane] = vm_exp_negative(m[lane] - most[lane]);
    vm_store(m, most);
    vm_vector total = vm_load(sum) * vm_load(keep);
    for (int64_t key = 0; key < keys; key++) {
        float *restrict s = scores + key * BLOCK;
        for (int64_t lane = 0; lane < VM_LANES; lane++) s[lane] = vm_exp_negative(s[lane] - m[lane]);
        total += vm_load(s);
    }
    vm_store(sum, total);
}

/* The same for all queries of a block. m, sum, keep: [lanes]. */
static void soften_block(float *scores, int64_t keys, int64_t lanes, int diagonal, float *m, float *sum, float *keep) {
    for (int64_t q = 0; q < lanes; q += VM_LANES) {
        int64_t seen = diagonal ? cpu_min(keys, q - q % TILE_N + TILE_N) : keys;
        soften_lanes(scores + q, seen, m + q, sum + q, keep + q);
    }
}

/* ot += v^T p of one block of keys. */
static void attend_keys(const attention_call *c, const attention_queries *q, const attention_meeting *m,
                        int64_t kv_head, const forward_room *r) {
    attention_load(c->qkv, &m->docs, m->first, m->keys, attention_key_column(c, kv_head), c->dim, 1.0f, r->k);
    attention_load(c->qkv, &m->docs, m->first, m->keys, attention_value_column(c, kv_head), c->v_dim, 1.0f, r->v);
    attention_score(m, c->dim, r->k, r->qt, r->scores);
    attention_mask(c, m, &q->docs, r->scores);
    soften_block(r->scores, m->keys, m->lanes, m->diagonal, r->m, r->sum, r->keep);
    for (int64_t i = 0; i < c->v_padded; i++) {
        float *restrict row = r->ot + i * BLOCK;
        for (int64_t lane = 0; lane < m->lanes; lane++) row[lane] *= r->keep[lane];
    }
    for (int64_t lane = 0; lane < m->lanes; lane += TILE_N) {
        int64_t keys = m->diagonal ? cpu_min(m->keys, lane + TILE_N) : m->keys;
        tile_product(c->v_padded, cpu_min(m->lanes - lane, TILE_N), keys, r->v, 1, c->v_padded, r->scores + lane, BLOCK,
                     r->ot + lane, BLOCK, 1);
    }
}

/* Before the first key: nothing, or the sink alone. */
static void begin_queries(const attention_call *c, int64_t head, const forward_room *r) {
    float m = -FLT_MAX, sum = 0.0f;
    if (c->sinks) {
        m = c->sinks[head] > m ? c->sinks[head] : m;
        sum = vm_exp(c->sinks[head] - m); /* 1; 0 for a sink of minus infinity */
    }
    memset(r->ot, 0, (size_t)(c->v_padded * BLOCK) * sizeof(float));
    for (int64_t lane = 0; lane < BLOCK; lane++) {
        r->m[lane] = m;
        r->sum[lane] = sum;
    }
}

/* o = ot / sum, lse = m + log(sum) [n]; of padding 0, and minus infinity as befits an empty sum. */
static void finish_queries(const attention_call *c, const attention_queries *q, int64_t head, float *lse,
                           const forward_room *r) {
    for (int64_t lane = 0; lane < q->lanes; lane++) r->keep[lane] = 1.0f / r->sum[lane];
    for (int64_t i = 0; i < c->v_padded; i++) {
        float *restrict row = r->ot + i * BLOCK;
        for (int64_t lane = 0; lane < q->lanes; lane++) row[lane] *= r->keep[lane];
    }
    tile_transpose(r->ot, BLOCK, c->v_padded, q->lanes, r->rows, c->v_padded);
    for (int64_t i = 0; i < q->n; i++) {
        int64_t at = cpu_row_at(q->first + i, c->heads * c->v_dim) + head * c->v_dim;
        if (attention_is_padding(&q->docs, i)) {
            lse[i] = -INFINITY;
            cpu_zero(c->o, at, c->v_dim);
            continue;
        }
        lse[i] = r->m[i] + logf(r->sum[i]);
        cpu_store(c->o, at, c->v_dim, r->rows + i * c->v_padded);
    }
}

/* Piece i: the blocks of one head follow each other, so that its keys stay in the cache; the longest comes first. */
static void attend(void *arg, int64_t i, cpu_worker *w) {
    const attention_call *c = arg;
    int64_t block = c->blocks - 1 - i % c->blocks, which = i / c->blocks;
    int64_t head = which % c->heads, sequence = which / c->heads, kv_head = head / (c->heads / c->kv_heads);
    attention_queries q = attention_take_queries(c, sequence, block);
    forward_room r = carve_forward(c, w->scratch);
    attention_load(c->qkv, &q.docs, q.first, q.n, head * c->dim, c->dim, c->scale, r.rows);
    tile_transpose(r.rows, c->padded, q.lanes, c->padded, r.qt, BLOCK);
    begin_queries(c, head, &r);
    for (int64_t j = attention_first_block(c, block); j <= block; j++) {
        attention_meeting m;
        if (attention_meet(c, &q, j, &m)) attend_keys(c, &q, &m, kv_head, &r);
    }
    finish_queries(c, &q, head, c->lse + which * c->seq + block * BLOCK, &r);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    attention_call c = {.qkv = &a->in[0], .o = &a->out[0], .lse = a->saved};
    moe_attention_attr at = op_heads_attr(a);
    attention_set(&c, dev, &at);
    take_optional(a, 1, &c);
    cpu_run(dev, c.blocks * c.batch * c.heads, attend, &c);
    return MOE_OK;
}

/* ---- backward ---- */
static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_attention_backward(a, ATTENTION_MOST_DIM, err);
    if (s != MOE_OK) return s;
    moe_attention_attr at = op_heads_attr(a);
    attention_call c = {.grad_o = &a->in[0], .qkv = &a->in[1], .o = &a->in[2], .dqkv = &a->out[0], .lse = a->saved};
    const moe_tensor *dsinks = op_optional(a->out, a->n_out, 1);
    attention_set(&c, dev, &at);
    take_optional(a, 3, &c);
    c.dsinks = dsinks ? dsinks->data : NULL;
    c.work = a->workspace;
    attention_run_backward(dev, &c);
    return MOE_OK;
}

const moe_op CPU_OP(attention) = {sizeof(moe_op), 0, op, sizes, forward, backward};
