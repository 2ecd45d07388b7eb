/* Recipes: values, origins, contradictions, overrides, and that a resolved recipe says the same again. */
#include <keys.h>
#include <math.h>
#include <value.h>

#include "recipe_text.h"

START_TEST(defaults_and_derived) {
    recipe *r = load_good(MOE "[data]\ntrain = a.txt, sub/*.bin , /abs/c\n[memory]\nlimit = 2 GiB\n", NULL, 0);
    size_t n;
    ck_assert_str_eq(recipe_string(r, "run", "name"), "r");
    ck_assert_str_eq(recipe_string(r, "run", "out"), "runs/r");
    ck_assert_int_eq(recipe_int(r, "model", "head_dim"), 16);
    ck_assert_int_eq(recipe_int(r, "model", "kv_heads"), 4);
    ck_assert_int_eq(recipe_get(r, "model", "kv_heads")->from, RECIPE_DERIVED);
    ck_assert_int_eq(recipe_get(r, "model", "hidden")->from, RECIPE_FILE);
    ck_assert_int_eq(recipe_get(r, "model", "hidden")->line, 2);
    ck_assert_int_eq(recipe_get(r, "run", "steps")->from, RECIPE_DEFAULT);
    ck_assert_int_eq(recipe_int(r, "parallel", "dp"), 0);
    ck_assert_int_eq(recipe_int(r, "memory", "limit"), 2ll << 30);
    ck_assert_str_eq(recipe_word(r, "optimizer", "kind"), "adamw");
    ck_assert(fabs(recipe_float(r, "optimizer", "lr") - 1e-3) < 1e-12);
    ck_assert(!recipe_bool(r, "model", "tied"));
    const char *const *train = recipe_list(r, "data", "train", &n);
    ck_assert_uint_eq(n, 3);
    ck_assert_str_eq(train[0], "/tmp/a.txt"); /* from the recipe's folder */
    ck_assert_str_eq(train[1], "/tmp/sub/*.bin");
    ck_assert_str_eq(train[2], "/abs/c");
    recipe_list(r, "data", "valid", &n);
    ck_assert_uint_eq(n, 0);
    ck_assert_str_eq(recipe_plugin_of(r, "router")->name, "topk");
    recipe_destroy(r);
}
END_TEST

