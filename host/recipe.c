/* Reading a recipe: INI events and overrides become values in the slots of the key tables, or raw options of plugins;
 * then recipe_plugins.c and recipe_check.c look at the whole. */
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ini.h"
#include "recipe_impl.h"
#include "suggest.h"

/* ---- memory ---- */
void *recipe_alloc(recipe *r, size_t bytes) {
    recipe_block *block = calloc(1, sizeof *block + bytes);
    if (!block) {
        r->no_memory = true;
        return NULL;
    }
    block->next = r->blocks;
    r->blocks = block;
    return block->data;
}

const char *recipe_text(recipe *r, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : recipe_alloc(r, (size_t)n + 1);
    if (!text) return "";
    va_start(ap, format);
    vsnprintf(text, (size_t)n + 1, format, ap);
    va_end(ap);
    return text;
}

/* Rooms are 8, 16, 32, ...: a full one is followed by one of twice the size. */
void *recipe_grow(recipe *r, const void *array, size_t n, size_t element) {
    bool full = n == 0 || (n >= 8 && (n & (n - 1)) == 0);
    if (!full) return (void *)(uintptr_t)array;
    char *larger = recipe_alloc(r, (n ? 2 * n : 8) * element);
    if (larger && n) memcpy(larger, array, n * element);
    return larger;
}

void recipe_destroy(recipe *r) {
    if (!r) return;
    for (recipe_block *b = r->blocks; b;) {
        recipe_block *next = b->next;
        free(b);
        b = next;
    }
    free(r);
}

/* ---- look-up ---- */
recipe_value *recipe_slot(const recipe *r, const char *section, const char *key) {
    size_t n, slot = 0;
    const section_row *sections = keys_sections(&n);
    for (size_t i = 0; i < n; slot += sections[i++].n_keys) {
        if (strcmp(sections[i].name, section) != 0) continue;
        const key_row *row = keys_find(&sections[i], key);
        return row ? &r->values[slot + (size_t)(row - sections[i].keys)] : NULL;
    }
    return NULL;
}

const recipe_value *recipe_get(const recipe *r, const char *section, const char *key) {
    const recipe_value *v = recipe_slot(r, section, key);
    if (!v) fprintf(stderr, "moehost: internal fault: no recipe key [%s] %s\n", section, key);
    return v;
}
int64_t recipe_int(const recipe *r, const char *section, const char *key) {
    const recipe_value *v = recipe_get(r, section, key);
    return v ? v->v.i : 0;
}
double recipe_float(const recipe *r, const char *section, const char *key) {
    const recipe_value *v = recipe_get(r, section, key);
    return v ? v->v.f : 0;
}
bool recipe_bool(const recipe *r, const char *section, const char *key) {
    return recipe_int(r, section, key) != 0;
}
const char *recipe_string(const recipe *r, const char *section, const char *key) {
    const recipe_value *v = recipe_get(r, section, key);
    return v ? v->text : "";
}
const char *recipe_word(const recipe *r, const char *section, const char *key) {
    return recipe_string(r, section, key);
}
const char *const *recipe_list(const recipe *r, const char *section, const char *key, size_t *n) {
    const recipe_value *v = recipe_get(r, section, key);
    *n = v && v->items ? (size_t)v->v.i : 0;
    return *n ? v->items : NULL;
}
const char *recipe_path(const recipe *r) {
    return r->path;
}
const char *recipe_dir(const recipe *r) {
    return r->dir;
}

/* ---- values ---- */
const char *recipe_absolute(recipe *r, const char *path, size_t length) {
    if (length > 0 && path[0] == '/') return recipe_text(r, "%.*s", (int)length, path);
    while (length > 2 && path[0] == '.' && path[1] == '/') path += 2, length -= 2;
    return recipe_text(r, "%s%s%.*s", r->dir, strcmp(r->dir, "/") == 0 ? "" : "/", (int)length, path);
}

/* Fills items of a list; of paths, the absolute ones, and text is made from them. */
static void take_items(recipe *r, recipe_value *value, value_kind kind) {
    size_t n = (size_t)value->v.i, length;
    const char *start, *joined = "";
    const char **items = n ? recipe_alloc(r, n * sizeof *items) : NULL;
    if (n && !items) return;
    for (size_t i = 0; i < n && value_list_item(value->text, i, &start, &length); i++) {
        items[i] = kind == VALUE_PATHS ? recipe_absolute(r, start, length) : recipe_text(r, "%.*s", (int)length, start);
        joined = i ? recipe_text(r, "%s, %s", joined, items[i]) : items[i];
    }
    value->items = items;
    value->text = joined;
    size_t at;
    const char *fault = ini_value_fault(joined, &at);
    if (!fault && kind == VALUE_PATHS && strchr(r->dir, ',')) fault = "a comma in the recipe's folder";
    if (n && fault) err_list_add(r->errs, "%s: with its folder, the value holds %s", value->where, fault);
}

