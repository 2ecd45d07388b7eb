/* A small recipe, and how tests load variations of it. */
#ifndef TESTS_HOST_RECIPE_TEXT_H
#define TESTS_HOST_RECIPE_TEXT_H
#include <recipe.h>

#include "check_lines.h"

#define MODEL "[model]\nhidden = 64\nlayers = 4\nheads = 4\n" /* lines 1 to 4 */
#define DENSE MODEL "dense_ffn = 8\n"                         /* lines 1 to 5 */
#define MOE MODEL "experts = 8\ntop_k = 2\nexpert_ffn = 32\n" /* lines 1 to 7 */

enum { MOST_SETS = 4 };

/* Loads text as /tmp/r.ini with --set overrides "a.b=c", n of them. */
static inline recipe *load_sets(const char *text, const char *const *sets, size_t n, unsigned flags, err_list *errs) {
    char copies[MOST_SETS][128], where[MOST_SETS][128], why[128];
    recipe_set parsed[MOST_SETS] = {{.section = NULL}};
    for (size_t i = 0; i < n; i++) {
        snprintf(copies[i], sizeof copies[i], "%s", sets[i]);
        snprintf(where[i], sizeof where[i], "--set %s", sets[i]);
        ck_assert_msg(recipe_split_set(copies[i], &parsed[i], why, sizeof why), "%s", why);
        parsed[i].where = where[i];
    }
    return recipe_parse("/tmp/r.ini", text, strlen(text), parsed, n, flags, errs);
}

static inline recipe *load_good(const char *text, const char *const *sets, size_t n) {
    err_list errs = {.n = 0};
    recipe *r = load_sets(text, sets, n, 0, &errs);
    err_list_print(&errs, stderr);
    ck_assert_ptr_nonnull(r);
    return r;
}
#endif
