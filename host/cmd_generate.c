/* moehost generate: continues a text with a trained model. */
#include <exec/exec.h>
#include <io/checkpoint.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>

#include "generate.h"
#include "stop.h"
#include "wire.h"

static moe_status find_checkpoint(const session *s, const command_args *args, char **dir, moe_err *err) {
    const char *given = command_value(args, "ckpt");
    int64_t step;
    if (given) {
        *dir = strdup(given);
        return *dir ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory");
    }
    moe_status status = ckpt_latest(s->out, dir, &step, err);
    if (!status && !*dir && !s->weights)
        status =
            moe_fail(err, MOE_E_ARG, "%.300s: there is no checkpoint; train first, or give --out or --ckpt", s->out);
    return status;
}

static int continue_text(session *s, const command_args *args) {
    generate_options o = {.prompt = command_value(args, "prompt"),
                          .tokens = command_int(args, "tokens", 200),
                          .temperature = command_float(args, "temperature", 0.8),
                          .seed = (uint64_t)command_int(args, "seed", 1)};
    char *dir = NULL;
    moe_err err = {.size = sizeof err};
    moe_status status = find_checkpoint(s, args, &dir, &err);
    o.checkpoint = dir;
    if (!status) status = generate(s, &o, stdout, &err);
    free(dir);
    if (status) fprintf(stderr, "moehost: %s\n", err.msg);
    if (!status && stop_requested()) return 128 + stop_requested();
    return wire_exit_code(status);
}

int cmd_generate(int argc, char **argv) {
    command_args args;
    int code = command_parse("generate", argc, argv, &args);
    if (code >= 0) return code;
    const char *prompt = command_value(&args, "prompt");
    if (!prompt || !*prompt) {
        fprintf(stderr, "moehost generate: --prompt TEXT is needed, one byte at least\n");
        return EXIT_CODE_USAGE;
    }
    session s;
    stop_install();
    crash_install(exec_current_node);
    code = session_open(&s, &args, TRAINER_LOGITS);
    s.trainer.model.micro = 1; /* one text */
    s.trainer.mesh = (mesh_cfg){1, 1, 1, 1, 1, 1, 1};
    if (!code) code = continue_text(&s, &args);
    session_free(&s);
    return command_finish(code);
}
