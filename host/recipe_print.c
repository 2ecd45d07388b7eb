/* Writes a recipe whole, with the origin of every value, and the reference of all keys from the tables. */
#include <string.h>

#include "recipe_impl.h"

enum { COMMENT_COLUMN = 40 };

/* The origin may hold any file's name: only plain characters reach the comment, which must stay one line of UTF-8. */
static void print_origin(FILE *to, const char *origin) {
    fputs("; ", to);
    for (; *origin; origin++) fputc(*origin >= ' ' && *origin <= '~' ? *origin : '?', to);
    fputc('\n', to);
}

static void print_pair(FILE *to, const char *key, const char *text, const char *origin) {
    bool above = strlen(text) > 200; /* key, value and comment share the longest line that a recipe may have */
    if (above) print_origin(to, origin);
    int n = fprintf(to, "%s =%s%s", key, *text ? " " : "", text);
    if (above)
        fputc('\n', to);
    else
        fprintf(to, "%*s", n < COMMENT_COLUMN ? COMMENT_COLUMN - n : 1, "");
    if (!above) print_origin(to, origin);
}

static const char *origin_of(const recipe *r, recipe_from from, int line, const char *where, char *buf, size_t bytes) {
    const char *base = strrchr(r->path, '/');
    switch (from) {
        case RECIPE_DEFAULT:
            return "default";
        case RECIPE_DERIVED:
            return "derived";
        case RECIPE_PLUGIN:
            return "plugin's default";
        case RECIPE_FILE:
            snprintf(buf, bytes, "%s:%d", base ? base + 1 : r->path, line);
            return buf;
        case RECIPE_SET:
            snprintf(buf, bytes, "%.*s", (int)strcspn(where, "="), where);
            return buf;
    }
    return "";
}

/* Options after the schema, or as given when no schema has been seen. */
static void print_options(const recipe *r, const recipe_plugin *p, FILE *to) {
    char buf[256];
    for (size_t i = 0; i < p->n_resolved; i++) {
        const recipe_option *given = NULL;
        for (size_t k = 0; k < p->n_options; k++)
            if (strcmp(p->options[k].key, p->resolved[i].key) == 0) given = &p->options[k];
        print_pair(to, p->resolved[i].key, p->resolved[i].value,
                   given ? origin_of(r, given->from, given->line, given->where, buf, sizeof buf) : "plugin's default");
    }
    for (size_t k = 0; k < p->n_options && !p->resolved; k++)
        print_pair(to, p->options[k].key, p->options[k].value,
                   origin_of(r, p->options[k].from, p->options[k].line, p->options[k].where, buf, sizeof buf));
}

static void print_plugin(const recipe *r, const recipe_plugin *p, FILE *to) {
    char buf[256];
    fprintf(to, "\n[%s]\n", p->section);
    print_pair(to, "plugin", p->name, origin_of(r, p->from, p->line, p->where, buf, sizeof buf));
    print_options(r, p, to);
}

void recipe_print_resolved(const recipe *r, FILE *to) {
    char buf[256];
    size_t n;
    const section_row *sections = keys_sections(&n);
    bool dense = recipe_int(r, "model", "experts") == 0;
    fprintf(to, "; every value of the recipe, and where it comes from\n");
    for (size_t i = 0; i < n; i++) {
        const section_row *s = &sections[i];
        if (dense && (strcmp(s->name, "router") == 0 || strcmp(s->name, "dispatcher") == 0)) continue;
        if (s->plugin)
            print_plugin(r, recipe_plugin_of(r, s->name), to);
        else
            fprintf(to, "\n[%s]\n", s->name);
        for (size_t k = 0; k < s->n_keys; k++) {
            const recipe_value *v = recipe_slot(r, s->name, s->keys[k].key);
            if (s->plugin && strcmp(s->keys[k].key, "plugin") == 0) continue;
            print_pair(to, s->keys[k].key, v->text, origin_of(r, v->from, v->line, v->where, buf, sizeof buf));
        }
        for (size_t k = 0; s->plugin && k < r->n_plugins; k++)
            if (strcmp(r->plugins[k].kind, s->name) == 0 && strchr(r->plugins[k].section, ':'))
                print_plugin(r, &r->plugins[k], to);
    }
}

/* ---- the reference ---- */
static void print_cell(FILE *to, const char *text) { /* '|' ends a cell of a Markdown table, '<' begins a tag */
    for (; *text; text++) {
        if (*text == '|' || *text == '<') fputc('\\', to);
        fputc(*text, to);
    }
}

static void print_heading(const section_row *s, FILE *to, bool markdown) {
    fprintf(to, markdown ? "\n## [%s]\n\n%c%s" : "\n[%s]  %c%s", s->name, s->help[0] - (markdown ? 'a' - 'A' : 0),
            s->help + 1);
    if (s->plugin) fprintf(to, markdown ? ". Default plugin: `%s`" : "; default plugin: %s", s->plugin);
    if (s->layers)
        fprintf(to, markdown ? ". `[%s:0-2,5]` overrides it for layers 0, 1, 2 and 5" : "; [%s:0-2,5] for some layers",
                s->name);
    if (s->parts)
        fprintf(to,
                markdown ? ", `[%s:experts]` for the experts, `[%s:0-2,experts]` for both together"
                         : ", [%s:experts], [%s:0-2,experts]",
                s->name, s->name);
    fprintf(to, markdown ? ".\n\n| key | type | default | what it is |\n|---|---|---|---|\n" : "\n");
}

static void print_key(const section_row *s, const key_row *row, FILE *to, bool markdown) {
    const char *dflt = s->plugin && strcmp(row->key, "plugin") == 0 ? s->plugin : row->dflt;
    if (!markdown) {
        fprintf(to, "  %-16s %-34s %-10s %s\n", row->key, row->type, dflt ? dflt : "required", row->help);
        return;
    }
    fprintf(to, "| `%s` | ", row->key);
    print_cell(to, row->type);
    fprintf(to, dflt && *dflt ? " | `%s` | " : " | %s | ", dflt ? dflt : "required");
    print_cell(to, row->help);
    fprintf(to, " |\n");
}

static const char intro_markdown[] =
    "# Recipes\n\n"
    "<!-- Made by `moehost help recipe --markdown` from host/keys.c; a test compares. -->\n\n"
    "A recipe is an INI file: `[section]`, `key = value`, one a line; `;` or `#` begins a comment, at the start of a\n"
    "line or after a blank. Values are written without quotes. Items of a list stand between commas. Relative paths\n"
    "start from the recipe's folder. `moehost check RECIPE --resolved` shows every value and where it comes from;\n"
    "`--set section.key=value` overrides one. Every other key of a plugin section is an option of the plugin:\n"
    "`moehost plugins KIND/ID` lists them. An override of the same plugin keeps the options of its base section; "
    "where\n"
    "two overrides hold, the one that names the layer comes first.\n";

void recipe_print_reference(FILE *to, bool markdown) {
    size_t n;
    const section_row *sections = keys_sections(&n);
    fputs(markdown ? intro_markdown : "Keys of a recipe: name, type, default, meaning\n", to);
    for (size_t i = 0; i < n; i++) {
        print_heading(&sections[i], to, markdown);
        for (size_t k = 0; k < sections[i].n_keys; k++) print_key(&sections[i], &sections[i].keys[k], to, markdown);
    }
}
