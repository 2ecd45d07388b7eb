/* From config.json to a recipe to core's sizes, and back: what export writes, import reads to the same model. And what
 * no family is, is refused with the keys that say so. */
#include <hf/family.h>
#include <recipe.h>
#include <wire_impl.h>

#include "configs.h"

/* The recipe of a config.json, as core sees it. */
static void to_model(const char *json, model_cfg *m, char **text) {
    hf_config c;
    err_list notes = {.n = 0}, errs = {.n = 0};
    size_t bytes;
    bool good = hf_config_parse(json, strlen(json), "config.json", &c, &notes, &errs);
    FILE *to = open_memstream(text, &bytes);
    ck_assert_ptr_nonnull(to);
    hf_config_print(&c, "config.json", "/a/folder", NULL, to);
    fclose(to);
    recipe *r = good ? recipe_parse("/tmp/r.ini", *text, bytes, NULL, 0, 0, &errs) : NULL;
    err_list_print(&errs, stderr);
    ck_assert_msg(r != NULL, "%s", *text);
    wire_model(m, r);
    recipe_destroy(r);
    err_list_clear(&notes);
}

static hf_routing routing_of(int style) {
    hf_routing r = {.scale = 1, .renormalise = style != HF_OLMOE && style != HF_QWEN2_MOE, .aux_coef = 0.01};
    if (style == HF_DEEPSEEK_V3) r.sigmoid = r.expert_bias = 1, r.scale = 2.5, r.groups = 4, r.groups_kept = 2;
    if (style == HF_GPT_OSS) r.after = 1;
    return r;
}

static int has_line(const char *text, const char *line) {
    size_t n = strlen(line);
    for (const char *at = text; (at = strstr(at, line)); at += n)
        if ((at == text || at[-1] == '\n') && at[n] == '\n') return 1;
    return 0;
}

START_TEST(export_and_import_are_inverse) {
    model_cfg first, again;
    char *recipe_text = NULL, *json = NULL, *recipe_again = NULL;
    moe_err err = {.size = sizeof err};
    hf_routing routing = routing_of(_i);
    to_model(config_texts[_i], &first, &recipe_text);
    ck_assert_int_eq(hf_style_of(&first), _i);
    ck_assert_msg(hf_family_check(&first, &routing, &err) == MOE_OK, "%s", err.msg);
    ck_assert(hf_config_text(&first, &routing, MOE_BF16, &json, &err) == MOE_OK);
    to_model(json, &again, &recipe_again);
    ck_assert_msg(memcmp(&first, &again, sizeof first) == 0, "%s\nand again:\n%s\nfrom %s", recipe_text, recipe_again,
                  json);
    ck_assert(has_line(recipe_text, "weights = /a/folder"));
    free(recipe_text);
    free(recipe_again);
    free(json);
}
END_TEST

/* What each family's recipe says, besides the sizes. */
START_TEST(recipes_say_what_the_file_says) {
    static const char *const lines[HF_STYLES][26] = {
        [HF_MIXTRAL] = {"layers = 4", "head_dim = 8", "expert_ffn = 224", "rope_theta = 1000000", "norm_eps = 1e-05",
                        "renormalise = true", "aux_coef = 0.02", "seq_len = 4096"},
        [HF_QWEN2_MOE] = {"qkv_bias = true", "shared_experts = 1", "shared_ffn = 176", "shared_gate = true",
                          "aux_coef = 0.001"},
        [HF_QWEN3_MOE] = {"head_dim = 24", "qk_norm = head", "dense_layers = 1", "dense_ffn = 192", "tied = true",
                          "rope_scaling = linear", "rope_factor = 2.5", "renormalise = true"},
        [HF_OLMOE] = {"qk_norm = full", "kv_heads = 4", "aux_coef = 0.01"},
        [HF_DEEPSEEK_V3] = {"attention = mla",
                            "q_lora = 24",
                            "kv_lora = 16",
                            "head_dim = 24",
                            "rotary_dim = 8",
                            "v_dim = 12",
                            "rope_interleaved = true",
                            "rope_scaling = yarn",
                            "rope_factor = 40",
                            "rope_original = 4096",
                            "rope_beta_fast = 32",
                            "rope_beta_slow = 1",
                            "rope_mscale = 1",
                            "rope_mscale_all_dim = 1",
                            "shared_experts = 2",
                            "shared_ffn = 20",
                            "score = sigmoid",
                            "expert_bias = true",
                            "renormalise = true",
                            "scale = 2.5",
                            "groups = 4",
                            "groups_kept = 2",
                            "group_score = sum2",
                            "aux_scope = sequence",
                            "aux_coef = 0.0001"},
        [HF_GPT_OSS] = {"qkv_bias = true", "out_bias = true", "sinks = true", "window = 128", "window_pattern = sf",
                        "rope_scaling = yarn", "rope_truncate = false", "expert_biases = true", "router_bias = true",
                        "activation = clamped_swiglu", "activation_alpha = 1.702", "activation_limit = 7",
                        "order = after", "aux_coef = 0.9"}};
    model_cfg m;
    char *text = NULL;
    to_model(config_texts[_i], &m, &text);
    for (int k = 0; k < 26 && lines[_i][k]; k++) ck_assert_msg(has_line(text, lines[_i][k]), "no '%s'", lines[_i][k]);
    int renormalised = _i == HF_MIXTRAL || _i == HF_QWEN3_MOE || _i == HF_DEEPSEEK_V3;
    ck_assert_int_eq(has_line(text, "renormalise = true"), renormalised);
    free(text);
}
END_TEST

