/* moe.attention/0 against plain attention in FP64, which stores every score; gradients against that one's, and those
 * against sampled central differences. Shapes cross the block size (64) on both sides, with windows, documents and
 * padding, sinks, and values wider and narrower than keys. Rows of padding hold NaN throughout. */
#include "core/run_suite.h"
#include "ot.h"

enum { ALONE, ONE, SEVERAL, SHUFFLED, PAD_LEFT, PAD_RIGHT, PAD_MIDDLE, PAD_SEQUENCE, N_DOCS }; /* ALONE: no tensor */

typedef struct shape {
    int64_t batch, seq;
    uint32_t heads, kv_heads, dim;
    int32_t act;
    uint32_t v_dim;
    int64_t window;
    int sinks, docs, samples; /* samples: differences in excess of the full comparison; 0 = usual */
} shape;
static const shape shapes[] = {
    {0, 16, 2, 1, 8, MOE_F32, 0, 0, 0, ALONE, 0},
    {2, 0, 2, 1, 8, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 1, 1, 1, 4, MOE_F32, 0, 0, 0, ALONE, 0},
    {2, 5, 2, 1, 6, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 17, 4, 2, 16, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 33, 2, 2, 33, MOE_BF16, 0, 0, 0, ALONE, 0},
    {2, 63, 1, 1, 32, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 64, 3, 1, 48, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 65, 2, 2, 64, MOE_BF16, 0, 0, 0, ALONE, 0},
    {1, 130, 2, 1, 20, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 70, 1, 1, 256, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 140, 1, 1, 5, MOE_F32, 0, 0, 0, ALONE, 0},
    {5, 70, 1, 1, 8, MOE_F32, 0, 0, 0, ALONE, 0},
    {0, 16, 2, 1, 8, MOE_F32, 24, 5, 1, PAD_RIGHT, 0},
    {2, 0, 2, 1, 8, MOE_F32, 4, 5, 1, SEVERAL, 0},
    {1, 70, 2, 1, 32, MOE_F32, 256, 9, 1, SEVERAL, 0},
    /* each width that a device may have a kernel for */
    {1, 70, 2, 1, 64, MOE_F32, 0, 0, 0, ALONE, 0},
    {1, 97, 2, 2, 96, MOE_BF16, 0, 0, 0, ALONE, 0},
    {1, 70, 1, 1, 96, MOE_F32, 0, 40, 0, ALONE, 0},
    {1, 130, 2, 1, 128, MOE_BF16, 0, 90, 0, ALONE, 0},
    {1, 70, 1, 1, 128, MOE_F32, 0, 0, 1, ONE, 0},
    {1, 130, 2, 1, 192, MOE_BF16, 128, 0, 0, SEVERAL, 0},
    {1, 70, 2, 2, 192, MOE_F32, 128, 0, 0, ALONE, 0},
    {1, 70, 1, 1, 256, MOE_BF16, 0, 0, 0, SHUFFLED, 0},
    {1, 300, 2, 1, 64, MOE_BF16, 0, 150, 0, SEVERAL, 0},
};

/* Where the reference works: all FP64. */
typedef struct plain {
    const shape *s;
    int64_t dv, width;                 /* of a value head, of a packed row */
    double scale, *qkv, *grad, *sinks; /* [T,width], [T,nq*dv], [nq] or NULL */
    const int32_t *doc;                /* [T] or NULL */
    double *o, *lse;                   /* [T,nq*dv], [batch,nq,seq] */
    double *dqkv, *dsinks;             /* as qkv, [nq]; not filled where dqkv is NULL */
    double *score;                     /* [seq] */
} plain;

static int is_padding(const plain *p, int64_t token) {
    return p->doc && p->doc[token] == -1;
}
static int sees(const plain *p, int64_t b, int64_t i, int64_t j) {
    int64_t t = b * p->s->seq;
    if (is_padding(p, t + i) || (p->doc && p->doc[t + i] != p->doc[t + j])) return 0;
    return p->s->window == 0 || i - j < p->s->window;
}
/* Element 0 of a head's key or value of token j in sequence b, as an index. */
static int64_t key_at(const plain *p, int64_t b, int64_t kv, int64_t j) {
    return (b * p->s->seq + j) * p->width + ((int64_t)p->s->heads + kv) * p->s->dim;
}
static int64_t value_at(const plain *p, int64_t b, int64_t kv, int64_t j) {
    return (b * p->s->seq + j) * p->width + ((int64_t)p->s->heads + p->s->kv_heads) * p->s->dim + kv * p->dv;
}

