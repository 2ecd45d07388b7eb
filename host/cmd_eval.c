/* moehost eval: the numbers of a model on given tokens, for comparison with other implementations. */
#include <exec/exec.h>
#include <inttypes.h>
#include <io/fs.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>

#include "eval.h"
#include "stop.h"
#include "wire.h"

/* The batch decides what the recipe's [data] and [batch] decide in training. */
static moe_status fit(session *s, const eval_batch *b, moe_err *err) {
    model_cfg *m = &s->trainer.model;
    uint32_t dp = s->mesh.degree[MESH_DP], tp = s->mesh.degree[MESH_TP];
    if (b->rows % dp)
        return moe_fail(err, MOE_E_ARG, "%" PRId64 " rows of tokens are no multiple of dp = %u", b->rows, dp);
    if (b->rows / dp * b->seq % tp)
        return moe_fail(err, MOE_E_ARG, "%" PRId64 " tokens of a dp rank are no multiple of tp = %u",
                        b->rows / dp * b->seq, tp);
    m->seq = b->seq;
    m->micro = b->rows / dp;
    m->documents = b->mask != NULL;
    s->trainer.global = b->rows;
    return MOE_OK;
}

static moe_status evaluate(session *s, const command_args *args, moe_err *err) {
    weights w = {NULL, NULL};
    eval_options o = {.weights = &w, .dump = command_value(args, "dump"), .grads = command_flag(args, "grads")};
    eval_result result;
    eval_batch batch;
    if (fs_same_file(command_value(args, "in"), o.dump))
        return moe_fail(err, MOE_E_ARG, "--in and --dump are one file, %.300s", o.dump);
    moe_status status = eval_batch_read(command_value(args, "in"), s->trainer.model.vocab, &batch, err);
    if (status) return status;
    status = fit(s, &batch, err);
    if (!status) status = weights_choose(s, args, 1, &w, err);
    if (!status) status = eval_run(s, &batch, &o, &result, err);
    if (!status && session_speaks(s))
        printf("loss %.6f over %" PRId64 " token%s; the values are in %s\n", result.loss, result.valid,
               result.valid == 1 ? "" : "s", o.dump);
    weights_free(&w);
    eval_batch_free(&batch);
    return status;
}

int cmd_eval(int argc, char **argv) {
    command_args args;
    int code = command_parse("eval", argc, argv, &args);
    if (code >= 0) return code;
    if (!command_value(&args, "in") || !command_value(&args, "dump")) {
        fprintf(stderr, "moehost eval: --in FILE and --dump FILE are needed\n");
        return EXIT_CODE_USAGE;
    }
    session s;
    moe_err err = {.size = sizeof err};
    crash_install(exec_current_node);
    code = session_open(&s, &args,
                        SESSION_PROCESSES | TRAINER_DUMP | (command_flag(&args, "grads") ? TRAINER_DUMP_GRADS : 0));
    s.trainer.ignore_aux = !command_flag(&args, "with-aux");
    moe_status status = code ? MOE_OK : evaluate(&s, &args, &err);
    if (status) {
        if (session_speaks(&s)) fprintf(stderr, "moehost: %s\n", err.msg);
        code = wire_exit_code(status);
    }
    session_free(&s);
    return command_finish(code);
}
