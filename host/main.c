/* moehost: the program. Commands are rows of commands.c; a run goes recipe (recipe.h) -> plugins (loader.h) -> session
 * (session.h) -> training (train_loop.h). */
#include <fcntl.h>
#include <moe/base.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "probe.h"
#include "stop.h"

static int print_version(void) {
    printf("moehost %s (%s, %s %s)\nplugin ABI %u.%u\n", MOEHOST_VERSION, MOEHOST_BUILD,
#ifdef __clang__
           "clang", __clang_version__,
#else
           "gcc", __VERSION__,
#endif
           MOE_MAJOR, MOE_MINOR);
    return command_finish(EXIT_CODE_OK);
}

/* Without this, what a closed descriptor 0..2 leaves free would be taken by a file of the run, and get the progress
 * lines. The wrong direction, so that using one is still an error. */
static void hold_descriptors(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) _exit(1);
}

int main(int argc, char **argv) {
    hold_descriptors();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, not the end of the run */
    signal(SIGXFSZ, SIG_IGN); /* nor is a limit on file size */
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would hide how the probe's child ended */
    if (argc == 3 && strcmp(argv[1], PROBE_COMMAND) == 0) return probe_child(argv[2]);
    if (argc < 2) {
        command_print_overview(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) return print_version();
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        command_print_overview(stdout);
        return command_finish(EXIT_CODE_OK);
    }
    exit_guard();
    int code = command_main(argc, argv);
    exit_allow();
    return code;
}
