/* Options of router "topk": what create refuses, in whose words, and the published schema. */
#include "fixture.h"
#include "test_main.h"

static void refused(int64_t experts, int64_t k, const char *options, const char *a, const char *b) {
    rig_refuses("topk", experts, k, options, a, b);
}

START_TEST(C006_k_above_experts_is_refused) {
    refused(4, 5, "", "top_k = 5", "experts = 4");
    refused(4, 0, "", "top_k = 0", "experts = 4");
    refused(4, -1, "", "top_k = 4294967295", "experts = 4");
}
END_TEST

START_TEST(C114_no_experts_is_refused) {
    refused(0, 0, "", "experts = 0", "at least one");
    refused(0, 2, "", "experts = 0", "at least one");
}
END_TEST

START_TEST(C008_constant_weights_are_refused) {
    refused(4, 1, "order=after", "top_k = 1", "order = after");
    refused(4, 1, "renormalise=true", "top_k = 1", "renormalise = true");
    refused(4, 1, "score=sigmoid renormalise=true", "top_k = 1", "renormalise = true");
}
END_TEST

START_TEST(C032_options_without_effect_are_refused) {
    refused(4, 2, "score=sigmoid order=after", "score = sigmoid", "order = after");
    refused(4, 2, "bias_rate=0.01", "bias_rate = 0.01", "expert_bias = false");
    refused(4, 2, "bias_rate=0", "bias_rate = 0", "expert_bias = false");
    refused(4, 2, "bias_centre=true", "bias_centre = true", "expert_bias = false");
}
END_TEST

START_TEST(C032_group_options_without_effect_are_refused) {
    refused(8, 2, "groups_kept=1", "groups_kept = 1", "groups = 0");
    refused(8, 2, "group_score=sum2", "group_score = sum2", "groups = 0");
    refused(8, 2, "aux_scope=global", "aux_scope = global", "aux_coef = 0");
    refused(8, 2, "aux_scope=global z_coef=1", "aux_scope = global", "aux_coef = 0");
}
END_TEST

START_TEST(C006_groups_that_do_not_fit_are_refused) {
    refused(8, 2, "groups=3 groups_kept=1", "groups = 3", "experts = 8");
    refused(8, 2, "groups=16 groups_kept=1", "groups = 16", "experts = 8");
    refused(8, 2, "groups=4 groups_kept=5", "groups_kept = 5", "groups = 4");
    refused(8, 2, "groups=1 groups_kept=2", "groups_kept = 2", "groups = 1");
    refused(8, 2, "groups=4", "groups = 4", "groups_kept");
    refused(8, 3, "groups=4 groups_kept=1", "top_k = 3", "groups_kept = 1");
    refused(8, 2, "groups=8 groups_kept=4 group_score=sum2", "group_score = sum2", "groups = 8");
    refused(8, 3, "groups=4 groups_kept=2 group_score=sum", "groups_kept = 2", "top_k = 3");
}
END_TEST

START_TEST(C033_unknown_words_do_not_fall_through) {
    refused(4, 2, "score=softmaxx", "softmaxx", "sigmoid");
    refused(4, 2, "order=first", "first", "before");
    refused(4, 2, "renormalise=yes", "yes", "true");
    refused(4, 2, "aux_scope=batch", "batch", "microbatch");
    refused(4, 2, "aux_coef=nan", "aux_coef", "nan");
    refused(4, 2, "scale=1x", "scale", "1x");
    refused(4, 2, "bias_rate=-1", "bias_rate", "-1");
    refused(4, 2, "aux_scope=micro", "micro", "microbatch|sequence|global"); /* part of a word is no word */
    refused(4, 2, "aux_scope=sequence|global", "sequence|global", "words");
    refused(4, 2, "score=", "score", "softmax|sigmoid");
    refused(4, 2, "groups=2 groups_kept=1 group_score=mean", "mean", "max|sum2|sum");
    refused(4, 2, "groups=1.5", "groups = 1.5", "0..65536");
    refused(4, 2, "jitter=1", "jitter = 1", "0..0.99");
    refused(4, 2, "jitter=-0.1", "jitter", "-0.1");
    refused(4, 2, "topkk=3", "topkk", "unknown");
}
END_TEST

START_TEST(identity_experts_are_refused) {
    rig_refuses_cfg("topk");
}
END_TEST

START_TEST(schema_is_complete) {
    static const char *const keys[] = {"score",       "order",       "renormalise", "scale",     "groups",
                                       "groups_kept", "group_score", "expert_bias", "bias_rate", "bias_centre",
                                       "aux_coef",    "aux_scope",   "z_coef",      "jitter"};
    rig_has_options("topk", keys, sizeof keys / sizeof keys[0]);
}
END_TEST

START_TEST(C012_needs_declare_fp32_bias) {
    rig r;
    rig_open(&r, "topk", 4, 8, 2, "score=sigmoid expert_bias=true", NULL);
    ck_assert_uint_eq(r.needs.n_state, 1);
    ck_assert_str_eq(r.needs.state[0].name, "expert_bias");
    ck_assert_str_eq(r.needs.state[0].init, "zeros");
    ck_assert_int_eq(r.needs.state[0].dtype, MOE_F32);
    ck_assert_int_eq(r.needs.state[0].ndim, 1);
    ck_assert_int_eq(r.needs.state[0].shape[0], 8);
    rig_close(&r);
}
END_TEST

