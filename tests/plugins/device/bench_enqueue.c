/* Prints the nanoseconds that one enqueue of call_host takes: bursts that fit in the ring, and long runs in which the
 * issuing thread waits for the worker too. A program, not a test. */
#include "bench_run.h"
#include "enqueue.h"

START_TEST(measure_enqueue) {
    device_open c;
    device_open_start(&c, 1);
    enqueue_median(&c, 11, 1000);
    printf("burst of 16:      %.0f ns\n", enqueue_median(&c, 101, 16));
    printf("burst of 1000:    %.0f ns\n", enqueue_median(&c, 101, 1000));
    printf("run of 1000000:   %.0f ns\n", enqueue_median(&c, 3, 1000000));
    device_open_stop(&c);
}
END_TEST

int main(void) {
    return bench_run(measure_enqueue, 0);
}
