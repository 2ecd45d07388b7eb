/* moehost probe, run as a program: numbers by hand and against loops, and what it refuses. */
#include <stdlib.h>

#include "runs.h"

int main(void) {
    TCase *(*const cases[])(void) = {router_tests, precision_tests, dispatcher_tests, scheduler_tests, refusal_tests};
    Suite *s = suite_create("host_tryout");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        TCase *tc = cases[i]();
        tcase_add_checked_fixture(tc, runs_setup, runs_teardown);
        suite_add_tcase(s, tc);
    }
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