static const struct {
    const char *text, *words;
} bad_rows[] = {
    {DENSE "[run]\nstepz = 5\n", "/tmp/r.ini:7:1: [run] stepz: unknown key; did you mean 'steps'?"},
    {DENSE "[run]\nseq_len = 5\n", "/tmp/r.ini:7:1: [run] seq_len: unknown key; it is a key of [data]"},
    {DENSE "[run]\nxyzzy = 5\n", "/tmp/r.ini:7:1: [run] xyzzy: unknown key"},
    {"[modle]\nhidden = 3\n", "/tmp/r.ini:1:2: [modle]: unknown section; did you mean 'model'?"},
    {"[routr:0-1]\nx = 3\n", "/tmp/r.ini:1:2: [routr:0-1]: unknown section; did you mean 'router'?"},
    {MODEL "[model]\nvocab = 512\ndense_ffn = 8\n", "/tmp/r.ini:5:2: [model]: begins twice; first in line 1"},
    {MODEL "layers = 2\n", "/tmp/r.ini:5:1: [model] layers: given twice; first in line 3"},
    {MOE "[router]\nscore = a\nscore = b\n", "/tmp/r.ini:10:1: [router] score: given twice; first in line 9"},
    {MOE "[router]\nplugin = a\nplugin = b\n", "/tmp/r.ini:10:1: [router] plugin: given twice; first in line 9"},
    {DENSE "[run]\nsteps =  many\n", "/tmp/r.ini:7:10: [run] steps: 'many' is not a whole number"},
    {DENSE "[run]\nsteps = -1\n", "/tmp/r.ini:7:9: [run] steps: -1 is outside 0..1000000000000"},
    {DENSE "[run]\nsteps =\n", "[run] steps: the value is empty"},
    {DENSE "[run]\nname = a/b\n", "/tmp/r.ini:7:8: [run] name: 'a/b' is no name for a run"},
    {DENSE "[run]\nname = ..\n", "'..' is no name for a run"},
    {DENSE "[optimizer]\nkind = adam\n", "'adam' is not one of adamw|sgd; did you mean 'adamw'?"},
    {DENSE "[optimizer]\nbeta2 = 1\n", "[optimizer] beta2: 1 is outside 0..0.9999999"},
    {DENSE "[data]\ntrain = a,,b\n", "[data] train: item 2 of the list is empty"},
    {DENSE "[comm]\nranks = 0\n", "[comm] ranks: 0 is outside 1..65536"},
    {DENSE "[scheduler]\nplugin = a b\n", "'a b' is neither an id nor a path"},
    {"[run]\nsteps = 1\n[model]\nhidden = 64\nheads = 4\ndense_ffn = 8\n", "/tmp/r.ini: [model] layers: missing"},
    /* contradictions */
    {MODEL "kv_heads = 3\ndense_ffn = 8\n",
     "/tmp/r.ini:5:12: [model] kv_heads: heads = 4 is no multiple of kv_heads = 3"},
    {"[model]\nhidden = 65\nlayers = 1\nheads = 4\ndense_ffn = 8\n", "hidden = 65 is no multiple of heads = 4"},
    {"[model]\nhidden = 60\nlayers = 1\nheads = 4\ndense_ffn = 8\n",
     "[model] heads: head_dim = hidden / heads = 15 is odd"},
    {MODEL, "[model] dense_ffn: missing: with experts = 0"},
    {MODEL "experts = 4\nexpert_ffn = 8\n", "[model] top_k: missing: experts = 4 needs top_k"},
    {MODEL "experts = 4\ntop_k = 1\n", "[model] expert_ffn: missing"},
    {MOE "dense_ffn = 8\n", "[model] dense_ffn: has no effect: dense_layers = 0"},
    {MOE "dense_layers = 4\ndense_ffn = 8\n", "leaves none of layers = 4 to the experts"},
    {MOE "dense_layers = 1\n", "[model] dense_ffn: missing: dense_layers = 1"},
    {MOE "shared_experts = 1\n", "[model] shared_ffn: missing: shared_experts = 1"},
    {MOE "shared_ffn = 8\n", "[model] shared_ffn: has no effect: shared_experts = 0"},
    {MOE "vocab = 255\n", "[model] vocab: 255 ids are too few"},
    {MODEL "dense_ffn = 8\n[router]\nscore = sigmoid\n", "/tmp/r.ini:7:1: [router] score: has no effect"},
    {MODEL "dense_ffn = 8\n[parallel]\nep = 2\n", "[parallel] ep: has no effect"},
    {MOE "[parallel]\nep = 3\n", "experts = 8 is no multiple of ep = 3"},
    {MOE "[batch]\nglobal = 8\nmicro = 3\n", "/tmp/r.ini:10:9: [batch] micro: global = 8 is no multiple of micro = 3"},
    {MOE "[batch]\nglobal = 8\nmicro = 2\n[parallel]\ndp = 3\n", "[parallel] dp: [batch] global = 8"},
    {MOE "[optimizer]\nschedule = cosine\nwarmup = 101\n", "warmup = 101 is more than [run] steps = 100"},
    {MOE "[optimizer]\nschedule = wsd\nwarmup = 60\ndecay = 41\n", "warmup = 60 and decay = 41 are more than"},
    {MOE "[optimizer]\nschedule = wsd\n", "[optimizer] decay: missing: schedule = wsd"},
    {MOE "[optimizer]\nschedule = cosine\ndecay = 5\n", "[optimizer] decay: has no effect"},
    {MOE "[optimizer]\nmin_lr = 0.1\n", "[optimizer] min_lr: has no effect: schedule = constant"},
    {MOE "[optimizer]\nkind = sgd\nbeta1 = 0.8\n", "[optimizer] beta1: has no effect: kind = sgd"},
    {MOE "[data]\nvalid = a\nvalid_fraction = 0.2\n", "[data] valid_fraction: has no effect"},
    {MOE "[data]\nvalid_fraction = 0\n[run]\neval_every = 1\n", "[run] eval_every: there is nothing to evaluate"},
    /* sections for some layers */
    {MOE "[device:0]\nx = 1\n", "/tmp/r.ini:8:2: [device:0]: [device] has no overrides"},
    {MOE "[batch:0]\nmicro = 1\n", "[batch:0]: [batch] has no overrides"},
    {MOE "[router:]\nx = 1\n", "'' is no layer or range of layers like 0-2"},
    {MOE "[router:2-1]\nx = 1\n", "'2-1' is no layer"},
    {MOE "[router:a]\nx = 1\n", "'a' is no layer"},
    {MOE "[router:1,,2]\nx = 1\n", "'' is no layer"},
    {MOE "[router:experts]\nx = 1\n", "'experts' is no layer"},
    {MOE "[precision:experts,experts]\nx = 1\n", "'experts' is no layer"},
    {MOE "[router:0-2,1]\nx = 1\n", "layer 1 is named twice"},
    {MOE "[router:3-4]\nx = 1\n", "layer 4 of [router:3-4], but the model has layers 0-3"},
    {MOE "[router:0-2]\nx = 1\n[router:2-3]\nx = 2\n",
     "/tmp/r.ini:10:2: [router:2-3]: layer 2 is also in [router:0-2]"},
    {MOE "[precision:experts]\nx = 1\n[precision:0]\nx = 1\n[precision:0,experts]\nplugin = a b\n", "neither an id"},
};

