/* Memory of a rank: what it really takes against what its plan says, that it stays the same from step to step, and that
 * a step allocates nothing. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"
#include "run_suite.h"
#include "watch_malloc.h"

/* About 100 MB of plan: large beside what a process grows by anyway. */
static rig_cfg large(const char *precision) {
    rig_cfg c = rig_default();
    c.precision = precision;
    c.trainer.model = (model_cfg){.layers = 3,
                                  .dense_layers = 1,
                                  .heads = 8,
                                  .kv_heads = 4,
                                  .head_dim = 32,
                                  .experts = 8,
                                  .top_k = 2,
                                  .hidden = 256,
                                  .vocab = 256,
                                  .expert_ffn = 256,
                                  .dense_ffn = 512,
                                  .seq = 256,
                                  .micro = 4,
                                  .head_rows = 256,
                                  .rope.theta = 10000,
                                  .norm_eps = 1e-6F,
                                  .init_std = 0.05F,
                                  .seed = 3};
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    c.trainer.lr.lr = 1e-3;
    c.trainer.global = 8;
    c.router[0] = (moe_kv){"expert_bias", "true"};
    return c;
}

/* ---- resident memory ---- */
/* A line of /proc/self/status in bytes; 0 = not there. */
static uint64_t status_bytes(const char *key) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), ": %llu", &kib);
    if (f) fclose(f);
    return (uint64_t)kib * 1024;
}
/* Begins a new high-water mark where the system allows it. */
static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}

enum { STEPS = 4 };

typedef struct growth {
    uint64_t before;          /* resident before the trainer is made */
    uint64_t peak[STEPS + 1]; /* high-water mark after it was made, and after each step */
    trainer_memory plan;
    int failed;
} growth;

static void one_step(rig *r, int64_t step) {
    step_result out;
    check_ok(trainer_step(r->t, step, 0, &out, err));
}

/* A small trainer's step comes before the first mark: the pages of the plugins' and libraries' code, and what a library
 * makes once for all, are no part of any plan. */
static void measure(const rig_cfg *c, growth *g) {
    rig_cfg small = rig_default();
    rig r;
    small.precision = c->precision;
    rig_open(&r, &small, NULL);
    one_step(&r, 1);
    rig_close(&r);
    malloc_trim(0);
    reset_peak();
    g->before = status_bytes("VmRSS");
    rig_open(&r, c, NULL);
    g->peak[0] = status_bytes("VmHWM");
    for (int i = 1; i <= STEPS; i++) {
        one_step(&r, i);
        g->peak[i] = status_bytes("VmHWM");
    }
    g->plan = trainer_memory_of(r.t);
    rig_close(&r);
}

/* Runs in a child process of its own, so that no earlier test has grown the heap. */
static growth measure_apart(const rig_cfg *c) {
    int pipes[2];
    growth g = {.failed = 1};
    ck_assert(pipe(pipes) == 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        growth own = {0};
        measure(c, &own);
        _exit(write(pipes[1], &own, sizeof own) == (ssize_t)sizeof own ? 0 : 1);
    }
    close(pipes[1]);
    ssize_t n;
    do n = read(pipes[0], &g, sizeof g);
    while (n < 0 && errno == EINTR);
    close(pipes[0]);
    int status = 0;
    ck_assert(waitpid(child, &status, 0) == child);
    ck_assert_msg(n == (ssize_t)sizeof g && status == 0, "the child ended with %d", status);
    return g;
}

static const char *const precisions[] = {"fp32", "bf16"};

/* Within 5 % of the plan, and the same from the second step on, but for the kernel's batches of 64 pages a thread. */
enum { COUNTING = 64 * 4096 };
START_TEST(a_rank_takes_what_its_plan_says) {
    rig_cfg c = large(precisions[_i]);
    growth g = measure_apart(&c);
    double planned = (double)g.plan.total, grown = (double)g.peak[STEPS] - (double)g.before;
    printf("%s: plan %.2f MB (params %.2f, arena %.2f, device %.2f, staging %.2f), grown by %.2f MB (%.2f when made)\n",
           precisions[_i], planned * 1e-6, (double)g.plan.params * 1e-6, (double)g.plan.arena * 1e-6,
           (double)g.plan.device_own * 1e-6, (double)g.plan.staging * 1e-6, grown * 1e-6,
           ((double)g.peak[0] - (double)g.before) * 1e-6);
    fflush(stdout);
    ck_assert_msg(planned > 60e6, "the plan is small: %.0f bytes", planned);
    for (int i = 3; i <= STEPS; i++)
        ck_assert_msg(g.peak[i] <= g.peak[2] + COUNTING, "step %d grew the peak from %llu to %llu", i,
                      (unsigned long long)g.peak[2], (unsigned long long)g.peak[i]);
    ck_assert_msg(grown < 1.05 * planned && grown > 0.95 * planned, "planned %.0f bytes, grown by %.0f", planned,
                  grown);
}
END_TEST

