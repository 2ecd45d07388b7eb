/* The recipe's sections and keys. A new key is one row here and one use in wire.c; recipes/README.md is made from these
 * tables (`moehost help recipe --markdown`) and a test compares it. */
#include "keys.h"

#include <string.h>

static const key_row run_keys[] = {
    {"name", "string", "", "name of the run: letters, digits, . _ -; empty: the recipe's file name without .ini"},
    {"seed", "int 0..9223372036854775807", "1", "key of every random number: weights, order of data, jitter"},
    {"out", "string", "", "directory of the run, from the working directory of the command; empty: runs/<name>"},
    {"steps", "int 0..1000000000000", "100", "optimiser steps"},
    {"log_every", "int 1..1000000000000", "10", "steps between plain lines of progress when not on a terminal"},
    {"eval_every", "int 0..1000000000000", "0", "steps between evaluations, besides the one after the last step"},
    {"eval_batches", "int 1..1000000000", "8", "microbatches of each rank in an evaluation"},
    {"trace", "int 0..1000000", "0", "first steps whose nodes are written to trace.json, with their times"},
};
static const key_row data_keys[] = {
    {"train", "path list", "", "files or globs; needed by run and check"},
    {"valid", "path list", "", "files or globs for evaluation; empty: the ends of the training files"},
    {"valid_fraction", "float 0..0.999999", "0.1", "end of every training file kept for evaluation, without valid"},
    {"format", "enum bytes|tokens|megatron", "bytes",
     "bytes: every byte is a token; tokens: plain little-endian numbers; megatron: .bin with .idx"},
    {"token_dtype", "enum u16|u32|i32", "u16", "numbers of a plain token file"},
    {"weights", "list", "", "how often each item of train is drawn from; empty: in proportion to its tokens"},
    {"documents", "bool", "false",
     "attention and targets stay within a document (a file, with format = bytes or tokens)"},
    {"seq_len", "int 1..1048576", "256", "tokens of a sequence"},
};
static const key_row model_keys[] = {
    {"hidden", "int 1..1048576", NULL, "width of the residual stream"},
    {"layers", "int 1..4096", NULL, "transformer layers"},
    {"heads", "int 1..65536", NULL, "query heads"},
    {"kv_heads", "int 0..65536", "0", "key and value heads, a divisor of heads; 0 = heads"},
    {"head_dim", "int 0..65536", "0", "elements of a head, even; 0 = hidden / heads"},
    {"experts", "int 0..1048576", "0", "experts of a MoE layer over all ranks; 0: every layer is dense"},
    {"expert_ffn", "int 0..16777216", "0", "FFN width of an expert"},
    {"top_k", "int 0..1048576", "0", "experts that a token goes to"},
    {"dense_layers", "int 0..4096", "0", "leading layers with one dense FFN instead of experts"},
    {"dense_ffn", "int 0..16777216", "0", "FFN width of a dense layer"},
    {"shared_experts", "int 0..1048576", "0", "experts of a MoE layer that see every token"},
    {"shared_ffn", "int 0..16777216", "0", "FFN width of one shared expert"},
    {"vocab", "int 1..16777216", "256", "token ids"},
    {"attention", "enum gqa|mla", "gqa", "gqa: heads share key-value heads; mla: multi-head latent attention"},
    {"q_lora", "int 0..1048576", "0", "mla: rank of the queries, 0 = full"},
    {"kv_lora", "int 0..1048576", "0", "mla: rank of keys and values"},
    {"v_dim", "int 0..65536", "0", "mla: elements of a value head; 0 = head_dim"},
    {"qk_norm", "enum none|head|full", "none", "RMSNorm of queries and keys: of each head, or of all heads as one row"},
    {"qkv_bias", "bool", "false", "biases on queries, keys and values"},
    {"out_bias", "bool", "false", "a bias on the output of attention"},
    {"sinks", "bool", "false", "a learned logit a head that takes part in the softmax of attention"},
    {"window", "int 0..1073741824", "0", "tokens that a query sees, itself included, in layers that slide; 0 = all"},
    {"window_pattern", "string", "s", "s: the layer slides, f: it sees all; repeated over the layers"},
    {"rope_theta", "float 1..1e15", "10000", "base of the rotary embedding"},
    {"rotary_dim", "int 0..65536", "0", "elements of a head that turn, even; 0 = head_dim; mla: the shared part"},
    {"rope_interleaved", "bool", "false", "neighbours turn together, instead of the halves of a head"},
    {"rope_scaling", "enum none|linear|yarn", "none", "how positions are stretched"},
    {"rope_factor", "float 1..1e6", "1", "linear, yarn: stretch"},
    {"rope_original", "int 0..1073741824", "0", "yarn: sequence length before it was stretched"},
    {"rope_beta_fast", "float 0..1e6", "32", "yarn: dimensions that turn more often keep their frequency"},
    {"rope_beta_slow", "float 0..1e6", "1", "yarn: dimensions that turn less often are stretched in full"},
    {"rope_mscale", "float 0..1e6", "0", "yarn: weight of the logarithm in the amplitude; 0 = not given"},
    {"rope_mscale_all_dim", "float 0..1e6", "0", "yarn: the same for the scale of attention; 0 = not given"},
    {"rope_attention_factor", "float 0..1e6", "0",
     "yarn: amplitude; 0 = A(1), or with both mscales A(rope_mscale) / A(rope_mscale_all_dim), where A(m) = 0.1 m "
     "ln(rope_factor) + 1"},
    {"rope_truncate", "bool", "true", "yarn: the bounds of the ramp are whole numbers"},
    {"activation", "enum swiglu|clamped_swiglu", "swiglu", "clamped_swiglu: of gpt-oss"},
    {"activation_alpha", "float 0..1000", "1.702", "clamped_swiglu: factor inside the sigmoid"},
    {"activation_limit", "float 1e-6..1e6", "7", "clamped_swiglu: where gate and up are cut"},
    {"expert_biases", "bool", "false", "biases on both products of the experts"},
    {"router_bias", "bool", "false", "a trained bias on the router's logits"},
    {"shared_gate", "bool", "false", "a sigmoid gate on the shared experts"},
    {"norm_eps", "float 1e-30..1", "1e-6", "added to the mean square in RMSNorm"},
    {"init_std", "float 0..10", "0.02", "standard deviation of initial weights"},
    {"tied", "bool", "false", "the output head is the embedding table"},
    {"weights", "path list", "", "folder of a Hugging Face model that the run starts from; empty: random weights"},
};
static const key_row capacity_keys[] = {
    {"factor", "float 0..1e9", "0", "an expert takes at most factor * tokens * top_k / experts; 0 = dropless"},
    {"drop", "enum prob|position", "prob", "who stays: the largest weights, or the first tokens"},
    {"scope", "enum shard|sequence", "shard", "tokens that share a capacity: a microbatch of a rank, or a sequence"},
    {"pad", "bool", "false", "every expert has exactly its capacity of rows"},
};
static const key_row plugin_keys[] = {
    {"plugin", "string", "", "id of an installed plugin, or the path of a .so (from the recipe's folder)"},
};
static const key_row comm_keys[] = {
    {"plugin", "string", "", "id of an installed plugin, or the path of a .so (from the recipe's folder)"},
    {"ranks", "int 1..65536", "1", "ranks, where they are threads of this process; a launcher gives its own number"},
    {"timeout", "float 0..1000000000", "600",
     "seconds after which a communication call that waits for a rank ends the run, 0 = never"},
};
static const key_row parallel_keys[] = {
    {"tp", "int 1..65536", "1", "tensor parallel ranks"},
    {"cp", "int 1..65536", "1", "context parallel ranks"},
    {"dp", "int 1..65536 or fill", "fill", "data parallel ranks; fill takes what the other degrees leave"},
    {"pp", "int 1..65536", "1", "pipeline stages"},
    {"vpp", "int 1..65536", "1", "virtual stages of a rank"},
    {"ep", "int 1..65536", "1", "expert parallel ranks, a divisor of experts"},
    {"etp", "int 1..65536", "1", "tensor parallel ranks of an expert"},
    {"node_size", "int 0..65536", "0",
     "ranks that share a node, neighbours by number; 0 = all, or what a launcher says"},
};
static const key_row optimizer_keys[] = {
    {"kind", "enum adamw|sgd", "adamw", "adamw: decoupled weight decay; sgd: plain, no momentum"},
    {"lr", "float 0..1000", "1e-3", "peak learning rate"},
    {"beta1", "float 0..0.9999999", "0.9", "decay of the first moment"},
    {"beta2", "float 0..0.9999999", "0.95", "decay of the second moment"},
    {"eps", "float 1e-30..1", "1e-8", "added to the root of the second moment"},
    {"weight_decay", "float 0..1000", "0.1", "pull of matrices towards zero, times the learning rate"},
    {"clip", "float 0..1e30", "1", "largest norm of the whole gradient, 0 = no clipping"},
    {"distributed", "bool", "true",
     "ranks that hold the same weights share their optimiser state and steps; the numbers are the same either way"},
    {"schedule", "enum constant|cosine|linear|wsd", "constant", "course of the learning rate after the warm-up"},
    {"warmup", "int 0..1000000000000", "0", "steps of linear warm-up"},
    {"decay", "int 0..1000000000000", "0", "steps of linear decay at the end (wsd)"},
    {"min_lr", "float 0..1", "0", "learning rate at the end, as a fraction of lr"},
};
static const key_row batch_keys[] = {
    {"global", "int 1..1000000000", "8", "sequences of an optimiser step, over all ranks"},
    {"micro", "int 1..1000000000", "1", "sequences of a microbatch; divides global"},
};
static const key_row memory_keys[] = {
    {"limit", "size", "0", "most bytes that a rank may plan, 0 = no limit; KiB, MiB, GiB, TiB"},
    {"recv", "enum exact|worst|capacity:0.001..1000000", "exact",
     "room for the rows that a rank receives: as many as come, memory grows to the most that came; for the worst "
     "routing; "
     "capacity:X = X times those of a balanced routing"},
    {"overflow", "enum stop|drop", "stop", "recv = capacity:X: what to do when more come; drop: the last of them"},
    {"head_rows", "int 1..16777216", "1024", "tokens whose logits exist at a time"},
};
static const key_row checkpoint_keys[] = {
    {"every", "int 0..1000000000000", "0", "steps between checkpoints, 0 = at the end only"},
    {"keep", "int 1..1000000", "2", "newest checkpoints kept"},
    {"keep_every", "int 0..1000000000000", "0", "checkpoints of steps that it divides are kept for good, 0 = none"},
};