START_TEST(bad_recipe) {
    err_list errs = {.n = 0};
    ck_assert_ptr_null(load_sets(bad_rows[_i].text, NULL, 0, 0, &errs));
    check_one_line(&errs, bad_rows[_i].text, bad_rows[_i].words);
}
END_TEST

/* More choices than experts: refused when the recipe is read, with place and both keys. */
START_TEST(C006_more_choices_than_experts) {
    err_list errs = {.n = 0};
    ck_assert_ptr_null(load_sets(MODEL "experts = 4\ntop_k = 5\nexpert_ffn = 8\n", NULL, 0, 0, &errs));
    check_one_line(&errs, "5 of 4", "/tmp/r.ini:6:9: [model] top_k: top_k = 5 is more than experts = 4");
    ck_assert_ptr_null(load_sets(MODEL "experts = 4\ntop_k = -1\nexpert_ffn = 8\n", NULL, 0, 0, &errs));
    check_one_line(&errs, "-1", "/tmp/r.ini:6:9: [model] top_k: -1 is outside");
    ck_assert_ptr_null(load_sets(MODEL "experts = 4\ntop_k = 0\nexpert_ffn = 8\n", NULL, 0, 0, &errs));
    check_one_line(&errs, "0", "top_k: missing: experts = 4 needs top_k");
}
END_TEST

START_TEST(C007_as_many_choices_as_experts) {
    recipe *r = load_good(MODEL "experts = 4\ntop_k = 4\nexpert_ffn = 8\n", NULL, 0);
    ck_assert_int_eq(recipe_int(r, "model", "top_k"), 4);
    recipe_destroy(r);
}
END_TEST

START_TEST(C099_odd_head) {
    err_list errs = {.n = 0};
    ck_assert_ptr_null(load_sets(MODEL "head_dim = 33\ndense_ffn = 8\n", NULL, 0, 0, &errs));
    check_one_line(&errs, "33", "/tmp/r.ini:5:12: [model] head_dim: 33 is odd");
}
END_TEST

/* A dense model runs; choices without experts are refused. */
START_TEST(C114_no_experts) {
    err_list errs = {.n = 0};
    ck_assert_ptr_null(load_sets(MODEL "dense_ffn = 8\ntop_k = 2\n", NULL, 0, 0, &errs));
    check_one_line(&errs, "top_k", "/tmp/r.ini:6:9: [model] top_k: has no effect: experts = 0");
    recipe *r = load_good(MODEL "dense_ffn = 8\nexperts = 0\ntop_k = 0\n", NULL, 0);
    recipe_destroy(r);
}
END_TEST