/* What makes a model none of a family: a change of sizes or routing, and words of the refusal. */
typedef struct misfit_case {
    int style;
    const char *words;
    void (*change)(model_cfg *c, hf_routing *r);
} misfit_case;
#define CHANGE(name, text)                          \
    static void name(model_cfg *c, hf_routing *r) { \
        (void)c;                                    \
        (void)r;                                    \
        text;                                       \
    }
CHANGE(dense, c->experts = 0)
CHANGE(other_router, r->unlike = "a router other than topk")
CHANGE(part_rotary, c->rope.dim = 4)
CHANGE(interleave, c->rope.interleaved = 1)
CHANGE(mscale, c->rope.mscale = 1)
CHANGE(scale, r->scale = 2)
CHANGE(bias, r->expert_bias = 1)
CHANGE(plain_weights, r->renormalise = 0)
CHANGE(dense_first, c->dense_layers = 1)
CHANGE(some_window, c->window = 8; c->sliding[0] = 1)
CHANGE(out_bias, c->out_bias = 1)
CHANGE(router_bias, c->router_bias = 1)
CHANGE(no_qkv_bias, c->qkv_bias = 0)
CHANGE(wide_heads, c->head_dim = c->rope.dim = c->v_dim = 64)
CHANGE(shared, c->shared_ffn = 8)
CHANGE(softmax, r->sigmoid = 0)
CHANGE(odd_shared, c->shared_ffn = 21)
CHANGE(no_shared, c->shared_ffn = 0)
CHANGE(no_sinks, c->sinks = 0)
CHANGE(limit, c->activation_limit = 8)
CHANGE(head_norm, c->qk_norm = QK_NORM_HEAD)
static const misfit_case misfits[] = {
    {HF_MIXTRAL, "experts = 0", dense},
    {HF_MIXTRAL, "a router other than topk", other_router},
    {HF_MIXTRAL, "rotary_dim = 4 with head_dim = 8", part_rotary},
    {HF_MIXTRAL, "rope_interleaved", interleave},
    {HF_MIXTRAL, "rope_mscale", mscale},
    {HF_MIXTRAL, "scale = 2", scale},
    {HF_MIXTRAL, "expert_bias = true", bias},
    {HF_MIXTRAL, "renormalise = false", plain_weights},
    {HF_MIXTRAL, "dense_layers = 1", dense_first},
    {HF_MIXTRAL, "window_pattern", some_window},
    {HF_MIXTRAL, "biases of attention", out_bias},
    {HF_MIXTRAL, "router_bias", router_bias},
    {HF_MIXTRAL, "the nearest, deepseek_v3, lacks: shared experts without a gate", shared},
    {HF_QWEN2_MOE, "qkv_bias", no_qkv_bias},
    {HF_QWEN2_MOE, "is not hidden / heads", wide_heads},
    {HF_QWEN3_MOE, "qkv_bias and out_bias differ", out_bias},
    {HF_QWEN3_MOE, "shared experts with qk_norm = head", shared},
    {HF_QWEN3_MOE, "window", some_window},
    {HF_OLMOE, "dense_layers = 1 with qk_norm = full", dense_first},
    {HF_OLMOE, "is not hidden / heads", wide_heads},
    {HF_DEEPSEEK_V3, "score = sigmoid", softmax},
    {HF_DEEPSEEK_V3, "multiple of expert_ffn", odd_shared},
    {HF_DEEPSEEK_V3, "multiple of expert_ffn", no_shared},
    {HF_DEEPSEEK_V3, "window with mla", some_window},
    {HF_GPT_OSS, "not all true", no_sinks},
    {HF_GPT_OSS, "limit 7", limit},
    {HF_GPT_OSS, "qk_norm with sinks", head_norm},
};

START_TEST(what_no_family_has_is_refused) {
    const misfit_case *k = &misfits[_i];
    model_cfg m;
    char *text = NULL;
    moe_err err = {.size = sizeof err};
    hf_routing routing = routing_of(k->style);
    to_model(config_texts[k->style], &m, &text);
    k->change(&m, &routing);
    ck_assert_int_eq(hf_family_check(&m, &routing, &err), MOE_E_UNSUPPORTED);
    ck_assert_msg(strstr(err.msg, k->words) != NULL, "'%s' lacks '%s'", err.msg, k->words);
    free(text);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("family");
    tcase_add_loop_test(t, export_and_import_are_inverse, 0, HF_STYLES);
    tcase_add_loop_test(t, recipes_say_what_the_file_says, 0, HF_STYLES);
    tcase_add_loop_test(t, what_no_family_has_is_refused, 0, sizeof misfits / sizeof misfits[0]);
    return run_case(t);
}
