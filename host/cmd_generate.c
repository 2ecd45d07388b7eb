/* moehost generate: continues a text with a trained model. */
#include <exec/exec.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "stop.h"
#include "wire.h"

/* Numbers between commas or blanks, each within the vocabulary. */
static moe_status read_ids(const char *text, int64_t vocab, int32_t **ids, int64_t *n, moe_err *err) {
    *ids = malloc((strlen(text) + 1) * sizeof **ids);
    if (!*ids) return moe_fail(err, MOE_E_NOMEM, "out of memory for the ids");
    for (const char *at = text; at[strspn(at, ", ")];) {
        char *end = NULL;
        at += strspn(at, ", ");
        long long id = strtoll(at, &end, 10);
        if (end == at || !strchr(", ", *end) || id < 0 || id >= vocab)
            return moe_fail(err, MOE_E_ARG, "--in: '%.20s' is no id of 0..%lld", at, (long long)vocab - 1);
        (*ids)[(*n)++] = (int32_t)id;
        at = end;
    }
    return *n ? MOE_OK : moe_fail(err, MOE_E_ARG, "--in: one id at least");
}

static int continue_text(session *s, const command_args *args) {
    const char *in = command_value(args, "in");
    int32_t *ids = NULL;
    generate_options o = {.prompt = command_value(args, "prompt"),
                          .tokens = command_int(args, "tokens", 200),
                          .temperature = command_float(args, "temperature", 0.8),
                          .seed = (uint64_t)command_int(args, "seed", 1)};
    weights w = {NULL, NULL};
    moe_err err = {.size = sizeof err};
    moe_status status = in ? read_ids(in, s->trainer.model.vocab, &ids, &o.n_ids, &err) : MOE_OK;
    o.ids = ids;
    o.weights = &w;
    if (!status && o.prompt && strcmp(recipe_word(s->recipe, "data", "format"), "bytes") != 0)
        status = moe_fail(&err, MOE_E_ARG, "--prompt is for models of bytes; [data] format = %s: give --in IDS",
                          recipe_word(s->recipe, "data", "format"));
    if (!status) status = weights_choose(s, args, 0, &w, &err);
    if (!status) status = generate(s, &o, stdout, &err);
    weights_free(&w);
    free(ids);
    if (status) fprintf(stderr, "moehost: %s\n", err.msg);
    if (!status && stop_requested()) return 128 + stop_requested();
    return wire_exit_code(status);
}

int cmd_generate(int argc, char **argv) {
    command_args args;
    int code = command_parse("generate", argc, argv, &args);
    if (code >= 0) return code;
    const char *prompt = command_value(&args, "prompt");
    if (!prompt == !command_value(&args, "in") || (prompt && !*prompt)) {
        fprintf(stderr, "moehost generate: --prompt TEXT, one byte at least, or --in IDS is needed\n");
        return EXIT_CODE_USAGE;
    }
    session s;
    stop_install();
    crash_install(exec_current_node);
    code = session_open(&s, &args, TRAINER_LOGITS | SESSION_ALONE);
    s.trainer.model.micro = 1;     /* one text, */
    s.trainer.model.documents = 1; /* and behind it padding */
    if (!code) code = continue_text(&s, &args);
    session_free(&s);
    return command_finish(code);
}
