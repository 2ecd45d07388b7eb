/* Router "forced", the two step calls: checks of the host's arrays, choices by turn or by lot, weights and their
 * gradient. Tokens are shared among threads; no token looks at another, and counts are summed afterwards. */
#include <float.h>
#include <math.h>
#include <stdatomic.h>

#include "args.h"
#include "forced.h"

#define BLOCK 64 /* tokens a work item */

typedef struct call {
    const forced *f;
    const float *logits;    /* [T,E] */
    const uint8_t *mask;    /* [T] or NULL */
    int32_t *ids;           /* [T,k] */
    float *weights;         /* [T,k] */
    const float *d_weights; /* [T,k] */
    float *d_logits;        /* [T,E] */
    uint8_t *scratch;       /* [workers, padded E] zipf: ranks that a token has drawn, all 0 between tokens */
    int64_t tokens, first;  /* T; global number of token 0 */
    uint64_t step;
    _Atomic int64_t bad; /* least live token with a logit that is not finite; T = none */
    void (*work)(struct call *c, int64_t token, uint8_t *drawn);
} call;

/* ---- memory and passes over tokens ---- */

static uint64_t drawn_bytes(const forced *f) {
    return ((uint64_t)f->experts + 63) & ~(uint64_t)63;
}

static uint32_t workers(const forced *f) {
    return f->pool ? f->pool->threads : 1;
}

uint64_t forced_workspace(const forced *f) {
    return f->tail ? workers(f) * drawn_bytes(f) : 0;
}

static void run_block(void *arg, int64_t block, uint32_t worker) {
    call *c = arg;
    uint8_t *drawn = c->scratch ? c->scratch + worker * drawn_bytes(c->f) : NULL;
    int64_t first = block * BLOCK, last = c->tokens - first < BLOCK ? c->tokens : first + BLOCK;
    for (int64_t token = first; token < last; token++) c->work(c, token, drawn);
}

static void run_tokens(call *c, void (*work)(call *, int64_t, uint8_t *)) {
    int64_t blocks = (c->tokens + BLOCK - 1) / BLOCK;
    c->work = work;
    if (c->f->pool && blocks > 1)
        c->f->pool->run(c->f->pool->self, blocks, run_block, c);
    else
        for (int64_t b = 0; b < blocks; b++) run_block(c, b, 0);
}

static int token_live(const call *c, int64_t token) {
    return !c->mask || c->mask[token] != 0;
}

/* ---- choices ---- */

/* Pair p = k * global token + slot goes to expert order[p mod E]: any run of pairs that follow each other, so any
 * range of tokens, loads all experts alike to within one, and k <= E pairs are distinct. Padding takes its turn too:
 * a token's choice does not depend on others. */
static void choose_in_turn(const call *c, int64_t token, int32_t *ids) {
    const forced *f = c->f;
    int64_t at = ((c->first + token) % f->experts) * f->k % f->experts;
    for (int64_t j = 0; j < f->k; j++) {
        ids[j] = f->order[at];
        at = at + 1 == f->experts ? 0 : at + 1;
    }
}

/* The numbers of one token: 32-bit words, four a block. A token has 2^20 blocks of its own. */
typedef struct lot {
    moe_random_key key;
    uint64_t element, step;
    moe_random_block block;
    int used;
} lot;

static uint32_t lot_draw(lot *l) {
    if (l->used == 4) {
        l->block = moe_random_words(l->key, l->element++, l->step);
        l->used = 0;
    }
    return l->block.v[l->used++];
}

/* The last rank r in [from, experts) with tail[r] >= x, for 0 < x <= tail[from]. */
static int64_t find_rank(const double *tail, int64_t from, int64_t experts, double x) {
    const double *at = tail + from;
    for (int64_t n = experts - from; n > 1;) {
        int64_t half = n / 2;
        at = at[half] >= x ? at + half : at;
        n -= half;
    }
    return at - tail;
}

/* k ranks one after the other without replacement, each in proportion to its weight among those that are left: the law
 * of the k largest of log weight + Gumbel noise (Kool et al., arXiv 1903.06059, section 2.3), without E draws a token.
 * A rank that was drawn before is drawn again from all that lie at or after the first one left; that one is the
 * heaviest of them, so at most E - first draws are expected for a choice, and two or three are usual. */
static void choose_by_lot(const call *c, int64_t token, int32_t *ids, uint8_t *drawn) {
    const forced *f = c->f;
    lot l = {.key = f->key, .element = (uint64_t)(c->first + token) << 20, .step = c->step, .used = 4};
    int64_t from = 0;
    for (int64_t j = 0; j < f->k; j++) {
        int64_t rank;
        do rank = find_rank(f->tail, from, f->experts, (lot_draw(&l) + 0.5) * 0x1p-32 * f->tail[from]);
        while (drawn[rank]);
        drawn[rank] = 1;
        ids[j] = (int32_t)rank;
        while (from < f->experts - 1 && drawn[from]) from++;
    }
    for (int64_t j = 0; j < f->k; j++) {
        drawn[ids[j]] = 0;
        ids[j] = f->order[ids[j]];
    }
}

/* ---- one token ---- */

static int all_finite(const float *row, int64_t n) {
    int bad = 0;
    for (int64_t e = 0; e < n; e++) bad |= !(fabsf(row[e]) <= FLT_MAX);
    return !bad;
}

static void report_bad(call *c, int64_t token) {
    int64_t seen = atomic_load(&c->bad);
    while (token < seen && !atomic_compare_exchange_weak(&c->bad, &seen, token)) {
    }
}