START_TEST(needs_declare_scope_and_jitter) {
    static const struct {
        const char *options;
        uint32_t loss_scope;
        float jitter;
    } cases[] = {{"", MOE_SCOPE_TOKEN, 0},
                 {"jitter=0.25", MOE_SCOPE_TOKEN, 0.25f},
                 {"z_coef=1 aux_scope=sequence", MOE_SCOPE_TOKEN, 0},
                 {"aux_coef=1", MOE_SCOPE_MICROBATCH, 0},
                 {"aux_coef=1 aux_scope=sequence", MOE_SCOPE_SEQUENCE, 0},
                 {"aux_coef=1 aux_scope=global jitter=0.01", MOE_SCOPE_GLOBAL, 0.01f}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        rig_open(&r, "topk", 4, 8, 2, cases[i].options, NULL);
        ck_assert_uint_eq(r.needs.loss_scope, cases[i].loss_scope);
        ck_assert(r.needs.input_jitter == cases[i].jitter);
        ck_assert_uint_eq(r.needs.scope, MOE_SCOPE_TOKEN);
        rig_close(&r);
    }
}
END_TEST

/* A host whose struct ends before a field cannot do what the field asks for: refused, not left out. */
START_TEST(hosts_that_lack_a_need_are_refused) {
    static const struct {
        const char *options, *say;
        uint32_t size;
    } cases[] = {
        {"jitter=0.1", "jitter = 0.1", offsetof(moe_router_needs, input_jitter)},
        {"aux_coef=1 aux_scope=global", "aux_scope = global", offsetof(moe_router_needs, loss_scope)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        rig_open(&r, "topk", 4, 8, 2, cases[i].options, NULL);
        moe_router_needs less = {.size = cases[i].size};
        ck_assert_int_eq(r.table->needs(r.self, &less, &r.err), MOE_E_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(r.err.msg, cases[i].say));
        rig_close(&r);
    }
}
END_TEST

/* The router does nothing by itself: core multiplies its input. */
START_TEST(jitter_leaves_the_call_alone) {
    rig plain, jitter;
    rig_open(&plain, "topk", 30, 8, 2, "", NULL);
    rig_open(&jitter, "topk", 30, 8, 2, "jitter=0.5", NULL);
    rig_random(plain.logits, 240, 1, 3);
    memcpy(jitter.logits, plain.logits, 240 * sizeof(float));
    ck_assert_int_eq(rig_route(&plain) | rig_route(&jitter), MOE_OK);
    ck_assert_mem_eq(plain.ids, jitter.ids, 60 * sizeof(int32_t));
    ck_assert_mem_eq(plain.weights, jitter.weights, 60 * sizeof(float));
    rig_close(&plain);
    rig_close(&jitter);
}
END_TEST

START_TEST(bias_with_k_equal_to_experts_warns) {
    rig r;
    rig_open(&r, "topk", 4, 4, 4, "score=sigmoid expert_bias=true", NULL);
    ck_assert_ptr_nonnull(strstr(r.warning, "expert_bias"));
    rig_close(&r);
    rig_open(&r, "topk", 4, 5, 4, "score=sigmoid expert_bias=true", NULL);
    ck_assert_str_eq(r.warning, "");
    rig_close(&r);
}
END_TEST

START_TEST(needs_without_bias) {
    rig r;
    rig_open(&r, "topk", 4, 8, 2, "", NULL);
    static const char *const names[] = {"aux_loss", "z_loss", "entropy"};
    ck_assert_uint_eq(r.needs.n_state + r.needs.n_params, 0);
    ck_assert_uint_eq(r.needs.inputs, MOE_ROUTER_LOGITS);
    ck_assert_uint_eq(r.needs.n_losses, 3);
    for (int i = 0; i < 3; i++) ck_assert_str_eq(r.needs.losses[i], names[i]);
    ck_assert_ptr_null(r.needs.losses[3]);
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("options");
    tcase_add_test(c, C006_k_above_experts_is_refused);
    tcase_add_test(c, C114_no_experts_is_refused);
    tcase_add_test(c, C008_constant_weights_are_refused);
    tcase_add_test(c, C032_options_without_effect_are_refused);
    tcase_add_test(c, C032_group_options_without_effect_are_refused);
    tcase_add_test(c, C006_groups_that_do_not_fit_are_refused);
    tcase_add_test(c, C033_unknown_words_do_not_fall_through);
    tcase_add_test(c, identity_experts_are_refused);
    tcase_add_test(c, schema_is_complete);
    tcase_add_test(c, C012_needs_declare_fp32_bias);
    tcase_add_test(c, needs_declare_scope_and_jitter);
    tcase_add_test(c, hosts_that_lack_a_need_are_refused);
    tcase_add_test(c, jitter_leaves_the_call_alone);
    tcase_add_test(c, bias_with_k_equal_to_experts_warns);
    tcase_add_test(c, needs_without_bias);
    return run_case(c);
}
