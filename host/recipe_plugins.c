/* Plugin sections of the recipe: [router], and overrides like [router:0-2] or [precision:0-1,experts]. Options stay raw
 * here: only the plugin's own schema knows them (options.c). */
#include <stdlib.h>
#include <string.h>

#include "recipe_impl.h"

/* ---- the name of a section ---- */
static int by_first(const void *a, const void *b) {
    const recipe_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* One item behind the colon: "3", "0-2" or "experts". */
static bool take_item(recipe *r, recipe_plugin *p, const char *item, size_t n) {
    if (n == 7 && memcmp(item, "experts", 7) == 0) {
        bool first = keys_find_section(p->kind)->parts && !p->experts;
        p->experts = true;
        return first;
    }
    char text[24];
    recipe_range range;
    if (n == 0 || n >= sizeof text) return false;
    memcpy(text, item, n);
    text[n] = '\0';
    char *dash = strchr(text, '-');
    if (dash) *dash = '\0';
    const char *first = text, *last = dash ? dash + 1 : text;
    size_t digits = strspn(first, "0123456789"), digits_last = strspn(last, "0123456789");
    if (digits == 0 || digits > 9 || first[digits] || digits_last == 0 || digits_last > 9 || last[digits_last])
        return false;
    range = (recipe_range){.first = strtoll(first, NULL, 10), .last = strtoll(last, NULL, 10)};
    if (range.first > range.last) return false;
    recipe_range *ranges = recipe_grow(r, p->ranges, p->n_ranges, sizeof range);
    if (!ranges) return true; /* out of memory, which the recipe knows */
    ranges[p->n_ranges++] = range;
    p->ranges = ranges;
    return true;
}

static bool take_items(recipe *r, recipe_plugin *p, const char *items, const char *where) {
    const section_row *row = keys_find_section(p->kind);
    if (!row->layers) {
        err_list_add(r->errs, "%s: [%s] has no overrides for layers", where, p->kind);
        return false;
    }
    for (const char *item = items;; item++) {
        size_t n = strcspn(item, ",");
        if (!take_item(r, p, item, n)) {
            err_list_add(r->errs, "%s: '%.*s' is no layer or range of layers like 0-2%s", where, (int)n, item,
                         row->parts ? ", and not the one word 'experts'" : "");
            return false;
        }
        item += n;
        if (*item == '\0') break;
    }
    if (p->n_ranges) qsort((void *)(uintptr_t)p->ranges, p->n_ranges, sizeof *p->ranges, by_first);
    for (size_t i = 1; i < p->n_ranges; i++)
        if (p->ranges[i].first <= p->ranges[i - 1].last) {
            err_list_add(r->errs, "%s: layer %lld is named twice", where, (long long)p->ranges[i].first);
            return false;
        }
    return true;
}

recipe_plugin *recipe_plugin_section(recipe *r, const char *name, const char *where) {
    for (size_t i = 0; i < r->n_plugins; i++)
        if (strcmp(r->plugins[i].section, name) == 0) return &r->plugins[i];
    size_t n = strcspn(name, ":");
    recipe_plugin p = {.section = recipe_text(r, "%s", name), .kind = recipe_text(r, "%.*s", (int)n, name)};
    const section_row *row = keys_find_section(p.kind);
    if (!row) return NULL; /* out of memory: the kind could not be copied */
    p.where = where;
    if (name[n] == ':') {
        p.from = RECIPE_DERIVED;
        p.name = "";
        if (!take_items(r, &p, name + n + 1, where)) return NULL;
    } else {
        p.name = row->plugin;
        recipe_slot(r, p.kind, "plugin")->text = p.name;
    }
    recipe_plugin *grown = recipe_grow(r, r->plugins, r->n_plugins, sizeof p);
    if (!grown) return NULL;
    r->plugins = grown;
    grown[r->n_plugins] = p;
    return &grown[r->n_plugins++];
}

/* ---- its keys ---- */
static bool is_id(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n < 64 && s[n] == '\0';
}

void recipe_plugin_name(recipe *r, recipe_plugin *p, const recipe_option *given) {
    size_t n = strlen(given->value);
    bool path = strchr(given->value, '/') || (n > 3 && strcmp(given->value + n - 3, ".so") == 0) ||
                strstr(given->value, ".so#");
    if (p->named && p->from == given->from) {
        if (given->from == RECIPE_FILE)
            err_list_add(r->errs, "%s: given twice; first in line %d", given->where_key, p->line);
        else
            err_list_add(r->errs, "%s: given twice; first as %s", given->where_key, p->where);
        return;
    }
    if (!path && !is_id(given->value)) {
        err_list_add(r->errs, "%s: '%s' is neither an id nor a path with '/' or '.so'", given->where, given->value);
        return;
    }
    p->name = path ? recipe_absolute(r, given->value, n) : given->value;
    p->named = true;
    p->from = given->from;
    p->line = given->line;
    p->where = given->where;
    if (!strchr(p->section, ':'))
        *recipe_slot(r, p->kind, "plugin") = (recipe_value){
            .text = p->name, .from = p->from, .line = p->line, .where = given->where, .where_key = given->where_key};
}

void recipe_plugin_option(recipe *r, recipe_plugin *p, const recipe_option *given) {
    for (size_t i = 0; i < p->n_options; i++) {
        recipe_option *o = &p->options[i];
        if (strcmp(o->key, given->key) != 0) continue;
        if (o->from == given->from && given->from == RECIPE_FILE)
            err_list_add(r->errs, "%s: given twice; first in line %d", given->where_key, o->line);
        else if (o->from == given->from)
            err_list_add(r->errs, "%s: given twice; first as %s", given->where_key, o->where);
        else
            *o = *given;
        return;
    }
    recipe_option *options = recipe_grow(r, p->options, p->n_options, sizeof *options);
    if (!options) return;
    options[p->n_options++] = *given;
    p->options = options;
}

/* ---- all sections together ---- */
static bool has_layer(const recipe_plugin *p, int64_t layer) {
    for (size_t i = 0; i < p->n_ranges; i++)
        if (layer >= p->ranges[i].first && layer <= p->ranges[i].last) return true;
    return false;
}

/* An override of the same plugin continues its base: the base's options come first, unless it has its own. */
static void inherit(recipe *r, recipe_plugin *p, const recipe_plugin *base) {
    if (!p->named) {
        p->name = base->name;
        p->from = base->from;
        p->line = base->line;
        p->where = base->where; /* what is wrong with that plugin is one fault, however many sections use it */
    }
    if (strcmp(p->name, base->name) != 0 || base->n_options == 0) return;
    recipe_option *all = recipe_alloc(r, (base->n_options + p->n_options) * sizeof *all);
    if (!all) return;
    size_t n = 0;
    for (size_t i = 0; i < base->n_options; i++) {
        size_t k = 0;
        while (k < p->n_options && strcmp(p->options[k].key, base->options[i].key) != 0) k++;
        if (k == p->n_options) all[n++] = base->options[i];
    }
    for (size_t k = 0; k < p->n_options; k++) all[n++] = p->options[k];
    p->options = all;
    p->n_options = n;
}

static void check_overlap(recipe *r, const recipe_plugin *p, const recipe_plugin *q) {
    if (strcmp(p->kind, q->kind) != 0 || p->experts != q->experts) return;
    for (size_t i = 0; i < p->n_ranges; i++)
        for (size_t k = 0; k < q->n_ranges; k++) {
            int64_t first = p->ranges[i].first > q->ranges[k].first ? p->ranges[i].first : q->ranges[k].first;
            if (!has_layer(p, first) || !has_layer(q, first)) continue;
            err_list_add(r->errs, "%s: layer %lld is also in [%s]", q->where, (long long)first, p->section);
            return;
        }
}

void recipe_plugins_finish(recipe *r) {
    int64_t layers = recipe_int(r, "model", "layers");
    for (size_t i = 0; i < r->n_plugins; i++) {
        const recipe_plugin *p = &r->plugins[i];
        if (!recipe_faulty(r, "model") && p->n_ranges && p->ranges[p->n_ranges - 1].last >= layers && layers > 0)
            err_list_add(r->errs, "%s: layer %lld of [%s], but the model has layers 0-%lld", p->where,
                         (long long)p->ranges[p->n_ranges - 1].last, p->section, (long long)layers - 1);
        for (size_t k = 0; k < i; k++) check_overlap(r, &r->plugins[k], p);
    }
    for (size_t i = 0; i < r->n_plugins; i++)
        if (strchr(r->plugins[i].section, ':')) inherit(r, &r->plugins[i], recipe_plugin_of(r, r->plugins[i].kind));
}

size_t recipe_count_plugins(const recipe *r) {
    return r->n_plugins;
}
const recipe_plugin *recipe_plugin_at(const recipe *r, size_t i) {
    return &r->plugins[i];
}
const recipe_plugin *recipe_plugin_of(const recipe *r, const char *kind) {
    return recipe_plugin_for(r, kind, -1, false);
}

const recipe_plugin *recipe_plugin_for(const recipe *r, const char *kind, int64_t layer, bool experts) {
    const recipe_plugin *best = NULL;
    int most = -1;
    for (size_t i = 0; i < r->n_plugins; i++) {
        const recipe_plugin *p = &r->plugins[i];
        if (strcmp(p->kind, kind) != 0 || (p->experts && !experts) || (p->n_ranges && !has_layer(p, layer))) continue;
        int closeness = (p->n_ranges ? 2 : 0) + (p->experts ? 1 : 0);
        if (closeness <= most) continue;
        most = closeness;
        best = p;
    }
    return best;
}

void recipe_choose_plugin(recipe *r, size_t index, const char *name) {
    recipe_plugin *p = &r->plugins[index];
    p->name = recipe_text(r, "%s", name);
    p->from = RECIPE_DERIVED;
    recipe_slot(r, p->kind, "plugin")->text = p->name;
}

moe_status recipe_note_options(recipe *r, size_t index, const moe_kv *kv, size_t n_kv, moe_err *err) {
    moe_kv *copy = n_kv ? recipe_alloc(r, n_kv * sizeof *copy) : NULL;
    if (n_kv && copy)
        for (size_t i = 0; i < n_kv; i++)
            copy[i] = (moe_kv){.key = recipe_text(r, "%s", kv[i].key), .value = recipe_text(r, "%s", kv[i].value)};
    if (r->no_memory) {
        *err = (moe_err){.size = sizeof *err, .code = MOE_E_NOMEM, .msg = "out of memory for the resolved recipe"};
        return MOE_E_NOMEM;
    }
    r->plugins[index].resolved = copy;
    r->plugins[index].n_resolved = n_kv;
    return MOE_OK;
}

void recipe_note_ranks(recipe *r, int64_t ranks) {
    if (recipe_int(r, "comm", "ranks") != ranks) recipe_derive(r, "comm", "ranks", ranks);
}
