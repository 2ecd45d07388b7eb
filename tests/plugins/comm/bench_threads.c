/* Speed of comm/threads beside memcpy in the same run: all_reduce, all_to_all_v and messages of 4 MiB a rank, and the
 * times of a barrier and of a small message there and back.
 * Prints one JSON object a line; figures are medians. Usage: bench_comm_threads [ranks] */
#include <stdatomic.h>
#include <time.h>

#include "threads_case.h"

enum { BYTES = 4 << 20, TURNS = 41, BATCH = 100 };
typedef struct bench {
    const moe_comm_v0 *c;
    double reduce[TURNS], copy[TURNS], exchange[TURNS], message[TURNS], barrier[TURNS], ping[TURNS];
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x) {
    qsort(x, TURNS, sizeof *x, ascending);
    return x[TURNS / 2];
}

typedef struct lane {
    bench *b;
    void *self, *group;
    uint32_t rank, n;
    char *in, *out;
    moe_err err;
} lane;

/* This rank's 4 MiB, in equal parts to all. */
static void exchange(lane *l) {
    uint64_t at[RANKS_MAX], bytes[RANKS_MAX];
    for (uint32_t i = 0; i < l->n; i++) {
        bytes[i] = BYTES / l->n;
        at[i] = i * bytes[i];
    }
    const moe_a2a_args a = {
        .size = sizeof a, .in = l->in, .out = l->out, .in_at = at, .in_bytes = bytes, .out_at = at, .out_bytes = bytes};
    l->b->c->all_to_all_v(l->self, l->group, NULL, &a, &l->err);
}

/* To the next rank, from the one before. */
static void shift(lane *l, uint64_t bytes) {
    const moe_p2p_op ops[] = {{.buf = l->in, .bytes = bytes, .peer = (l->rank + 1) % l->n},
                              {.buf = l->out, .bytes = bytes, .peer = (l->rank + l->n - 1) % l->n, .receive = 1}};
    l->b->c->p2p(l->self, l->group, NULL, ops, 2, &l->err);
}

static void ping(lane *l) {
    const int32_t first = l->rank == 0;
    const moe_p2p_op there = {.buf = first ? l->in : l->out, .bytes = 8, .peer = 1 - l->rank, .receive = !first};
    const moe_p2p_op back = {.buf = first ? l->out : l->in, .bytes = 8, .peer = 1 - l->rank, .receive = first};
    l->b->c->p2p(l->self, l->group, NULL, &there, 1, &l->err);
    l->b->c->p2p(l->self, l->group, NULL, &back, 1, &l->err);
}

static void bench_rank(rank_env *env) {
    bench *b = env->arg;
    const moe_comm_v0 *c = b->c;
    void *self = threads_open(env, c);
    lane l = {.b = b,
              .self = self,
              .group = threads_group(c, self, "all"),
              .rank = env->rank,
              .n = env->world,
              .in = malloc(BYTES),
              .out = malloc(BYTES),
              .err.size = sizeof(moe_err)};
    memset(l.in, 0, BYTES);
    memset(l.out, 1, BYTES);
    for (int i = 0; i < TURNS; i++) {
        c->barrier(self, l.group, NULL, &l.err);
        double t = now();
        if (l.rank == 0) {
            memcpy(l.out, l.in, BYTES); /* alone, the others sleep */
            __asm__ volatile("" ::"r"(l.out) : "memory");
            b->copy[i] = now() - t;
        }
        c->barrier(self, l.group, NULL, &l.err);
        t = now();
        c->all_reduce(self, l.group, NULL, l.in, l.out, BYTES / 4, MOE_F32, MOE_SUM, &l.err);
        if (l.rank == 0) b->reduce[i] = now() - t;
        c->barrier(self, l.group, NULL, &l.err);
        t = now();
        exchange(&l);
        if (l.rank == 0) b->exchange[i] = now() - t;
        c->barrier(self, l.group, NULL, &l.err);
        t = now();
        shift(&l, BYTES);
        if (l.rank == 0) b->message[i] = now() - t;
    }
    for (int i = 0; i < TURNS; i++) {
        double t = now();
        for (int j = 0; j < BATCH; j++) c->barrier(self, l.group, NULL, &l.err);
        if (l.rank == 0) b->barrier[i] = (now() - t) / BATCH;
        t = now();
        for (int j = 0; j < BATCH && l.n == 2; j++) ping(&l);
        if (l.rank == 0) b->ping[i] = (now() - t) / BATCH;
    }
    free(l.in);
    free(l.out);
    c->destroy(self);
}

static void show(const char *name, uint32_t n, double ms, double copy) {
    printf("{\"name\": \"%s of 4 MiB a rank, %u ranks\", \"value\": %.3f, \"unit\": \"ms\"}\n", name, n, 1e3 * ms);
    printf("{\"name\": \"%s / memcpy\", \"value\": %.2f, \"unit\": \"ratio\"}\n", name, ms / copy);
}

/* _i: ranks */
START_TEST(measure) {
    const uint32_t n = (uint32_t)_i;
    bench b = {.c = threads_table()};
    ranks_run(n, bench_rank, &b);
    const double copy = median(b.copy);
    printf("{\"name\": \"memcpy 4 MiB\", \"value\": %.3f, \"unit\": \"ms\"}\n", 1e3 * copy);
    show("all_reduce F32", n, median(b.reduce), copy);
    show("all_to_all_v", n, median(b.exchange), copy);
    show("p2p to the next rank", n, median(b.message), copy);
    printf("{\"name\": \"barrier, %u ranks\", \"value\": %.2f, \"unit\": \"us\"}\n", n, 1e6 * median(b.barrier));
    if (n == 2)
        printf("{\"name\": \"8 bytes there and back\", \"value\": %.2f, \"unit\": \"us\"}\n", 1e6 * median(b.ping));
}
END_TEST

/* Check's functions work inside a test only, so the bench is one. */
int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 2;
    Suite *s = suite_create("comm/threads bench");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, measure, n, n + 1);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_MINIMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