/* Gradients of one query, from its probabilities in p->score; dot = sum of grad * o, sink = its probability. */
static void plain_gradients(const plain *p, int64_t b, int64_t head, int64_t i, double dot, double sink) {
    int64_t d = p->s->dim, kv = head / (p->s->heads / p->s->kv_heads), q = (b * p->s->seq + i) * p->width + head * d;
    const double *grad = p->grad + ((b * p->s->seq + i) * p->s->heads + head) * p->dv;
    if (p->sinks) p->dsinks[head] -= sink * dot;
    for (int64_t j = 0; j <= i; j++) {
        if (!sees(p, b, i, j)) continue;
        int64_t k = key_at(p, b, kv, j), v = value_at(p, b, kv, j);
        double dp = 0.0;
        for (int64_t e = 0; e < p->dv; e++) {
            dp += grad[e] * p->qkv[v + e];
            p->dqkv[v + e] += p->score[j] * grad[e];
        }
        double ds = p->score[j] * (dp - dot) * p->scale;
        for (int64_t e = 0; e < d; e++) {
            p->dqkv[q + e] += ds * p->qkv[k + e];
            p->dqkv[k + e] += ds * p->qkv[q + e];
        }
    }
}

/* o, lse and gradients of one query that is no padding; returns sum of grad * o. */
static double plain_query(const plain *p, int64_t b, int64_t head, int64_t i) {
    int64_t d = p->s->dim, kv = head / (p->s->heads / p->s->kv_heads), token = b * p->s->seq + i;
    double most = p->sinks ? p->sinks[head] : -INFINITY, sum = 0.0, dot = 0.0;
    for (int64_t j = 0; j <= i; j++) {
        p->score[j] = -INFINITY;
        if (!sees(p, b, i, j)) continue;
        const double *q = p->qkv + token * p->width + head * d, *k = p->qkv + key_at(p, b, kv, j);
        p->score[j] = 0.0;
        for (int64_t e = 0; e < d; e++) p->score[j] += q[e] * k[e] * p->scale;
        most = fmax(most, p->score[j]);
    }
    double sink = p->sinks ? exp(p->sinks[head] - most) : 0.0;
    sum = sink;
    for (int64_t j = 0; j <= i; j++) sum += p->score[j] = exp(p->score[j] - most);
    for (int64_t j = 0; j <= i; j++) p->score[j] /= sum;
    for (int64_t e = 0; e < p->dv; e++) {
        int64_t at = (token * p->s->heads + head) * p->dv + e;
        p->o[at] = 0.0;
        for (int64_t j = 0; j <= i; j++)
            if (sees(p, b, i, j)) p->o[at] += p->score[j] * p->qkv[value_at(p, b, kv, j) + e];
        dot += p->grad[at] * p->o[at];
    }
    p->lse[(b * p->s->heads + head) * p->s->seq + i] = most + log(sum);
    if (p->dqkv) plain_gradients(p, b, head, i, dot, sink / sum);
    return dot;
}

static double plain_attention(void *ctx) {
    const plain *p = ctx;
    double sum = 0.0;
    for (int64_t b = 0; b < p->s->batch; b++)
        for (int64_t h = 0; h < p->s->heads; h++)
            for (int64_t i = 0; i < p->s->seq; i++)
                if (!is_padding(p, b * p->s->seq + i)) sum += plain_query(p, b, h, i);
    return sum;
}

/* Numbers of the tokens of a sequence of n; padding is -1. Documents of several lengths, about n / 4 tokens. */
static void number_tokens(ot *t, int docs, int64_t n, int64_t sequence, int32_t *doc) {
    int32_t at = 7;
    for (int64_t i = 0; i < n; i++) {
        at += docs != ONE && i > 0 && ot_below(t, n / 4 + 1) == 0;
        doc[i] = docs == SHUFFLED ? (int32_t)ot_below(t, 5) - 2 : at; /* -2 is a number like any other */
        if (docs == PAD_LEFT && i < n / 3) doc[i] = -1;
        if (docs == PAD_RIGHT && i >= n - (n + 1) / 3) doc[i] = -1;
        if (docs == PAD_MIDDLE && i >= n / 4 && i < n - n / 8) doc[i] = -1;
        if (docs == PAD_SEQUENCE && sequence == 0) doc[i] = -1;
    }
}

/* The tensors of one call and its gradients. */
typedef struct tensors {
    moe_attention_attr attr;
    moe_tensor qkv, sinks, doc, o, grad, dqkv, dsinks;
} tensors;

