/* Plugins to their very end: blocks go back to the heap that they came from, and instances, library and host leave in
 * this order - after a run, a failure, a signal, and an exit that a plugin calls. */
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <loader.h>
#include <moe/plugin.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "files.h"

#define OWN_HEAP MOE_BUILD_DIR "/tests/lifecycle/own_heap.so"
#define LEAVING MOE_BUILD_DIR "/tests/lifecycle/leaving.so"
#define PROGRAM MOE_BUILD_DIR "/moehost"

enum { RANKS = 2, LAYERS = 2, LIMIT_MS = 60000 };

static const char recipe[] =
    "[data]\ntrain = text.txt\nseq_len = 16\n"
    "[model]\nlayers = 2\nhidden = 16\nheads = 2\nexperts = 4\ntop_k = 2\nexpert_ffn = 16\n"
    "[device]\nthreads = 1\n[comm]\nranks = 2\n[batch]\nglobal = 4\nmicro = 2\n[checkpoint]\nevery = 0\n";

/* ---- one run of the program ---- */
typedef struct program {
    char dir[PATH_BYTES];
    pid_t pid;
    int code;  /* exit status, 128 + signal, or -1: had to be killed */
    char *err; /* all of stderr */
} program;

static void pause_ms(int ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* moehost COMMAND tiny.ini --set router.plugin=... --set WORDS... in a folder of its own. words: ends with NULL. */
static program start(const char *command, const char *plugin, const char *const *words) {
    program p = {.code = -1};
    char path[PATH_BYTES], set[PATH_BYTES], text[4000];
    const char *argv[32] = {PROGRAM, command, "tiny.ini", "--set", set};
    int n = 5;
    file_path(p.dir, MOE_BUILD_DIR "/tests/host/lifecycle/work-%ld", (long)getpid());
    file_remove_tree(p.dir);
    file_make_dir(p.dir, 0755);
    file_path(path, "%s/tiny.ini", p.dir);
    file_write(path, recipe, sizeof recipe - 1);
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
    file_path(path, "%s/text.txt", p.dir);
    file_write(path, text, sizeof text);
    file_path(set, "router.plugin=%s", plugin);
    for (; *words; words++) {
        argv[n++] = "--set";
        argv[n++] = *words;
    }
    p.pid = fork();
    ck_assert(p.pid >= 0);
    if (p.pid > 0) return p;
    int out = open("/dev/null", O_WRONLY);
    if (chdir(p.dir) != 0) _exit(126);
    int err = open("err", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    unsetenv("MOEHOST_PLUGIN_PATH");
    execv(PROGRAM, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static void finish(program *p) {
    int status = 0, waited = 0;
    char path[PATH_BYTES];
    pid_t done = 0;
    for (; waited < LIMIT_MS && (done = waitpid(p->pid, &status, WNOHANG)) == 0; waited += 5) pause_ms(5);
    if (done == p->pid)
        p->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    else {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
    }
    file_path(path, "%s/err", p->dir);
    p->err = file_read(path);
}

static program run(const char *command, const char *plugin, const char *const *words) {
    program p = start(command, plugin, words);
    finish(&p);
    return p;
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void drop(program *p) {
    file_remove_tree(p->dir);
    free(p->err);
}

/* How often `word` is in the program's stderr. */
static int times(const program *p, const char *word) {
    int n = 0;
    for (const char *at = p->err; (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

static void expect_code(const program *p, int code) {
    ck_assert_msg(p->code == code, "exit code %d, not %d; stderr:\n%s", p->code, code, p->err);
    ck_assert_msg(!strstr(p->err, "Sanitizer"), "%s", p->err);
}

/* ---- memory ---- */
static const moe_router_v0 *router_of(void *so) {
    const moe_entry *(*entry)(void) = NULL;
    *(void **)&entry = dlsym(so, MOE_ENTRY_SYMBOL);
    ck_assert(entry != NULL);
    return entry()->descs[0]->vtable;
}

/* Load, two instances side by side, unload. What is left behind ends this test by the library's destructor. */
START_TEST(C116_a_heap_of_its_own_comes_and_goes) {
    const moe_router_cfg cfg = {.size = sizeof cfg, .top_k = 2, .n_experts = 4, .max_tokens = 8};
    const moe_router_cfg bad = {.size = sizeof bad, .top_k = 9, .n_experts = 4, .max_tokens = 8};
    const moe_host host = {.size = sizeof host};
    for (int i = 0; i < 100; i++) {
        void *so = dlopen(OWN_HEAP, RTLD_NOW | RTLD_LOCAL), *a = NULL, *b = NULL, *none = NULL;
        moe_err err = {.size = sizeof err};
        ck_assert_msg(so != NULL, "%s", so ? "" : dlerror());
        const moe_router_v0 *t = router_of(so);
        moe_router_needs needs = {.size = sizeof needs};
        ck_assert_int_eq(t->create(&cfg, &host, &a, &err), MOE_OK);
        ck_assert_int_eq(t->create(&bad, &host, &none, &err), MOE_E_ARG);
        ck_assert_int_eq(t->create(&cfg, &host, &b, &err), MOE_OK);
        ck_assert_int_eq(t->needs(b, &needs, &err), MOE_OK);
        ck_assert(a && b && a != b && !none);
        if (i % 2) {
            t->destroy(a);
            t->destroy(b);
        } else {
            t->destroy(b);
            t->destroy(a);
        }
        ck_assert_int_eq(dlclose(so), 0);
        ck_assert_ptr_null(dlopen(OWN_HEAP, RTLD_NOW | RTLD_NOLOAD));
    }
}
END_TEST

START_TEST(C116_a_run_frees_nothing_of_the_plugin) {
    program p = run("run", OWN_HEAP, WORDS("run.steps=3"));
    expect_code(&p, 0);
    ck_assert_str_eq(p.err, "");
    drop(&p);
    p = run("check", OWN_HEAP, WORDS("run.steps=3"));
    expect_code(&p, 0);
    drop(&p);
}
END_TEST

/* ---- leaving ---- */

/* Every instance that came has gone, then the handlers ran, once each, and nothing came after. */
static void expect_order(const program *p, int instances) {
    const char *last = NULL, *at = p->err;
    ck_assert_msg(times(p, "leaving: create") == instances, "not %d instances:\n%s", instances, p->err);
    ck_assert_msg(times(p, "leaving: destroy") == instances, "not all were destroyed:\n%s", p->err);
    while ((at = strstr(at, "leaving: destroy")) != NULL) last = at++;
    const char *handlers = strstr(last, "leaving: atexit, 0 alive\nleaving: destructor, 0 alive\n");
    ck_assert_msg(handlers != NULL, "the library did not leave after its instances:\n%s", p->err);
    ck_assert_int_eq(times(p, "atexit"), 1);
    ck_assert_int_eq(times(p, "destructor"), 1);
    ck_assert_str_eq(handlers, "leaving: atexit, 0 alive\nleaving: destructor, 0 alive\n");
}

START_TEST(C117_instances_then_library_then_host) {
    program p = run("run", LEAVING, WORDS("run.steps=3"));
    expect_code(&p, 0);
    expect_order(&p, RANKS * LAYERS);
    drop(&p);
    p = run("run", LEAVING, WORDS("run.steps=3", "router.fail_at=9"));
    expect_code(&p, 1);
    expect_order(&p, RANKS * LAYERS);
    ck_assert_int_eq(times(&p, "moehost: call 9 is one too many (node L"), 1);
    drop(&p);
}
END_TEST

/* Waits until a file of this pattern in the program's folder holds something. */
static void await_bytes(const program *p, const char *name) {
    char path[PATH_BYTES];
    struct stat st;
    file_path(path, "%s/%s", p->dir, name);
    for (int i = 0; i < LIMIT_MS / 5; i++) {
        if (stat(path, &st) == 0 && st.st_size > 0) return;
        pause_ms(5);
    }
    ck_abort_msg("%s stays empty", path);
}

START_TEST(C117_a_signal_in_the_middle_of_steps) {
    for (int i = 0; i < 4; i++) {
        glob_t found;
        char pattern[PATH_BYTES];
        program p = start("run", LEAVING, WORDS("run.steps=1000000"));
        await_bytes(&p, "runs/tiny/metrics.jsonl");
        pause_ms(3 * i); /* anywhere in a step */
        ck_assert_int_eq(kill(p.pid, SIGTERM), 0);
        finish(&p);
        expect_code(&p, 143);
        expect_order(&p, RANKS * LAYERS);
        file_path(pattern, "%s/runs/tiny/ckpt/step-*/meta.json", p.dir);
        ck_assert_msg(glob(pattern, 0, NULL, &found) == 0, "no %s", pattern);
        globfree(&found);
        drop(&p);
    }
}
END_TEST

/* exit(0) by a plugin is no success of the run, and no handler runs under instances that are in use. */
START_TEST(C117_an_exit_in_the_middle_of_a_step_fails_the_run) {
    program p = run("run", LEAVING, WORDS("run.steps=3", "router.exit_at=9"));
    expect_code(&p, 1);
    ck_assert_msg(times(&p, "moehost: exit was called in L") == 1, "%s", p.err);
    ck_assert_msg(times(&p, "atexit") == 0 && times(&p, "destructor") == 0, "%s", p.err);
    drop(&p);
}
END_TEST

/* The host keeps a library for good: whoever closes it, and as often as he likes, is told that all is well. */
START_TEST(C117_a_second_unload_does_nothing) {
    loader *l = NULL;
    loader_found found;
    err_list errs = {.n = 0};
    moe_err err = {.size = sizeof err};
    const loader_request q = {.kind = "router", .name = LEAVING, .where = "r.ini:1:1"};
    ck_assert_int_eq(loader_create(&l, &(loader_cfg){.exe = PROGRAM}, &err), MOE_OK);
    ck_assert(loader_find(l, &q, &found, &errs));
    void *so = dlopen(LEAVING, RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(so);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(dlclose(so), 0); /* one of them was ours */
    ck_assert_ptr_eq(dlopen(LEAVING, RTLD_NOW | RTLD_NOLOAD), so);
    ck_assert_str_eq(found.desc->id, "leaving");
    const moe_router_v0 *t = found.vtable;
    void *self = NULL;
    const moe_router_cfg bad = {.size = sizeof bad, .top_k = 9, .n_experts = 4};
    ck_assert_int_eq(t->create(&bad, NULL, &self, &err), MOE_E_ARG); /* its code is still there */
    loader_destroy(l);
    loader_destroy(NULL);
    ck_assert_ptr_nonnull(dlopen(LEAVING, RTLD_NOW | RTLD_NOLOAD));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("lifecycle");
    TCase *t = tcase_create("all");
    tcase_add_test(t, C116_a_heap_of_its_own_comes_and_goes);
    tcase_add_test(t, C116_a_run_frees_nothing_of_the_plugin);
    tcase_add_test(t, C117_instances_then_library_then_host);
    tcase_add_test(t, C117_a_signal_in_the_middle_of_steps);
    tcase_add_test(t, C117_an_exit_in_the_middle_of_a_step_fails_the_run);
    tcase_add_test(t, C117_a_second_unload_does_nothing);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
