/* The table of commands. A new command is one row here and one file cmd_<name>.c. */
#include <string.h>

#include "command.h"

#define SET \
    { "set", "SECTION.KEY=VALUE", "string", true, NULL, "override a value of the recipe; repeats" }
#define OUT \
    { "out", "DIR", "string", false, "run.out", "directory of the run; default: runs/<name>" }
#define OPTIONS(rows_) .options = rows_, .n_options = sizeof rows_ / sizeof rows_[0]

static const command_option run_options[] = {
    SET,
    {"steps", "N", "int 0..1000000000000", false, "run.steps", "optimiser steps instead of [run] steps"},
    {"seed", "N", "int 0..9223372036854775807", false, "run.seed", "seed instead of [run] seed"},
    OUT,
    {"resume", NULL, NULL, false, NULL, "continue from the last checkpoint in the directory of the run"},
    {"overwrite", NULL, NULL, false, NULL, "remove a run that is already in the directory"},
    {"quiet", NULL, NULL, false, NULL, "no progress, errors only"},
};
static const command_option check_options[] = {
    SET, {"resolved", NULL, NULL, false, NULL, "print every value with its origin, as a recipe"}};
static const command_option eval_options[] = {
    SET,
    {"in", "FILE", "string", false, NULL, "safetensors with tokens [B,S] and, optional, mask [B,S] (0 = padding)"},
    {"dump", "FILE", "string", false, NULL, "safetensors to write: loss, logits, routing of every layer, gradients"},
    {"grads", NULL, NULL, false, NULL, "gradients of every parameter too"},
    {"with-aux", NULL, NULL, false, NULL, "gradients of the loss with the routers' losses"},
    {"ckpt", "DIR", "string", false, NULL, "checkpoint; default: [model] weights, or else the initial values"},
};
static const command_option bench_options[] = {
    SET,
    {"threads", "LIST", "string", false, "device.threads",
     "compute threads: each recipe runs with 1 and with 2 for 1,2"},
    {"runs", "N", "int 1..100", false, NULL, "times that all recipes run in turn; medians are shown; default 3"},
    {"steps", "N", "int 1..100000", false, NULL, "timed steps of each kind in a run; default 3"},
    {"json", NULL, NULL, false, NULL, "one object a line: name, value, unit, peak, fraction, recipe, threads"},
    {"ranks", "N", "int 1..64", false, NULL, "bench dispatch: threads, a rank each; default 4"},
    {"tokens", "N", "int 0..1048576", false, NULL, "bench dispatch: tokens of a rank; default 1024"},
    {"hidden", "N", "int 1..65536", false, NULL, "bench dispatch: elements of a row; default 1024"},
    {"top-k", "N", "int 1..64", false, NULL, "bench dispatch: experts of a token; default 8"},
    {"experts", "N", "int 1..4096", false, NULL, "bench dispatch: of all ranks; default 32"},
    {"node-size", "N", "int 0..64", false, NULL, "bench dispatch: ranks of a node; default 0, one node"},
    {"dtype", "TYPE", "enum f32|bf16", false, NULL, "bench dispatch: of the rows; default f32"},
    {"dispatchers", "LIST", "string", false, NULL, "bench dispatch: default deepep,hier,alltoall,allgather"},
};
static const char bench_more[] =
    "bench dispatch, in place of a recipe, times dispatchers alone: layout, dispatch, combine; rates are rows that "
    "land\n"
    "in expert order (combine: leave it) a second, beside a memcpy of them by the same threads at once in the same "
    "run;\n"
    "sent is what ranks give each other, beside the formula of the dispatcher's volume. Best of --runs times --steps "
    "tries.\n\n"
    "Rates are of model FLOPs, beside `peak`, the best 2048^3 product of the same run, which stands beside `fma`, "
    "multiply-\nadds in registers. Rates in GB/s are of the bytes that must move at least, beside `copy`, a copy in "
    "memory.\n\n"
    "copy.streaming  the same copy past the caches: what memory gives at most; nothing is a fraction of it\n"
    "PART.time       a part of the step: projections, attention, routing (projection, choice, moving rows), experts\n"
    "                (their products), activation (between these), dense, head, cross_entropy, norms, rope, "
    "embedding,\n"
    "                update, other\n"
    "experts         rate of the experts' products and activation\n"
    "experts.fprop   rate of their products in a role, beside the same products done one by one as dense ones of the\n"
    "                same number of rows; so are dgrad and wgrad\n"
    "moe.overhead    routing and activation: their part of the time of these and the experts' products, in %\n"
    "memory          of a rank: weights as they are read; params with masters, gradients, moments; arena of the step\n"
    "vs first        experts' rate beside that of the first recipe with the same threads, in the same run\n";
