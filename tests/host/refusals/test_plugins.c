/* Plugins that are whole files but break the contract (tests/host/badplugins), plugins that are not there, and two of
 * one name. Every refusal is exit code 3, and one line with the reason. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>

#include "files.h"
#include "runner.h"

/* The refusal of build/tests/badplugins/<what>.so, and what it must say. */
#define BAD(what_, ...)                                                           \
    {                                                                             \
        what_, .put = {"router: plugin = $BAD/" what_ ".so"}, .code = 3, .say = { \
            "[router] plugin: ",                                                  \
            "refused",                                                            \
            "$BAD/" what_ ".so: ",                                                \
            __VA_ARGS__                                                           \
        }                                                                         \
    }

START_TEST(C119_other_versions_of_the_contract) {
    static const row rows[] = {
        {"the same without a fault", .put = {"router: plugin = $BAD/good.so"}},
        BAD("minor", "min_host_minor is 9", "host's minor is 0"),
        BAD("magic", "magic is 0x12345678", "0x30454f4d"),
        BAD("bits", "pointer_bits is 32", "64"),
        BAD("fork", "abi_tag is \"acme\"", "host's is \"v0-"),
        BAD("older", "abi_tag is \"\"", "host's is \"v0-"),
        BAD("tag_null", "abi_tag is NULL"),
        BAD("entry_short", "moe_entry.size is 16", "needs at least 40"),
        BAD("kind_major", "router/bad", "kind_major", "7", "0"),
    };
    RUN(rows);
}
END_TEST

START_TEST(tables_that_are_wrong) {
    static const row rows[] = {
        BAD("no_descs", "n_descs is 0"),
        BAD("too_many_descs", "n_descs is 70000", "256"),
        BAD("descs_null", "descs is NULL"),
        BAD("entry_null", "moe_plugin_entry_v0 returned NULL"),
        BAD("desc_null", "descriptor 0 is NULL"),
        BAD("desc_short", "moe_desc.size is 24", "at least"),
        BAD("id_null", "descriptor 0", "id is NULL"),
        BAD("id_path", "id \"../bad\""),
        BAD("device_null", "device is NULL"),
        BAD("version_empty", "version is empty"),
        BAD("kind", "kind is \"teleporter\"", "router, dispatcher"),
        BAD("twins", "descriptors 0 and 1", "router/bad"),
        BAD("options_null", "n_options is 1", "options is NULL"),
        BAD("too_many_options", "n_options is 70000", "512"),
        BAD("option_key_null", "option 0", "no key"),
        BAD("option_key", "option 0", "malformed key"),
        BAD("option_reserved", "option 'plugin'", "host's own"),
        BAD("option_type", "option 'strength'", "'float 1..0'", "empty"),
        BAD("option_type_unknown", "option 'strength'", "'complex'"),
        BAD("option_default", "option 'strength'", "2 is outside 0..1"),
        BAD("option_twice", "option 'strength'", "twice"),
    };
    RUN(rows);
}
END_TEST

START_TEST(C120_required_slots) {
    static const row rows[] = {
        BAD("slot_null", "router/bad", "moe_router_v0.route_bwd is NULL"),
        BAD("vtable_null", "vtable is NULL"),
        BAD("vtable_short", "moe_router_v0.size is 16", "destroy"),
    };
    RUN(rows);
}
END_TEST

START_TEST(C115_no_entry_symbol) {
    static const row rows[] = {
        BAD("no_entry", "moe_plugin_entry_v0"),
        {"a library that is no plugin", .put = {"router: plugin = $BAD/no_entry.so#bad"}, .code = 3,
         .say = {"moe_plugin_entry_v0"}},
        BAD("undefined", "acme_missing_function"),
    };
    RUN(rows);
}
END_TEST

