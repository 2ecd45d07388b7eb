/* Both sides of the probe. The child reports single letters of progress and then one line: 'L' loading, 'E' calling the
 * entry, 'T' reading the table, "K\n" all is well, "Fcause\n" refused. Whoever dies in between is known by the
 * letter.*/
#include "probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <util/clock.h>

#include "handshake.h"

enum { REPORT_FD = 3, REPORT_MAX = 2048 };
extern char **environ;

/* ---- the child ---- */
static void report(const char *text) {
    for (size_t n = strlen(text); n > 0;) {
        ssize_t done = write(REPORT_FD, text, n);
        if (done < 0 && errno != EINTR) return;
        if (done > 0) text += done, n -= (size_t)done;
    }
}

static int refuse(const char *why) {
    report("F");
    report(why);
    report("\n");
    return 1;
}

int probe_child(const char *path) {
    char why[1500];
    const moe_entry *(*entry)(void) = NULL;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    report("L");
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(why, sizeof why, "%s", dlerror());
        return refuse(why);
    }
    *(void **)&entry = dlsym(so, MOE_ENTRY_SYMBOL);
    if (!entry) return refuse("it does not export " MOE_ENTRY_SYMBOL);
    report("E");
    const moe_entry *table = entry();
    report("T");
    if (!handshake_check(table, why, sizeof why)) return refuse(why);
    report("K\n");
    return 0;
}

/* ---- the host ---- */
/* Reads until the end of the line, of the stream or of the time; false when time ran out. */
static bool read_report(int fd, unsigned limit_ms, char *text, size_t room) {
    int64_t end = clock_ns() / 1000000 + limit_ms;
    size_t n = 0;
    text[0] = '\0';
    while (n + 1 < room && !strchr(text, '\n')) {
        int64_t left = end - clock_ns() / 1000000;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = left <= 0 ? 0 : poll(&p, 1, (int)left);
        if (ready == 0) return false;
        if (ready < 0) continue; /* a signal: the host's handler has noted it, and the time limit still holds */
        ssize_t got = read(fd, text + n, room - 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = '\0';
    }
    return true;
}

static int start_child(const char *exe, const char *path, int report_fd, pid_t *pid) {
    char *argv[] = {(char *)(uintptr_t)exe, (char *)(uintptr_t)PROBE_COMMAND, (char *)(uintptr_t)path, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&files, report_fd, REPORT_FD);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int status = posix_spawn(pid, exe, &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return status;
}

/* What the report and the child's end mean. */
static bool judge(bool in_time, unsigned limit_ms, const char *text, int status, char *why, size_t bytes) {
    const char *last = text + strspn(text, "LET");
    const char *doing = last == text      ? "before it was loaded"
                        : last[-1] == 'L' ? "while it was loaded (constructors)"
                        : last[-1] == 'E' ? "in " MOE_ENTRY_SYMBOL
                                          : "while its table was read";
    if (in_time && strcmp(last, "K\n") == 0) return true;
    if (!in_time)
        snprintf(why, bytes, "the probe took more than %.3g s %s", limit_ms / 1000.0, doing);
    else if (*last == 'F')
        snprintf(why, bytes, "%.*s", (int)strcspn(last + 1, "\n"), last + 1);
    else if (WIFSIGNALED(status))
        snprintf(why, bytes, "the probe crashed (%s) %s", strsignal(WTERMSIG(status)), doing);
    else
        snprintf(why, bytes, "the probe ended (exit code %d) %s", WIFEXITED(status) ? WEXITSTATUS(status) : -1, doing);
    return false;
}

bool probe_file(const char *exe, const char *path, unsigned limit_ms, char *why, size_t bytes) {
    int ends[2] = {-1, -1}, status = 0;
    pid_t pid = -1;
    char text[REPORT_MAX];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(why, bytes, "no pipe for the probe: %s", strerror(errno));
        return false;
    }
    int failed = start_child(exe, path, ends[1], &pid);
    close(ends[1]);
    if (failed) {
        snprintf(why, bytes, "the probe %.200s does not start: %s", exe, strerror(failed));
        close(ends[0]);
        return false;
    }
    bool in_time = read_report(ends[0], limit_ms, text, sizeof text);
    close(ends[0]);
    /* a child that has reported or hangs is ended; one that closed the pipe has died of its own and says how */
    if (!in_time || strchr(text, '\n')) kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    kill(-pid, SIGKILL); /* what a constructor may have left behind in the child's group */
    return judge(in_time, limit_ms, text, status, why, bytes);
}