/* Rows of padding become NaN. */
static void spoil_padding(const moe_tensor *x, const moe_tensor *doc) {
    for (int64_t i = 0; doc->ndim && i < ot_count(x); i++)
        if (ot_get(doc, i / x->shape[1]) == -1.0) ot_set(x, i, NAN);
}

static tensors make_tensors(ot *t, const shape *s) {
    tensors x = {.sinks = ot_absent(), .doc = ot_absent(), .dsinks = ot_absent()};
    int64_t tokens = s->batch * s->seq, dv = s->v_dim ? s->v_dim : s->dim;
    int64_t width = (int64_t)(s->heads + s->kv_heads) * s->dim + s->kv_heads * dv;
    x.attr = (moe_attention_attr){.size = sizeof x.attr, .heads = s->heads, .kv_heads = s->kv_heads};
    x.attr.head_dim = s->dim;
    x.attr.batch = s->batch;
    x.attr.seq = s->seq;
    x.attr.scale = 1.0f / sqrtf((float)s->dim);
    x.attr.v_dim = s->v_dim;
    x.attr.window = s->window;
    x.qkv = ot_random(t, ot_tensor(t, s->act, tokens, width), -2, 2);
    x.o = ot_tensor(t, s->act, tokens, s->heads * dv);
    x.grad = ot_random(t, ot_tensor(t, s->act, tokens, s->heads * dv), -1, 1);
    x.dqkv = ot_tensor(t, s->act, tokens, width);
    if (s->sinks) {
        x.sinks = ot_random(t, ot_tensor(t, MOE_F32, s->heads), -1, 3);
        x.dsinks = ot_fill(ot_tensor(t, MOE_F32, s->heads), 0.25);
    }
    if (s->docs == ALONE) return x;
    x.doc = ot_tensor(t, MOE_I32, tokens);
    for (int64_t b = 0; b < s->batch; b++) number_tokens(t, s->docs, s->seq, b, (int32_t *)x.doc.data + b * s->seq);
    spoil_padding(&x.qkv, &x.doc);
    spoil_padding(&x.grad, &x.doc);
    return x;
}

/* Forward and backward; call keeps saved. */
static void run_tensors(ot *t, ot_call *call, const tensors *x) {
    ot_forward(t, call, MOE_OP_ATTENTION, OT_LIST(x->qkv, x->sinks, x->doc), OT_LIST(x->o), &x->attr, NULL);
    ot_backward(t, call, OT_LIST(x->grad, x->qkv, x->o, x->sinks, x->doc), OT_LIST(x->dqkv, x->dsinks));
}

/* The tensors' numbers as doubles, and room for the reference's. */
static plain make_plain(const shape *s, const tensors *x) {
    plain p = {.s = s, .dv = s->v_dim ? s->v_dim : s->dim, .width = x->qkv.shape[1], .scale = (double)x->attr.scale};
    p.qkv = ot_doubles(&x->qkv);
    p.grad = ot_doubles(&x->grad);
    p.sinks = s->sinks ? ot_doubles(&x->sinks) : NULL;
    p.doc = s->docs == ALONE ? NULL : x->doc.data;
    p.o = ot_zeros(ot_count(&x->o));
    p.lse = ot_zeros(s->batch * s->seq * s->heads);
    p.dqkv = ot_zeros(ot_count(&x->qkv));
    p.dsinks = ot_zeros(s->heads);
    p.score = ot_zeros(s->seq);
    return p;
}

