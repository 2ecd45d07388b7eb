/* Times call_host with an empty function: what one node of a step costs the issuing thread. */
#ifndef TESTS_ENQUEUE_H
#define TESTS_ENQUEUE_H
#include <time.h>

#include "device_open.h"

static inline void enqueue_nothing(void *arg) {
    (void)arg;
}
static inline double enqueue_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
/* Mean nanoseconds of one of n calls that follow each other; the stream is empty before and after. */
static inline double enqueue_time(device_open *c, int n) {
    moe_err err = {.size = sizeof err};
    double begin = enqueue_now();
    for (int i = 0; i < n; i++) c->table->call_host(c->self, c->stream, enqueue_nothing, NULL, &err);
    double end = enqueue_now();
    c->table->stream_sync(c->self, c->stream, &err);
    return (end - begin) / n;
}
static inline int enqueue_order(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}
/* Median of `runs` (at most 101) such means. */
static inline double enqueue_median(device_open *c, int runs, int n) {
    double times[101];
    for (int i = 0; i < runs; i++) times[i] = enqueue_time(c, n);
    qsort(times, (size_t)runs, sizeof times[0], enqueue_order);
    return times[runs / 2];
}
#endif
