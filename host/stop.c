/* Signal handlers: flags and write(2) only. */
#include "stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int requested; /* lock-free: a handler may write it while ranks read it */
static const char *(*crash_current)(void);

static void note_stop(int signal_number) {
    atomic_store(&requested, signal_number);
}

void stop_install(void) {
    struct sigaction action = {.sa_handler = note_stop,
                               .sa_flags = (int)(SA_RESTART | SA_RESETHAND)}; /* the next ends it */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int stop_requested(void) {
    return atomic_load(&requested);
}

static void put(const char *text) {
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void report_crash(int signal_number) {
    static atomic_int crashed; /* ranks may crash side by side: the first has the word */
    const char *where = crash_current ? crash_current() : NULL;
    while (atomic_exchange(&crashed, 1)) pause();
    put("moehost: crashed in ");
    put(where ? where : "the host itself");
    put(signal_number == SIGSEGV ? " (SIGSEGV)\n" : " (fatal signal)\n");
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void crash_install(const char *(*current)(void)) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)report_crash;
    (void)current; /* the sanitizers report better */
#else
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    crash_current = current;
    struct sigaction action = {.sa_handler = report_crash};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) sigaction(fatal[i], &action, NULL);
#endif
}
