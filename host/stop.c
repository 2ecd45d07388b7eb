/* Signal and exit handlers: flags and write(2) only. */
#include "stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

static atomic_int requested; /* lock-free: a handler may write it while ranks read it */
static const char *(*crash_current)(void);
static atomic_int exit_allowed;

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

static const char *current_call(const char *none) {
    const char *name = crash_current ? crash_current() : NULL;
    return name ? name : none;
}

static void report_crash(int signal_number) {
    static atomic_int crashed; /* ranks may crash side by side: the first has the word */
    while (atomic_exchange(&crashed, 1)) pause();
    put("moehost: crashed in ");
    put(current_call("the host itself"));
    put(signal_number == SIGSEGV ? " (SIGSEGV)\n" : " (fatal signal)\n");
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* and the sanitizers report better */
#else
#define SANITIZED 0
#endif

void crash_cover_thread(void) {
    enum { BYTES = 32768 }; /* the frame of a signal alone has 11 KiB with AMX */
    static _Thread_local char own[BYTES];
    const stack_t stack = {.ss_sp = own, .ss_size = BYTES};
    if (!SANITIZED) sigaltstack(&stack, NULL);
}

void crash_install(const char *(*current)(void)) {
    crash_current = current;
    if (SANITIZED) return;
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = report_crash, .sa_flags = SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    crash_cover_thread();
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) sigaction(fatal[i], &action, NULL);
}

/* ---- giving up ---- */
enum { FREE, HELD, ENDING };
static atomic_int end_state;

/* Waits until nobody holds it. Whoever comes while the process ends stays here. */
static void take_end(int state) {
    int free_state = FREE;
    while (!atomic_compare_exchange_weak(&end_state, &free_state, state)) {
        free_state = FREE;
        usleep(1000);
    }
}

void stop_hold(void) {
    take_end(HELD);
}

void stop_release(void) {
    atomic_store(&end_state, FREE);
}

void stop_give_up(void *unused, const char *msg) {
    static atomic_int told;
    (void)unused;
    if (atomic_exchange(&told, 1)) return;
    put("moehost: ");
    put(msg);
    put("\n");
    take_end(ENDING);
    _exit(EXIT_CODE_PEER);
}

static void report_exit(void) {
    if (atomic_load(&exit_allowed)) return;
    put("moehost: exit was called in ");
    put(current_call("a plugin"));
    put("\n");
    _exit(1);
}

void exit_guard(void) {
    atexit(report_exit);
}

void exit_allow(void) {
    atomic_store(&exit_allowed, 1);
}