static void free_plain(const plain *p) {
    double *all[] = {p->qkv, p->grad, p->sinks, p->o, p->lse, p->dqkv, p->dsinks, p->score};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Padding: o and dqkv are 0 to the bit; its log-sum-exp on the CPU (elsewhere NULL) is that of nothing, and becomes 0
 * here, as the reference's. */
static void check_padding(const plain *p, const tensors *x, float *lse) {
    for (int64_t i = 0; p->doc && i < ot_count(&x->o); i++)
        if (is_padding(p, i / x->o.shape[1])) ot_want(ot_get(&x->o, i) == 0.0);
    for (int64_t i = 0; p->doc && i < ot_count(&x->dqkv); i++)
        if (is_padding(p, i / p->width)) ot_want(ot_get(&x->dqkv, i) == 0.0);
    for (int64_t i = 0; lse && p->doc && i < p->s->batch * p->s->heads * p->s->seq; i++)
        if (is_padding(p, i / p->s->seq / p->s->heads * p->s->seq + i % p->s->seq)) {
            ot_want(lse[i] == -INFINITY);
            lse[i] = 0.0f;
        }
}

static uint64_t attention_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    tensors x = make_tensors(t, s);
    run_tensors(t, &call, &x);
    uint64_t hash = ot_hash(ot_hash(0, &x.o), &x.dqkv);
    if (s->sinks) hash = ot_hash(hash, &x.dsinks);
    if (t->repeat) return hash; /* the same bits have been compared */
    plain p = make_plain(s, &x);
    double tol = s->act == MOE_BF16 ? 1e-2 : 1e-5;
    plain_attention(&p);
    moe_tensor lse = {.data = call.args.saved, .dtype = MOE_F32, .ndim = 3, .shape = {s->batch, s->heads, s->seq, 1}};
    check_padding(&p, &x, test_on_cpu() ? lse.data : NULL);
    const int rounds = s->act == MOE_BF16 && !test_on_cpu(); /* p too, which enters o, and by o dsinks */
    ot_near("o", &x.o, p.o, rounds ? 0x1p-9 : 2e-6);
    if (test_on_cpu()) ot_near("lse", &lse, p.lse, 2e-6); /* how another device keeps it is its own */
    ot_near("dqkv", &x.dqkv, p.dqkv, tol);
    for (int64_t h = 0; s->sinks && h < s->heads; h++) ot_set(&x.dsinks, h, ot_get(&x.dsinks, h) - 0.25);
    if (s->sinks) ot_near("dsinks", &x.dsinks, p.dsinks, rounds ? 2 * tol : tol);
    free(p.dqkv);
    p.dqkv = NULL;
    int samples = s->samples ? s->samples : s->seq > 60 ? 5 : 16;
    ot_differences(t, "dqkv", plain_attention, &p, p.qkv, &x.dqkv, samples, 2 * tol);
    if (s->sinks) ot_differences(t, "dsinks", plain_attention, &p, p.sinks, &x.dsinks, samples, 2 * tol);
    free_plain(&p);
    return hash;
}

START_TEST(attention_and_gradients_hold) {
    OT_EVERYWHERE(attention_case, shapes);
}
END_TEST

/* Every length with every window and every kind of numbering; sinks, widths and dtypes take turns. Under a sanitizer
 * two of three shrink to one token. */
START_TEST(windows_documents_and_sinks_hold) {
    static const int64_t seqs[] = {1, 63, 64, 65, 130};
    static shape all[5 * 5 * N_DOCS];
    size_t n = 0;
    for (int docs = 0; docs < N_DOCS; docs++)
        for (size_t i = 0; i < 5; i++)
            for (int w = 0; w < 5; w++, n++) {
                const int64_t windows[] = {0, 1, 5, seqs[i], seqs[i] + 3};
                all[n] = (shape){1 + (n % 2 || docs == PAD_SEQUENCE),
                                 UNDER_SANITIZER && n % 3 ? 1 : seqs[i],
                                 2,
                                 1 + n % 2,
                                 16,
                                 MOE_F32,
                                 0,
                                 windows[w],
                                 n % 3 != 0,
                                 docs,
                                 1};
                if (n % 4 < 2) all[n].dim = n % 4 ? 24 : 16;
                if (n % 4 < 2) all[n].v_dim = n % 4 ? 16 : 24;
                if (n % 5 == 0) all[n].act = MOE_BF16;
            }
    OT_EVERYWHERE(attention_case, all);
}
END_TEST

START_TEST(random_shapes_hold) {
    shape random[24];
    ot r = {.seed = 77};
    for (size_t i = 0; i < 24; i++) {
        uint32_t kv_heads = 1 + (uint32_t)ot_below(&r, 2), group = 1 + (uint32_t)ot_below(&r, 3);
        random[i] = (shape){.heads = kv_heads * group, .kv_heads = kv_heads};
        random[i].batch = 1 + ot_below(&r, 2);
        random[i].seq = 1 + ot_below(&r, i % 4 ? 80 : 200);
        random[i].dim = 4 + (uint32_t)ot_below(&r, 30);
        random[i].act = i % 3 ? MOE_F32 : MOE_BF16;
        random[i].samples = 4;
        if (i < 8) continue; /* plain ones */
        random[i].v_dim = (uint32_t)ot_below(&r, 40);
        random[i].window = ot_below(&r, 100);
        random[i].sinks = (int)ot_below(&r, 2);
        random[i].docs = (int)ot_below(&r, N_DOCS);
    }
    OT_EVERYWHERE(attention_case, random);
}
END_TEST

