/* config.json of a Hugging Face model: what is read becomes a recipe that loads. */
#include <string.h>

#include "file.h"
#include "hf_config.h"
#include "recipe.h"

static void load_recipe(const hf_config *c) {
    char *text = NULL;
    size_t n = 0;
    err_list errs = {0};
    FILE *to = open_memstream(&text, &n);
    if (!to) abort();
    hf_config_print(c, "config.json", "/fuzz", "fuzz", to);
    if (fclose(to)) abort();
    /* sizes that a recipe does not take, or that contradict each other, are its errors; its grammar is not */
    recipe *r = recipe_parse("/fuzz/recipe.ini", text, n, NULL, 0, 0, &errs);
    if (!r != (err_list_count(&errs) > 0)) abort();
    for (size_t i = 0; i < errs.n; i++)
        if (strstr(errs.lines[i], "unknown") || strstr(errs.lines[i], "twice")) {
            fprintf(stderr, "%s\n%s", errs.lines[i], text);
            abort();
        }
    recipe_destroy(r);
    err_list_clear(&errs);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hf_config c;
    err_list notes = {0}, errs = {0};
    bool read = hf_config_parse((const char *)data, size, "config.json", &c, &notes, &errs);
    if (read != (err_list_count(&errs) == 0)) abort();
    if (read) load_recipe(&c);
    err_list_clear(&notes);
    err_list_clear(&errs);
    return 0;
}
