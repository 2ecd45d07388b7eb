/* Reading config.json: what each family's file comes to, and what is refused, with key, value and line. */
#include "configs.h"

static bool parse(const char *text, hf_config *c, err_list *notes, err_list *errs) {
    *notes = (err_list){.n = 0};
    *errs = (err_list){.n = 0};
    return hf_config_parse(text, strlen(text), "config.json", c, notes, errs);
}

static void expect_good(const char *text, hf_config *c, size_t n_notes) {
    err_list notes, errs;
    bool good = parse(text, c, &notes, &errs);
    err_list_print(&errs, stderr);
    ck_assert(good);
    ck_assert_uint_eq(err_list_count(&notes), n_notes);
    err_list_clear(&notes);
    err_list_clear(&errs);
}

START_TEST(mixtral_is_read) {
    hf_config c;
    expect_good(mixtral_json, &c, 1); /* the balance loss that transformers would leave out */
    ck_assert_int_eq(c.style, HF_MIXTRAL);
    ck_assert_int_eq(c.hidden, 64);
    ck_assert_int_eq(c.head_dim, 8);
    ck_assert_int_eq(c.kv_heads, 2);
    ck_assert_int_eq(c.expert_ffn, 224);
    ck_assert_int_eq(c.window, 0);
    ck_assert(c.renormalise && !c.tied && c.theta == 1e6 && c.norm_eps == 1e-5 && c.aux_coef == 0.02);
    ck_assert_int_eq(c.scaling, ROPE_PLAIN);
}
END_TEST

START_TEST(qwen2_is_read) {
    hf_config c;
    expect_good(qwen2_json, &c, 1);
    ck_assert_int_eq(c.shared_experts, 1);
    ck_assert_int_eq(c.shared_ffn, 176);
    ck_assert_int_eq(c.expert_ffn, 44);
    ck_assert_int_eq(c.window, 0); /* use_sliding_window = false */
    ck_assert(c.qkv_bias && !c.renormalise);
}
END_TEST

START_TEST(qwen3_is_read_with_rope_parameters) {
    hf_config c;
    expect_good(qwen3_json, &c, 0);
    ck_assert_int_eq(c.head_dim, 24);
    ck_assert_int_eq(c.dense_layers, 1);
    ck_assert_int_eq(c.dense_ffn, 192);
    ck_assert_int_eq(c.scaling, ROPE_LINEAR);
    ck_assert(c.factor == 2.5 && c.theta == 5e6 && c.tied && c.renormalise && !c.attention_bias);
}
END_TEST

START_TEST(deepseek_is_read) {
    hf_config c;
    expect_good(deepseek_json, &c, 1); /* the layer for prediction */
    ck_assert_int_eq(c.extra_layers, 1);
    ck_assert_int_eq(c.head_dim, 24);
    ck_assert_int_eq(c.rope_dim, 8);
    ck_assert_int_eq(c.v_dim, 12);
    ck_assert_int_eq(c.shared_experts, 2);
    ck_assert_int_eq(c.shared_ffn, 20);
    ck_assert_int_eq(c.groups, 4);
    ck_assert_int_eq(c.scaling, ROPE_YARN);
    ck_assert_int_eq(c.original, 4096);
    ck_assert(c.factor == 40 && c.mscale == 1 && c.mscale_all_dim == 1 && c.interleaved && c.truncate && c.seq_aux);
    ck_assert(c.scale == 2.5 && c.aux_coef == 1e-4);
}
END_TEST

START_TEST(gpt_oss_is_read) {
    hf_config c;
    expect_good(gpt_oss_json, &c, 1);
    ck_assert_str_eq(c.pattern, "sf");
    ck_assert_int_eq(c.window, 128);
    ck_assert_int_eq(c.scaling, ROPE_YARN);
    ck_assert(c.factor == 32 && !c.truncate && c.limit == 7 && c.alpha == 1.702);
}
END_TEST