/* More key-value heads than threads: each thread reuses its own sums of dk and dv, never another's. */
START_TEST(threads_keep_their_sums_apart) {
    static const char *const threads[] = {"1", "3"};
    static const shape s = {6, 128, 4, 4, 32, MOE_F32, 0, 0, 1, ALONE, 0};
    uint64_t hash[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        ot t;
        ot_call call;
        ck_assert_int_eq(ot_open(&t, "auto", threads[i]), MOE_OK);
        tensors x = make_tensors(&t, &s);
        run_tensors(&t, &call, &x);
        for (int j = 0; j < 6; j++) {
            ot_fill(x.dsinks, 0);
            ot_backward(&t, &call, OT_LIST(x.grad, x.qkv, x.o, x.sinks, x.doc), OT_LIST(x.dqkv, x.dsinks));
            uint64_t h = ot_hash(ot_hash(0, &x.dqkv), &x.dsinks);
            ot_want_msg((i == 0 && j == 0) || h == hash[0], "call %d with %s threads gives other bits", j, threads[i]);
            hash[i] = h;
        }
        ot_close(&t);
    }
}
END_TEST

/* Same bits of o and dqkv. */
static void want_same(const char *what, const tensors *a, const tensors *b) {
    ot_want_msg(ot_hash(0, &a->o) == ot_hash(0, &b->o), "%s changes o", what);
    ot_want_msg(ot_hash(0, &a->dqkv) == ot_hash(0, &b->dqkv), "%s changes dqkv", what);
}

/* What masks nothing changes no bit: a window of the length or more, one document, a sink of weight 0, v_dim in words,
 * a struct that ends before the fields that came later. */
START_TEST(what_masks_nothing_changes_nothing) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const shape s = {2, 130, 4, 2, 20, MOE_F32, 0, 0, 0, ALONE, 0};
    tensors x = make_tensors(&t, &s), y = x;
    run_tensors(&t, &call, &x);
    static const int64_t windows[] = {130, 131, INT64_MAX};
    y.o = ot_clone(&t, &x.o);
    y.dqkv = ot_clone(&t, &x.dqkv);
    for (int i = 0; i < 3; i++) {
        y.attr.window = windows[i];
        run_tensors(&t, &call, &y);
        want_same("window", &x, &y);
    }
    y.attr.window = 0;
    y.attr.v_dim = 20;
    y.doc = ot_fill(ot_tensor(&t, MOE_I32, 260), 3);
    y.sinks = ot_fill(ot_tensor(&t, MOE_F32, 4), -INFINITY);
    y.dsinks = ot_fill(ot_tensor(&t, MOE_F32, 4), 0);
    run_tensors(&t, &call, &y);
    want_same("document, sink or v_dim", &x, &y);
    for (int64_t h = 0; h < 4; h++) ot_want(ot_get(&y.dsinks, h) == 0.0);
    const uint32_t reach = offsetof(moe_attention_attr, v_dim);
    void *attr = ot_alloc(&t, reach); /* beyond it lie bytes that are no attribute */
    memcpy(attr, &x.attr, reach);
    memcpy(attr, &reach, sizeof reach);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(x.qkv), OT_LIST(y.o), attr, NULL);
    ot_backward(&t, &call, OT_LIST(x.grad, x.qkv, y.o), OT_LIST(y.dqkv));
    want_same("short struct", &x, &y);
    ot_close(&t);
}
END_TEST

/* Rows of x that are not of document `own` become `padding` or `other`, as they are. */
static void replace_rows(const moe_tensor *x, const moe_tensor *doc, double own, double padding, const double *other) {
    for (int64_t i = 0; i < ot_count(x); i++) {
        double number = ot_get(doc, i / x->shape[1]);
        if (number == -1.0) ot_set(x, i, padding);
        if (number != -1.0 && number != own && other) ot_set(x, i, *other);
    }
}

/* Rows that are no padding, of document `own` or of all (NULL), are the same. */
static void want_same_rows(const char *what, const moe_tensor *x, const moe_tensor *y, const moe_tensor *doc,
                           const double *own) {
    for (int64_t i = 0; i < ot_count(x); i++) {
        double number = ot_get(doc, i / x->shape[1]);
        if (number == -1.0 || (own && number != *own)) continue;
        ot_want_msg(ot_get(x, i) == ot_get(y, i), "%s[%lld] is %g, was %g", what, (long long)i, ot_get(y, i),
                    ot_get(x, i));
    }
}

