/* Faults of the recipe's own keys: names, types, ranges, contradictions, sizes that this version cannot run, data. */
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "runner.h"

START_TEST(recipes_that_are_right) {
    static const row rows[] = {
        {"the small one", .say = {"tiny"}},
        {"spaces and signs", .put = {"run: name = a.b-c_1", "memory: limit = 64 MiB", "model: tied = YES"}},
        {"a cosine", .put = {"optimizer: schedule = cosine", "optimizer: warmup = 1", "optimizer: min_lr = 0.1"}},
        {"sgd", .put = {"optimizer: kind = sgd", "optimizer: lr = 1e-2"}},
        {"two ranks", .put = {"comm: ranks = 2"}},
        {"shared experts", .put = {"model: shared_experts = 1", "model: shared_ffn = 16"}},
        {"a dense layer first", .put = {"model: dense_layers = 1", "model: dense_ffn = 16"}},
        {"an override for one layer", .put = {"router:1: scale = 2"}},
        {"head_dim of its own", .put = {"model: head_dim = 6", "model: hidden = 10"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(C006_top_k_against_experts) {
    static const row rows[] = {
        {"more than experts", .put = {"model: top_k = 5"}, .code = 2, .say = {"[model] top_k", "5", "experts = 4"}},
        {"none", .put = {"model: top_k = 0"}, .code = 2, .say = {"[model] top_k", "experts = 4"}},
        {"negative", .put = {"model: top_k = -1"}, .code = 2, .say = {"[model] top_k", "-1", "outside"}},
        {"far too many", .put = {"model: top_k = 4294967298"}, .code = 2, .say = {"[model] top_k", "outside"}},
        {"more by --set", .args = "check tiny.ini --set model.top_k=5", .line = NO_PLACE, .code = 2,
         .say = {"--set model.top_k=5", "experts = 4"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(C007_top_k_of_all_experts_works) {
    static const row rows[] = {{"k = E", .put = {"model: top_k = 4"}},
                               {"k = E = 1", .put = {"model: top_k = 1", "model: experts = 1"}}};
    RUN(rows);
}
END_TEST

#define DENSE               \
    "[data]\n"              \
    "train = ../text.txt\n" \
    "seq_len = 16\n"        \
    "[model]\n"             \
    "layers = 1\n"          \
    "hidden = 16\n"         \
    "heads = 2\n"
START_TEST(C114_no_experts) {
    static const row rows[] = {
        {"a dense model is fine", .text = DENSE "dense_ffn = 16\n"},
        {"experts = 0 is dense", .text = DENSE "dense_ffn = 16\nexperts = 0\n"},
        {"top_k without experts", .text = DENSE "dense_ffn = 16\ntop_k = 2\n", .line = 9, .code = 2,
         .say = {"[model] top_k", "experts = 0"}},
        {"a router without experts", .text = DENSE "dense_ffn = 16\n[router]\nplugin = topk\n", .line = 10, .code = 2,
         .say = {"[router]", "experts = 0"}},
        {"an option of a router", .text = DENSE "dense_ffn = 16\n[router]\naux_coef = 0.01\n", .line = 10, .code = 2,
         .say = {"[router] aux_coef", "experts = 0"}},
        {"no width of the dense layers", .text = DENSE, .line = NO_PLACE, .code = 2,
         .say = {"[model] dense_ffn", "experts = 0"}},
        {"ep without experts", .text = DENSE "dense_ffn = 16\n[parallel]\nep = 2\n", .line = 10, .code = 2,
         .say = {"[parallel] ep", "experts = 0"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(C099_odd_head_dim) {
    static const row rows[] = {
        {"given", .put = {"model: head_dim = 33"}, .code = 2, .say = {"[model] head_dim", "33", "odd"}},
        {"one", .put = {"model: head_dim = 1"}, .code = 2, .say = {"[model] head_dim", "odd"}},
        {"derived", .put = {"model: heads = 2", "model: hidden = 66"}, .code = 2, .say = {"head_dim", "33", "odd"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(names_with_a_slip) {
    static const row rows[] = {
        {"a key of [model]", .put = {"model: topk = 2"}, .code = 2,
         .say = {"[model] topk", "unknown key", "did you mean 'top_k'?"}},
        {"a key of [run]", .put = {"run: step = 5"}, .code = 2, .say = {"did you mean 'steps'?"}},
        {"a key of [batch]", .put = {"batch: mirco = 2"}, .code = 2, .say = {"did you mean 'micro'?"}},
        {"a key in the wrong section", .put = {"run: lr = 0.1"}, .code = 2, .say = {"unknown key", "[optimizer]"}},
        {"nothing like it", .put = {"run: quux = 1"}, .code = 2, .say = {"unknown key"}, .not_say = "did you mean"},
        {"case counts", .put = {"run: Steps = 5"}, .code = 2, .say = {"did you mean 'steps'?"}},
        {"a word", .put = {"optimizer: schedule = cosin"}, .code = 2,
         .say = {"[optimizer] schedule", "constant|cosine|linear|wsd", "did you mean 'cosine'?"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(values_of_the_wrong_type) {
    static const row rows[] = {
        {"words", .put = {"run: steps = many"}, .code = 2, .say = {"[run] steps", "'many'", "whole number"}},
        {"an exponent", .put = {"run: steps = 1e3"}, .code = 2, .say = {"'1e3'", "whole number"}},
        {"a fraction", .put = {"batch: global = 4.0"}, .code = 2, .say = {"'4.0'"}},
        {"hexadecimal", .put = {"model: hidden = 0x10"}, .code = 2, .say = {"'0x10'"}},
        {"thousands", .put = {"run: steps = 1,000"}, .code = 2, .say = {"'1,000'"}},
        {"a unit", .put = {"data: seq_len = 16k"}, .code = 2, .say = {"'16k'"}},
        {"not a number", .put = {"optimizer: lr = nan"}, .code = 2, .say = {"[optimizer] lr", "'nan'"}},
        {"infinity", .put = {"optimizer: lr = inf"}, .code = 2, .say = {"'inf'"}},
        {"a comma for a point", .put = {"optimizer: lr = 0,01"}, .code = 2, .say = {"'0,01'"}},
        {"maybe", .put = {"model: tied = maybe"}, .code = 2, .say = {"'maybe'", "true|false"}},
        {"one for true", .put = {"model: tied = 1"}, .code = 2, .say = {"'1'", "true|false"}},
        {"a size in thousands", .put = {"memory: limit = 3 GB"}, .code = 2, .say = {"[memory] limit", "GiB"}},
        {"a negative size", .put = {"memory: limit = -1"}, .code = 2, .say = {"[memory] limit"}},
        {"a size beyond 63 bits", .put = {"memory: limit = 9999999999 TiB"}, .code = 2, .say = {"63 bits"}},
        {"an unknown format", .put = {"data: format = json"}, .code = 2, .say = {"'json'", "bytes"}},
        {"an unknown policy", .put = {"memory: recv = best"}, .code = 2, .say = {"'best'", "exact"}},
        {"a capacity that is no number", .put = {"memory: recv = capacity:x"}, .code = 2, .say = {"'capacity:x'"}},
        {"a capacity of nothing", .put = {"memory: recv = capacity:0"}, .code = 2, .say = {"'capacity:0'", "0.001"}},
        {"a capacity without its number", .put = {"memory: recv = capacity"}, .code = 2, .say = {"'capacity'"}},
        {"overflow of what cannot", .put = {"memory: overflow = drop"}, .code = 2, .say = {"[memory] overflow"}},
        {"a word for a degree", .put = {"parallel: dp = full"}, .code = 2, .say = {"'full'", "fill"}},
        {"an empty item", .put = {"data: train = a,,b"}, .code = 2, .say = {"[data] train", "item 2"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(values_out_of_range) {
    static const row rows[] = {
        {"no layers", .put = {"model: layers = 0"}, .code = 2, .say = {"[model] layers", "1..4096"}},
        {"no heads", .put = {"model: heads = 0"}, .code = 2, .say = {"[model] heads", "outside"}},
        {"negative steps", .put = {"run: steps = -5"}, .code = 2, .say = {"-5 is outside"}},
        {"beyond 64 bits", .put = {"run: steps = 99999999999999999999"}, .code = 2, .say = {"outside"}},
        {"a negative rate", .put = {"optimizer: lr = -0.1"}, .code = 2, .say = {"-0.1 is outside 0..1000"}},
        {"beta of one", .put = {"optimizer: beta1 = 1"}, .code = 2, .say = {"[optimizer] beta1", "outside"}},
        {"everything for evaluation", .put = {"data: valid_fraction = 1"}, .code = 2, .say = {"outside"}},
        {"no sequences", .put = {"batch: micro = 0"}, .code = 2, .say = {"[batch] micro", "outside"}},
        {"a negative seed", .put = {"run: seed = -1"}, .code = 2, .say = {"[run] seed", "outside"}},
        {"no checkpoint kept", .put = {"checkpoint: keep = 0"}, .code = 2, .say = {"[checkpoint] keep", "outside"}},
        {"no ranks", .put = {"comm: ranks = 0"}, .code = 2, .say = {"[comm] ranks", "outside"}},
        {"a tiny theta", .put = {"model: rope_theta = 0.5"}, .code = 2, .say = {"[model] rope_theta", "outside"}},
    };
    RUN(rows);
}
END_TEST

/* Kinds of attention, of experts and of data: what does not go together, and what would have no effect. */
#define YARN "model: rope_scaling = yarn", "model: rope_original = 32", "model: rope_factor = 2"
START_TEST(parts_of_a_model_that_contradict) {
    static const row rows[] = {
        {"a pattern without a window", .put = {"model: window_pattern = sf"}, .code = 2, .say = {"no effect"}},
        {"a window that no layer has", .put = {"model: window = 3", "model: window_pattern = f"}, .code = 2,
         .say = {"[model] window", "no layer"}},
        {"a pattern of other letters", .put = {"model: window_pattern = sx", "model: window = 3"}, .code = 2,
         .say = {"'sx'", "s and f"}},
        {"half of a magnitude", .put = {"model: rope_mscale = 2", YARN}, .code = 2, .say = {"rope_mscale_all_dim"}},
        {"the other half", .put = {"model: rope_mscale_all_dim = 1", YARN}, .code = 2, .say = {"needs rope_mscale"}},
        {"a stretch without scaling", .put = {"model: rope_factor = 2"}, .code = 2, .say = {"rope_scaling = none"}},
        {"yarn without a length", .put = {"model: rope_scaling = yarn"}, .line = NO_PLACE, .code = 2,
         .say = {"rope_original", "missing"}},
        {"latents of grouped queries", .put = {"model: kv_lora = 8"}, .code = 2, .say = {"attention = gqa"}},
        {"latent attention without a rank",
         .put = {"model: attention = mla", "model: rotary_dim = 4", "model: kv_heads = 2"}, .line = NO_PLACE, .code = 2,
         .say = {"kv_lora", "missing"}},
        {"more turns than a head", .put = {"model: rotary_dim = 64"}, .code = 2, .say = {"not below head_dim"}},
        {"a limit of plain experts", .put = {"model: activation_limit = 3"}, .code = 2, .say = {"swiglu"}},
        {"a gate on nothing", .put = {"model: shared_gate = true"}, .code = 2, .say = {"shared_experts = 0"}},
        {"drops without a capacity", .put = {"capacity: drop = position"}, .code = 2, .say = {"factor = 0"}},
        {"C033 an unknown way to drop", .put = {"capacity: drop = probs", "capacity: factor = 1"}, .code = 2,
         .say = {"prob|position"}},
        {"numbers of bytes", .put = {"data: token_dtype = u32"}, .code = 2, .say = {"format = tokens"}},
        {"a weight too many", .put = {"data: weights = 1, 2"}, .code = 2, .say = {"[data] weights", "1 items"}},
        {"weights of nobody", .put = {"model: weights = no/where"}, .line = NO_PLACE, .code = 1, .say = {"no/where"}},
    };
    RUN(rows);
}
END_TEST
#undef YARN

START_TEST(keys_that_contradict) {
    static const row rows[] = {
        {"kv_heads", .put = {"model: kv_heads = 3", "model: heads = 4"}, .code = 2,
         .say = {"[model] kv_heads", "heads = 4", "kv_heads = 3"}},
        {"heads", .put = {"model: heads = 3"}, .code = 2, .say = {"hidden = 16", "heads = 3"}},
        {"micro", .put = {"batch: micro = 3"}, .code = 2, .say = {"[batch] micro", "global = 4", "micro = 3"}},
        {"warm-up", .put = {"optimizer: warmup = 5", "optimizer: schedule = cosine"}, .code = 2,
         .say = {"warmup = 5", "steps = 2"}},
        {"a wsd without decay", .put = {"optimizer: schedule = wsd"}, .line = NO_PLACE, .code = 2,
         .say = {"[optimizer] decay", "wsd"}},
        {"a wsd longer than the run",
         .put = {"optimizer: decay = 2", "optimizer: schedule = wsd", "optimizer: warmup = 1"}, .code = 2,
         .say = {"warmup = 1", "decay = 2", "steps = 2"}},
        {"a decay of nothing", .put = {"optimizer: decay = 1"}, .code = 2, .say = {"[optimizer] decay", "no effect"}},
        {"a floor under a constant", .put = {"optimizer: min_lr = 0.5"}, .code = 2, .say = {"no effect"}},
        {"moments of sgd", .put = {"optimizer: beta1 = 0.5", "optimizer: kind = sgd"}, .code = 2,
         .say = {"[optimizer] beta1", "sgd"}},
        {"only dense layers", .put = {"model: dense_layers = 2", "model: dense_ffn = 8"}, .code = 2,
         .say = {"dense_layers = 2", "layers = 2"}},
        {"a dense layer without width", .put = {"model: dense_layers = 1"}, .line = NO_PLACE, .code = 2,
         .say = {"[model] dense_ffn", "dense_layers = 1"}},
        {"a width without dense layers", .put = {"model: dense_ffn = 16"}, .code = 2, .say = {"no effect"}},
        {"experts without width", .put = {"model: expert_ffn = 0"}, .code = 2, .say = {"[model] expert_ffn"}},
        {"a shared expert without width", .put = {"model: shared_experts = 1"}, .line = NO_PLACE, .code = 2,
         .say = {"[model] shared_ffn", "shared_experts = 1"}},
        {"a width without shared experts", .put = {"model: shared_ffn = 16"}, .code = 2, .say = {"no effect"}},
        {"a vocabulary without some bytes", .put = {"model: vocab = 200"}, .code = 2, .say = {"200", "256"}},
        {"nothing to evaluate", .put = {"run: eval_every = 1", "data: valid_fraction = 0"}, .code = 2,
         .say = {"[run] eval_every"}},
        {"two sources of evaluation", .put = {"data: valid_fraction = 0.2", "data: valid = ../text.txt"}, .code = 2,
         .say = {"[data] valid_fraction", "no effect"}},
        {"a path for a name", .put = {"run: name = ../up"}, .code = 2, .say = {"[run] name", "'../up'"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(all_faults_in_one_pass) {
    static const row rows[] = {
        {"three of three kinds", .put = {"run: steps = many", "model: topk = 2", "optimizer: lr = -1"}, .lines = 3,
         .code = 2, .say = {"[run] steps: 'many'", "[model] topk: unknown key", "[optimizer] lr: -1 is outside"}},
        {"three contradictions", .put = {"model: kv_heads = 3", "model: top_k = 9", "batch: micro = 3"}, .lines = 3,
         .code = 2, .say = {"[model] kv_heads", "[model] top_k", "[batch] micro"}},
        {"line and --set", .put = {"run: steps = many"}, .args = "check tiny.ini --set batch.micro=x", .lines = 2,
         .code = 2, .say = {"tiny.ini:3:", "--set batch.micro=x: 'x'"}},
        {"options of two plugins", .put = {"router: scal = 2", "device: thread = 2"}, .lines = 2, .code = 2,
         .say = {"did you mean 'scale'?", "did you mean 'threads'?"}},
        {"options of two layers", .put = {"router:0: scal = 2", "router:1: sclae = 3"}, .lines = 2, .code = 2,
         .say = {"[router:0] scal", "[router:1] sclae"}},
        {"an option that two layers inherit", .put = {"router: scal = 2", "router:1: z_coef = 1"}, .code = 2,
         .say = {"[router] scal: "}},
        {"a plugin for many layers, once", .put = {"router: plugin = topc", "model: layers = 8"}, .code = 3,
         .say = {"'topc'"}},
        {"degree, plugin and option", .put = {"parallel: tp = 2", "scheduler: plugin = serail", "router: scal = 2"},
         .lines = 3, .code = 3, .say = {"2 * 1 * 1", "did you mean 'serial'?", "did you mean 'scale'?"}},
        {"what is missing, once each", .text = "[data]\ntrain = ../text.txt\n", .line = NO_PLACE, .lines = 3, .code = 2,
         .say = {"[model] hidden: missing", "[model] layers: missing", "[model] heads: missing"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(layers_and_parts) {
    static const row rows[] = {
        {"beyond the model", .put = {"router:1-5: scale = 2"}, .line = NO_PLACE, .code = 2,
         .say = {"[router:1-5]", "layer 5", "layers 0-1"}},
        {"no number", .text = "[router:x]\nscale = 2\n", .line = 1, .code = 2, .say = {"[router:x]", "'x'"}},
        {"backwards", .text = "[router:1-0]\nscale = 2\n", .line = 1, .code = 2, .say = {"'1-0'"}},
        {"one layer in two sections", .put = {"router:0-1: scale = 2", "router:1: scale = 3"}, .line = NO_PLACE,
         .code = 2, .say = {"layer 1", "[router:0-1]"}},
        {"a kind without layers", .text = "[device:0]\nthreads = 1\n", .line = 1, .code = 2, .say = {"[device"}},
        {"a section without layers", .text = "[run:0]\nsteps = 1\n", .line = 1, .code = 2, .say = {"[run"}},
        {"a layer without experts", .put = {"router:0: scale = 2", "model: dense_layers = 1", "model: dense_ffn = 16"},
         .line = NO_PLACE, .code = 2, .say = {"[router:0]", "no effect"}},
        {"some layers without experts",
         .put = {"router:0-1: scale = 2", "model: dense_layers = 1", "model: dense_ffn = 16"}},
        {"a slip in a base that no layer has", .put = {"router: scal = 2", "router:0-1: plugin = $BAD/good.so"},
         .code = 2, .say = {"[router] scal: ", "did you mean 'scale'?"}},
        {"parts that are not built", .put = {"precision:experts: plugin = bf16"}, .code = 2, .say = {"[router] only"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(degrees_of_parallelism) {
    static const row rows[] = {
        {"tp", .put = {"parallel: tp = 2", "comm: ranks = 2"}, .code = 2,
         .say = {"[parallel] tp", "kv_heads = 1", "tp = 2"}},
        {"etp", .put = {"parallel: etp = 3", "comm: ranks = 3", "batch: global = 6"}, .code = 2,
         .say = {"[parallel] etp", "expert_ffn = 16", "etp = 3"}},
        {"cp", .put = {"parallel: cp = 2", "comm: ranks = 2"}, .code = 2, .say = {"[parallel] cp", "cp = 2"}},
        {"pp", .put = {"parallel: pp = 2", "comm: ranks = 2"}, .code = 2, .say = {"[parallel] pp", "pp = 2"}},
        {"vpp", .put = {"parallel: vpp = 2"}, .code = 2, .say = {"[parallel] vpp", "vpp = 2"}},
        {"ep with all experts on one rank",
         .put = {"parallel: ep = 2", "comm: ranks = 2", "dispatcher: plugin = local"}, .line = NO_PLACE, .code = 3,
         .say = {"dispatcher/local", "ep"}},
        {"ep divides no experts", .put = {"parallel: ep = 3", "comm: ranks = 3"}, .code = 2,
         .say = {"experts = 4", "ep = 3"}},
        {"dp without ranks", .put = {"parallel: dp = 2"}, .code = 2, .say = {"[parallel] dp", "2"}},
        {"ranks without dp", .put = {"parallel: dp = 1", "comm: ranks = 2"}, .code = 2, .say = {"[parallel] dp"}},
        {"a batch that ranks cannot share", .put = {"batch: global = 4", "comm: ranks = 3"}, .code = 2,
         .say = {"global = 4", "3"}},
    };
    RUN(rows);
}
END_TEST

/* Absurd buffers: the plan names all bytes before one is allocated, whose own refusal would read otherwise. */
START_TEST(C036_planned_bytes_are_named_before_buffers_are_allocated) {
    static const row rows[] = {
        {"too little memory", .put = {"memory: limit = 4 KiB"}, .line = NO_PLACE, .code = 2,
         .say = {"the plan needs ", " bytes, [memory] limit is 4096"}},
        {"to run", .put = {"memory: limit = 4 KiB"}, .args = "run tiny.ini", .line = NO_PLACE, .code = 2,
         .say = {"the plan needs ", " bytes, [memory] limit is 4096"}},
        {"half a terabyte to run", .args = "run tiny.ini --set memory.limit=1~GiB",
         .put = {"batch: micro = 100000", "batch: global = 100000", "model: hidden = 512", "model: layers = 16"},
         .line = NO_PLACE, .code = 2,
         .say = {"the plan needs ", " bytes, [memory] limit is 1073741824 (", " MiB against 1024.0 MiB)"},
         .not_say = "alloc"},
    };
    RUN(rows);
}
END_TEST

/* Sizes that no machine has: a refusal in time, no hang and no number that wraps. */
START_TEST(sizes_beyond_the_machine) {
    static const row rows[] = {
        {"parameters beyond 64 bits",
         .put = {"model: experts = 1048576", "model: expert_ffn = 16777216", "model: hidden = 131072",
                 "model: heads = 1024"},
         .line = NO_PLACE, .code = 2, .say = {"2^56"}},
        {"logits",
         .put = {"model: vocab = 16777216", "model: hidden = 131072", "model: heads = 1024", "memory: limit = 1 TiB"},
         .line = NO_PLACE, .code = 2, .say = {"bytes", "1099511627776"}},
        {"a microbatch",
         .put = {"batch: micro = 4000000", "batch: global = 4000000", "memory: limit = 1 TiB",
                 "memory: head_rows = 16777216"},
         .line = NO_PLACE, .code = 1, .say = {"bytes"}},
        {"a microbatch past the router's limit",
         .put = {"batch: micro = 1000000000", "batch: global = 1000000000", "memory: limit = 1 TiB"}, .line = NO_PLACE,
         .code = 3, .say = {"router/topk", "max_tokens"}},
    };
    RUN(rows);
}
END_TEST

/* ---- data ---- */
static void make_data(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/short.txt", dir);
    file_write(path, "0123456789", 10);
    file_path(path, "%s/empty.txt", dir);
    file_write(path, "", 0);
    file_path(path, "%s/folder", dir);
    file_make_dir(path, 0755);
}

START_TEST(data_that_is_none) {
    static const row rows[] = {
        {"no files named", .put = {"data: train ="}, .line = NO_PLACE, .code = 2, .say = {"[data] train", "missing"}},
        {"no such file", .put = {"data: train = nowhere.txt"}, .code = 2, .say = {"[data] train", "$DIR/nowhere.txt"}},
        {"a glob without a match", .put = {"data: train = ../*.parquet"}, .code = 2, .say = {"*.parquet"}},
        {"one of two", .put = {"data: train = ../text.txt, nowhere.txt"}, .code = 2, .say = {"$DIR/nowhere.txt"}},
        {"a folder", .put = {"data: train = folder"}, .prepare = make_data, .code = 2, .say = {"folder", "directory"}},
        {"too small", .put = {"data: train = short.txt"}, .prepare = make_data, .code = 2, .say = {"17", "bytes"}},
        {"empty", .put = {"data: train = empty.txt"}, .prepare = make_data, .code = 2, .lines = 2,
         .say = {"is skipped", "found 0 bytes"}},
        {"no such file to evaluate", .put = {"data: valid = nowhere.txt"}, .code = 2,
         .say = {"[data] valid", "$DIR/nowhere.txt"}},
    };
    RUN(rows);
}
END_TEST

TCase *recipe_tests(void) {
    TCase *tc = tcase_create("recipe");
    tcase_add_test(tc, recipes_that_are_right);
    tcase_add_test(tc, C006_top_k_against_experts);
    tcase_add_test(tc, C007_top_k_of_all_experts_works);
    tcase_add_test(tc, C114_no_experts);
    tcase_add_test(tc, C099_odd_head_dim);
    tcase_add_test(tc, names_with_a_slip);
    tcase_add_test(tc, values_of_the_wrong_type);
    tcase_add_test(tc, values_out_of_range);
    tcase_add_test(tc, keys_that_contradict);
    tcase_add_test(tc, parts_of_a_model_that_contradict);
    tcase_add_test(tc, all_faults_in_one_pass);
    tcase_add_test(tc, layers_and_parts);
    tcase_add_test(tc, degrees_of_parallelism);
    tcase_add_test(tc, C036_planned_bytes_are_named_before_buffers_are_allocated);
    tcase_add_test(tc, sizes_beyond_the_machine);
    tcase_add_test(tc, data_that_is_none);
    return tc;
}
