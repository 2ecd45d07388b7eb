/* Types, values, and the nearest name. */
#include <math.h>
#include <suggest.h>
#include <value.h>

#include "check_lines.h"

typedef struct type_row {
    const char *text;
    bool host, good;
} type_row;

START_TEST(type_grammar) {
    static const type_row rows[] = {
        {"int 1..64", false, true},
        {"int -3..-1", false, true},
        {"float 0..1", false, true},
        {"float -1e3..2.5e-3", false, true},
        {"bool", false, true},
        {"string", false, true},
        {"enum a|b-c|d_2", false, true},
        {"int 1..4 or fill", true, true},
        {"int 1..4 or fill", false, false},
        {"int 1..4 or ", true, false},
        {"int 1..4 and more", true, false},
        {"float 0..1 or auto", true, false},
        {"size", true, true},
        {"size", false, false},
        {"list", true, true},
        {"path list", true, true},
        {"path list", false, false},
        {"int", false, false},
        {"int 1", false, false},
        {"int ..4", false, false},
        {"int 1..", false, false},
        {"int 4..1", false, false},
        {"int 1..99999999999999999999", false, false},
        {"int 1.5..2", false, false},
        {"float 1..0", false, false},
        {"float a..b", false, false},
        {"float 0..inf", false, false},
        {"enum ", false, false},
        {"enum a||b", false, false},
        {"enum |a", false, false},
        {"enum a|", false, false},
        {"enum a | b", false, false},
        {"Bool", false, false},
        {"bool ", false, false},
        {"", false, false},
        {"complex", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char why[256] = "";
        value_type type;
        bool good = value_type_parse(rows[i].text, rows[i].host, &type, why, sizeof why);
        ck_assert_msg(good == rows[i].good, "'%s': %s", rows[i].text, why);
        ck_assert(good || why[0]);
    }
}
END_TEST

typedef struct value_row {
    const char *type, *text;
    bool good;
    double number; /* i or f */
    const char *why;
} value_row;

static const value_row value_rows[] = {
    {"int 1..64", "1", true, 1, NULL},
    {"int 1..64", "64", true, 64, NULL},
    {"int 1..64", "007", true, 7, NULL},
    {"int 1..64", "0", false, 0, "0 is outside 1..64"},
    {"int 1..64", "65", false, 0, "65 is outside 1..64"},
    {"int 1..64", "-1", false, 0, "outside 1..64"},
    {"int 1..64", "99999999999999999999999999999999999999", false, 0, "outside 1..64"},
    {"int 1..64", "9223372036854775808", false, 0, "outside"},
    {"int 1..64", "", false, 0, "empty"},
    {"int 1..64", "1.0", false, 0, "not a whole number"},
    {"int 1..64", "1e1", false, 0, "not a whole number"},
    {"int 1..64", "0x10", false, 0, "not a whole number"},
    {"int 1..64", "+3", false, 0, "not a whole number"},
    {"int 1..64", "3 4", false, 0, "not a whole number"},
    {"int 1..64", "3k", false, 0, "not a whole number"},
    {"int 1..64", "-", false, 0, "not a whole number"},
    {"int 0..9223372036854775807", "9007199254740993", true, 9007199254740993.0, NULL},
    {"int 1..8 or fill", "fill", true, 0, NULL},
    {"int 1..8 or fill", "full", false, 0, "1..8 or fill"},
    {"float 0..1", "0.5", true, 0.5, NULL},
    {"float 0..1", "1e-3", true, 1e-3, NULL},
    {"float 0..1", ".25", true, 0.25, NULL},
    {"float 0..1", "1.", true, 1, NULL},
    {"float 0..1", "1.0000001", false, 0, "outside 0..1"},
    {"float 0..1", "-0.1", false, 0, "outside 0..1"},
    {"float 0..1", "nan", false, 0, "not a number"},
    {"float 0..1", "inf", false, 0, "not a number"},
    {"float 0..1", "0x1p-1", false, 0, "not a number"},
    {"float 0..1", "1,5", false, 0, "not a number"},
    {"float 0..1", "1e", false, 0, "not a number"},
    {"float 0..1", "1e999", false, 0, "outside 0..1"},
    {"float 0..1", "1e-999", false, 0, "outside 0..1"},
    {"float 0..1", ".", false, 0, "not a number"},
    {"bool", "true", true, 1, NULL},
    {"bool", "Off", true, 0, NULL},
    {"bool", "yes", true, 1, NULL},
    {"bool", "1", false, 0, "true|false"},
    {"bool", "", false, 0, "empty"},
    {"enum adamw|sgd", "sgd", true, 1, NULL},
    {"enum adamw|sgd", "adam", false, 0, "'adam' is not one of adamw|sgd; did you mean 'adamw'?"},
    {"enum adamw|sgd", "adamw|sgd", false, 0, "not one of"},
    {"string", "", true, 0, NULL},
    {"size", "0", true, 0, NULL},
    {"size", "512MiB", true, 512.0 * 1048576, NULL},
    {"size", "3 GiB", true, 3.0 * 1073741824, NULL},
    {"size", "17B", true, 17, NULL},
    {"size", "1TiB", true, 1099511627776.0, NULL},
    {"size", "1.5GiB", false, 0, "not a size"},
    {"size", "512MB", false, 0, "KiB, MiB, GiB"},
    {"size", "GiB", false, 0, "not a size"},
    {"size", "-1", false, 0, "not a size"},
    {"size", "8388608TiB", false, 0, "63 bits"},
    {"list", "", true, 0, NULL},
    {"list", "a", true, 1, NULL},
    {"list", " a b , c", true, 2, NULL},
    {"list", "a,,b", false, 0, "item 2 of the list is empty"},
    {"list", "a,", false, 0, "item 2 of the list is empty"},
    {"enum a|b:0.5..2", "a", true, 0, ""},
    {"enum a|b:0.5..2", "b:0.5", true, 1, ""},
    {"enum a|b:0.5..2", "b:2", true, 1, ""},
    {"enum a|b:0.5..2", "b:2.01", false, 0, "'b:2.01' is no b:0.5..2"},
    {"enum a|b:0.5..2", "b:", false, 0, "'b:' is no b:0.5..2"},
    {"enum a|b:0.5..2", "b", false, 0, "is not one of a|b:0.5..2"},
    {"enum a|b:0.5..2", "a:1", false, 0, "is not one of a|b:0.5..2"},
};

START_TEST(value_grammar) {
    const value_row *row = &value_rows[_i];
    char why[700] = "";
    value_type type;
    typed_value v;
    ck_assert(value_type_parse(row->type, true, &type, why, sizeof why));
    bool good = value_parse(&type, row->text, &v, why, sizeof why);
    ck_assert_msg(good == row->good, "%s '%s': %s", row->type, row->text, why);
    if (good) {
        double got = type.kind == VALUE_FLOAT ? v.f : (double)v.i;
        ck_assert_msg(fabs(got - row->number) <= 0, "%s '%s' is %.17g", row->type, row->text, got);
    } else {
        ck_assert_msg(strstr(why, row->why) != NULL, "%s '%s': '%s' lacks '%s'", row->type, row->text, why, row->why);
    }
}
END_TEST

START_TEST(list_items) {
    const char *start, *text = " a b ,c.txt,\td/*.bin ";
    size_t n;
    ck_assert(value_list_item(text, 0, &start, &n) && n == 3 && strncmp(start, "a b", n) == 0);
    ck_assert(value_list_item(text, 1, &start, &n) && n == 5 && strncmp(start, "c.txt", n) == 0);
    ck_assert(value_list_item(text, 2, &start, &n) && n == 7 && strncmp(start, "d/*.bin", n) == 0);
    ck_assert(!value_list_item(text, 3, &start, &n));
    ck_assert(!value_list_item("  ", 0, &start, &n));
}
END_TEST

START_TEST(edit_distance) {
    ck_assert_uint_eq(suggest_distance("", ""), 0);
    ck_assert_uint_eq(suggest_distance("", "abc"), 3);
    ck_assert_uint_eq(suggest_distance("topkk", "topk"), 1);
    ck_assert_uint_eq(suggest_distance("tpok", "topk"), 1); /* neighbours swapped */
    ck_assert_uint_eq(suggest_distance("kitten", "sitting"), 3);
    ck_assert_uint_eq(suggest_distance("LR", "lr"), 0);
    ck_assert_uint_gt(suggest_distance("0123456789012345678901234567890123456789012345678901234567890123", "a"), 1000);
}
END_TEST

START_TEST(nearest_name) {
    static const char *const names[] = {"steps", "seed", "log_every", "lr"};
    static const struct {
        const char *word, *name;
    } rows[] = {{"step", "steps"}, {"stepz", "steps"}, {"logevery", "log_every"}, {"sead", "seed"}, {"xyzzy", NULL},
                {"q", NULL},       {"l", "lr"},        {"completely_else", NULL}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        suggest near = suggest_begin(rows[r].word);
        for (size_t i = 0; i < 4; i++) suggest_offer(&near, names[i]);
        const char *name = suggest_name(&near);
        ck_assert_msg((name == NULL) == (rows[r].name == NULL) && (!name || strcmp(name, rows[r].name) == 0),
                      "'%s' -> %s", rows[r].word, name ? name : "none");
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("value");
    tcase_add_test(tests, type_grammar);
    tcase_add_loop_test(tests, value_grammar, 0, (int)(sizeof value_rows / sizeof value_rows[0]));
    tcase_add_test(tests, list_items);
    tcase_add_test(tests, edit_distance);
    tcase_add_test(tests, nearest_name);
    return run_case(tests);
}