static const command_option generate_options[] = {
    SET,
    OUT,
    {"prompt", "TEXT", "string", false, NULL, "text to continue, for models of bytes"},
    {"in", "IDS", "string", false, NULL, "token ids to continue, between commas; the answer is ids too"},
    {"tokens", "N", "int 1..1000000000", false, NULL, "tokens to add; default 200"},
    {"temperature", "X", "float 0..1000", false, NULL, "0 takes the likeliest token; default 0.8"},
    {"seed", "N", "int 0..9223372036854775807", false, NULL, "key of the random choice; default 1"},
    {"ckpt", "DIR", "string", false, NULL, "checkpoint; default: the last of the run"},
};
static const command_option import_options[] = {
    {"o", "RECIPE", "string", false, NULL, "file to write; default: <name of HF_DIR>.ini in the working directory"},
    {"overwrite", NULL, NULL, false, NULL, "replace a file that is already there"},
};
static const command_option export_options[] = {
    {"ckpt", "DIR", "string", false, NULL, "checkpoint, RUN_DIR/ckpt/step-...; default: the last of the run"},
    {"dtype", "TYPE", "enum bf16|f32", false, NULL, "bf16 or f32; default: bf16"},
    {"overwrite", NULL, NULL, false, NULL, "replace a model that is already in HF_DIR; other files stay"},
};
static const char export_more[] =
    "max_position_embeddings of config.json is the recipe's seq_len (with YaRN: rope_factor * rope_original), or what\n"
    "config.json in the folder of [model] weights says, whichever is larger. The ids of the tokens that begin, end "
    "and\n"
    "pad a text (bos_token_id, eos_token_id, pad_token_id) are those of that file; without it they are null.\n";
static const command_option probe_options[] = {
    {"in", "FILE", "string", false, NULL, "safetensors with the tensors below; not for a scheduler"},
    {"out", "FILE", "string", false, NULL, "file to write; a scheduler without it prints"},
    {"set", "KEY=VALUE", "string", true, NULL, "an option of the plugin; repeats"},
    {"ranks", "N", "int 1..64", false, NULL, "dispatcher, scheduler: ranks, threads of this process; default 1"},
    {"backward", NULL, NULL, false, NULL, "router, precision: gradients too; given d_weights or dy mean it"},
    {"device", "ID", "string", false, NULL, "device plugin that the plugin runs on; default cpu"},
    {"top-k", "N", "int 1..65536", false, NULL, "router: choices of a token; default 2"},
    {"seq-len", "N", "int 1..1000000000000", false, NULL, "router: tokens of a sequence; default T"},
    {"seed", "N", "int 0..9223372036854775807", false, NULL, "router: key of its random numbers; default 0"},
    {"layer", "N", "int 0..1023", false, NULL, "router, dispatcher: layer it is made for; default 0"},
    {"experts", "N", "int 1..1000000", false, NULL,
     "E; default: router: of logits; dispatcher: largest id + 1, at least k"},
    {"ep", "N", "int 1..64", false, NULL, "dispatcher: ranks that share the experts; default: --ranks / --etp"},
    {"etp", "N", "int 1..64", false, NULL, "dispatcher: neighbouring ranks that share each expert; default 1"},
    {"row-align", "N", "int 1..65536", false, NULL, "dispatcher: rows of an expert begin at multiples; default 1"},
    {"min-rows", "N", "int 0..1000000000", false, NULL, "dispatcher: rows of every expert at least; default 0"},
    {"recv-rows", "N", "int 0..1000000000000", false, NULL,
     "dispatcher: rows of a rank at most; default 0: what the worst routing gives"},
    {"overflow", "WORD", "enum stop|drop", false, NULL, "dispatcher: what more rows than --recv-rows do; default stop"},
    {"node-size", "N", "int 0..64", false, NULL, "dispatcher: neighbouring ranks of one node; default 0: all"},
    {"layers", "N", "int 1..64", false, NULL, "scheduler: layers of the step; default 2"},
    {"microbatches", "N", "int 1..1024", false, NULL, "scheduler: microbatches of the step; default 2"},
};
static const char probe_more[] =
    "KIND/ID: an id as in a recipe, or a path: router/topk, router/./mine.so, router//opt/mine.so.\n"
    "Real numbers may be F32 or BF16, whole numbers I32, I64, U8 or BOOL. ? = may be absent.\n\n"
    "router      in   logits [T,E]; hidden? [T,h], token_ids? [T] where the router asks for them; mask? [T], 0 = "
    "padding;\n"
    "                 d_weights? [T,k]; params.NAME?, state.NAME? as the router declares them\n"
    "            out  expert_ids [T,k] I32, weights [T,k] F32, counts [E] I64, and every loss of the router under its\n"
    "                 name (aux_loss, z_loss, ...) [1] F64, the mean over live tokens\n"
    "            with d_weights or --backward: d_logits [T,E] F32 (d_hidden, d_params.NAME where there are any), of\n"
    "                 sum(d_weights * weights) and the losses times their coefficients, as means over live tokens.\n"
    "                 Without d_weights: of the losses. The call is the whole global batch, step 1, in training.\n"
    "precision   in   x [M,K]; w? [N,K]; dy? [M,N]; group_offsets? [G+1], from 0 to M: then w is [G,N,K]\n"
    "            out  F32: dequant [M,K], x as the products see it; y = x w^T [M,N] (with w); dx = dy w [M,K] (with "
    "w,\n"
    "                 dy); dw = dy^T x [N,K] or [G,N,K] (with dy)\n"
    "dispatcher  in   rank.R.hidden [T,h], rank.R.expert_ids [T,k] (-1 = none), rank.R.weights [T,k] of each rank\n"
    "            out  rank.R.rows [N,h] as they came, in order of the local experts; rank.R.counts [G] I64 rows of "
    "each;\n"
    "                 rank.R.combined [T,h] through identity experts: the sum over slots of weight * hidden;\n"
    "                 rank.R.sent [2] I64 bytes that the rank gave to others, out and back\n"
    "scheduler   out  JSON: the nodes of a small step with unit costs, the order of each rank and lane, the simulated\n"
    "                 timeline. --ranks N: data parallel ranks\n";