/* Whatever lies in padding, and in other documents, reaches no bit of the rest. */
START_TEST(padding_and_other_documents_are_out_of_reach) {
    ot t;
    ot_call call;
    ot_start(&t);
    for (int i = 0; i < 2 * N_DOCS; i++) {
        int docs = i / 2, others = i % 2;
        if (docs == ALONE) continue;
        const shape s = {2, 130, 4, 2, 24, MOE_F32, 16, docs % 2 ? 0 : 70, 1, docs, 0};
        const double nine = 9;
        tensors x = make_tensors(&t, &s), y = x; /* padding of x is NaN */
        int64_t last = 259;
        while (ot_get(&x.doc, last) == -1.0) last--;
        double own = ot_get(&x.doc, last);
        ot_set(&x.sinks, 0, 200); /* e^200 is no FP32 */
        y.qkv = ot_clone(&t, &x.qkv);
        y.grad = ot_clone(&t, &x.grad);
        y.o = ot_clone(&t, &x.o);
        y.dqkv = ot_clone(&t, &x.dqkv);
        y.dsinks = ot_clone(&t, &x.dsinks);
        replace_rows(&y.qkv, &x.doc, own, 0, others ? &nine : NULL);
        replace_rows(&y.grad, &x.doc, own, INFINITY, others ? &nine : NULL);
        run_tensors(&t, &call, &x);
        run_tensors(&t, &call, &y);
        want_same_rows("o", &x.o, &y.o, &x.doc, others ? &own : NULL);
        want_same_rows("dqkv", &x.dqkv, &y.dqkv, &x.doc, others ? &own : NULL);
        for (int64_t h = 0; h < 4 && !others; h++) ot_want(ot_get(&x.dsinks, h) == ot_get(&y.dsinks, h));
        ot_clear(&t);
    }
    ot_close(&t);
}
END_TEST

/* Two documents in one sequence are two sequences. */
START_TEST(a_document_equals_its_own_sequence) {
    ot t;
    ot_call call, part;
    ot_start(&t);
    static const shape s = {1, 150, 2, 1, 16, MOE_F32, 0, 40, 1, ONE, 0};
    static const int64_t begins[] = {0, 83, 150};
    tensors x = make_tensors(&t, &s);
    for (int64_t i = 0; i < 150; i++) ot_set(&x.doc, i, i < 83 ? 4 : 2);
    run_tensors(&t, &call, &x);
    double dsinks[2] = {0, 0};
    for (int j = 0; j < 2; j++) {
        int64_t n = begins[j + 1] - begins[j], row = begins[j];
        tensors y = x;
        y.attr.seq = n;
        y.doc = ot_absent();
        y.qkv.data = (float *)x.qkv.data + row * 64;
        y.grad.data = (float *)x.grad.data + row * 32;
        y.qkv.shape[0] = y.grad.shape[0] = n;
        y.o = ot_tensor(&t, MOE_F32, n, 32);
        y.dqkv = ot_tensor(&t, MOE_F32, n, 64);
        y.dsinks = ot_fill(ot_tensor(&t, MOE_F32, 2), 0);
        run_tensors(&t, &part, &y);
        moe_tensor o = y.o, dqkv = y.dqkv;
        o.data = (float *)x.o.data + row * 32;
        dqkv.data = (float *)x.dqkv.data + row * 64;
        double *want_o = ot_doubles(&y.o), *want_dqkv = ot_doubles(&y.dqkv);
        ot_near("o", &o, want_o, 2e-6);
        ot_near("dqkv", &dqkv, want_dqkv, 1e-5);
        free(want_o);
        free(want_dqkv);
        for (int h = 0; h < 2; h++) dsinks[h] += ot_get(&y.dsinks, h);
    }
    for (int h = 0; h < 2; h++) ot_set(&x.dsinks, h, ot_get(&x.dsinks, h) - 0.25);
    ot_near("dsinks", &x.dsinks, dsinks, 1e-5);
    ot_close(&t);
}
END_TEST

/* One token: o = v / (1 + e^(sink - score)). A sink far above takes all and leaves no gradient; without dsinks the
 * other gradients are the same. */
