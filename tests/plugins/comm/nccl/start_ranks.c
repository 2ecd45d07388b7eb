/* start_ranks N COMMAND...: starts N processes with the variables that torchrun sets, on this machine, and waits for
 * all: exit status 0 when every process ends with 0, or by SIGKILL, which is what a test does to one of them. After
 * START_RANKS_SECONDS (100) all are killed, and the status is 1. */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64 };

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const int ok =
        fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 && getsockname(fd, (struct sockaddr *)&a, &n) == 0;
    if (fd >= 0) close(fd);
    return ok ? ntohs(a.sin_port) : -1;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static pid_t start(int rank, int world, int port, char **command) {
    const pid_t pid = fork();
    if (pid) return pid;
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", world);
    set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    execvp(command[0], command);
    perror(command[0]);
    _exit(127);
}

static int wait_all(pid_t *pids, int n, int tenths) {
    int failed = 0, left = n;
    for (int t = 0; left && t < tenths; t++) {
        for (int r = 0; r < n; r++) {
            int how = 0;
            if (!pids[r] || waitpid(pids[r], &how, WNOHANG) != pids[r]) continue;
            pids[r] = 0;
            left--;
            if (how == 0 || (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL)) continue;
            fprintf(stderr, "start_ranks: rank %d: %s %d\n", r, WIFSIGNALED(how) ? "signal" : "status",
                    WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
            failed = 1;
        }
        if (left) usleep(100000);
    }
    for (int r = 0; r < n; r++) {
        if (!pids[r]) continue;
        fprintf(stderr, "start_ranks: rank %d has not ended\n", r);
        kill(pids[r], SIGKILL);
        waitpid(pids[r], NULL, 0);
        failed = 1;
    }
    return failed;
}

int main(int argc, char **argv) {
    pid_t pids[MOST];
    const int n = argc > 2 ? atoi(argv[1]) : 0, port = free_port();
    const char *seconds = getenv("START_RANKS_SECONDS");
    if (n < 1 || n > MOST || port < 0) {
        fprintf(stderr, "usage: start_ranks N COMMAND...\n");
        return 2;
    }
    for (int r = 0; r < n; r++) pids[r] = start(r, n, port, argv + 2);
    return wait_all(pids, n, 10 * (seconds ? atoi(seconds) : 100));
}