/* A change that is no fault: key, the line for it, and a predicate of the result. */
typedef struct variant {
    const char *text, *key, *line;
    size_t offset; /* of an int64_t in hf_config */
    int64_t value;
} variant;
#define AT(field) offsetof(hf_config, field)
static const variant variants[] = {
    {mixtral_json, "sliding_window", "\"sliding_window\": 4096", AT(window), 4096},
    {mixtral_json, "head_dim", "\"head_dim\": 16", AT(head_dim), 16},
    {mixtral_json, "head_dim", "\"head_dim\": null", AT(head_dim), 8},
    {mixtral_json, "_name_or_path", "\"_name_or_path\": \"x\"", AT(hidden), 64},
    {mixtral_json, "some_new_key", "\"some_new_key\": null", AT(hidden), 64},
    {olmoe_json, "num_key_value_heads", "", AT(kv_heads), 4},
    {deepseek_json, "q_lora_rank", "\"q_lora_rank\": null", AT(q_lora), 0},
    {deepseek_json, "head_dim", "\"head_dim\": 8", AT(head_dim), 24},
    {deepseek_json, "qk_head_dim", "\"qk_head_dim\": 24", AT(head_dim), 24},
    {deepseek_json, "first_k_dense_replace", "\"first_k_dense_replace\": 0", AT(dense_ffn), 0},
    {qwen3_json, "mlp_only_layers", "\"mlp_only_layers\": [2, 0, 1]", AT(dense_layers), 3},
    {qwen3_json, "mlp_only_layers", "\"mlp_only_layers\": []", AT(dense_ffn), 0},
    {qwen3_json, "num_experts", "\"num_local_experts\": 16", AT(experts), 16},
    {qwen3_json, "num_local_experts", "\"num_local_experts\": 16", AT(experts), 16},
    {qwen2_json, "sliding_window", "\"sliding_window\": 0", AT(window), 0},
    {deepseek_json, "output_router_logits", "\"output_router_logits\": false", AT(hidden), 64},
    {gpt_oss_json, "layer_types", "\"layer_types\": null", AT(window), 128},
    {gpt_oss_json, "factor", "\"factor\": null", AT(original), 4096},
    {olmoe_json, "rope_scaling", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}", AT(original), 4096},
    {olmoe_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"default\"}", AT(scaling), ROPE_PLAIN},
};

START_TEST(harmless_variants_are_read) {
    const variant *v = &variants[_i];
    hf_config c;
    err_list notes, errs;
    char *text = config_edit(v->text, v->key, v->line);
    bool good = parse(text, &c, &notes, &errs);
    err_list_print(&errs, stderr);
    ck_assert_msg(good, "%s", v->line);
    int64_t got = v->offset == AT(scaling) ? c.scaling : *(int64_t *)((char *)&c + v->offset);
    ck_assert_msg(got == v->value, "%s: %lld", v->line, (long long)got);
    free(text);
    err_list_clear(&notes);
    err_list_clear(&errs);
}
END_TEST

