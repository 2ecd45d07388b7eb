/* moehost check: everything that a run does before its first step, and what it would need; trains nothing. */
#include <hf/load.h>
#include <inttypes.h>
#include <stdio.h>

#include "ranks.h"
#include "wire.h"

static moe_status check_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    session *s = arg;
    trainer *t = NULL;
    trainer_cfg cfg = s->trainer;
    cfg.plan_only = 1;
    moe_status status = session_trainer(s, &cfg, bootstrap, &t, err);
    if (!status && !rank && s->weights) status = hf_check(t, s->weights, err);
    if (!status && !rank) {
        const trainer_memory m = trainer_memory_of(t);
        int64_t total = 0, n = 0;
        for (uint32_t i = 0; trainer_param_name(t, i, &n); i++) total += n;
        printf("%s: %.2f M parameters, %u rank%s, %u nodes a step\n", s->name, (double)total * 1e-6, s->ranks,
               s->ranks == 1 ? "" : "s", trainer_nodes(t));
        printf("memory of a rank: %.1f MiB (weights and optimiser %.1f, step %.1f, device %.1f, staging %.1f)\n",
               (double)m.total / 1048576, (double)m.params / 1048576, (double)m.arena / 1048576,
               (double)m.device_own / 1048576, (double)m.staging / 1048576);
        printf("data: %" PRId64 " training windows of %" PRId64 " tokens, %" PRId64 " for validation\n",
               data_count_windows(s->data, DATA_TRAIN), s->trainer.model.seq, data_count_windows(s->data, DATA_VALID));
    }
    if (status && t) trainer_abort(t, err->msg);
    trainer_destroy(t);
    return status;
}

int cmd_check(int argc, char **argv) {
    command_args args;
    int code = command_parse("check", argc, argv, &args);
    if (code >= 0) return code;
    session s;
    moe_err err = {.size = sizeof err};
    code = session_open(&s, &args, TRAINER_TRAIN | TRAINER_EVAL | SESSION_PROCESSES);
    if (!code && session_speaks(&s) && command_flag(&args, "resolved")) fputs(s.resolved, stdout);
    moe_status status = code || command_flag(&args, "resolved") ? MOE_OK : session_run(&s, check_rank, &s, &err);
    if (status) {
        if (session_speaks(&s)) fprintf(stderr, "moehost: %s\n", err.msg);
        code = wire_exit_code(status);
    }
    session_free(&s);
    return command_finish(code);
}
