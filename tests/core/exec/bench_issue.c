/* Prints the nanoseconds that one node of a step costs the issuing thread: on one lane, and in turn on two and six
 * lanes, where every node also waits for another lane and is waited for. A program, not a test. */
#include "core/exec/issue.h"
#include "plugins/device/bench_run.h"

START_TEST(measure_issue) {
    static const uint32_t nodes[] = {100, 1000, 3000}, n_lanes[] = {1, 2, 6};
    device_open c;
    device_open_start(&c, 1);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            run_graph r;
            issue_open(&r, &c, nodes[i], n_lanes[k]);
            issue_median(&r, 5);
            printf("%5u nodes on %u lane%s %6.0f ns a node\n", nodes[i], n_lanes[k], k ? "s:" : ": ",
                   issue_median(&r, 101));
            run_graph_close(&r);
        }
    device_open_stop(&c);
}
END_TEST

int main(void) {
    return bench_run(measure_issue, 0);
}
