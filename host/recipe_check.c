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
    if (type.kind == VALUE_STRING) return strcmp(v->text, row->dflt) != 0;
    return v->v.i != dflt.i || v->v.f > dflt.f || v->v.f < dflt.f || v->v.word != dflt.word;
}

void recipe_conflict(recipe *r, const char *section, const char *key, const char *format, ...) {
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    err_list_add(r->errs, "%s: %s", recipe_slot(r, section, key)->where, text);
}

void recipe_refuse_useless(recipe *r, const char *section, const char *key, const char *why) {
    if (is_set(r, section, key)) recipe_conflict(r, section, key, "has no effect: %s", why);
}

void recipe_derive(recipe *r, const char *section, const char *key, int64_t i) {
    recipe_value *v = recipe_slot(r, section, key);
    v->v.i = i;
    v->v.f = (double)i;
    v->text = recipe_text(r, "%lld", (long long)i);
    v->from = RECIPE_DERIVED;
}

bool recipe_is_word(const recipe *r, const char *section, const char *key, const char *word) {
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
            recipe_conflict(r, sections[i].name, row->key, "missing; it has no default (%s)", row->type);
            r->faulty[i] = true;
        }
    }
}

/* ---- the other sections ---- */
static void check_optimizer(recipe *r) {
    int64_t steps = recipe_int(r, "run", "steps");
    int64_t warmup = recipe_int(r, "optimizer", "warmup"), decay = recipe_int(r, "optimizer", "decay");
    if (recipe_is_word(r, "optimizer", "kind", "sgd")) {
        recipe_refuse_useless(r, "optimizer", "beta1", "kind = sgd");
        recipe_refuse_useless(r, "optimizer", "beta2", "kind = sgd");
        recipe_refuse_useless(r, "optimizer", "eps", "kind = sgd");
    }
    bool constant = recipe_is_word(r, "optimizer", "schedule", "constant"),
         wsd = recipe_is_word(r, "optimizer", "schedule", "wsd");
    if (!wsd) recipe_refuse_useless(r, "optimizer", "decay", "only schedule = wsd has a decay");
    if (constant) recipe_refuse_useless(r, "optimizer", "min_lr", "schedule = constant");
    if (wsd && decay == 0) recipe_conflict(r, "optimizer", "decay", "missing: schedule = wsd needs it");
    if (constant || recipe_faulty(r, "run")) return;
    bool shortened = recipe_slot(r, "run", "steps")->from == RECIPE_SET && warmup > steps;
    if (shortened)
        recipe_conflict(r, "run", "steps", "fewer than [optimizer] warmup = %lld; add --set optimizer.warmup=0",
                        (long long)warmup);
    else if (warmup > steps)
        recipe_conflict(r, "optimizer", "warmup", "warmup = %lld is more than [run] steps = %lld", (long long)warmup,
                        (long long)steps);
    else if (wsd && warmup + decay > steps)
        recipe_conflict(r, "optimizer", "decay", "warmup = %lld and decay = %lld are more than [run] steps = %lld",
                        (long long)warmup, (long long)decay, (long long)steps);
}

static void check_batch(recipe *r) {
    int64_t global = recipe_int(r, "batch", "global"), micro = recipe_int(r, "batch", "micro");
    if (global % micro != 0) {
        recipe_conflict(r, "batch", "micro", "global = %lld is no multiple of micro = %lld", (long long)global,
                        (long long)micro);
        return;
    }
    int64_t dp = recipe_faulty(r, "parallel") ? 0 : recipe_int(r, "parallel", "dp"); /* 0: fill */
    if (dp > 0 && global % (micro * dp) != 0)
        recipe_conflict(r, "parallel", "dp", "[batch] global = %lld is no multiple of micro = %lld times dp = %lld",
                        (long long)global, (long long)micro, (long long)dp);
}

static void check_parallel(recipe *r) {
    int64_t experts = recipe_int(r, "model", "experts"), ep = recipe_int(r, "parallel", "ep");
    if (experts == 0) {
        recipe_refuse_useless(r, "parallel", "ep", "[model] experts = 0");
        recipe_refuse_useless(r, "parallel", "etp", "[model] experts = 0");
    } else if (experts % ep != 0) {
        recipe_conflict(r, "parallel", "ep", "[model] experts = %lld is no multiple of ep = %lld", (long long)experts,
                        (long long)ep);
    }
}

static void check_data(recipe *r) {
    if (!recipe_is_word(r, "data", "format", "tokens"))
        recipe_refuse_useless(r, "data", "token_dtype", "only format = tokens has it");
    bool own = recipe_slot(r, "data", "valid")->v.i > 0;
    if (own) recipe_refuse_useless(r, "data", "valid_fraction", "valid names files for evaluation");
    bool none = !own && recipe_float(r, "data", "valid_fraction") <= 0;
    if (none && !recipe_faulty(r, "run") && recipe_int(r, "run", "eval_every") > 0)
        recipe_conflict(r, "run", "eval_every",
                        "there is nothing to evaluate: no [data] valid, and valid_fraction = 0");
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
        recipe_conflict(r, "run", "name",
                        "'%.60s'%s is no name for a run: 1 to 100 letters, digits, . _ -, the first no . or -",
                        name->text, name->from == RECIPE_DERIVED ? ", from the file," : "");
        return;
    }
    if (out->text[0] == '\0') {
        out->text = recipe_text(r, "runs/%s", name->text);
        out->from = RECIPE_DERIVED;
    }
}

static void check_memory(recipe *r) {
    if (recipe_slot(r, "memory", "recv")->v.i != 2)
        recipe_refuse_useless(r, "memory", "overflow", "only recv = capacity:X can overflow");
}

void recipe_check(recipe *r, unsigned flags) {
    if (r->garbled) return;
    check_missing(r, flags);
    bool model = !recipe_faulty(r, "model");
    if (!recipe_faulty(r, "run")) check_run(r);
    if (!recipe_faulty(r, "data")) check_data(r);
    if (model) recipe_check_model(r);
    if (model && !recipe_faulty(r, "parallel")) check_parallel(r);
    if (!recipe_faulty(r, "optimizer")) check_optimizer(r);
    if (!recipe_faulty(r, "batch")) check_batch(r);
    if (!recipe_faulty(r, "memory")) check_memory(r);
}