/* A fault: what the file says instead, and words of the one error. */
typedef struct fault {
    const char *text, *key, *line, *words;
} fault;
static const fault faults[] = {
    {mixtral_json, "hidden_act", "\"hidden_act\": \"gelu\"", "config.json:6: hidden_act = \"gelu\": is not supported"},
    {mixtral_json, "model_type", "\"model_type\": \"mistral\"", "config.json:11: model_type = \"mistral\": is none of"},
    {mixtral_json, "model_type", "\"model_type\": \"mixtrl\"", "did you mean 'mixtral'?"},
    {mixtral_json, "model_type", "", "model_type = (absent)"},
    {mixtral_json, "hidden_size", "", "hidden_size: missing; a mixtral model has no default for it"},
    {mixtral_json, "hidden_size", "\"hidden_size\": null", "hidden_size = null: is no whole number"},
    {mixtral_json, "hidden_size", "\"hidden_size\": 64.0", "config.json:7: hidden_size = 64.0: is no whole number"},
    {mixtral_json, "hidden_size", "\"hidden_size\": \"64\"", "hidden_size = \"64\": is no whole number"},
    {mixtral_json, "hidden_size", "\"hidden_size\": -4", "hidden_size = -4: is outside 1..1048576"},
    {mixtral_json, "hidden_size", "\"hidden_size\": 9007199254740993", "is outside"},
    {mixtral_json, "num_hidden_layers", "\"num_hidden_layers\": 5000", "is outside 1..4096"},
    {mixtral_json, "num_attention_heads", "\"num_attention_heads\": 6", "does not divide hidden_size = 64"},
    {mixtral_json, "rms_norm_eps", "\"rms_norm_eps\": true", "is no number"},
    {mixtral_json, "tie_word_embeddings", "\"tie_word_embeddings\": 1", "is neither true nor false"},
    {mixtral_json, "num_experts_per_tok", "\"num_experts_per_tok\": 1", "every weight is 1"},
    {mixtral_json, "attention_dropout", "\"attention_dropout\": 0.1", "attention_dropout = 0.1: is not supported"},
    {mixtral_json, "attention_bias", "\"attention_bias\": true", "attention_bias = true: is not supported"},
    {mixtral_json, "router_jitter_noise", "\"router_jitter_noise\": 0.01", "router_jitter_noise = 0.01: is not"},
    {mixtral_json, "quantization_config", "\"quantization_config\": {\"quant_method\": \"fp8\"}",
     "quantization_config = {\"quant_method\":\"fp8\"}: is not supported"},
    {mixtral_json, "rope_theta", "", "rope_theta: missing"},
    {mixtral_json, "rope_theta", "\"rope_theta\": 0", "rope_theta = 0: is outside"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}",
     "config.json:2: rope_scaling.type = \"dynamic\": is not supported"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2.0}", "longrope"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}",
     "\"llama3\": is not"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"linear\"}", "rope_scaling.factor = (absent)"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.5}", "outside 1.."},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"odd\": 1}",
     "rope_scaling.odd = 1: is not known"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"mscale\": 0.7}",
     "rope_scaling.mscale = 0.7: is supported for deepseek_v3 only"},
    {mixtral_json, "rope_scaling", "\"rope_scaling\": 2", "rope_scaling = 2: is no object"},
    {mixtral_json, "rope_parameters", "\"rope_parameters\": {\"rope_theta\": 10000.0}",
     "contradicts the outer rope_theta"},
    {mixtral_json, "rope_parameters", "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}",
     "a rotary embedding of its own for some layers"},
    {deepseek_json, "rope_parameters", "\"rope_parameters\": {\"rope_type\": \"default\"}", "which of the two holds?"},
    {gpt_oss_json, "rope_scaling", "", "rope_scaling: missing; a gpt_oss model"},
    {mixtral_json, "some_new_key", "\"some_new_key\": 3", "some_new_key = 3: is not known for mixtral models"},
    {mixtral_json, "moe_intermediate_size", "\"moe_intermediate_size\": 3", "is not known for mixtral models"},
    {mixtral_json, "is_encoder_decoder", "\"is_encoder_decoder\": true", "is_encoder_decoder = true: is not supported"},
    {olmoe_json, "clip_qkv", "\"clip_qkv\": 8.0", "config.json:5: clip_qkv = 8.0: is not supported; this must be null"},
    {olmoe_json, "norm_topk_prob", "", "norm_topk_prob: missing"},
    {qwen2_json, "decoder_sparse_step", "\"decoder_sparse_step\": 2", "decoder_sparse_step = 2: is not supported"},
    {qwen2_json, "mlp_only_layers", "\"mlp_only_layers\": [1]", "at the beginning only"},
    {qwen2_json, "mlp_only_layers", "\"mlp_only_layers\": [0, 0]", "at the beginning only"},
    {qwen2_json, "mlp_only_layers", "\"mlp_only_layers\": 1", "at the beginning only"},
    {qwen2_json, "use_sliding_window", "\"use_sliding_window\": true", "needs layer_types"},
    {qwen2_json, "layer_types",
     "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]",
     "there is no window for them"},
    {qwen3_json, "num_experts", "", "num_experts: missing"},
    {qwen3_json, "num_local_experts", "\"num_local_experts\": 15", "contradicts num_experts = 16"},
    {qwen3_json, "use_sliding_window", "\"use_sliding_window\": true", "use_sliding_window = true: is not supported"},
    {gpt_oss_json, "layer_types", "\"layer_types\": [\"full_attention\"]",
     "not one entry for each of num_hidden_layers"},
    {gpt_oss_json, "layer_types",
     "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", \"chunked_attention\"]",
     "layer 3: full_attention and sliding_attention are supported"},
    {gpt_oss_json, "sliding_window", "\"sliding_window\": null", "there is no window for them"},
    {gpt_oss_json, "attention_bias", "\"attention_bias\": false", "attention_bias = false: is not supported"},
    {gpt_oss_json, "experts_per_token", "\"experts_per_token\": 3", "contradicts num_experts_per_tok = 4"},
    {gpt_oss_json, "head_dim", "", "head_dim: missing"},
    {deepseek_json, "moe_layer_freq", "\"moe_layer_freq\": 2", "moe_layer_freq = 2: is not supported"},
    {deepseek_json, "scoring_func", "\"scoring_func\": \"softmax\"", "scoring_func = \"softmax\": is not supported"},
    {deepseek_json, "topk_method", "\"topk_method\": \"greedy\"", "topk_method = \"greedy\": is not supported"},
    {deepseek_json, "n_shared_experts", "\"n_shared_experts\": null", "n_shared_experts = null: is no whole number"},
    {deepseek_json, "head_dim", "\"head_dim\": 9", "head_dim = 9: contradicts qk_rope_head_dim = 8"},
    {deepseek_json, "num_key_value_heads", "\"num_key_value_heads\": 2", "contradicts num_attention_heads = 4"},
    {deepseek_json, "beta_fast", "\"beta_fast\": 1", "config.json:34: rope_scaling.beta_fast = 1: is not above"},
    {deepseek_json, "partial_rotary_factor", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor = 0.5: is not"},
};

