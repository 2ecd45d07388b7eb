/* Speed of comm/threads beside memcpy in the same run: all_reduce of 4 MiB FP32, and the time of a barrier.
 * Prints one JSON object a line; figures are medians. Usage: bench_comm_threads [ranks] */
#include <stdatomic.h>
#include <time.h>

#include "threads_case.h"

enum { BYTES = 4 << 20, TURNS = 41, BARRIERS = 2000 };
typedef struct bench {
    const moe_comm_v0 *c;
    double reduce[TURNS], copy[TURNS], barrier;
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

static void bench_rank(rank_env *env) {
    bench *b = env->arg;
    void *self = threads_open(env, b->c), *g = threads_group(b->c, self, "all");
    moe_err err = {.size = sizeof err};
    float *in = malloc(BYTES), *out = malloc(BYTES);
    memset(in, 0, BYTES);
    memset(out, 1, BYTES);
    for (int i = 0; i < TURNS; i++) {
        b->c->barrier(self, g, NULL, &err);
        double t = now();
        if (env->rank == 0) {
            memcpy(out, in, BYTES); /* alone, the others sleep */
            __asm__ volatile("" ::"r"(out) : "memory");
            b->copy[i] = now() - t;
        }
        b->c->barrier(self, g, NULL, &err);
        t = now();
        b->c->all_reduce(self, g, NULL, in, out, BYTES / 4, MOE_F32, MOE_SUM, &err);
        if (env->rank == 0) b->reduce[i] = now() - t;
    }
    double t = now();
    for (int i = 0; i < BARRIERS; i++) b->c->barrier(self, g, NULL, &err);
    if (env->rank == 0) b->barrier = (now() - t) / BARRIERS;
    free(in);
    free(out);
    b->c->destroy(self);
}

/* _i: ranks */
START_TEST(measure) {
    const uint32_t n = (uint32_t)_i;
    bench b = {.c = threads_table()};
    ranks_run(n, bench_rank, &b);
    const double r = median(b.reduce), c = median(b.copy);
    printf("{\"name\": \"all_reduce 4 MiB F32, %u ranks\", \"value\": %.3f, \"unit\": \"ms\"}\n", n, 1e3 * r);
    printf("{\"name\": \"memcpy 4 MiB\", \"value\": %.3f, \"unit\": \"ms\"}\n", 1e3 * c);
    printf("{\"name\": \"all_reduce / memcpy\", \"value\": %.2f, \"unit\": \"ratio\"}\n", r / c);
    printf("{\"name\": \"barrier\", \"value\": %.2f, \"unit\": \"us\"}\n", 1e6 * b.barrier);
}
END_TEST

/* Check's functions work inside a test only, so the bench is one. */
int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 2;
    Suite *s = suite_create("comm/threads bench");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, measure, n, n + 1);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_MINIMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
