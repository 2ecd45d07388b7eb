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

/* ---- forward ---- */
/* A piece: blocks of queries of some heads that share a key-value head. Their keys are loaded once for all of them. */
typedef struct forward_piece {
    int64_t sequence, kv_head;
    int64_t head, heads;   /* first, number */
    int64_t block, blocks; /* of queries, in the sequence: first, number */
} forward_piece;

/* How the work is cut into pieces: heads and blocks of one, and pieces in these directions. By sizes alone. */
typedef struct forward_cut {
    int64_t heads, blocks, head_pieces, block_pieces, pieces;
} forward_cut;

/* What is kept of one block of queries of one head between its meetings. */
typedef struct forward_state {
    float *qt, *ot; /* [padded d, BLOCK], [padded dv, BLOCK] */
    float *m, *sum; /* [BLOCK] */
} forward_state;

typedef struct forward_room {
    float *k, *v;  /* [BLOCK, padded d], [BLOCK, padded dv] */
    float *rows;   /* [BLOCK, padded d or dv] */
    float *scores; /* [BLOCK keys, BLOCK queries] */
    float *keep;   /* [BLOCK] */
    float *states; /* [heads, blocks, state_floats] */
} forward_room;

/* Floats of all states of a piece, so that they stay in a cache of some megabytes; pieces for as many threads. */
enum { STATES_FLOATS = 1 << 17, PIECES_WANTED = 64 };
_Static_assert(STATES_FLOATS + 3 * BLOCK * ATTENTION_MOST_DIM + BLOCK * (BLOCK + 1) <=
                   (int64_t)(CPU_SCRATCH_BYTES / sizeof(float)),
               "scratch of a piece");
_Static_assert(2 * BLOCK * (ATTENTION_MOST_DIM + 1) <= STATES_FLOATS, "a state");

static int64_t state_floats(const attention_call *c) {
    return (c->padded + c->v_padded + 2) * BLOCK;
}

static forward_cut cut_forward(const attention_call *c) {
    int64_t group = c->heads / c->kv_heads, most = STATES_FLOATS / state_floats(c);
    forward_cut cut = {.heads = cpu_min(group, most)};
    cut.head_pieces = cpu_blocks(group, cut.heads);
    cut.blocks = c->blocks > 0 ? cpu_min(c->blocks, most / cut.heads) : 1;
    int64_t rest = c->batch * c->kv_heads * cut.head_pieces;
    while (cut.blocks > 1 && rest * cpu_blocks(c->blocks, cut.blocks) < PIECES_WANTED) cut.blocks /= 2;
    cut.block_pieces = cpu_blocks(c->blocks, cut.blocks);
    cut.pieces = rest * cut.block_pieces;
    return cut;
}

/* Piece i: the blocks of one head follow each other, so that its keys stay in the cache; the longest comes first. */
static forward_piece take_piece(const attention_call *c, const forward_cut *cut, int64_t i) {
    int64_t group = c->heads / c->kv_heads, which = i / cut->block_pieces;
    int64_t block = cut->block_pieces - 1 - i % cut->block_pieces, head = which % cut->head_pieces * cut->heads;
    which /= cut->head_pieces;
    forward_piece p = {.sequence = which / c->kv_heads, .kv_head = which % c->kv_heads};
    p.head = p.kv_head * group + head;
    p.heads = cpu_min(group - head, cut->heads);
    p.block = block * cut->blocks;
    p.blocks = cpu_min(c->blocks - p.block, cut->blocks);
    return p;
}

static forward_room carve_forward(const attention_call *c, float *at) {
    forward_room r;
    r.k = at;
    r.v = r.k + BLOCK * c->padded;
    r.rows = r.v + BLOCK * c->v_padded;
    r.scores = r.rows + BLOCK * (c->padded > c->v_padded ? c->padded : c->v_padded);
    r.keep = r.scores + BLOCK * BLOCK;
    r.states = r.keep + BLOCK;
    return r;
}

