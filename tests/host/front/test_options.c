/* Options against a plugin's schema, and schemas that are wrong themselves. */
#include <options.h>

#include "check_lines.h"

static const moe_option rows[] = {{"count", "int 1..8", NULL, "required"},
                                  {"rate", "float 0..1", "0.5", "a number"},
                                  {"fast", "bool", "no", "a switch"},
                                  {"mode", "enum plain|fancy", "plain", "a word"},
                                  {"note", "string", "", "any text"}};
static const moe_desc desc = {.size = sizeof desc, .kind = "router", .id = "x", .options = rows, .n_options = 5};

static recipe_option given(const char *key, const char *text) {
    return (recipe_option){
        .key = key, .value = text, .where = "r.ini:3:9: [router]", .where_key = "r.ini:3:1: [router]"};
}

START_TEST(declared_order_and_defaults) {
    const recipe_option in[] = {given("mode", "fancy"), given("fast", "ON"), given("count", "08")};
    options out;
    err_list errs = {.n = 0};
    ck_assert(options_resolve(&desc, in, 3, "[router]", &out, &errs));
    static const char *const want[] = {"count=08", "rate=0.5", "fast=true", "mode=fancy", "note="};
    ck_assert_uint_eq(out.n, 5);
    for (size_t i = 0; i < 5; i++) {
        char pair[64];
        snprintf(pair, sizeof pair, "%s=%s", out.kv[i].key, out.kv[i].value);
        ck_assert_str_eq(pair, want[i]);
    }
    options_free(&out);
    options_free(&out);
}
END_TEST

static const struct {
    const char *key, *text, *words;
} bad_rows[] = {
    {"rat", "1", "r.ini:3:1: [router]: unknown option of router/x; did you mean 'rate'?"},
    {"zzz", "1", "r.ini:3:1: [router]: unknown option of router/x"},
    {"rate", "1.5", "r.ini:3:9: [router]: 1.5 is outside 0..1"},
    {"rate", "", "r.ini:3:9: [router]: the value is empty"},
    {"rate", "fast", "'fast' is not a number (0..1)"},
    {"fast", "2", "'2' is not one of true|false|yes|no|on|off"},
    {"mode", "plane", "'plane' is not one of plain|fancy; did you mean 'plain'?"},
};

START_TEST(bad_option) {
    const recipe_option in[] = {given("count", "1"), given(bad_rows[_i].key, bad_rows[_i].text)};
    options out;
    err_list errs = {.n = 0};
    ck_assert(!options_resolve(&desc, in, 2, "[router]", &out, &errs));
    check_one_line(&errs, bad_rows[_i].key, bad_rows[_i].words);
}
END_TEST

START_TEST(all_errors) {
    const recipe_option in[] = {given("rate", "2"), given("nope", "2"), given("fast", "maybe")};
    options out;
    err_list errs = {.n = 0};
    ck_assert(!options_resolve(&desc, in, 3, "r.ini: [router]", &out, &errs));
    ck_assert_uint_eq(errs.n, 4);
    ck_assert_ptr_nonnull(strstr(errs.lines[1], "r.ini: [router]: router/x needs option 'count' (int 1..8)"));
    err_list_clear(&errs);
}
END_TEST

START_TEST(no_options) {
    const moe_desc plain = {.size = sizeof plain, .kind = "scheduler", .id = "y"};
    const recipe_option in = given("a", "1");
    options out;
    err_list errs = {.n = 0};
    ck_assert(options_resolve(&plain, NULL, 0, "", &out, &errs) && out.n == 0);
    options_free(&out);
    ck_assert(!options_resolve(&plain, &in, 1, "", &out, &errs));
    check_one_line(&errs, "one", "unknown option of scheduler/y");
}
END_TEST

START_TEST(schemas) {
    static const struct {
        moe_option row;
        const char *why; /* NULL = good */
    } cases[] = {{{"a", "int 0..1", "1", "h"}, NULL},
                 {{"a", "int 0..1", NULL, "h"}, NULL},
                 {{"a", "string", "", "h"}, NULL},
                 {{NULL, "bool", "no", "h"}, "option 0 has no key"},
                 {{"a b", "bool", "no", "h"}, "option 0 has a malformed key"},
                 {{"", "bool", "no", "h"}, "option 0 has a malformed key"},
                 {{"plugin", "bool", "no", "h"}, "option 'plugin': the key is the host's own"},
                 {{"a", NULL, "no", "h"}, "option 'a': type is NULL"},
                 {{"a", "bool", "no", NULL}, "option 'a': help is NULL"},
                 {{"a", "real", "no", "h"}, "option 'a': type 'real': not one of"},
                 {{"a", "int 5..1", "3", "h"}, "option 'a': type 'int 5..1': the range LO..HI is empty"},
                 {{"a", "int 0..1", "2", "h"}, "option 'a': 2 is outside 0..1"},
                 {{"a", "path list", "x", "h"}, "option 'a': type 'path list'"},
                 {{"a", "enum x|y", "z", "h"}, "option 'a': 'z' is not one of x|y"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[900] = "";
        const moe_desc d = {.size = sizeof d, .kind = "router", .id = "x", .options = &cases[i].row, .n_options = 1};
        bool good = options_check_schema(&d, why, sizeof why);
        ck_assert_msg(good == (cases[i].why == NULL), "%zu: %s", i, why);
        ck_assert_msg(good || strstr(why, cases[i].why) != NULL, "'%s' lacks '%s'", why, cases[i].why);
    }
    const moe_option twice[] = {{"a", "bool", "no", "h"}, {"b", "bool", "no", "h"}, {"a", "bool", "no", "h"}};
    moe_desc d = {.size = sizeof d, .kind = "router", .id = "x", .options = twice, .n_options = 3};
    char why[900] = "";
    ck_assert(!options_check_schema(&d, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "option 'a': declared twice"));
    d.options = NULL;
    ck_assert(!options_check_schema(&d, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "options is NULL"));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, declared_order_and_defaults);
    tcase_add_loop_test(tests, bad_option, 0, (int)(sizeof bad_rows / sizeof bad_rows[0]));
    tcase_add_test(tests, all_errors);
    tcase_add_test(tests, no_options);
    tcase_add_test(tests, schemas);
    return run_case(tests);
}
