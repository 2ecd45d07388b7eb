/* Runs a measurement as the only test of a Check suite, because the helpers that it shares with the tests assert. */
#ifndef TESTS_BENCH_RUN_H
#define TESTS_BENCH_RUN_H
#include <check.h>

/* `number` is the test's _i. Returns the exit status of the program. */
static inline int bench_run(const TTest *measure, int number) {
    Suite *s = suite_create("bench");
    TCase *t = tcase_create("bench");
    tcase_set_timeout(t, 0);
    tcase_add_loop_test(t, measure, number, number + 1);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_MINIMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
#endif
