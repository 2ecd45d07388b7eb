/* What every thread of the CPU device does before its first work. Two things matter for the arithmetic: denormals are
 * flushed (they cost tens of times a normal number), and oneDNN's OpenMP is held to the calling thread, because its
 * results change with the number of threads and because the device's own pool already shares the work. */
#include <dnnl.h>
#include <errno.h>
#include <signal.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "runtime.h"

/* Of the OpenMP runtime that oneDNN brings along; absent where oneDNN is built without OpenMP. */
extern void omp_set_num_threads(int n) __attribute__((weak));

static void flush_denormals(void) {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* FTZ | DAZ */
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | (UINT64_C(1) << 24)));
#endif
}

moe_status cpu_thread_check(moe_err *err) {
    unsigned runtime = dnnl_version()->cpu_runtime;
    if (runtime == DNNL_RUNTIME_SEQ || (runtime == DNNL_RUNTIME_OMP && omp_set_num_threads)) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED,
                    "device/cpu: this oneDNN is built for thread runtime %u; want none (%u) or OpenMP (%u)", runtime,
                    (unsigned)DNNL_RUNTIME_SEQ, (unsigned)DNNL_RUNTIME_OMP);
}

void cpu_thread_enter(cpu_device *dev, cpu_worker *w) {
    flush_denormals();
    if (omp_set_num_threads) omp_set_num_threads(1); /* of the calling thread only */
    pthread_setspecific(dev->key, w);
}

moe_status cpu_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg, moe_err *err) {
    /* Blocked: what would interrupt a call. Not blocked: what a fault of the thread itself raises, so that the host can
     * say where it was. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t all, old;
    char shown[16];
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int fault = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (fault) return moe_fail(err, MOE_E_DEVICE, "device/cpu: thread '%s': %s", name, strerror(fault));
    snprintf(shown, sizeof shown, "moe:%s", name);
    pthread_setname_np(*thread, shown); /* for top and debuggers; nothing depends on it */
    return MOE_OK;
}
