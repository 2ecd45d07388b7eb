/* The promise on host overhead: a node costs the issuing thread less than a microsecond. The median of many runs,
 * because other programs may take the core. */
#include "core/exec/issue.h"

START_TEST(a_node_is_issued_in_less_than_a_microsecond) {
    device_open c;
    run_graph r;
    device_open_start(&c, 1);
    issue_open(&r, &c, 1000, 1);
    double ns = issue_median(&r, 31);
    run_graph_close(&r);
    device_open_stop(&c);
    ck_assert_msg(ns > 0, "no time passed");
    if (!UNDER_SANITIZER) ck_assert_msg(ns < 1000, "median %.0f ns a node, want below 1000", ns);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("issue");
    tcase_add_test(t, a_node_is_issued_in_less_than_a_microsecond);
    return run_suite("exec issue", t);
}