/* w_j = exp(l_j) / sum_i exp(l_i) over the chosen logits */
static void token_forward(call *c, int64_t token, uint8_t *drawn) {
    const forced *f = c->f;
    const float *row = c->logits + token * f->experts;
    int32_t *ids = c->ids + token * f->k;
    float *w = c->weights + token * f->k, max = -INFINITY, sum = 0;
    int live = token_live(c, token), finite = live && all_finite(row, f->experts);
    if (live && !finite) report_bad(c, token);
    if (!finite) {
        for (int64_t j = 0; j < f->k; j++) {
            ids[j] = -1;
            w[j] = 0;
        }
        return;
    }
    if (f->tail)
        choose_by_lot(c, token, ids, drawn);
    else
        choose_in_turn(c, token, ids);
    for (int64_t j = 0; j < f->k; j++) max = row[ids[j]] > max ? row[ids[j]] : max;
    for (int64_t j = 0; j < f->k; j++) sum += w[j] = expf(row[ids[j]] - max);
    for (int64_t j = 0; j < f->k; j++) w[j] /= sum;
}

/* dl_j = w_j (dw_j - sum_i w_i dw_i) for the chosen, zero for all others */
static void token_backward(call *c, int64_t token, uint8_t *drawn) {
    (void)drawn;
    const forced *f = c->f;
    const int32_t *ids = c->ids + token * f->k;
    const float *w = c->weights + token * f->k, *dw = c->d_weights + token * f->k;
    float *d = c->d_logits + token * f->experts, dot = 0;
    memset(d, 0, (size_t)f->experts * sizeof *d);
    if (!token_live(c, token)) return;
    for (int64_t j = 0; j < f->k; j++) dot += w[j] * dw[j];
    for (int64_t j = 0; j < f->k; j++) d[ids[j]] = w[j] * (dw[j] - dot);
}

/* ---- the calls ---- */

/* What both directions take: logits, mask, ids, weights. */
static moe_status open_call(call *c, const forced *f, const moe_route_args *a, moe_err *err) {
    if (!MOE_REACH(a, moe_route_args, d_logits))
        return moe_fail(err, MOE_E_ARG, "layer %u: moe_route_args of %u bytes lacks d_logits", f->layer, a->size);
    int64_t tokens = a->logits ? a->logits->shape[0] : -1;
    if (tokens < 0 || tokens > f->max_tokens)
        return moe_fail(err, MOE_E_ARG, "layer %u: %lld tokens, declared were at most %lld", f->layer,
                        (long long)tokens, (long long)f->max_tokens);
    moe_status s = router_expect(f->layer, a->logits, "logits", MOE_F32, tokens, f->experts, err);
    if (!s && !router_absent(a->mask)) s = router_expect(f->layer, a->mask, "mask", MOE_U8, tokens, -1, err);
    if (!s) s = router_expect(f->layer, a->expert_ids, "expert_ids", MOE_I32, tokens, f->k, err);
    if (!s) s = router_expect(f->layer, a->weights, "weights", MOE_F32, tokens, f->k, err);
    if (s) return s;
    c->f = f;
    c->tokens = tokens;
    c->logits = a->logits->data;
    c->mask = router_absent(a->mask) ? NULL : a->mask->data;
    c->ids = a->expert_ids->data;
    c->weights = a->weights->data;
    atomic_init(&c->bad, tokens);
    return MOE_OK;
}

/* What choices depend on, and the scratch of zipf. */
static moe_status open_choice(call *c, const moe_route_args *a, moe_err *err) {
    const forced *f = c->f;
    if (a->first_token < 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: first_token = %lld is negative", f->layer,
                        (long long)a->first_token);
    c->first = a->first_token;
    if (!f->tail) return MOE_OK;
    if (!a->step)
        return moe_fail(err, MOE_E_ARG, "layer %u: load = zipf draws for a step, and none is given", f->layer);
    if (!a->workspace) return moe_fail(err, MOE_E_ARG, "layer %u: no workspace", f->layer);
    c->step = *a->step;
    c->scratch = a->workspace;
    memset(c->scratch, 0, forced_workspace(f));
    return MOE_OK;
}

moe_status forced_route(const void *self, const moe_route_args *a, moe_err *err) {
    const forced *f = self;
    call c = {0};
    moe_status s = open_call(&c, f, a, err);
    if (!s && !router_absent(a->counts)) s = router_expect(f->layer, a->counts, "counts", MOE_I64, f->experts, -1, err);
    if (!s) s = open_choice(&c, a, err);
    if (s) return s;
    run_tokens(&c, token_forward);
    int64_t bad = atomic_load(&c.bad);
    if (bad < c.tokens) return router_fail_logit(f->layer, c.logits + bad * f->experts, bad, f->experts, err);
    if (router_absent(a->counts)) return MOE_OK;
    int64_t *counts = a->counts->data;
    for (int64_t i = 0; i < c.tokens * f->k; i++)
        if (c.ids[i] >= 0) counts[c.ids[i]]++;
    return MOE_OK;
}

moe_status forced_route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    const forced *f = self;
    call c = {0};
    moe_status s = open_call(&c, f, a, err);
    if (!s) s = router_expect(f->layer, a->d_weights, "d_weights", MOE_F32, c.tokens, f->k, err);
    if (!s) s = router_expect(f->layer, a->d_logits, "d_logits", MOE_F32, c.tokens, f->experts, err);
    if (!s) s = router_check_ids(f->layer, c.ids, c.mask, c.tokens, f->k, f->experts, err);
    if (s) return s;
    c.d_weights = a->d_weights->data;
    c.d_logits = a->d_logits->data;
    run_tokens(&c, token_backward);
    return MOE_OK;
}
