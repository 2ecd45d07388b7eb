/* INI text and the recipe made of it: every fault is a line, never a crash; what loads prints itself and loads again to
 * the same text. */
#include <string.h>

#include "file.h"
#include "recipe.h"

static char *resolved(const recipe *r) {
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    if (!to) abort();
    recipe_print_resolved(r, to);
    if (fclose(to)) abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    err_list errs = {0};
    recipe *r = recipe_parse("/fuzz/recipe.ini", (const char *)data, size, NULL, 0, 0, &errs);
    if (!r != (err_list_count(&errs) > 0)) abort(); /* an error without a line, or a line without an error */
    err_list_clear(&errs);
    if (!r) return 0;
    char *first = resolved(r);
    recipe *again = recipe_parse("/other/recipe.ini", first, strlen(first), NULL, 0, 0, &errs);
    if (!again) {
        err_list_print(&errs, stderr);
        fprintf(stderr, "of this resolved recipe:\n%s", first);
        abort();
    }
    recipe_destroy(again);
    recipe_destroy(r);
    free(first);
    err_list_clear(&errs);
    return 0;
}