/* Logits dominate this plan: it grows with the vocabulary by one chunk's FP32 rows, stored once, gradient included. The
 * rest is partial sums of the loss. */
START_TEST(logits_of_one_chunk_are_stored_once) {
    enum { ROWS = 128, VOCAB = 16384 };
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        rig_cfg c = rig_default();
        c.trainer.plan_only = 1;
        c.trainer.model.seq = 64;
        c.trainer.model.micro = c.trainer.global = 8;
        c.trainer.model.head_rows = ROWS;
        c.trainer.model.vocab = (i + 1) * VOCAB;
        rig r;
        rig_open(&r, &c, NULL);
        bytes[i] = trainer_memory_of(r.t).arena;
        rig_close(&r);
    }
    ck_assert_uint_ge(bytes[1] - bytes[0], (uint64_t)ROWS * VOCAB * 4);
    ck_assert_uint_lt(bytes[1] - bytes[0], (uint64_t)ROWS * VOCAB * 4 + 4096);
}
END_TEST

/* ---- allocations ---- */
/* With one compute thread everything has settled after two steps. With more, a helper may do its first product later:
 * then a library makes what it keeps for that thread, so their balance is not asked for. */
START_TEST(a_step_allocates_nothing) {
    rig_cfg c = rig_default();
    int alone = _i < 2;
    c.precision = precisions[_i % 2];
    c.threads = alone ? "1" : "3";
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    c.router[0] = (moe_kv){"expert_bias", "true"};
    rig r;
    rig_open(&r, &c, NULL);
    watch_malloc_init();
    for (int i = 1; i <= 2; i++) one_step(&r, i);
    step_result out;
    moe_err err = {.size = sizeof err};
    moe_status status = MOE_OK;
    watch_malloc_begin(); /* no assertion while it watches: Check allocates for each */
    for (int i = 3; i <= 6 && !status; i++) status = trainer_step(r.t, i, 0, &out, &err);
    watch_counts n = watch_malloc_end();
    ck_assert_msg(!status, "%s", err.msg);
    printf("%s, threads = %s, 4 steps: %llu own allocations, %llu frees; libraries %llu and %llu, loader %llu\n",
           c.precision, c.threads, n.own_allocs, n.own_frees, n.library_allocs, n.library_frees, n.loader_allocs);
    fflush(stdout);
    ck_assert_msg(n.own_allocs == 0 && n.own_frees == 0, "%llu allocations, %llu frees, the first from %s",
                  n.own_allocs, n.own_frees, n.first);
    if (alone)
        ck_assert_msg(n.library_allocs == n.library_frees && n.loader_allocs == 0,
                      "libraries allocate %llu and free %llu, the loader allocates %llu", n.library_allocs,
                      n.library_frees, n.loader_allocs);
    rig_close(&r);
}
END_TEST

START_TEST(evaluation_allocates_nothing) {
    rig_cfg c = rig_default();
    double loss;
    rig r;
    rig_open(&r, &c, NULL);
    watch_malloc_init();
    check_ok(trainer_eval(r.t, 2, &loss, err));
    moe_err err = {.size = sizeof err};
    watch_malloc_begin();
    moe_status status = trainer_eval(r.t, 4, &loss, &err);
    watch_counts n = watch_malloc_end();
    ck_assert_msg(!status, "%s", err.msg);
    ck_assert_msg(n.own_allocs == 0 && n.own_frees == 0, "%llu allocations, %llu frees, the first from %s",
                  n.own_allocs, n.own_frees, n.first);
    rig_close(&r);
}
END_TEST

/* The watch itself: one allocation on purpose is seen, with where it came from. */
START_TEST(the_watch_sees_an_allocation) {
    watch_malloc_init();
    watch_malloc_begin();
    void *volatile p = malloc(100);
    p = realloc(p, 200);
    free(p);
    void *volatile q = NULL;
    int failed = posix_memalign((void **)&q, 64, 128);
    free(q);
    void *volatile z = calloc(3, 5);
    free(z);
    watch_counts n = watch_malloc_end();
    ck_assert_int_eq(failed, 0);
    ck_assert_msg(n.own_allocs == 4 && n.own_frees == 4, "seen %llu and %llu", n.own_allocs, n.own_frees);
    ck_assert_ptr_nonnull(strstr(n.first, "test_memory"));
}
END_TEST

int main(void) {
    TCase *t = tcase_create("memory");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_rank_takes_what_its_plan_says, 0, 2);
    tcase_add_test(t, logits_of_one_chunk_are_stored_once);
    tcase_add_loop_test(t, a_step_allocates_nothing, 0, 4);
    tcase_add_test(t, evaluation_allocates_nothing);
    tcase_add_test(t, the_watch_sees_an_allocation);
    return run_suite("memory", t);
}
