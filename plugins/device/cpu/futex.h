/* Sleeping on a 32-bit word of this process, and the pause between two looks at one. Linux futex(2).
 * A waiter says with `who` which wake-ups concern it, so that two kinds of sleepers can share a word. */
#ifndef CPU_FUTEX_H
#define CPU_FUTEX_H
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word == seen; may return early, so call it in a loop that looks again. */
static inline void cpu_futex_wait(atomic_uint *word, uint32_t seen, uint32_t who) {
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, who);
}
/* Wakes at most n sleepers of this kind. */
static inline void cpu_futex_wake(atomic_uint *word, uint32_t n, uint32_t who) {
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, n, NULL, NULL, who);
}

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A bounded spin: while (cpu_spin(&s)) look again. False from the first call on where limit_us is 0. */
typedef struct cpu_spinner {
    uint32_t limit_us, looks;
    int64_t until; /* nanoseconds, CLOCK_MONOTONIC; 0 = not started */
} cpu_spinner;

static inline int64_t cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline int cpu_spin(cpu_spinner *s) {
    if (s->limit_us == 0) return 0;
    cpu_pause();
    if ((++s->looks & 31u) != 0) return 1;
    if (s->until == 0) s->until = cpu_now() + (int64_t)s->limit_us * 1000;
    return cpu_now() < s->until;
}
#endif
