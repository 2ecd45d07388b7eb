/* moehost: the program. Commands are rows of commands.c; a run goes recipe (recipe.h) -> plugins (loader.h) -> session
 * (session.h) -> training (train_loop.h). */
#include <fcntl.h>
#include <hf/map.h>
#include <io/checkpoint.h>
#include <moe/base.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "probe.h"
#include "stop.h"

/* Build, ABI and what this build knows beyond its plugins. */
static int print_version(void) {
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    printf("moehost %s (%s, %s)\n", MOEHOST_VERSION, MOEHOST_BUILD, compiler);
    printf("plugin ABI %u.%u %s\ncheckpoints: version %d\nHugging Face models:", MOE_MAJOR, MOE_MINOR, MOE_ABI_TAG,
           CKPT_VERSION);
    for (int i = 0; i < HF_STYLES; i++) printf(" %s", hf_style_name(i));
    printf("\nparallel: dp\n");
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