START_TEST(sinks_take_their_share) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const shape s = {1, 1, 3, 1, 4, MOE_F32, 0, 0, 1, ALONE, 0};
    tensors x = make_tensors(&t, &s), y = x;
    ot_fill(x.qkv, 1);
    ot_fill(x.grad, 1);
    static const float sinks[3] = {2.0f, 3.0f, 500.0f}; /* the score is 4 / sqrt(4) */
    memcpy(x.sinks.data, sinks, sizeof sinks);
    run_tensors(&t, &call, &x);
    const double share = 1 / (1 + exp(1.0)), sink_share = 1 - share; /* of head 1 */
    double o[12], dsinks[3] = {-0.5 * 2, -sink_share * 4 * share, 0};
    for (int i = 0; i < 12; i++) o[i] = i < 4 ? 0.5 : i < 8 ? share : 0;
    ot_near("o", &x.o, o, 1e-6);
    for (int64_t h = 0; h < 3; h++) ot_set(&x.dsinks, h, ot_get(&x.dsinks, h) - 0.25);
    ot_near("dsinks", &x.dsinks, dsinks, 1e-6);
    y.dqkv = ot_clone(&t, &x.dqkv);
    memset(y.dqkv.data, 0, 20 * sizeof(float));
    ot_backward(&t, &call, OT_LIST(x.grad, x.qkv, x.o, x.sinks), OT_LIST(y.dqkv));
    want_same("leaving out dsinks", &x, &y);
    ot_close(&t);
}
END_TEST

/* Scores of several hundred do not overflow, and one of them takes all. */
START_TEST(large_scores_are_safe) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 1, .kv_heads = 1, .head_dim = 4, .batch = 1, .seq = 70, .scale = 1.0f};
    moe_tensor qkv = ot_random(&t, ot_tensor(&t, MOE_F32, 70, 12), -30, 30), o = ot_tensor(&t, MOE_F32, 70, 4);
    moe_tensor grad = ot_fill(ot_tensor(&t, MOE_F32, 70, 4), 1), dqkv = ot_tensor(&t, MOE_F32, 70, 12);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    ot_backward(&t, &call, OT_LIST(grad, qkv, o), OT_LIST(dqkv));
    for (int64_t i = 0; i < 280; i++) ot_want(fabs(ot_get(&o, i)) <= 30.0001);
    for (int64_t i = 0; i < 840; i++) ot_want(isfinite(ot_get(&dqkv, i)));
    ot_close(&t);
}
END_TEST

/* Later tokens and other sequences have no influence: the first rows keep their bits. */
START_TEST(nothing_leaks_from_the_future) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 8, .batch = 2, .seq = 100, .scale = 0.3f};
    moe_tensor qkv = ot_random(&t, ot_tensor(&t, MOE_F32, 200, 32), -1, 1), o = ot_tensor(&t, MOE_F32, 200, 16);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    moe_tensor before = ot_clone(&t, &o);
    for (int64_t r = 70; r < 100; r++)
        for (int64_t i = 0; i < 32; i++) ot_set(&qkv, r * 32 + i, 5);
    ot_forward(&t, &call, MOE_OP_ATTENTION, OT_LIST(qkv), OT_LIST(o), &attr, NULL);
    ot_want(memcmp(before.data, o.data, 70 * 16 * 4) == 0);
    ot_want(memcmp((float *)before.data + 1600, (float *)o.data + 1600, 1600 * 4) == 0);
    ot_want(memcmp((float *)before.data + 1120, (float *)o.data + 1120, 480 * 4) != 0);
    ot_close(&t);
}
END_TEST

/* What one call is refused for. */
typedef struct refusal {
    moe_attention_attr attr;
    const moe_tensor *qkv, *sinks, *doc;
    moe_status code;
    const char *text;
} refusal;

