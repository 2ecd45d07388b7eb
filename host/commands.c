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
#ifdef HOST_HAS_CMD_EVAL
static const command_option eval_options[] = {
    SET,
    {"in", "FILE", "string", false, NULL, "safetensors with tokens [B,S] and, optional, mask [B,S] (0 = padding)"},
    {"dump", "FILE", "string", false, NULL, "safetensors to write: loss, logits, routing of every layer, gradients"},
    {"grads", NULL, NULL, false, NULL, "gradients of every parameter too"},
    {"with-aux", NULL, NULL, false, NULL, "gradients of the loss with the routers' losses"},
    {"ckpt", "DIR", "string", false, NULL, "checkpoint; default: [model] weights, or else the initial values"},
};
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
#ifdef HOST_HAS_CMD_IMPORT
static const command_option import_options[] = {
    {"o", "RECIPE", "string", false, NULL, "file to write; default: <name of HF_DIR>.ini in the working directory"},
    {"overwrite", NULL, NULL, false, NULL, "replace a file that is already there"},
};
#endif
#ifdef HOST_HAS_CMD_EXPORT
static const command_option export_options[] = {
    {"dtype", "TYPE", "enum bf16|f32", false, NULL, "bf16 or f32; default: bf16"},
    {"overwrite", NULL, NULL, false, NULL, "replace a model that is already in HF_DIR; other files stay"},
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
#ifdef HOST_HAS_CMD_EVAL
    {"eval", "RECIPE", "loss, logits, routing and gradients of given tokens, into a file", 1, 1, cmd_eval,
     OPTIONS(eval_options), false},
#endif
#ifdef HOST_HAS_CMD_GENERATE
    {"generate", "RECIPE", "continue a text with a trained model", 1, 1, cmd_generate, OPTIONS(generate_options),
     false},
#endif
#ifdef HOST_HAS_CMD_IMPORT
    {"import", "HF_DIR", "make a recipe from a Hugging Face model's config.json", 1, 1, cmd_import,
     OPTIONS(import_options), false},
#endif
#ifdef HOST_HAS_CMD_EXPORT
    {"export", "RUN_DIR HF_DIR", "write a run's last checkpoint as a Hugging Face model", 2, 2, cmd_export,
     OPTIONS(export_options), false},
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
