/* Runs the tests of comm/threads: collectives and exchanges against plain loops, groups and timing, messages, windows,
 * who waits for whom, faults and abort, injected delays. */
#include "threads_case.h"

#if COMM_IS_ASYNC
Suite *suite_nccl(void);
#endif

int main(void) {
    SRunner *r = srunner_create(suite_collectives());
    srunner_add_suite(r, suite_exchange());
    srunner_add_suite(r, suite_groups());
    srunner_add_suite(r, suite_messages());
    srunner_add_suite(r, suite_windows());
    srunner_add_suite(r, suite_waiting());
    srunner_add_suite(r, suite_faults());
    srunner_add_suite(r, suite_ends());
    srunner_add_suite(r, suite_delays());
#if COMM_IS_ASYNC
    srunner_add_suite(r, suite_nccl());
#endif
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
