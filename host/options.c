/* Raw options against a plugin's schema. Bools are handed on as "true" or "false", the rest as the user wrote it. */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#include "ini.h"
#include "suggest.h"
#include "value.h"

static const moe_option *find(const moe_desc *desc, const char *key) {
    for (uint32_t i = 0; i < desc->n_options; i++)
        if (strcmp(desc->options[i].key, key) == 0) return &desc->options[i];
    return NULL;
}

static bool check_row(const moe_desc *desc, uint32_t i, char *why, size_t bytes) {
    const moe_option *o = &desc->options[i];
    value_type type;
    typed_value v;
    char cause[700];
    if (!o->key || !ini_is_key(o->key)) {
        snprintf(why, bytes, "option %u has %s key", i, o->key ? "a malformed" : "no");
        return false;
    }
    cause[0] = '\0';
    if (!o->type || !o->help)
        snprintf(cause, sizeof cause, "%s is NULL", o->type ? "help" : "type");
    else if (strcmp(o->key, "plugin") == 0 || strcmp(o->key, "ranks") == 0)
        snprintf(cause, sizeof cause, "the key is the host's own");
    else if (find(desc, o->key) != o)
        snprintf(cause, sizeof cause, "declared twice");
    else if (value_type_parse(o->type, false, &type, cause, sizeof cause) && o->dflt)
        value_parse(&type, o->dflt, &v, cause, sizeof cause);
    if (cause[0] == '\0') return true;
    snprintf(why, bytes, "option '%s': %s", o->key, cause);
    return false;
}

bool options_check_schema(const moe_desc *desc, char *why, size_t bytes) {
    if (desc->n_options && !desc->options) {
        snprintf(why, bytes, "n_options is %u, but options is NULL", desc->n_options);
        return false;
    }
    for (uint32_t i = 0; i < desc->n_options; i++) /* keys first: look-ups below read all of them */
        if (!desc->options[i].key) {
            snprintf(why, bytes, "option %u has no key", i);
            return false;
        }
    for (uint32_t i = 0; i < desc->n_options; i++)
        if (!check_row(desc, i, why, bytes)) return false;
    return true;
}

static void refuse_unknown(const moe_desc *desc, const recipe_option *given, err_list *errs) {
    char hint[96];
    suggest near = suggest_begin(given->key);
    for (uint32_t i = 0; i < desc->n_options; i++) suggest_offer(&near, desc->options[i].key);
    err_list_add(errs, "%s: unknown option of %s/%s%s", given->where_key, desc->kind, desc->id,
                 suggest_text(&near, hint, sizeof hint));
}

/* The text of one declared option, or NULL after an error. */
static const char *resolve_one(const moe_option *o, const recipe_option *given, const moe_desc *desc, const char *owner,
                               err_list *errs) {
    value_type type;
    typed_value v;
    char why[700];
    const char *text = given ? given->value : o->dflt;
    if (!text) {
        err_list_add(errs, "%s: %s/%s needs option '%s' (%s)", owner, desc->kind, desc->id, o->key, o->type);
        return NULL;
    }
    if (!value_type_parse(o->type, false, &type, why, sizeof why) || !value_parse(&type, text, &v, why, sizeof why)) {
        err_list_add(errs, "%s: %s", given ? given->where : owner, why);
        return NULL;
    }
    return type.kind == VALUE_BOOL ? (v.i ? "true" : "false") : text;
}

bool options_resolve(const moe_desc *desc, const recipe_option *given, size_t n, const char *owner, options *out,
                     err_list *errs) {
    size_t before = err_list_count(errs);
    moe_kv *kv = desc->n_options ? calloc(desc->n_options, sizeof *kv) : NULL;
    *out = (options){.n = 0};
    if (desc->n_options && !kv) {
        err_list_add(errs, "%s: out of memory", owner);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        if (!find(desc, given[i].key)) refuse_unknown(desc, &given[i], errs);
    for (uint32_t i = 0; i < desc->n_options; i++) {
        const recipe_option *mine = NULL;
        for (size_t k = 0; k < n; k++)
            if (strcmp(given[k].key, desc->options[i].key) == 0) mine = &given[k];
        kv[i] = (moe_kv){.key = desc->options[i].key, .value = resolve_one(&desc->options[i], mine, desc, owner, errs)};
    }
    if (err_list_count(errs) > before) {
        free(kv);
        return false;
    }
    *out = (options){.kv = kv, .n = desc->n_options};
    return true;
}

void options_free(options *o) {
    free(o->kv);
    *o = (options){.n = 0};
}