#define ROWS(keys_) .keys = keys_, .n_keys = sizeof keys_ / sizeof keys_[0]
static const section_row sections[] = {
    {"run", "name, length and output of the run", ROWS(run_keys)},
    {"data", "what is read", ROWS(data_keys)},
    {"model", "sizes of the model", ROWS(model_keys)},
    {"capacity", "how many rows an expert takes", ROWS(capacity_keys)},
    {"router", "who chooses experts", ROWS(plugin_keys), .plugin = "topk", .layers = true},
    {"dispatcher", "how rows get to their experts", ROWS(plugin_keys), .plugin = "auto", .layers = true},
    {"precision", "number format of linear layers", ROWS(plugin_keys), .plugin = "fp32", .layers = true, .parts = true},
    {"scheduler", "order of the step's operations", ROWS(plugin_keys), .plugin = "serial"},
    {"device", "memory, streams and operations", ROWS(plugin_keys), .plugin = "cpu"},
    {"comm", "ranks and their collectives", ROWS(comm_keys), .plugin = "threads"},
    {"parallel", "degrees of parallelism", ROWS(parallel_keys)},
    {"optimizer", "how weights change", ROWS(optimizer_keys)},
    {"batch", "sequences of a step", ROWS(batch_keys)},
    {"memory", "bounds on memory", ROWS(memory_keys)},
    {"checkpoint", "when the state is saved", ROWS(checkpoint_keys)},
};

const section_row *keys_sections(size_t *n) {
    *n = sizeof sections / sizeof sections[0];
    return sections;
}

const section_row *keys_find_section(const char *name) {
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        if (strcmp(sections[i].name, name) == 0) return &sections[i];
    return NULL;
}

const key_row *keys_find(const section_row *section, const char *key) {
    for (size_t i = 0; i < section->n_keys; i++)
        if (strcmp(section->keys[i].key, key) == 0) return &section->keys[i];
    return NULL;
}
