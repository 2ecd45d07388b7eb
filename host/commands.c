/* The table of commands. A new command is one row here and one file cmd_<name>.c. */
#include <string.h>

#include "command.h"

#define SET \
    { "set", "SECTION.KEY=VALUE", "string", true, NULL, "override a value of the recipe; repeats" }
#define OUT \
    { "out", "DIR", "string", false, "run.out", "directory of the run; default: runs/<name>" }
#define OPTIONS(rows_) .options = rows_, .n_options = sizeof rows_ / sizeof rows_[0]

#ifdef HOST_HAS_CMD_RUN
static const command_option run_options[] = {
    SET,
    {"steps", "N", "int 0..1000000000000", false, "run.steps", "optimiser steps instead of [run] steps"},
    {"seed", "N", "int 0..9223372036854775807", false, "run.seed", "seed instead of [run] seed"},
    OUT,
    {"resume", NULL, NULL, false, NULL, "continue from the last checkpoint in the directory of the run"},
    {"overwrite", NULL, NULL, false, NULL, "remove a run that is already in the directory"},
    {"quiet", NULL, NULL, false, NULL, "no progress, errors only"},
};
#endif
#ifdef HOST_HAS_CMD_CHECK
static const command_option check_options[] = {
    SET, {"resolved", NULL, NULL, false, NULL, "print every value with its origin, as a recipe"}};
#endif
#ifdef HOST_HAS_CMD_GENERATE
static const command_option generate_options[] = {
    SET,
    OUT,
    {"prompt", "TEXT", "string", false, NULL, "text to continue"},
    {"tokens", "N", "int 1..1000000000", false, NULL, "tokens to add"},
    {"temperature", "X", "float 0..1000", false, NULL, "0 takes the likeliest token"},
    {"seed", "N", "int 0..9223372036854775807", false, NULL, "key of the random choice"},
    {"ckpt", "DIR", "string", false, NULL, "checkpoint; default: the last of the run"},
};
#endif
static const command_option plugins_options[] = {{"json", NULL, NULL, false, NULL, "one JSON object for programs"}};
static const command_option help_options[] = {
    {"markdown", NULL, NULL, false, NULL, "the topic as Markdown (recipe only)"}};

static const command commands[] = {
#ifdef HOST_HAS_CMD_RUN
    {"run", "RECIPE", "train as the recipe says", 1, 1, cmd_run, OPTIONS(run_options), false},
#endif
#ifdef HOST_HAS_CMD_CHECK
    {"check", "RECIPE", "parse, load, build and check graph and memory; train nothing", 1, 1, cmd_check,
     OPTIONS(check_options), false},
#endif
#ifdef HOST_HAS_CMD_GENERATE
    {"generate", "RECIPE", "continue a text with a trained model", 1, 1, cmd_generate, OPTIONS(generate_options),
     false},
#endif
    {"plugins", "[KIND[/ID]]", "what is found where, versions, and options with type and default", 0, 1, cmd_plugins,
     OPTIONS(plugins_options), false},
    {"help", "[TOPIC]", "a command, or: recipe, plugins, exit-codes", 0, 1, cmd_help, OPTIONS(help_options), false},
};

const command *command_table(size_t *n) {
    *n = sizeof commands / sizeof commands[0];
    return commands;
}

const command *command_find(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}