/* Reads text of a key into its slot; a bad one leaves an error and a slot without text. */
static void take_value(recipe *r, const key_row *row, recipe_value *slot, const char *text) {
    char why[700];
    value_type type;
    if (!value_type_parse(row->type, true, &type, why, sizeof why) ||
        !value_parse(&type, text, &slot->v, why, sizeof why)) {
        err_list_add(r->errs, "%s: %s", slot->where, why);
        slot->text = NULL;
        return;
    }
    slot->text = recipe_text(r, "%s", text);
    if (type.kind == VALUE_LIST || type.kind == VALUE_PATHS) take_items(r, slot, type.kind);
    if (type.kind == VALUE_BOOL) slot->text = slot->v.i ? "true" : "false";
}

static bool given_twice(recipe *r, const recipe_option *given, recipe_from before, int line, const char *where) {
    if (before != given->from) return false;
    if (given->from == RECIPE_FILE)
        err_list_add(r->errs, "%s: given twice; first in line %d", given->where_key, line);
    else
        err_list_add(r->errs, "%s: given twice; first as %s", given->where_key, where);
    return true;
}

/* ---- one key ---- */
static void unknown_key(recipe *r, const char *key, const char *where) {
    char hint[96];
    suggest near = suggest_begin(key);
    const char *other = NULL;
    size_t n;
    const section_row *sections = keys_sections(&n);
    for (size_t i = 0; i < r->section->n_keys; i++) suggest_offer(&near, r->section->keys[i].key);
    for (size_t i = 0; i < n; i++)
        if (!sections[i].plugin && keys_find(&sections[i], key)) other = sections[i].name;
    if (other)
        err_list_add(r->errs, "%s: unknown key; it is a key of [%s]", where, other);
    else
        err_list_add(r->errs, "%s: unknown key%s", where, suggest_text(&near, hint, sizeof hint));
}

/* A key of the section that is being read. */
static void take_key(recipe *r, const recipe_option *given) {
    const key_row *row = keys_find(r->section, given->key);
    if (r->plugin && (!row || strcmp(row->key, "plugin") == 0)) {
        if (row)
            recipe_plugin_name(r, r->plugin, given);
        else
            recipe_plugin_option(r, r->plugin, given);
        return;
    }
    if (!row) {
        unknown_key(r, given->key, given->where_key);
        return;
    }
    recipe_value *slot = recipe_slot(r, r->section->name, row->key);
    if (given_twice(r, given, slot->from, slot->line, slot->where)) return;
    *slot =
        (recipe_value){.from = given->from, .line = given->line, .where = given->where, .where_key = given->where_key};
    take_value(r, row, slot, given->value);
}

/* Makes the section current: r->section, r->plugin. where begins the error when there is no such section. */
static void enter_section(recipe *r, const char *name, const char *where) {
    char kind[64], hint[96];
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(name, ":"), name);
    r->plugin = NULL;
    r->section = keys_find_section(kind);
    if (!r->section) {
        suggest near = suggest_begin(kind);
        size_t n;
        const section_row *sections = keys_sections(&n);
        for (size_t i = 0; i < n; i++) suggest_offer(&near, sections[i].name);
        err_list_add(r->errs, "%s: unknown section%s", where, suggest_text(&near, hint, sizeof hint));
    } else if (r->section->plugin) {
        r->plugin = recipe_plugin_section(r, name, where);
        if (!r->plugin) r->section = NULL;
    } else if (strchr(name, ':')) {
        err_list_add(r->errs, "%s: [%s] has no overrides for layers", where, kind);
        r->section = NULL;
    }
}

static void begin_section(recipe *r, const ini_event *e) {
    const char *where = recipe_text(r, "%s:%d:%d: [%s]", r->path, e->line, e->key_column, e->section);
    for (size_t i = 0; i < r->n_seen; i++)
        if (strcmp(r->seen[i].name, e->section) == 0)
            err_list_add(r->errs, "%s: begins twice; first in line %d", where, r->seen[i].line);
    seen_section *seen = recipe_grow(r, r->seen, r->n_seen, sizeof *seen);
    if (seen) {
        r->seen = seen;
        r->seen[r->n_seen++] = (seen_section){.name = recipe_text(r, "%s", e->section), .line = e->line};
    }
    enter_section(r, e->section, where);
}

/* Remembers whose errors the last call made. */
static void count_faults(recipe *r, size_t before) {
    size_t added = err_list_count(r->errs) - before, n;
    r->n_own_errors += added;
    if (added && r->section) r->faulty[r->section - keys_sections(&n)] = true;
    if (added && !r->section) r->garbled = true;
}

bool recipe_faulty(const recipe *r, const char *section) {
    size_t n;
    return r->garbled || r->faulty[keys_find_section(section) - keys_sections(&n)];
}