static const char plugins_more[] =
    "KIND/ID: an id as in a recipe. FILE: a path with '/' or '.so', alone or after KIND/ (router/./mine.so); "
    "FILE.so#ID "
    "is\none of several in it.\n";
static const command_option plugins_options[] = {{"json", NULL, NULL, false, NULL, "one JSON object for programs"}};
static const command_option help_options[] = {
    {"markdown", NULL, NULL, false, NULL, "the topic as Markdown (recipe only)"}};

static const command commands[] = {
    {"run", "RECIPE", "train as the recipe says", 1, 1, cmd_run, OPTIONS(run_options), false},
    {"check", "RECIPE", "parse, load, build and check graph and memory; train nothing", 1, 1, cmd_check,
     OPTIONS(check_options), false},
    {"eval", "RECIPE", "loss, logits, routing and gradients of given tokens, into a file", 1, 1, cmd_eval,
     OPTIONS(eval_options), false},
    {.name = "bench",
     .args = "RECIPE...|dispatch",
     .summary = "speed of the step and its parts, beside the machine's measured peaks",
     .least = 1,
     .most = COMMAND_POSITIONALS,
     .run = cmd_bench,
     OPTIONS(bench_options),
     .more = bench_more},
    {"generate", "RECIPE", "continue a text with a trained model", 1, 1, cmd_generate, OPTIONS(generate_options),
     false},
    {"import", "HF_DIR", "make a recipe from a Hugging Face model's config.json", 1, 1, cmd_import,
     OPTIONS(import_options), false},
    {.name = "export",
     .args = "RUN_DIR HF_DIR",
     .summary = "write a run's checkpoint as a Hugging Face model",
     .least = 2,
     .most = 2,
     .run = cmd_export,
     OPTIONS(export_options),
     .more = export_more},
    {.name = "probe",
     .args = "KIND/ID",
     .summary = "run one plugin on given tensors",
     .least = 1,
     .most = 1,
     .run = cmd_probe,
     OPTIONS(probe_options),
     .more = probe_more},
    {.name = "plugins",
     .args = "[KIND[/ID]|FILE]",
     .summary = "what is found where, versions, and options with type and default",
     .most = 1,
     .run = cmd_plugins,
     OPTIONS(plugins_options),
     .more = plugins_more},
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
