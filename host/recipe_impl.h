/* Inside of the recipe module: recipe.c reads, recipe_plugins.c handles plugin sections, recipe_check.c and
 * recipe_model.c find contradictions and derive values, recipe_print.c writes. */
#ifndef HOST_RECIPE_IMPL_H
#define HOST_RECIPE_IMPL_H
#include "keys.h"
#include "recipe.h"

typedef struct recipe_block { /* memory that lives as long as the recipe */
    struct recipe_block *next;
    max_align_t data[];
} recipe_block;

typedef struct seen_section {
    const char *name;
    int line;
} seen_section;

struct recipe {
    const char *path, *dir;
    recipe_value *values; /* every key of every section, in table order; text NULL until given */
    recipe_plugin *plugins;
    size_t n_plugins;
    seen_section *seen;
    size_t n_seen;
    const section_row *section; /* while reading; NULL: an unknown section, already reported */
    recipe_plugin *plugin;      /* while reading a plugin section */
    err_list *errs;
    recipe_block *blocks;
    bool *faulty;        /* [sections] something in it is wrong: its contradictions are not looked at */
    size_t n_own_errors; /* errors reported here, not by the INI reader */
    bool garbled;        /* a line could not be read, or a section is unknown: nothing is missed or contradicted */
    bool no_memory;
};

/* Zeroed memory of the recipe. Never NULL for a small request: when memory is out, no_memory is set and the caller gets
 * NULL; load then fails. */
void *recipe_alloc(recipe *r, size_t bytes);
/* A formatted string of the recipe; "" when memory is out. */
__attribute__((format(printf, 2, 3))) const char *recipe_text(recipe *r, const char *format, ...);
/* array of n elements made one longer (a new block; the old one stays until the end), NULL when memory is out */
void *recipe_grow(recipe *r, const void *array, size_t n, size_t element);
/* The value of a key for writing; the names are in the tables. */
recipe_value *recipe_slot(const recipe *r, const char *section, const char *key);
bool recipe_faulty(const recipe *r, const char *section);
/* dir/path, or path when it is absolute */
const char *recipe_absolute(recipe *r, const char *path, size_t length);

/* recipe_plugins.c */
/* Splits "router:0-2,experts": finds or makes the plugin section. NULL after an error (begins with where). */
recipe_plugin *recipe_plugin_section(recipe *r, const char *name, const char *where);
/* plugin = VALUE, or an option; given was read from there. */
void recipe_plugin_name(recipe *r, recipe_plugin *p, const recipe_option *given);
void recipe_plugin_option(recipe *r, recipe_plugin *p, const recipe_option *given);
/* After everything is read: names of overrides, layers in range, overlaps, options without effect. */
void recipe_plugins_finish(recipe *r);

/* recipe_check.c */
void recipe_check(recipe *r, unsigned flags);
/* Reports an error about a key's value. */
__attribute__((format(printf, 4, 5))) void recipe_conflict(recipe *r, const char *section, const char *key,
                                                           const char *format, ...);
/* Reports a key that was given, other than its default, though it has no effect. */
void recipe_refuse_useless(recipe *r, const char *section, const char *key, const char *why);
/* Sets a whole number that follows from other keys. */
void recipe_derive(recipe *r, const char *section, const char *key, int64_t i);
/* Is the value of an enum this word? */
bool recipe_is_word(const recipe *r, const char *section, const char *key, const char *word);

/* recipe_model.c */
void recipe_check_model(recipe *r);

#endif