/* State of head h of the piece and its block b. */
static forward_state state_at(const attention_call *c, const forward_piece *p, const forward_room *r, int64_t h,
                              int64_t b) {
    forward_state s;
    s.qt = r->states + (h * p->blocks + b) * state_floats(c);
    s.ot = s.qt + c->padded * BLOCK;
    s.m = s.ot + c->v_padded * BLOCK;
    s.sum = s.m + BLOCK;
    return s;
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

/* A block of queries of one head meets a block of keys: ot += v^T p. */
static void attend_keys(const attention_call *c, const attention_queries *q, const attention_meeting *m,
                        const forward_state *s, const forward_room *r) {
    attention_score(m, c->dim, r->k, s->qt, r->scores);
    attention_mask(c, m, &q->docs, r->scores);
    soften_block(r->scores, m->keys, m->lanes, m->diagonal, s->m, s->sum, r->keep);
    for (int64_t i = 0; i < c->v_padded; i++) {
        float *restrict row = s->ot + i * BLOCK;
        for (int64_t lane = 0; lane < m->lanes; lane++) row[lane] *= r->keep[lane];
    }
    for (int64_t lane = 0; lane < m->lanes; lane += TILE_N) {
        int64_t keys = m->diagonal ? cpu_min(m->keys, lane + TILE_N) : m->keys;
        tile_product(c->v_padded, cpu_min(m->lanes - lane, TILE_N), keys, r->v, 1, c->v_padded, r->scores + lane, BLOCK,
                     s->ot + lane, BLOCK, 1);
    }
}

/* The queries, and what is before the first key: nothing, or the sink alone. */
static void begin_queries(const attention_call *c, const attention_queries *q, int64_t head, const forward_state *s,
                          const forward_room *r) {
    attention_load(c->qkv, &q->docs, q->first, q->n, head * c->dim, c->dim, c->scale, r->rows);
    tile_transpose(r->rows, c->padded, q->lanes, c->padded, s->qt, BLOCK);
    float m = -FLT_MAX, sum = 0.0f;
    if (c->sinks) {
        m = c->sinks[head] > m ? c->sinks[head] : m;
        sum = vm_exp(c->sinks[head] - m); /* 1; 0 for a sink of minus infinity */
    }
    memset(s->ot, 0, (size_t)(c->v_padded * BLOCK) * sizeof(float));
    for (int64_t lane = 0; lane < BLOCK; lane++) {
        s->m[lane] = m;
        s->sum[lane] = sum;
    }
}

/* o = ot / sum, lse = m + log(sum) [n]; of padding 0, and minus infinity as befits an empty sum. */
static void finish_queries(const attention_call *c, const attention_queries *q, int64_t head, float *lse,
                           const forward_state *s, const forward_room *r) {
    for (int64_t lane = 0; lane < q->lanes; lane++) r->keep[lane] = 1.0f / s->sum[lane];
    for (int64_t i = 0; i < c->v_padded; i++) {
        float *restrict row = s->ot + i * BLOCK;
        for (int64_t lane = 0; lane < q->lanes; lane++) row[lane] *= r->keep[lane];
    }
    tile_transpose(s->ot, BLOCK, c->v_padded, q->lanes, r->rows, c->v_padded);
    for (int64_t i = 0; i < q->n; i++) {
        int64_t at = cpu_row_at(q->first + i, c->heads * c->v_dim) + head * c->v_dim;
        if (attention_is_padding(&q->docs, i)) {
            lse[i] = -INFINITY;
            cpu_zero(c->o, at, c->v_dim);
            continue;
        }
        lse[i] = s->m[i] + logf(s->sum[i]);
        cpu_store(c->o, at, c->v_dim, r->rows + i * c->v_padded);
    }
}

/* Block j of keys meets the piece's queries that see one of its keys. */
static void attend_block(const attention_call *c, const forward_piece *p, int64_t j, const forward_room *r) {
    int loaded = 0;
    for (int64_t b = 0; b < p->blocks; b++) {
        int64_t block = p->block + b;
        if (block < j || attention_first_block(c, block) > j) continue;
        attention_queries q = attention_take_queries(c, p->sequence, block);
        attention_meeting m;
        if (!attention_meet(c, &q, j, &m)) continue;
        if (!loaded) attention_load_keys(c, &m.docs, m.first, m.keys, p->kv_head, r->k, r->v);
        loaded = 1;
        for (int64_t h = 0; h < p->heads; h++) {
            forward_state s = state_at(c, p, r, h, b);
            attend_keys(c, &q, &m, &s, r);
        }
    }
}

typedef struct forward_job {
    attention_call c;
    forward_cut cut;
} forward_job;

static void attend(void *arg, int64_t i, cpu_worker *w) {
    const forward_job *job = arg;
    const attention_call *c = &job->c;
    forward_piece p = take_piece(c, &job->cut, i);
    forward_room r = carve_forward(c, w->scratch);
    for (int64_t b = 0; b < p.blocks; b++) {
        attention_queries q = attention_take_queries(c, p.sequence, p.block + b);
        for (int64_t h = 0; h < p.heads; h++) {
            forward_state s = state_at(c, &p, &r, h, b);
            begin_queries(c, &q, p.head + h, &s, &r);
        }
    }
    for (int64_t j = attention_first_block(c, p.block); j < p.block + p.blocks; j++) attend_block(c, &p, j, &r);
    for (int64_t b = 0; b < p.blocks; b++) {
        attention_queries q = attention_take_queries(c, p.sequence, p.block + b);
        for (int64_t h = 0; h < p.heads; h++) {
            int64_t head = p.head + h, which = p.sequence * c->heads + head;
            forward_state s = state_at(c, &p, &r, h, b);
            finish_queries(c, &q, head, c->lse + which * c->seq + (p.block + b) * BLOCK, &s, &r);
        }
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    forward_job job = {.c = {.qkv = &a->in[0], .o = &a->out[0], .lse = a->saved}};
    moe_attention_attr at = op_heads_attr(a);
    attention_set(&job.c, dev, &at);
    take_optional(a, 1, &job.c);
    job.cut = cut_forward(&job.c);
    cpu_run(dev, job.cut.pieces, attend, &job);
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
