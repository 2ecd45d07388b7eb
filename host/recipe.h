/* The recipe: an INI file and --set overrides as typed, checked values. Keys and defaults are in keys.c. A value knows
 * where it came from, so that every later error (options, plugins, shapes) can name file, line and column.
 * A recipe is constant once loaded, but for recipe_note_options. All strings are UTF-8 and owned by the recipe. */
#ifndef HOST_RECIPE_H
#define HOST_RECIPE_H
#include <moe/base.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "errors.h"
#include "value.h"

typedef enum recipe_from {
    RECIPE_DEFAULT, /* the key tables */
    RECIPE_DERIVED, /* computed from other keys: head_dim = hidden / heads */
    RECIPE_FILE,    /* a line of the recipe */
    RECIPE_SET,     /* --set or another command line option */
    RECIPE_PLUGIN   /* a default of the plugin's schema */
} recipe_from;

typedef struct recipe_value {
    const char *text; /* as written; paths absolute, an empty name or 0 replaced by what it stands for */
    typed_value v;
    const char *const *items; /* [v.i] of a list */
    recipe_from from;
    int line; /* RECIPE_FILE */
    /* What begins an error about this value, or about its key: "a.ini:12:7: [router] top_k", "--set router.top_k=9" */
    const char *where, *where_key;
} recipe_value;

/* An option for a plugin, unchecked until options_resolve (options.h). */
typedef struct recipe_option {
    const char *key, *value;
    recipe_from from;
    int line;
    const char *where, *where_key;
} recipe_option;

typedef struct recipe_range {
    int64_t first, last; /* layers, both included */
} recipe_range;

/* One section that names a plugin: [router], or an override [router:0-2]. */
typedef struct recipe_plugin {
    const char *section, *kind; /* "router:0-2", "router" */
    const char *name;           /* id, or absolute path of a .so */
    bool named;                 /* the section itself names it; an override without a name continues its kind's */
    recipe_from from;
    int line;
    const char *where;      /* for errors about the plugin as a whole */
    recipe_option *options; /* [n_options] in the order of the file, then of --set */
    size_t n_options;
    const recipe_range *ranges; /* [n_ranges] ascending; 0 = all layers */
    size_t n_ranges;
    bool experts;           /* only the experts' products (precision) */
    const moe_kv *resolved; /* [n_resolved] after recipe_note_options */
    size_t n_resolved;
} recipe_plugin;

/* One override: --set section.key=value, or an option like --steps N that stands for one. */
typedef struct recipe_set {
    const char *section, *key, *value;
    const char *where; /* "--set run.steps=5", "--steps 5" */
} recipe_set;

typedef struct recipe recipe;

enum { RECIPE_NEED_DATA = 1 }; /* [data] train must be given */

/* Reads, checks and derives. NULL when there was an error; errs then has all of them. errs: one line each, in the order
 * of the file, contradictions last. [main] */
recipe *recipe_load(const char *path, const recipe_set *sets, size_t n_sets, unsigned flags, err_list *errs);
/* The same from memory. path: what errors call it, and the folder that relative paths start from. */
recipe *recipe_parse(const char *path, const char *text, size_t bytes, const recipe_set *sets, size_t n_sets,
                     unsigned flags, err_list *errs);
void recipe_destroy(recipe *r); /* NULL is nothing */

/* Splits "section.key=value" (the key is after the last dot before '='). copy owns the text of all three parts: a
 * strdup'ed argument. False with the reason in why. */
bool recipe_split_set(char *copy, recipe_set *out, char *why, size_t bytes);

const char *recipe_path(const recipe *r); /* as given */
const char *recipe_dir(const recipe *r);  /* absolute folder of the recipe */

/* Values of the host's own keys. A name that is not in the tables is a fault of the caller: NULL, 0 or "", with a
 * line on stderr; a test looks every use in the host's sources up in the tables. */
const recipe_value *recipe_get(const recipe *r, const char *section, const char *key);
int64_t recipe_int(const recipe *r, const char *section, const char *key); /* sizes: bytes; "dp = fill": 0 */
double recipe_float(const recipe *r, const char *section, const char *key);
bool recipe_bool(const recipe *r, const char *section, const char *key);
const char *recipe_word(const recipe *r, const char *section, const char *key); /* of an enum */
const char *recipe_string(const recipe *r, const char *section, const char *key);
const char *const *recipe_list(const recipe *r, const char *section, const char *key, size_t *n);

/* The plugin sections: every kind's base section (given or not), then overrides in the order of the file. */
size_t recipe_count_plugins(const recipe *r);
const recipe_plugin *recipe_plugin_at(const recipe *r, size_t i);
/* The base section of a kind. */
const recipe_plugin *recipe_plugin_of(const recipe *r, const char *kind);
/* The section that holds for a layer (-1: outside of layers) and, for precision, the experts' products. An override for
 * the layer and part comes before one for the layer or the part alone, that before the base. */
const recipe_plugin *recipe_plugin_for(const recipe *r, const char *kind, int64_t layer, bool experts);

/* Keeps a copy of the options that a plugin section came to, for the resolved recipe. index: as in recipe_plugin_at. */
moe_status recipe_note_options(recipe *r, size_t index, const moe_kv *kv, size_t n_kv, moe_err *err);

/* Says which plugin the name of a base section ("auto") stands for; the resolved recipe has it. index: as in
 * recipe_plugin_at. */
void recipe_choose_plugin(recipe *r, size_t index, const char *name);

/* The number of ranks that a launcher has started, for the resolved recipe. */
void recipe_note_ranks(recipe *r, int64_t ranks);

/* Writes the whole recipe with every value and, as a comment, its origin. What it writes is a recipe that loads to the
 * same values from any folder. Sections without effect (router and dispatcher of a dense model) are left out. */
void recipe_print_resolved(const recipe *r, FILE *to);
/* The reference of all keys, from the tables: Markdown, or plain text for a terminal. */
void recipe_print_reference(FILE *to, bool markdown);

#endif
