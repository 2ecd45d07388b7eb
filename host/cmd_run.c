/* moehost run: trains what a recipe says. */
#include <exec/exec.h>
#include <stdio.h>
#include <string.h>

#include "stop.h"
#include "train_loop.h"
#include "wire.h"

static int mode_of(const command_args *args) {
    if (command_flag(args, "resume")) return RUN_RESUME;
    return command_flag(args, "overwrite") ? RUN_OVERWRITE : RUN_NEW;
}

static int train(session *s, const command_args *args) {
    const train_options options = {.quiet = command_flag(args, "quiet")};
    run_dir dir;
    int signal_number = 0;
    moe_err err = {.size = sizeof err};
    moe_status status = run_dir_open(&dir, s->out, mode_of(args), &err);
    if (!status) status = train_loop(s, &dir, &options, &signal_number, &err);
    run_dir_close(&dir);
    if (status) {
        fprintf(stderr, "moehost: %s\n", err.msg);
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
    code = session_open(&s, &args, TRAINER_TRAIN | TRAINER_EVAL);
    if (!code) code = train(&s, &args);
    session_free(&s);
    return command_finish(code);
}