START_TEST(faults_are_refused_with_key_value_and_line) {
    const fault *f = &faults[_i];
    hf_config c;
    err_list notes, errs;
    char *text = config_edit(f->text, f->key, f->line);
    ck_assert_msg(!parse(text, &c, &notes, &errs), "%s: taken", f->line);
    check_one_line(&errs, *f->line ? f->line : f->key, f->words);
    free(text);
    err_list_clear(&notes);
}
END_TEST

/* Not JSON, or not an object: line and column. */
START_TEST(text_that_is_no_object_is_refused) {
    static const char *const texts[][2] = {{"", "config.json:1:0: "},
                                           {"{\n  \"a\": 1,\n  \"a\": 2\n}", "config.json:3:"},
                                           {"{\"a\": NaN}", "config.json:1:"},
                                           {"[1]", "config.json:1: is no JSON object"},
                                           {"{\"a\": 1} x", "config.json:1:"},
                                           {"{\"hidden_size\": 99999999999999999999}", "too big integer"},
                                           {"{\"a\": \"\xff\"}", "unable to decode byte 0xff"},
                                           {"{}", "model_type = (absent): is none of mixtral, qwen2_moe,"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        hf_config c;
        err_list notes, errs;
        ck_assert(!parse(texts[i][0], &c, &notes, &errs));
        check_one_line(&errs, texts[i][0], texts[i][1]);
    }
}
END_TEST

/* All errors come in one pass. */
START_TEST(every_error_is_said_at_once) {
    hf_config c;
    err_list notes, errs;
    char *a = config_edit(mixtral_json, "hidden_act", "\"hidden_act\": \"relu\"");
    char *b = config_edit(a, "vocab_size", "\"vocab_size\": 0");
    ck_assert(!parse(b, &c, &notes, &errs));
    ck_assert_uint_eq(err_list_count(&errs), 2);
    free(a);
    free(b);
    err_list_clear(&errs);
    err_list_clear(&notes);
}
END_TEST

/* Every beginning of a file, and every file with one byte changed, is refused or read, never worse. */
START_TEST(mangled_files_do_no_harm) {
    const char *text = config_texts[_i];
    size_t n = strlen(text);
    char *copy = malloc(n + 1);
    ck_assert_ptr_nonnull(copy);
    for (size_t i = 0; i < 2 * n; i += 3) {
        hf_config c;
        err_list notes = {.n = 0}, errs = {.n = 0};
        memcpy(copy, text, n + 1);
        if (i >= n) copy[i - n] = "\"{}[]:,0-\\xn\0"[i % 13];
        bool good = hf_config_parse(copy, i < n ? i : n, "config.json", &c, &notes, &errs);
        ck_assert_int_eq(good, err_list_count(&errs) == 0);
        err_list_clear(&notes);
        err_list_clear(&errs);
    }
    free(copy);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("config");
    tcase_add_test(t, mixtral_is_read);
    tcase_add_test(t, qwen2_is_read);
    tcase_add_test(t, qwen3_is_read_with_rope_parameters);
    tcase_add_test(t, deepseek_is_read);
    tcase_add_test(t, gpt_oss_is_read);
    tcase_add_loop_test(t, harmless_variants_are_read, 0, sizeof variants / sizeof variants[0]);
    tcase_add_loop_test(t, faults_are_refused_with_key_value_and_line, 0, sizeof faults / sizeof faults[0]);
    tcase_add_test(t, text_that_is_no_object_is_refused);
    tcase_add_test(t, every_error_is_said_at_once);
    tcase_add_loop_test(t, mangled_files_do_no_harm, 0, HF_STYLES);
    return run_case(t);
}
