/* One walk over the keys serves writing and checking. */
#include "identity.h"

#include <inttypes.h>
#include <io/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef moe_status (*identity_fn)(void *arg, const char *key, const char *value, moe_err *err);

typedef struct walk {
    identity_fn fn;
    void *arg;
    moe_status status;
    moe_err *err;
} walk;

__attribute__((format(printf, 3, 4))) static void visit(walk *w, const char *key, const char *format, ...) {
    char value[1024];
    va_list ap;
    if (w->status) return;
    va_start(ap, format);
    vsnprintf(value, sizeof value, format, ap);
    va_end(ap);
    w->status = w->fn(w->arg, key, value, w->err);
}

/* What changes the numbers though every tensor keeps its shape. */
static void visit_attention(walk *w, const model_cfg *c) {
    const rope_cfg *r = &c->rope;
    uint64_t slides = 0xcbf29ce484222325u; /* FNV-1a of the layers that slide */
    for (uint32_t l = 0; l < c->layers; l++)
        slides = (slides ^ (uint64_t)model_layer_slides(c, l)) * UINT64_C(0x100000001b3);
    visit(w, "model.attention", "%d qk_norm=%d window=%" PRId64 " on %016" PRIx64, c->attention, c->qk_norm, c->window,
          c->window ? slides : 0);
    visit(w, "model.rope",
          "theta=%.9g dim=%u interleaved=%d scaling=%d factor=%.9g original=%" PRId64
          " beta=%.9g,%.9g mscale=%.9g,%.9g attention_factor=%.9g truncate=%d",
          (double)r->theta, r->dim, r->interleaved, r->scaling, (double)r->factor, r->original, (double)r->beta_fast,
          (double)r->beta_slow, (double)r->mscale, (double)r->mscale_all_dim, (double)r->attention_factor, r->truncate);
}

static void visit_model(walk *w, const model_cfg *c) {
    visit(w, "model.layers", "%u", c->layers);
    visit(w, "model.dense_layers", "%u", c->dense_layers);
    visit(w, "model.hidden", "%" PRId64, c->hidden);
    visit(w, "model.heads", "%u", c->heads);
    visit(w, "model.kv_heads", "%u", c->kv_heads);
    visit(w, "model.head_dim", "%u", c->head_dim);
    visit(w, "model.experts", "%u", c->experts);
    visit(w, "model.top_k", "%u", c->top_k);
    visit(w, "model.norm_eps", "%.9g", (double)c->norm_eps);
    visit(w, "model.tied", "%d", c->tied);
    visit_attention(w, c);
    visit(w, "model.activation", "%d alpha=%.9g limit=%.9g", c->activation, (double)c->activation_alpha,
          (double)c->activation_limit);
}

/* "topk score=softmax order=before ..." */
static void visit_router(walk *w, const part_ref *r, uint32_t layer) {
    char key[48], value[900];
    snprintf(key, sizeof key, "layers.%u.router", layer);
    size_t used = (size_t)snprintf(value, sizeof value, "%s", r->desc->id);
    for (uint64_t i = 0; i < r->n_kv && used < sizeof value; i++)
        used += (size_t)snprintf(value + used, sizeof value - used, " %s=%s", r->kv[i].key, r->kv[i].value);
    visit(w, key, "%s", value);
}

static moe_status walk_all(const session *s, int level, identity_fn fn, void *arg, moe_err *err) {
    walk w = {.fn = fn, .arg = arg, .err = err};
    const model_cfg *c = &s->trainer.model;
    visit_model(&w, c);
    for (uint32_t l = 0; l < c->layers; l++)
        if (model_layer_is_moe(c, l)) visit_router(&w, &s->routers[l], l);
    if (level == IDENTITY_MODEL) return w.status;
    visit(&w, "optimizer.kind", "%s", s->trainer.optimizer.kind == OPTIMIZER_ADAMW ? "adamw" : "sgd");
    visit(&w, "run.seed", "%" PRIu64, c->seed);
    visit(&w, "data.seq_len", "%" PRId64, c->seq);
    visit(&w, "data", "%016" PRIx64, data_hash(s->data));
    visit(&w, "batch.global", "%" PRId64, s->trainer.global);
    visit(&w, "capacity", "%.9g drop=%d scope=%d", (double)c->capacity, c->capacity_drop, c->capacity_scope);
    return w.status;
}

static moe_status write_one(void *arg, const char *key, const char *value, moe_err *err) {
    return ckpt_set(arg, key, value, err);
}

moe_status identity_write(ckpt *c, const session *s, moe_err *err) {
    return walk_all(s, IDENTITY_RUN, write_one, c, err);
}

/* What is shown of a word: from a little before the difference, where that is far in it. */
typedef struct word {
    const char *lead, *at;
    int bytes;
} word;

static word show_word(const char *text, size_t n, size_t common) {
    enum { SHOWN = 120, BEFORE = 40 };
    size_t skipped = common > SHOWN - BEFORE ? common - BEFORE : 0;
    if (!n) return (word){"", "(nothing)", 9};
    n -= skipped;
    return (word){skipped ? "..." : "", text + skipped, n < SHOWN ? (int)n : SHOWN};
}

/* Values are words with a blank between: shows the first that differs, so that a long value does not hide it. */
static moe_status refuse_value(const ckpt_view *view, const char *key, const char *a, const char *b, moe_err *err) {
    int words = strchr(a, ' ') || strchr(b, ' ');
    size_t n = strcspn(a, " "), m = strcspn(b, " "), common = 0;
    while (n == m && strncmp(a, b, n) == 0 && (*a || *b)) {
        a += n + (a[n] == ' ');
        b += m + (b[m] == ' ');
        n = strcspn(a, " ");
        m = strcspn(b, " ");
    }
    while (common < n && common < m && a[common] == b[common]) common++;
    word was = show_word(a, n, common), is = show_word(b, m, common);
    if (words)
        return fs_fail(err, MOE_E_ARG, view->dir, "%s: was written with %s%.*s, this recipe has %s%.*s", key, was.lead,
                       was.bytes, was.at, is.lead, is.bytes, is.at);
    return fs_fail(err, MOE_E_ARG, view->dir, "was written with %s = %s%.*s, this recipe has %s%.*s", key, was.lead,
                   was.bytes, was.at, is.lead, is.bytes, is.at);
}

static moe_status check_one(void *arg, const char *key, const char *value, moe_err *err) {
    const ckpt_view *view = arg;
    const char *saved = ckpt_get(view, key);
    if (saved && strcmp(saved, value) == 0) return MOE_OK;
    if (saved) return refuse_value(view, key, saved, value, err);
    return fs_fail(err, MOE_E_ARG, view->dir, "was written without %s, this recipe has %.120s", key, value);
}

moe_status identity_check(const ckpt_view *view, const session *s, int level, moe_err *err) {
    return walk_all(s, level, check_one, (void *)view, err);
}
