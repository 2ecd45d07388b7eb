/* Contradictions between keys of a recipe, keys without effect, and values that follow from others. A section with an
 * error in it is not looked at: what is wrong there would be reported twice. */
#include <stdarg.h>
#include <string.h>

#include "recipe_impl.h"

/* Was it given, and other than the default? */
static bool is_set(const recipe *r, const char *section, const char *key) {
    const recipe_value *v = recipe_slot(r, section, key);
    value_type type;
    typed_value dflt;
    char why[256];
    const key_row *row = keys_find(keys_find_section(section), key);
    if (v->from < RECIPE_FILE) return false;
    if (!row->dflt || !value_type_parse(row->type, true, &type, why, sizeof why) ||
        !value_parse(&type, row->dflt, &dflt, why, sizeof why))
        return true;
    return v->v.i != dflt.i || v->v.f > dflt.f || v->v.f < dflt.f || v->v.word != dflt.word;
}

__attribute__((format(printf, 4, 5))) static void conflict(recipe *r, const char *section, const char *key,
                                                           const char *format, ...) {
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    err_list_add(r->errs, "%s: %s", recipe_slot(r, section, key)->where, text);
}

static void refuse_useless(recipe *r, const char *section, const char *key, const char *why) {
    if (is_set(r, section, key)) conflict(r, section, key, "has no effect: %s", why);
}

static void derive(recipe *r, const char *section, const char *key, int64_t i) {
    recipe_value *v = recipe_slot(r, section, key);
    v->v.i = i;
    v->v.f = (double)i;
    v->text = recipe_text(r, "%lld", (long long)i);
    v->from = RECIPE_DERIVED;
}

static bool is_word(const recipe *r, const char *section, const char *key, const char *word) {
    return strcmp(recipe_slot(r, section, key)->text, word) == 0;
}

/* ---- required keys ---- */
static void check_missing(recipe *r, unsigned flags) {
    size_t n;
    const section_row *sections = keys_sections(&n);
    for (size_t i = 0; i < n; i++) {
        bool faulty = recipe_faulty(r, sections[i].name);
        for (size_t k = 0; k < sections[i].n_keys && !faulty; k++) {
            const key_row *row = &sections[i].keys[k];
            bool missing = !row->dflt && !recipe_slot(r, sections[i].name, row->key)->text;
            if ((flags & RECIPE_NEED_DATA) && strcmp(row->key, "train") == 0)
                missing = recipe_slot(r, "data", "train")->v.i == 0;
            if (!missing) continue;
            conflict(r, sections[i].name, row->key, "missing; it has no default (%s)", row->type);
            r->faulty[i] = true;
        }
    }
}

/* ---- [model] ---- */
static void check_heads(recipe *r) {
    int64_t hidden = recipe_int(r, "model", "hidden"), heads = recipe_int(r, "model", "heads");
    if (recipe_int(r, "model", "kv_heads") == 0) derive(r, "model", "kv_heads", heads);
    if (heads % recipe_int(r, "model", "kv_heads") != 0)
        conflict(r, "model", "kv_heads", "heads = %lld is no multiple of kv_heads = %lld", (long long)heads,
                 (long long)recipe_int(r, "model", "kv_heads"));
    if (recipe_int(r, "model", "head_dim") == 0) {
        if (hidden % heads != 0) {
            conflict(r, "model", "heads", "hidden = %lld is no multiple of heads = %lld; give head_dim",
                     (long long)hidden, (long long)heads);
            return;
        }
        if (hidden / heads % 2 != 0) {
            conflict(r, "model", "heads",
                     "head_dim = hidden / heads = %lld is odd; the rotary embedding turns pairs of elements",
                     (long long)(hidden / heads));
            return;
        }
        derive(r, "model", "head_dim", hidden / heads);
    } else if (recipe_int(r, "model", "head_dim") % 2 != 0) {
        conflict(r, "model", "head_dim", "%lld is odd; the rotary embedding turns pairs of elements",
                 (long long)recipe_int(r, "model", "head_dim"));
    }
}

