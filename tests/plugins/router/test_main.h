/* main() of a topic: one test case from a list of loop or plain tests. */
#ifndef TESTS_ROUTER_MAIN_H
#define TESTS_ROUTER_MAIN_H
#include <check.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* A fork of a sanitized process takes a tenth of a second, and its report names the place of a crash anyway. */
static inline int run_case(TCase *c) {
    Suite *s = suite_create("router");
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    if (SANITIZED) srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
