/* main() of a topic: one test case from a list of loop or plain tests. */
#ifndef TESTS_ROUTER_MAIN_H
#define TESTS_ROUTER_MAIN_H
#include <check.h>
#include <stdlib.h>

static inline int run_case(TCase *c) {
    Suite *s = suite_create("router");
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
