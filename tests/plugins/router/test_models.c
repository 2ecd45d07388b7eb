/* Router "topk" against the MoE blocks of transformers, as models.py has run them: which experts, which weights, and
 * what the logits get back. The options of each model are those that an import writes. */
#include <math.h>

#include "fixture.h"
#include "models.h"
#include "test_main.h"

enum { TOKENS = 4, EXPERTS = 16, CHOICES = 4 };

#define DEEPSEEK "score=sigmoid expert_bias=true scale=2.5 "

static const struct {
    const char *name, *options;
    const double (*golden)[TOKENS][EXPERTS];
} models[] = {
    {"Mixtral", "renormalise=true", models_mixtral},
    {"Qwen2-MoE", "", models_qwen2},
    {"Qwen2-MoE, norm_topk_prob", "renormalise=true", models_qwen2_norm},
    {"Qwen3-MoE", "", models_qwen3},
    {"Qwen3-MoE, norm_topk_prob", "renormalise=true", models_qwen3_norm},
    {"OLMoE", "", models_olmoe},
    {"OLMoE, norm_topk_prob", "renormalise=true", models_olmoe_norm},
    {"gpt-oss", "order=after", models_gpt_oss},
    {"DeepSeek-V3, one group", DEEPSEEK "groups=1 groups_kept=1 group_score=sum2", models_deepseek_v3},
    {"DeepSeek-V3, one group, norm_topk_prob", DEEPSEEK "renormalise=true groups=1 groups_kept=1 group_score=sum2",
     models_deepseek_v3_norm},
    {"DeepSeek-V3", DEEPSEEK "groups=4 groups_kept=2 group_score=sum2", models_deepseek_v3_groups},
    {"DeepSeek-V3, norm_topk_prob", DEEPSEEK "renormalise=true groups=4 groups_kept=2 group_score=sum2",
     models_deepseek_v3_groups_norm},
    /* with four choices in two groups k / groups_kept is 2 as well */
    {"DeepSeek-V3 by the paper's group score", DEEPSEEK "groups=4 groups_kept=2 group_score=sum",
     models_deepseek_v3_groups},
};
enum { MODELS = sizeof models / sizeof models[0] };

static void near(double got, double want, const char *model, const char *what, int t, int e) {
    check_that(fabs(got - want) <= 3e-6, "%s, %s of token %d, expert %d: %.9g, not %.9g", model, what, t, e, got, want);
}

START_TEST(equals_transformers) {
    const char *name = models[_i].name;
    rig r;
    rig_open(&r, "topk", TOKENS, EXPERTS, CHOICES, models[_i].options, NULL);
    for (int i = 0; i < TOKENS * EXPERTS; i++) r.logits[i] = (float)models_input[0][i / EXPERTS][i % EXPERTS];
    for (int e = 0; e < EXPERTS; e++) r.bias[e] = (float)models_bias[0][0][e];
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    double dense[TOKENS][EXPERTS] = {{0}};
    for (int i = 0; i < TOKENS * CHOICES; i++) {
        dense[i / CHOICES][r.ids[i]] = (double)r.weights[i];
        r.d_weights[i] = (float)models_input[1][i / CHOICES][r.ids[i]];
    }
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    for (int t = 0; t < TOKENS; t++)
        for (int e = 0; e < EXPERTS; e++) {
            near(dense[t][e], models[_i].golden[0][t][e], name, "weight", t, e);
            near((double)r.d_logits[t * EXPERTS + e], models[_i].golden[1][t][e], name, "gradient", t, e);
        }
    rig_close(&r);
}
END_TEST

/* The goldens can tell groups from none, and one normalisation from the other. */
START_TEST(goldens_differ) {
    ck_assert(memcmp(models_deepseek_v3, models_deepseek_v3_groups, sizeof models_deepseek_v3) != 0);
    ck_assert(memcmp(models_deepseek_v3, models_deepseek_v3_norm, sizeof models_deepseek_v3) != 0);
    ck_assert(memcmp(models_qwen3, models_qwen3_norm, sizeof models_qwen3) != 0);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("models");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, equals_transformers, 0, MODELS);
    tcase_add_test(c, goldens_differ);
    return run_case(c);
}