static void check_dense(recipe *r) {
    static const char *const useless[] = {"top_k", "expert_ffn", "dense_layers", "shared_experts", "shared_ffn"};
    for (size_t i = 0; i < sizeof useless / sizeof useless[0]; i++)
        refuse_useless(r, "model", useless[i], "experts = 0, every layer is dense");
    if (recipe_int(r, "model", "dense_ffn") == 0)
        conflict(r, "model", "dense_ffn", "missing: with experts = 0 every layer is dense");
    for (size_t i = 0; i < r->n_plugins; i++) {
        const recipe_plugin *p = &r->plugins[i];
        if (strcmp(p->kind, "router") != 0 && strcmp(p->kind, "dispatcher") != 0) continue;
        if (p->n_options)
            err_list_add(r->errs, "%s: has no effect: [model] experts = 0", p->options[0].where_key);
        else if (p->named || strchr(p->section, ':'))
            err_list_add(r->errs, "%s: has no effect: [model] experts = 0", p->where);
    }
}

static void check_experts(recipe *r) {
    int64_t experts = recipe_int(r, "model", "experts"), top_k = recipe_int(r, "model", "top_k");
    int64_t layers = recipe_int(r, "model", "layers"), dense = recipe_int(r, "model", "dense_layers");
    if (top_k == 0)
        conflict(r, "model", "top_k", "missing: experts = %lld needs top_k of at least 1", (long long)experts);
    if (top_k > experts)
        conflict(r, "model", "top_k", "top_k = %lld is more than experts = %lld", (long long)top_k, (long long)experts);
    if (recipe_int(r, "model", "expert_ffn") == 0)
        conflict(r, "model", "expert_ffn", "missing: experts = %lld needs it", (long long)experts);
    if (dense >= layers)
        conflict(r, "model", "dense_layers", "dense_layers = %lld leaves none of layers = %lld to the experts",
                 (long long)dense, (long long)layers);
    if (dense > 0 && recipe_int(r, "model", "dense_ffn") == 0)
        conflict(r, "model", "dense_ffn", "missing: dense_layers = %lld needs it", (long long)dense);
    if (dense == 0) refuse_useless(r, "model", "dense_ffn", "dense_layers = 0, no layer is dense");
    if (recipe_int(r, "model", "shared_experts") > 0 && recipe_int(r, "model", "shared_ffn") == 0)
        conflict(r, "model", "shared_ffn", "missing: shared_experts = %lld needs it",
                 (long long)recipe_int(r, "model", "shared_experts"));
    if (recipe_int(r, "model", "shared_experts") == 0) refuse_useless(r, "model", "shared_ffn", "shared_experts = 0");
}

static void check_model(recipe *r) {
    check_heads(r);
    if (recipe_int(r, "model", "experts") == 0)
        check_dense(r);
    else
        check_experts(r);
    if (!recipe_faulty(r, "data") && is_word(r, "data", "format", "bytes") && recipe_int(r, "model", "vocab") < 256)
        conflict(r, "model", "vocab", "%lld ids are too few for [data] format = bytes, which has 256",
                 (long long)recipe_int(r, "model", "vocab"));
}

/* ---- the other sections ---- */
static void check_optimizer(recipe *r) {
    int64_t steps = recipe_int(r, "run", "steps");
    int64_t warmup = recipe_int(r, "optimizer", "warmup"), decay = recipe_int(r, "optimizer", "decay");
    if (is_word(r, "optimizer", "kind", "sgd")) {
        refuse_useless(r, "optimizer", "beta1", "kind = sgd");
        refuse_useless(r, "optimizer", "beta2", "kind = sgd");
        refuse_useless(r, "optimizer", "eps", "kind = sgd");
    }
    bool constant = is_word(r, "optimizer", "schedule", "constant"), wsd = is_word(r, "optimizer", "schedule", "wsd");
    if (!wsd) refuse_useless(r, "optimizer", "decay", "only schedule = wsd has a decay");
    if (constant) refuse_useless(r, "optimizer", "min_lr", "schedule = constant");
    if (wsd && decay == 0) conflict(r, "optimizer", "decay", "missing: schedule = wsd needs it");
    if (constant || recipe_faulty(r, "run")) return;
    if (warmup > steps)
        conflict(r, "optimizer", "warmup", "warmup = %lld is more than [run] steps = %lld", (long long)warmup,
                 (long long)steps);
    else if (wsd && warmup + decay > steps)
        conflict(r, "optimizer", "decay", "warmup = %lld and decay = %lld are more than [run] steps = %lld",
                 (long long)warmup, (long long)decay, (long long)steps);
}