START_TEST(bad_arguments_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_attention_attr good = {
        .size = sizeof good, .heads = 2, .kv_heads = 1, .head_dim = 8, .batch = 2, .seq = 3, .scale = 1};
    moe_attention_attr wide = good, odd = good, value = good, wider = good, past = good, flat = good, tall = good;
    moe_attention_attr tiny = good, many = good;
    wide.head_dim = 257;
    odd.kv_heads = 0;
    value.v_dim = 5;
    wider.v_dim = 300;
    past.window = -1;
    flat.scale = 0;
    tall.scale = INFINITY;
    tiny.size = offsetof(moe_attention_attr, scale);
    many.batch = many.seq = INT64_MAX / 2;
    moe_tensor seven = ot_tensor(&t, MOE_F32, 7, 32), six = ot_tensor(&t, MOE_F32, 6, 32), none = ot_absent();
    moe_tensor o = ot_tensor(&t, MOE_F32, 6, 16), three = ot_tensor(&t, MOE_F32, 3), wrong = ot_tensor(&t, MOE_BF16, 2);
    moe_tensor two = ot_tensor(&t, MOE_F32, 2), doc = ot_tensor(&t, MOE_I32, 2, 3), far = ot_tensor(&t, MOE_I64, 6);
    const refusal all[] = {
        {good, &seven, &none, &none, MOE_E_ARG, "qkv is [7,32] F32, want [6,32]"},
        {wide, &six, &none, &none, MOE_E_UNSUPPORTED, "head_dim is 257, want at most 256"},
        {odd, &six, &none, &none, MOE_E_ARG, "2 query heads and 0 key-value heads"},
        {value, &six, &none, &none, MOE_E_ARG, "qkv is [6,32] F32, want [6,29]"},
        {wider, &six, &none, &none, MOE_E_UNSUPPORTED, "v_dim is 300, want at most 256"},
        {past, &six, &none, &none, MOE_E_ARG, "window is -1, want 0 or more"},
        {flat, &six, &none, &none, MOE_E_ARG, "scale is 0, want a finite number that is not 0"},
        {tall, &six, &none, &none, MOE_E_ARG, "scale is inf, want a finite number"},
        {tiny, &six, &none, &none, MOE_E_ARG, "attr has size 32, want at least 36"},
        {many, &six, &none, &none, MOE_E_ARG, "batch 4611686018427387903, seq 4611686018427387903"},
        {good, &six, &three, &none, MOE_E_ARG, "sinks is [3] F32, want [2] F32"},
        {good, &six, &wrong, &none, MOE_E_ARG, "sinks is [2] BF16, want [2] F32"},
        {good, &six, &two, &doc, MOE_E_ARG, "doc is [2,3] I32, want [6] I32"},
        {good, &six, &none, &far, MOE_E_ARG, "doc is [6] I64, want [6] I32"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const refusal *r = &all[i];
        ot_refused(
            &call,
            ot_try(&t, &call, MOE_OP_ATTENTION, OT_LIST(*r->qkv, *r->sinks, *r->doc), OT_LIST(o), &r->attr, NULL),
            r->code, r->text);
    }
    ot_close(&t);
}
END_TEST

START_TEST(bad_arguments_of_backward_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    static const shape s = {2, 3, 2, 1, 8, MOE_F32, 4, 0, 1, ONE, 0};
    tensors x = make_tensors(&t, &s);
    run_tensors(&t, &call, &x);
    moe_tensor none = ot_absent(), narrow = ot_tensor(&t, MOE_F32, 6, 7), one = ot_tensor(&t, MOE_F32, 1);
    const moe_tensor lists[][7] = {
        {narrow, x.qkv, x.o, x.sinks, x.doc, x.dqkv, x.dsinks},
        {x.grad, x.qkv, narrow, x.sinks, x.doc, x.dqkv, x.dsinks},
        {x.grad, x.qkv, x.o, one, x.doc, x.dqkv, x.dsinks},
        {x.grad, x.qkv, x.o, x.sinks, one, x.dqkv, x.dsinks},
        {x.grad, x.qkv, x.o, x.sinks, x.doc, narrow, x.dsinks},
        {x.grad, x.qkv, x.o, x.sinks, x.doc, x.dqkv, one},
        {x.grad, x.qkv, x.o, none, x.doc, x.dqkv, x.dsinks},
    };
    static const char *const texts[] = {
        "do is [6,7] F32, want [6,8]",   "o is [6,7] F32, want [6,8]",     "sinks is [1] F32, want [2]",
        "doc is [1] F32, want [6] I32",  "dqkv is [6,7] F32, want [6,28]", "dsinks is [1] F32, want [2]",
        "dsinks is given, sinks is not",
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        moe_op_args a = call.args;
        a.in = lists[i];
        a.out = lists[i] + 5;
        ot_refused(&call, device_open_run_step(&t.dev, call.op->backward, &a, &call.err), MOE_E_ARG, texts[i]);
    }
    ot_close(&t);
}
END_TEST

OT_MAIN("attention", attention_and_gradients_hold, windows_documents_and_sinks_hold, random_shapes_hold,
        threads_keep_their_sums_apart, what_masks_nothing_changes_nothing, padding_and_other_documents_are_out_of_reach,
        a_document_equals_its_own_sequence, sinks_take_their_share, large_scores_are_safe,
        nothing_leaks_from_the_future, bad_arguments_are_named, bad_arguments_of_backward_are_named)
