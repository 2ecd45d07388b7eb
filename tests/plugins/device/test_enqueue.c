/* The promise on host overhead: below one microsecond of enqueue a node. The median of many runs, because other
 * programs may take the core; not asserted under a sanitizer, whose instrumentation costs more than the call. */
#include "enqueue.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOWED 1
#endif
#endif
#ifndef SLOWED
#define SLOWED 0
#endif

START_TEST(an_enqueue_takes_less_than_a_microsecond) {
    device_open c;
    device_open_start(&c, 1);
    double ns = enqueue_median(&c, 31, 1000);
    device_open_stop(&c);
    ck_assert_msg(ns > 0, "no time passed");
    if (!SLOWED) ck_assert_msg(ns < 1000, "median %.0f ns an enqueue, want below 1000", ns);
}
END_TEST

int main(void) {
    Suite *s = suite_create("device/cpu enqueue");
    TCase *t = tcase_create("enqueue");
    tcase_add_test(t, an_enqueue_takes_less_than_a_microsecond);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