START_TEST(overrides) {
    static const char *const sets[] = {"run.steps=7", "router.score=sigmoid", "router:1.score=softmax",
                                       "data.train=x y"};
    recipe *r = load_good(MOE "[run]\nsteps = 9\n[router]\nscore = softmax\nz = 1\n", sets, 4);
    ck_assert_int_eq(recipe_int(r, "run", "steps"), 7);
    ck_assert_int_eq(recipe_get(r, "run", "steps")->from, RECIPE_SET);
    ck_assert_str_eq(recipe_string(r, "data", "train"), "/tmp/x y");
    const recipe_plugin *base = recipe_plugin_of(r, "router"), *one = recipe_plugin_for(r, "router", 1, false);
    ck_assert_uint_eq(base->n_options, 2);
    ck_assert_str_eq(base->options[0].value, "sigmoid");
    ck_assert_str_eq(base->options[0].where, "--set router.score=sigmoid");
    ck_assert_ptr_ne(base, one);
    ck_assert_uint_eq(one->n_options, 2); /* its own, and z of the base */
    ck_assert_ptr_eq(recipe_plugin_for(r, "router", 0, false), base);
    ck_assert_str_eq(one->where, base->where); /* a fault of the one plugin is one line */
    recipe_destroy(r);
}
END_TEST

START_TEST(bad_overrides) {
    static const struct {
        const char *set, *words;
    } rows[] = {{"run.stepz=5", "--set run.stepz=5: unknown key; did you mean 'steps'?"},
                {"run.steps=x", "--set run.steps=x: 'x' is not a whole number"},
                {"rum.steps=5", "--set rum.steps=5: unknown section; did you mean 'run'?"},
                {"model.top_k=9", "--set model.top_k=9: top_k = 9 is more than experts = 8"},
                {"run.name=\"a\"", "--set run.name=\"a\": the value holds a quote"},
                {"run.name=a #b", "the value holds a comment sign after a blank"},
                {"router.a b=1", "names hold letters"},
                {"device:0.x=1", "--set device:0.x=1: [device] has no overrides"}};
    err_list errs = {.n = 0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_ptr_null(load_sets(MOE, &rows[i].set, 1, 0, &errs));
        check_one_line(&errs, rows[i].set, rows[i].words);
    }
    static const char *const twice[] = {"run.steps=5", "run.steps=6"};
    ck_assert_ptr_null(load_sets(MOE, twice, 2, 0, &errs));
    check_one_line(&errs, "twice", "--set run.steps=6: given twice; first as --set run.steps=5");
    char why[128], copy[32];
    static const char *const malformed[] = {"steps=5", ".steps=5", "run.=5", "run.steps", "=", ""};
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        recipe_set set;
        snprintf(copy, sizeof copy, "%s", malformed[i]);
        ck_assert(!recipe_split_set(copy, &set, why, sizeof why));
        ck_assert_ptr_nonnull(strstr(why, "is not section.key=value"));
    }
}
END_TEST

/* All errors in one pass; a section with an error is not searched for contradictions. */
START_TEST(all_errors) {
    err_list errs = {.n = 0};
    ck_assert_ptr_null(load_sets(MODEL
                                 "topk = 2\n[run]\nsteps = x\nlog_every = 0\n[batch]\nmicro = 3\n[data]\ntrian = a\n",
                                 NULL, 0, RECIPE_NEED_DATA, &errs));
    static const char *const words[] = {":5:1: [model] topk: unknown key; did you mean 'top_k'?", ":7:9: [run] steps",
                                        ":8:13: [run] log_every", ":12:1: [data] trian", ":10:9: [batch] micro"};
    if (errs.n != 5) err_list_print(&errs, stderr);
    ck_assert_uint_eq(errs.n, 5);
    for (size_t i = 0; i < 5; i++) ck_assert_msg(strstr(errs.lines[i], words[i]) != NULL, "%s", errs.lines[i]);
    err_list_clear(&errs);
    ck_assert_ptr_null(load_sets(MOE, NULL, 0, RECIPE_NEED_DATA, &errs));
    check_one_line(&errs, "data", "/tmp/r.ini: [data] train: missing; it has no default (path list)");
}
END_TEST

