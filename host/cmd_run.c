/* moehost run: trains what a recipe says. */
#include <exec/exec.h>
#include <inttypes.h>
#include <io/checkpoint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "stop.h"
#include "train_loop.h"
#include "wire.h"

static int mode_of(const command_args *args) {
    if (command_flag(args, "resume")) return RUN_RESUME;
    return command_flag(args, "overwrite") ? RUN_OVERWRITE : RUN_NEW;
}

/* The last line: where everything is, and how to go on after a signal. */
static moe_status conclude(const session *s, const run_dir *dir, const command_args *args, int signal_number,
                           moe_err *err) {
    const char *instead = command_flag(args, "overwrite") ? " instead of --overwrite" : "";
    char *last = NULL;
    int64_t step = -1;
    moe_status status = ckpt_latest(dir->path, &last, &step, err);
    if (status) return status;
    if (dir->first_step > s->steps)
        printf("nothing to do: step %" PRId64 " of %" PRId64 "; output is in %s\n", dir->first_step - 1, s->steps,
               dir->path);
    else if (signal_number && last && step < s->steps)
        printf("stopped by %s after step %" PRId64 " of %" PRId64
               ": a checkpoint is written, %s; the same command with --resume%s goes on\n",
               signal_number == SIGINT ? "SIGINT" : "SIGTERM", step, s->steps, last, instead);
    else
        printf("done: step %" PRId64 " of %" PRId64 "; output is in %s, the last checkpoint in %s\n", s->steps,
               s->steps, dir->path, last ? last : "ckpt");
    free(last);
    return MOE_OK;
}

static int train(session *s, const command_args *args) {
    const train_options options = {.quiet = command_flag(args, "quiet")};
    const int leads = session_speaks(s);
    run_dir dir = {.path = s->out, .lock = -1};
    int signal_number = 0;
    moe_err err = {.size = sizeof err};
    moe_status status = leads ? run_dir_open(&dir, s->out, mode_of(args), &err) : MOE_OK;
    if (s->launch) status = run_dir_share(&dir, launch_bootstrap(s->launch), status, &err);
    if (!status) status = train_loop(s, &dir, &options, &signal_number, &err);
    if (!status && leads && !options.quiet) status = conclude(s, &dir, args, signal_number, &err);
    run_dir_close(&dir);
    if (status) {
        if (session_speaks(s)) fprintf(stderr, "moehost: %s\n", err.msg);
        return wire_exit_code(status);
    }
    return signal_number ? 128 + signal_number : EXIT_CODE_OK;
}

int cmd_run(int argc, char **argv) {
    command_args args;
    int code = command_parse("run", argc, argv, &args);
    if (code >= 0) return code;
    if (command_flag(&args, "resume") && command_flag(&args, "overwrite")) {
        fprintf(stderr, "moehost run: --resume and --overwrite exclude each other\n");
        return EXIT_CODE_USAGE;
    }
    session s;
    stop_install();
    crash_install(exec_current_node);
    code = session_open(&s, &args, TRAINER_TRAIN | TRAINER_EVAL | SESSION_PROCESSES);
    if (!code) code = train(&s, &args);
    session_free(&s);
    fflush(stdout); /* what a run prints is for the eye: its results are files, and a closed pipe takes nothing from
                       them */
    return code;
}