static void take_event(void *ctx, const ini_event *e) {
    recipe *r = ctx;
    size_t before = err_list_count(r->errs);
    if (!e->key) {
        begin_section(r, e);
    } else if (r->section) {
        take_key(
            r,
            &(recipe_option){
                .key = recipe_text(r, "%s", e->key),
                .value = recipe_text(r, "%s", e->value),
                .from = RECIPE_FILE,
                .line = e->line,
                .where = recipe_text(r, "%s:%d:%d: [%s] %s", r->path, e->line, e->value_column, e->section, e->key),
                .where_key = recipe_text(r, "%s:%d:%d: [%s] %s", r->path, e->line, e->key_column, e->section, e->key)});
    }
    count_faults(r, before);
}

/* ---- overrides ---- */
bool recipe_split_set(char *copy, recipe_set *out, char *why, size_t bytes) {
    char *equals = strchr(copy, '='), *dot = NULL;
    for (char *c = copy; equals && c < equals; c++)
        if (*c == '.') dot = c;
    if (!dot || dot == copy || dot + 1 == equals) {
        snprintf(why, bytes, "'%.100s' is not section.key=value", copy);
        return false;
    }
    *dot = *equals = '\0';
    out->section = copy;
    out->key = dot + 1;
    out->value = equals + 1;
    out->where = NULL;
    return true;
}

static void take_set(recipe *r, const recipe_set *set) {
    size_t at, before = err_list_count(r->errs);
    const char *where = recipe_text(r, "%s", set->where);
    const char *fault = ini_value_fault(set->value, &at);
    if (!ini_is_section(set->section) || !ini_is_key(set->key)) {
        err_list_add(r->errs, "%s: names hold letters, digits, _ and -", where);
    } else if (fault) {
        err_list_add(r->errs, "%s: the value holds %s", where, fault);
    } else {
        enter_section(r, set->section, where);
        if (r->section)
            take_key(r, &(recipe_option){.key = recipe_text(r, "%s", set->key),
                                         .value = recipe_text(r, "%s", set->value),
                                         .from = RECIPE_SET,
                                         .where = where,
                                         .where_key = where});
    }
    count_faults(r, before);
}

/* ---- the whole ---- */
/* Slots and base sections, with the defaults. */
static bool set_up(recipe *r) {
    size_t n, n_slots = 0, slot = 0;
    const section_row *sections = keys_sections(&n);
    for (size_t i = 0; i < n; i++) n_slots += sections[i].n_keys;
    r->values = recipe_alloc(r, n_slots * sizeof *r->values);
    r->faulty = recipe_alloc(r, n * sizeof *r->faulty);
    if (r->no_memory) return false;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sections[i].n_keys; k++, slot++) {
            recipe_value *v = &r->values[slot];
            v->where = v->where_key = recipe_text(r, "%s: [%s] %s", r->path, sections[i].name, sections[i].keys[k].key);
            if (sections[i].keys[k].dflt) take_value(r, &sections[i].keys[k], v, sections[i].keys[k].dflt);
        }
        if (sections[i].plugin)
            recipe_plugin_section(r, sections[i].name, recipe_text(r, "%s: [%s]", r->path, sections[i].name));
    }
    return !r->no_memory;
}

static void find_dir(recipe *r) {
    char resolved[PATH_MAX];
    char *copy = strdup(r->path);
    const char *dir = copy ? dirname(copy) : ".";
    r->dir = recipe_text(r, "%s", realpath(dir, resolved) ? resolved : dir);
    free(copy);
}

/* text NULL: reads the file */
static recipe *load(const char *path, const char *text, size_t bytes, const recipe_set *sets, size_t n_sets,
                    unsigned flags, err_list *errs) {
    size_t before = err_list_count(errs);
    recipe *r = calloc(1, sizeof *r);
    if (!r) {
        err_list_add(errs, "%s: out of memory", path);
        return NULL;
    }
    r->errs = errs;
    r->path = recipe_text(r, "%s", path);
    find_dir(r);
    bool readable = set_up(r);
    if (readable && text) ini_read_text(path, text, bytes, take_event, r, errs);
    if (readable && !text) readable = ini_read_file(path, take_event, r, errs) || r->n_seen > 0;
    if (readable) {
        if (err_list_count(errs) - before > r->n_own_errors) r->garbled = true;
        for (size_t i = 0; i < n_sets && !r->no_memory; i++) take_set(r, &sets[i]);
        if (!r->no_memory) recipe_plugins_finish(r);
        if (!r->no_memory) recipe_check(r, flags);
    }
    if (r->no_memory) err_list_add(errs, "%s: out of memory", path);
    if (err_list_count(errs) > before) {
        recipe_destroy(r);
        return NULL;
    }
    r->errs = NULL;
    return r;
}

recipe *recipe_load(const char *path, const recipe_set *sets, size_t n_sets, unsigned flags, err_list *errs) {
    return load(path, NULL, 0, sets, n_sets, flags, errs);
}

recipe *recipe_parse(const char *path, const char *text, size_t bytes, const recipe_set *sets, size_t n_sets,
                     unsigned flags, err_list *errs) {
    return load(path, text, bytes, sets, n_sets, flags, errs);
}
