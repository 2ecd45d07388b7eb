/* moehost bench: measured figures of a recipe's step, beside the machine's measured peak. */
#include <exec/exec.h>
#include <stdio.h>

#include "bench.h"
#include "stop.h"
#include "wire.h"

int cmd_bench(int argc, char **argv) {
    command_args args;
    int code = command_parse("bench", argc, argv, &args);
    if (code >= 0) return code;
    bench_options o = {.steps = command_int(&args, "steps", 5), .json = command_flag(&args, "json")};
    session s;
    moe_err err = {.size = sizeof err};
    crash_install(exec_current_node);
    code = session_open(&s, &args, 0); /* no data: bench makes its own */
    s.trainer.programs = TRAINER_TRAIN;
    moe_status status = code ? MOE_OK : bench_run(&s, &o, stdout, &err);
    if (status) {
        fprintf(stderr, "moehost: %s\n", err.msg);
        code = wire_exit_code(status);
    }
    session_free(&s);
    return command_finish(code);
}
