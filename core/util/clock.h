/* The monotonic clock: what durations are measured with. Any thread. */
#ifndef CORE_UTIL_CLOCK_H
#define CORE_UTIL_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double clock_seconds(void) {
    return 1e-9 * (double)clock_ns();
}

#endif