START_TEST(loading_that_goes_wrong) {
    static const row rows[] = {
        {"it waits for ever", .put = {"router: plugin = $BAD/hang.so"}, .probe = "0.5", .code = 3,
         .say = {"[router] plugin: ", "$BAD/hang.so: ", "0.5 s", "constructors"}},
        BAD("crash", "probe", "constructors"),
        BAD("leave", "probe ended (exit code 0)", "constructors"),
        BAD("entry_crash", "probe", "in moe_plugin_entry_v0"),
        BAD("entry_leave", "probe ended (exit code 0)", "in moe_plugin_entry_v0"),
        {"a probe of no time", .probe = "0", .line = NO_PLACE, .code = 2, .say = {"MOEHOST_PROBE_SECONDS", "outside"}},
        {"a probe of words", .probe = "soon", .code = 2, .say = {"MOEHOST_PROBE_SECONDS", "'soon'"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(instances_that_go_wrong) {
    static const row rows[] = {
        {"create refuses", .put = {"router: plugin = $BAD/create_fails.so"}, .line = NO_PLACE, .code = 2,
         .say = {"router/bad layer 0", "the stars are not right: 7 of them"}},
        {"create says nothing", .put = {"router: plugin = $BAD/create_silent.so"}, .line = NO_PLACE, .code = 3,
         .say = {"router/bad layer 0", "without a reason"}},
        {"needs refuses", .put = {"router: plugin = $BAD/needs_fails.so"}, .line = NO_PLACE, .code = 2,
         .say = {"router/bad", "the stars are not right: 7 of them"}},
        {"needs says nothing", .put = {"router: plugin = $BAD/needs_silent.so"}, .line = NO_PLACE, .code = 3,
         .say = {"router/bad", "without a reason"}},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which report it in their own way */
        {"create overflows its stack", .args = "run tiny.ini", .put = {"router: plugin = $BAD/create_deep.so"},
         .line = NO_PLACE, .code = 128 + SIGSEGV, .say = {"moehost: crashed in ", "(SIGSEGV)"}},
#endif
        {"it wants hidden states", .put = {"router: plugin = $BAD/inputs.so"}, .line = NO_PLACE, .code = 3,
         .say = {"router/bad", "inputs"}},
        {"it has too many losses", .put = {"router: plugin = $BAD/losses.so"}, .line = NO_PLACE, .code = 3,
         .say = {"router/bad", "1000 losses"}},
    };
    RUN(rows);
}
END_TEST

/* Their words become one line: no colours, and an end. */
START_TEST(words_of_instances_are_one_line) {
    static const row rows[] = {
        {"create", .put = {"router: plugin = $BAD/create_litters.so"}, .line = NO_PLACE, .code = 3,
         .say = {"router/bad layer 0: two lines [31mxxx"}, .not_say = "\033"},
        {"needs", .put = {"router: plugin = $BAD/needs_litters.so"}, .line = NO_PLACE, .code = 3,
         .say = {"router/bad layer 0: two lines [31mxxx"}, .not_say = "\033"},
    };
    RUN(rows);
}
END_TEST

#define DECLARES(what_, ...)                                                                        \
    {                                                                                               \
        what_, .put = {"router: plugin = $BAD/" what_ ".so"}, .line = NO_PLACE, .code = 3, .say = { \
            "router/bad layer 0: ",                                                                 \
            __VA_ARGS__                                                                             \
        }                                                                                           \
    }

START_TEST(declarations_that_are_wrong) {
    static const row rows[] = {
        {"the same without a fault", .put = {"router: plugin = $BAD/good_needs.so"}},
        DECLARES("params_null", "params is NULL"),
        DECLARES("params_many", "n_params is 1000000000"),
        DECLARES("state_null", "state is NULL"),
        DECLARES("spec_null", "parameter 0 has no name"),
        DECLARES("spec_empty", "name of parameter 0 is empty"),
        DECLARES("spec_path", "state 0, '../gain'", "0x2e at 0"),
        DECLARES("spec_own", "parameter 0", "'weight'", "host's own"),
        DECLARES("spec_twice", "parameter 1", "'gain'", "parameter 0"),
        DECLARES("spec_both", "state 0", "'gain'", "parameter 0"),
        DECLARES("spec_init", "'gain'", "'random'"),
        DECLARES("spec_init_null", "'gain' has no init"),
        DECLARES("spec_ndim", "'gain' has 5 dimensions"),
        DECLARES("spec_dtype", "'gain' has dtype 4"),
        DECLARES("spec_zero", "'gain' has dimension 0 of 0"),
        DECLARES("spec_huge", "'gain' has more than 2^56 numbers"),
        DECLARES("losses_null", "losses is NULL"),
        DECLARES("losses_many", "1000000000 losses"),
        DECLARES("loss_null", "loss 0 has no name"),
        DECLARES("loss_twice", "losses 0 and 1", "'second'"),
    };
    RUN(rows);
}
END_TEST

/* ---- plugins that are not there ---- */
START_TEST(names_of_nothing) {
    static const row rows[] = {
        {"an id with a slip", .put = {"router: plugin = topc"}, .code = 3,
         .say = {"[router] plugin: ", "'topc'", "not found", "did you mean 'topk'?", "$BUILD/plugins/router/topc.so",
                 "lib/moehost/plugins/router/topc.so"}},
        {"an id like no other", .put = {"precision: plugin = zzzzzz"}, .code = 3,
         .say = {"[precision] plugin: ", "$BUILD/plugins/precision/zzzzzz.so"}, .not_say = "did you mean"},
        {"of another kind", .put = {"dispatcher: plugin = topk"}, .code = 3,
         .say = {"[dispatcher] plugin: ", "$BUILD/plugins/dispatcher/topk.so"}},
        {"a file", .put = {"router: plugin = ./nowhere.so"}, .code = 3, .say = {"$DIR/nowhere.so", "absent"}},
        {"a file of another kind", .put = {"scheduler: plugin = $BUILD/plugins/router/topk.so"}, .code = 3,
         .say = {"[scheduler] plugin: ", "holds nothing of this kind"}},
        {"another id of a file", .put = {"router: plugin = $BUILD/plugins/router/topk.so#best"}, .code = 3,
         .say = {"topk.so: holds no such id"}},
        {"its own id", .put = {"router: plugin = $BUILD/plugins/router/topk.so#topk"}},
        {"for another device", .put = {"router: plugin = $BAD/elsewhere.so"}, .code = 3,
         .say = {"for device cuda, and the device is cpu", "holds nothing of this kind for this device"}},
        {"no id at all", .put = {"router: plugin = the best"}, .code = 2, .say = {"[router] plugin", "'the best'"}},
        {"empty", .put = {"router: plugin ="}, .code = 2, .say = {"[router] plugin"}},
        {"a parent folder", .put = {"router: plugin = ../topk"}, .code = 3, .say = {"topk", "absent"}},
        {"two kinds at once", .put = {"router: plugin = topc", "scheduler: plugin = seriel"}, .code = 3, .lines = 2,
         .say = {"did you mean 'topk'?", "did you mean 'serial'?"}},
        {"an unknown device", .put = {"device: plugin = tpu"}, .code = 3, .say = {"device 'tpu'", "not found"}},
        {"to run", .put = {"router: plugin = topc"}, .args = "run tiny.ini", .code = 3, .say = {"'topk'"}},
        {"to generate", .put = {"router: plugin = topc"}, .args = "generate tiny.ini --prompt x", .code = 3,
         .say = {"'topk'"}},
    };
    RUN(rows);
}
END_TEST

/* ---- the program and its plugins in a place of their own ---- */
static const struct {
    const char *kind, *id;
} stock[] = {{"router", "topk"},      {"dispatcher", "local"}, {"precision", "fp32"}, {"precision", "bf16"},
             {"scheduler", "serial"}, {"device", "cpu"},       {"comm", "threads"}};
enum { STOCK = sizeof stock / sizeof stock[0] };

static void copy_plugin(const char *kind, const char *id, const char *folder) {
    char from[PATH_BYTES], to[PATH_BYTES];
    file_path(to, "%s/%s", folder, kind);
    file_make_dir(to, 0755);
    file_path(from, MOE_BUILD_DIR "/plugins/%s/%s.so", kind, id);
    file_path(to, "%s/%s/%s.so", folder, kind, id);
    file_copy(from, to, SIZE_MAX);
}

/* dir/moehost and dir/plugins, all but one of them; STOCK: none is missing. */
static void copy_program(const char *dir, size_t missing) {
    char folder[PATH_BYTES], exe[PATH_BYTES];
    file_path(folder, "%s/plugins", dir);
    file_path(exe, "%s/moehost", dir);
    file_copy(MOE_BUILD_DIR "/moehost", exe, SIZE_MAX);
    for (size_t i = 0; i < STOCK; i++)
        if (i != missing) copy_plugin(stock[i].kind, stock[i].id, folder);
}
static void copy_all(const char *dir) {
    copy_program(dir, STOCK);
}
static void copy_without_0(const char *dir) {
    copy_program(dir, 0);
}
static void copy_without_1(const char *dir) {
    copy_program(dir, 1);
}
static void copy_without_2(const char *dir) {
    copy_program(dir, 2);
}
static void copy_without_3(const char *dir) {
    copy_program(dir, 3);
}
static void copy_without_4(const char *dir) {
    copy_program(dir, 4);
}
static void copy_without_5(const char *dir) {
    copy_program(dir, 5);
}
static void copy_without_6(const char *dir) {
    copy_program(dir, 6);
}

static void copy_installed(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/usr/bin", dir);
    file_make_dir(path, 0755);
    file_path(path, "%s/usr/bin/moehost", dir);
    file_copy(MOE_BUILD_DIR "/moehost", path, SIZE_MAX);
    file_path(path, "%s/usr/lib/moehost/plugins", dir);
    for (size_t i = 0; i < STOCK; i++) copy_plugin(stock[i].kind, stock[i].id, path);
}

#define MISSING(kind_, id_, prepare_, ...)                                                                            \
    {                                                                                                                 \
        kind_ "/" id_, .put = {__VA_ARGS__}, .exe = "$DIR/moehost", .prepare = prepare_, .line = NO_PLACE, .code = 3, \
                       .say = {                                                                                       \
                           "tiny.ini",                                                                                \
                           "[" kind_ "]",                                                                             \
                           kind_ " '" id_ "'",                                                                        \
                           "$DIR/plugins/" kind_ "/" id_ ".so: absent",                                               \
                           "lib/moehost/plugins/" kind_ "/" id_ ".so: absent"                                         \
                       }                                                                                              \
    }

START_TEST(one_stock_plugin_is_missing) {
    static const row rows[] = {
        {"none is", .exe = "$DIR/moehost", .prepare = copy_all},
        {"none is, with bf16", .put = {"precision: plugin = bf16"}, .exe = "$DIR/moehost", .prepare = copy_all},
        {"installed", .exe = "$DIR/usr/bin/moehost", .prepare = copy_installed},
        MISSING("router", "topk", copy_without_0, NULL),
        MISSING("dispatcher", "local", copy_without_1, NULL),
        MISSING("precision", "fp32", copy_without_2, NULL),
        MISSING("precision", "bf16", copy_without_3, "precision: plugin = bf16"),
        MISSING("scheduler", "serial", copy_without_4, NULL),
        MISSING("device", "cpu", copy_without_5, NULL),
        MISSING("comm", "threads", copy_without_6, NULL),
    };
    RUN(rows);
}
END_TEST

/* ---- two of one name ---- */
static void copy_twice(const char *dir) {
    char folder[PATH_BYTES];
    file_path(folder, "%s/a", dir);
    copy_plugin("router", "topk", folder);
    file_path(folder, "%s/b", dir);
    copy_plugin("router", "topk", folder);
}
static void copy_as_mine(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/a/router", dir);
    file_make_dir(path, 0755);
    file_path(path, "%s/a/router/bad.so", dir);
    file_copy(MOE_BUILD_DIR "/tests/badplugins/good.so", path, SIZE_MAX);
    file_path(path, "%s/a/router/magic.so", dir);
    file_copy(MOE_BUILD_DIR "/tests/badplugins/magic.so", path, SIZE_MAX);
    file_path(path, "%s/bad.so", dir);
    file_copy(MOE_BUILD_DIR "/tests/badplugins/good.so", path, SIZE_MAX);
}
/* A broken one of the stock plugin's name, in the folder that is searched first. */
static void copy_broken_first(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/a/router", dir);
    file_make_dir(path, 0755);
    file_path(path, "%s/a/router/topk.so", dir);
    file_copy(MOE_BUILD_DIR "/tests/badplugins/magic.so", path, SIZE_MAX);
}

START_TEST(C118_two_plugins_with_one_id) {
    static const row rows[] = {
        {"in two folders", .path = "$DIR/a:$DIR/b", .prepare = copy_twice, .put = {"router: plugin = topk"}, .code = 3,
         .say = {"ambiguous", "$DIR/a/router/topk.so", "$DIR/b/router/topk.so"}},
        {"beside the installed one", .path = "$DIR/a", .prepare = copy_twice, .put = {"router: plugin = topk"},
         .code = 3, .say = {"ambiguous", "$DIR/a/router/topk.so", "$BUILD/plugins/router/topk.so"}},
        {"one of them by its path", .path = "$DIR/a", .prepare = copy_twice,
         .put = {"router: plugin = a/router/topk.so"}},
        {"one folder under two names", .path = "$DIR/a:$DIR/./a", .prepare = copy_as_mine,
         .put = {"router: plugin = bad"}},
        {"a broken one is no reason for the next", .path = "$DIR/a", .prepare = copy_broken_first,
         .put = {"router: plugin = topk"}, .code = 3, .say = {"refused", "$DIR/a/router/topk.so: ", "magic"}},
        {"a relative folder", .path = "a", .prepare = copy_twice, .line = NO_PLACE, .code = 2,
         .say = {"MOEHOST_PLUGIN_PATH", "'a'", "absolute"}},
        {"the working directory is no folder", .prepare = copy_as_mine, .put = {"router: plugin = bad"}, .code = 3,
         .say = {"'bad'", "not found"}},
        {"a path starts from the recipe", .prepare = copy_as_mine, .put = {"router: plugin = bad.so"}},
        {"a listing names the refused", .path = "$DIR/a", .prepare = copy_as_mine, .args = "plugins router", .lines = 1,
         .code = 3, .say = {"$DIR/a/router/magic.so: plugin refused: ", "magic"}},
        {"a listing of one", .path = "$DIR/a", .prepare = copy_as_mine, .args = "plugins router/bad",
         .say = {"router/bad", "strength", "$DIR/a/router/bad.so"}},
    };
    RUN(rows);
}
END_TEST

TCase *plugin_tests(void) {
    TCase *tc = tcase_create("plugins");
    tcase_add_test(tc, C119_other_versions_of_the_contract);
    tcase_add_test(tc, tables_that_are_wrong);
    tcase_add_test(tc, C120_required_slots);
    tcase_add_test(tc, C115_no_entry_symbol);
    tcase_add_test(tc, loading_that_goes_wrong);
    tcase_add_test(tc, instances_that_go_wrong);
    tcase_add_test(tc, words_of_instances_are_one_line);
    tcase_add_test(tc, declarations_that_are_wrong);
    tcase_add_test(tc, names_of_nothing);
    tcase_add_test(tc, one_stock_plugin_is_missing);
    tcase_add_test(tc, C118_two_plugins_with_one_id);
    return tc;
}
