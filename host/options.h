/* Options of a plugin: raw keys and values of a recipe, checked against the schema that the plugin publishes, completed
 * with its defaults, in declared order - the moe_kv array that create gets. */
#ifndef HOST_OPTIONS_H
#define HOST_OPTIONS_H
#include <moe/base.h>

#include "errors.h"
#include "recipe.h"

typedef struct options {
    moe_kv *kv; /* [n] one a declared option; keys point into the descriptor, values into the descriptor or the given
                 * options, which must outlive it */
    uint64_t n;
} options;

/* [any] Is the published schema well formed? (keys, types, defaults of their type, no key twice) False with the option
 * and the cause in why: the plugin's own fault. */
bool options_check_schema(const moe_desc *desc, char *why, size_t bytes);

/* Checks given [n] against the schema. Unknown key, wrong type, out of range, required and missing: one line each in
 * errs, with the option's own place (given[i].where; owner for a missing one). True without errors; out is then to be
 * freed with options_free. */
bool options_resolve(const moe_desc *desc, const recipe_option *given, size_t n, const char *owner, options *out,
                     err_list *errs);
void options_free(options *o); /* zeroed or resolved */

#endif