START_TEST(which_section_holds) {
    recipe *r = load_good(MOE
                          "[router:0-1,3]\nscore = a\n[precision]\nplugin = p\n[precision:experts]\nplugin = e\n"
                          "[precision:0]\nplugin = l\n[precision:1,experts]\nplugin = le\nx = 1\n",
                          NULL, 0);
    static const struct {
        const char *kind;
        int layer;
        bool experts;
        const char *section, *name;
    } rows[] = {{"router", -1, false, "router", "topk"},          {"router", 1, false, "router:0-1,3", "topk"},
                {"router", 2, false, "router", "topk"},           {"router", 3, false, "router:0-1,3", "topk"},
                {"precision", -1, false, "precision", "p"},       {"precision", 2, false, "precision", "p"},
                {"precision", 2, true, "precision:experts", "e"}, {"precision", 0, false, "precision:0", "l"},
                {"precision", 0, true, "precision:0", "l"},       {"precision", 1, true, "precision:1,experts", "le"},
                {"precision", 1, false, "precision", "p"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const recipe_plugin *p = recipe_plugin_for(r, rows[i].kind, rows[i].layer, rows[i].experts);
        ck_assert_str_eq(p->section, rows[i].section);
        ck_assert_str_eq(p->name, rows[i].name);
    }
    recipe_destroy(r);
}
END_TEST

START_TEST(plugin_paths) {
    recipe *r = load_good(
        MOE "[router]\nplugin = sub/x.so\n[scheduler]\nplugin = y.so\n[device]\nplugin = /a/z.so#two\n", NULL, 0);
    ck_assert_str_eq(recipe_plugin_of(r, "router")->name, "/tmp/sub/x.so");
    ck_assert_str_eq(recipe_plugin_of(r, "scheduler")->name, "/tmp/y.so");
    ck_assert_str_eq(recipe_plugin_of(r, "device")->name, "/a/z.so#two");
    recipe_destroy(r);
}
END_TEST

/* ---- resolved ---- */
static char *resolve(const recipe *r) {
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    recipe_print_resolved(r, to);
    ck_assert_int_eq(fclose(to), 0);
    return text;
}

/* What it prints has every value, whatever the recipe's name, folder and overrides were. */
static void check_round_trip(const recipe *r) {
    err_list errs = {.n = 0};
    char *text = resolve(r);
    recipe *again = recipe_parse("/elsewhere/recipe.ini", text, strlen(text), NULL, 0, 0, &errs);
    err_list_print(&errs, stderr);
    ck_assert_ptr_nonnull(again);
    size_t n;
    const section_row *sections = keys_sections(&n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sections[i].n_keys; k++) {
            const char *key = sections[i].keys[k].key;
            const recipe_value *a = recipe_get(r, sections[i].name, key), *b = recipe_get(again, sections[i].name, key);
            ck_assert_msg(strcmp(a->text, b->text) == 0 && a->v.i == b->v.i && !(a->v.f < b->v.f || a->v.f > b->v.f),
                          "[%s] %s: '%s' became '%s'", sections[i].name, key, a->text, b->text);
        }
    ck_assert_uint_eq(recipe_count_plugins(r), recipe_count_plugins(again));
    for (size_t i = 0; i < recipe_count_plugins(r); i++) {
        const recipe_plugin *a = recipe_plugin_at(r, i);
        for (size_t k = 0; k < recipe_count_plugins(r); k++) {
            const recipe_plugin *b = recipe_plugin_at(again, k);
            if (strcmp(a->section, b->section) != 0) continue;
            ck_assert_str_eq(a->name, b->name);
            ck_assert_uint_eq(a->resolved ? a->n_resolved : a->n_options, b->n_options);
        }
    }
    recipe_destroy(again);
    free(text);
}

START_TEST(resolved_says_the_same) {
    static const char *const sets[] = {"run.seed=9223372036854775807", "router.aux=0.25"};
    recipe *r = load_good(MOE
                          "vocab = 1000\ntied = yes\n[router]\nscore = a;b#c\n[router:0-1]\nplugin = ./own.so\nq = 1\n"
                          "[router:3]\nscore = z\n[precision:2,experts]\nplugin = bf16\n[data]\ntrain = a/*.txt, b c\n"
                          "[optimizer]\nkind = sgd\nlr = 0.1\n[memory]\nlimit = 3GiB\n[parallel]\ndp = 2\n",
                          sets, 2);
    moe_err err;
    const moe_kv kv[] = {{"score", "a;b#c"}, {"aux", "0.25"}, {"more", "default"}};
    for (size_t i = 0; i < recipe_count_plugins(r); i++)
        if (strcmp(recipe_plugin_at(r, i)->name, "topk") == 0)
            ck_assert_int_eq(recipe_note_options(r, i, kv, 3, &err), MOE_OK);
    check_round_trip(r);
    char *text = resolve(r);
    static const char *const lines[] = {"seed = 9223372036854775807",
                                        "; --set run.seed",
                                        "; r.ini:8\n",
                                        "train = /tmp/a/*.txt, /tmp/b c",
                                        "head_dim = 16",
                                        "; derived",
                                        "; default",
                                        "more = default",
                                        "; plugin's default",
                                        "[router:0-1]\nplugin = /tmp/own.so"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(strstr(text, lines[i]) != NULL, "'%s' is not in\n%s", lines[i], text);
    free(text);
    recipe_destroy(r);
    r = load_good(MODEL "dense_ffn = 8\n[optimizer]\nschedule = wsd\ndecay = 20\nwarmup = 10\nmin_lr = 0.1\n", NULL, 0);
    check_round_trip(r);
    recipe_destroy(r);
}
END_TEST

/* A value that fills its line leaves no room for a comment: it goes above. */
START_TEST(resolved_long_list) {
    static const char path[] =
        "/tmp/a-recipe-whose-name-is-long-enough-to-fill-the-rest-of-a-line-with-its-comment.ini";
    char text[5000] = MOE "[data]\ntrain = /a";
    err_list errs = {.n = 0};
    while (strlen(text) < sizeof MOE + 4040) strcat(text, ", /shard-of-a-list-*.txt");
    strcat(text, "\n");
    recipe *r = recipe_parse(path, text, strlen(text), NULL, 0, 0, &errs);
    err_list_print(&errs, stderr);
    ck_assert_ptr_nonnull(r);
    check_round_trip(r);
    recipe_destroy(r);
    snprintf(text, sizeof text, MOE "[data]\ntrain = a");
    while (strlen(text) < 3000) strcat(text, ", a"); /* fits as written, not with its folder */
    ck_assert_ptr_null(load_sets(strcat(text, "\n"), NULL, 0, 0, &errs));
    check_one_line(&errs, "too long", "[data] train: with its folder, the value holds more bytes");
}
END_TEST

/* Any value of a key's type survives; every default is of its type. */
START_TEST(every_key) {
    size_t n;
    const section_row *sections = keys_sections(&n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sections[i].n_keys; k++) {
            const key_row *row = &sections[i].keys[k];
            value_type type;
            typed_value v;
            char why[700] = "";
            bool good = value_type_parse(row->type, true, &type, why, sizeof why);
            bool empty_string = row->dflt && type.kind == VALUE_STRING;
            good = good && (!row->dflt || empty_string || value_parse(&type, row->dflt, &v, why, sizeof why));
            ck_assert_msg(good, "[%s] %s: %s", sections[i].name, row->key, why);
            ck_assert_msg(strlen(row->help) > 5 && !strchr(row->help, '\n'), "[%s] %s: help", sections[i].name,
                          row->key);
            ck_assert_ptr_eq(keys_find(&sections[i], row->key), row); /* no key twice */
            for (size_t o = 0; o < n && !sections[i].plugin; o++)
                ck_assert(o == i || strcmp(sections[o].name, sections[i].name) != 0);
        }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("recipe");
    tcase_add_test(tests, defaults_and_derived);
    tcase_add_loop_test(tests, bad_recipe, 0, (int)(sizeof bad_rows / sizeof bad_rows[0]));
    tcase_add_test(tests, C006_more_choices_than_experts);
    tcase_add_test(tests, C007_as_many_choices_as_experts);
    tcase_add_test(tests, C099_odd_head);
    tcase_add_test(tests, C114_no_experts);
    tcase_add_test(tests, overrides);
    tcase_add_test(tests, bad_overrides);
    tcase_add_test(tests, all_errors);
    tcase_add_test(tests, which_section_holds);
    tcase_add_test(tests, plugin_paths);
    tcase_add_test(tests, resolved_says_the_same);
    tcase_add_test(tests, resolved_long_list);
    tcase_add_test(tests, every_key);
    return run_case(tests);
}