static void check_batch(recipe *r) {
    int64_t global = recipe_int(r, "batch", "global"), micro = recipe_int(r, "batch", "micro");
    if (global % micro != 0) {
        conflict(r, "batch", "micro", "global = %lld is no multiple of micro = %lld", (long long)global,
                 (long long)micro);
        return;
    }
    int64_t dp = recipe_faulty(r, "parallel") ? 0 : recipe_int(r, "parallel", "dp"); /* 0: fill */
    if (dp > 0 && global % (micro * dp) != 0)
        conflict(r, "parallel", "dp", "[batch] global = %lld is no multiple of micro = %lld times dp = %lld",
                 (long long)global, (long long)micro, (long long)dp);
}

static void check_parallel(recipe *r) {
    int64_t experts = recipe_int(r, "model", "experts"), ep = recipe_int(r, "parallel", "ep");
    if (experts == 0) {
        refuse_useless(r, "parallel", "ep", "[model] experts = 0");
        refuse_useless(r, "parallel", "etp", "[model] experts = 0");
    } else if (experts % ep != 0) {
        conflict(r, "parallel", "ep", "[model] experts = %lld is no multiple of ep = %lld", (long long)experts,
                 (long long)ep);
    }
}

static void check_data(recipe *r) {
    bool own = recipe_slot(r, "data", "valid")->v.i > 0;
    if (own) refuse_useless(r, "data", "valid_fraction", "valid names files for evaluation");
    bool none = !own && recipe_float(r, "data", "valid_fraction") <= 0;
    if (none && !recipe_faulty(r, "run") && recipe_int(r, "run", "eval_every") > 0)
        conflict(r, "run", "eval_every", "there is nothing to evaluate: no [data] valid, and valid_fraction = 0");
}

static void check_run(recipe *r) {
    recipe_value *name = recipe_slot(r, "run", "name"), *out = recipe_slot(r, "run", "out");
    if (name->text[0] == '\0') {
        const char *base = strrchr(r->path, '/');
        base = base ? base + 1 : r->path;
        size_t n = strlen(base);
        if (n > 4 && strcmp(base + n - 4, ".ini") == 0) n -= 4;
        name->text = recipe_text(r, "%.*s", (int)n, base);
        name->from = RECIPE_DERIVED;
    }
    size_t n = strspn(name->text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (n == 0 || n > 100 || name->text[n] || name->text[0] == '.' || name->text[0] == '-') {
        conflict(r, "run", "name",
                 "'%.60s'%s is no name for a run: 1 to 100 letters, digits, . _ -, the first no . or -", name->text,
                 name->from == RECIPE_DERIVED ? ", from the file," : "");
        return;
    }
    if (out->text[0] == '\0') {
        out->text = recipe_text(r, "runs/%s", name->text);
        out->from = RECIPE_DERIVED;
    }
}

void recipe_check(recipe *r, unsigned flags) {
    if (r->garbled) return;
    check_missing(r, flags);
    bool model = !recipe_faulty(r, "model");
    if (!recipe_faulty(r, "run")) check_run(r);
    if (!recipe_faulty(r, "data")) check_data(r);
    if (model) check_model(r);
    if (model && !recipe_faulty(r, "parallel")) check_parallel(r);
    if (!recipe_faulty(r, "optimizer")) check_optimizer(r);
    if (!recipe_faulty(r, "batch")) check_batch(r);
}
