/* recipes/README.md is what the key tables say, and every key that the host's sources ask for is in the tables. */
#include <dirent.h>
#include <keys.h>
#include <recipe.h>
#include <regex.h>

#include "check_lines.h"

static char *read_whole(const char *path) {
    char *text = NULL;
    size_t bytes;
    int c;
    FILE *from = fopen(path, "r"), *to = open_memstream(&text, &bytes);
    ck_assert_msg(from != NULL, "%s is not there", path);
    while ((c = fgetc(from)) != EOF) fputc(c, to);
    fclose(from);
    fclose(to);
    return text;
}

START_TEST(readme_is_generated) {
    char *made = NULL;
    size_t bytes;
    FILE *to = open_memstream(&made, &bytes);
    recipe_print_reference(to, true);
    fclose(to);
    char *kept = read_whole(MOE_SOURCE_DIR "/recipes/README.md");
    ck_assert_msg(strcmp(made, kept) == 0,
                  "recipes/README.md is old: moehost help recipe --markdown > recipes/README.md");
    free(made);
    free(kept);
}
END_TEST

/* Looks up each recipe_xxx(r, "section", "key" of one file; returns how many. */
static int check_uses(const char *path) {
    static const char pattern[] =
        "recipe_(int|float|bool|word|string|list|get|slot)\\([a-z_>-]+, *\"([a-z_]+)\", *\"([a-z_0-9]+)\"";
    regex_t use;
    regmatch_t m[4];
    int n = 0;
    ck_assert_int_eq(regcomp(&use, pattern, REG_EXTENDED), 0);
    char *text = read_whole(path);
    for (const char *at = text; regexec(&use, at, 4, m, 0) == 0; at += m[0].rm_eo, n++) {
        char section[64], key[64];
        snprintf(section, sizeof section, "%.*s", (int)(m[2].rm_eo - m[2].rm_so), at + m[2].rm_so);
        snprintf(key, sizeof key, "%.*s", (int)(m[3].rm_eo - m[3].rm_so), at + m[3].rm_so);
        const section_row *row = keys_find_section(section);
        ck_assert_msg(row && keys_find(row, key), "%s asks for [%s] %s, which is not in host/keys.c", path, section,
                      key);
    }
    free(text);
    regfree(&use);
    return n;
}

START_TEST(keys_in_use_exist) {
    int uses = 0;
    DIR *dir = opendir(MOE_SOURCE_DIR "/host");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *d; (d = readdir(dir));) {
        char path[4096];
        size_t n = strlen(d->d_name);
        if (n < 3 || strcmp(d->d_name + n - 2, ".c") != 0) continue;
        snprintf(path, sizeof path, MOE_SOURCE_DIR "/host/%s", d->d_name);
        uses += check_uses(path);
    }
    closedir(dir);
    ck_assert_int_gt(uses, 20); /* the pattern still finds them */
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("reference");
    tcase_add_test(tests, readme_is_generated);
    tcase_add_test(tests, keys_in_use_exist);
    return run_case(tests);
}
