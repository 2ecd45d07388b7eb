/* Time of one call of a router on one thread, T = 4096, k = 8, beside a copy of the logits. */
#include <stdlib.h>
#include <time.h>

#include "fixture.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void keep_least(double *least, double ms) {
    if (*least <= 0 || ms < *least) *least = ms;
}

static void bench(const char *id, int64_t experts, const char *options) {
    rig r;
    double copy = 0, route = 0, silent = 0, bwd = 0;
    rig_open(&r, id, 4096, experts, 8, options, NULL);
    rig_random(r.logits, r.tokens * r.experts, 1, 7);
    rig_random(r.d_weights, r.tokens * r.k, 1, 8);
    for (int i = 0; i < 20; i++) {
        double t0 = now();
        memcpy(r.d_logits, r.logits, (size_t)(r.tokens * r.experts) * sizeof(float));
        double t1 = now();
        rig_route(&r);
        double t2 = now();
        rig_bwd(&r);
        double t3 = now();
        r.silent = 1;
        rig_route(&r);
        r.silent = 0;
        keep_least(&copy, t1 - t0);
        keep_least(&route, t2 - t1);
        keep_least(&bwd, t3 - t2);
        keep_least(&silent, now() - t3);
    }
    printf("%s E %d: copy %.3f ms, route %.3f (%.1f copies), without losses %.3f, route_bwd %.3f (%.1f) | %s\n", id,
           (int)experts, copy, route, route / copy, silent, bwd, bwd / copy, options);
    rig_close(&r);
}

static const struct {
    const char *id;
    int64_t experts;
    const char *options;
} usual[] = {
    {"topk", 128, ""},
    {"topk", 128, "renormalise=true aux_coef=0.01 z_coef=0.001"},
    {"topk", 128, "order=after"},
    {"topk", 128, "renormalise=true aux_coef=0.01 aux_scope=global"},
    {"topk", 128, "score=sigmoid renormalise=true expert_bias=true aux_coef=0.0001"},
    {"topk", 256, "score=sigmoid renormalise=true expert_bias=true aux_coef=0.0001"},
    {"topk", 256,
     "score=sigmoid renormalise=true expert_bias=true aux_coef=0.0001 groups=8 groups_kept=4 group_score=sum2"},
    {"forced", 128, ""},
    {"forced", 128, "load=zipf"},
    {"forced", 128, "load=zipf exponent=0"},
    {"forced", 128, "load=zipf exponent=3"},
    {"forced", 1024, "load=zipf"},
};
enum { USUAL = sizeof usual / sizeof usual[0] };

START_TEST(bench_usual) {
    bench(usual[_i].id, usual[_i].experts, usual[_i].options);
}
END_TEST

/* The rig asserts with Check, which wants a runner. */
int main(void) {
    Suite *s = suite_create("bench");
    TCase *c = tcase_create("router");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, bench_usual, 0, USUAL);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_SILENT);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
