/* moehost probe: one plugin on given tensors (tryout.h). */
#include <stdio.h>
#include <string.h>

#include "stop.h"
#include "tryout.h"
#include "wire.h"

static moe_status run(tryout *t, moe_err *err) {
    static const struct {
        const char *kind;
        moe_status (*run)(tryout *t, moe_err *err);
    } kinds[] = {{"router", tryout_router},
                 {"precision", tryout_precision},
                 {"dispatcher", tryout_dispatcher},
                 {"scheduler", tryout_scheduler}};
    size_t i = 0;
    while (strcmp(kinds[i].kind, t->kind) != 0) i++; /* tryout_open knows the same */
    return kinds[i].run(t, err);
}

int cmd_probe(int argc, char **argv) {
    command_args args;
    int code = command_parse("probe", argc, argv, &args);
    if (code >= 0) return code;
    tryout t;
    moe_err err = {.size = sizeof err};
    crash_install(tryout_current);
    code = tryout_open(&t, &args);
    moe_status status = code ? MOE_OK : run(&t, &err);
    if (status) {
        fprintf(stderr, "moehost: %s\n", err.msg);
        code = status == MOE_E_INTERNAL ? EXIT_CODE_PLUGIN : wire_exit_code(status);
    }
    tryout_close(&t);
    return command_finish(code);
}
