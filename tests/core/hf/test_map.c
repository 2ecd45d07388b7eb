/* The table of names: what the hub calls each tensor and its shape, every parameter exactly once whatever the mixture,
 * and the orders of gpt-oss against their definition. */
#include <math.h>

#include "families.h"

typedef struct expected {
    int family;
    const char *name;
    int32_t ndim;
    int64_t shape[3];
} expected;

/* hidden 32, 4 heads of 8, 2 key-value heads, 4 experts of 24, dense 40, vocabulary 80 */
static const expected table[] = {
    {HF_MIXTRAL, "model.embed_tokens.weight", 2, {80, 32}},
    {HF_MIXTRAL, "model.layers.1.input_layernorm.weight", 1, {32}},
    {HF_MIXTRAL, "model.layers.1.self_attn.q_proj.weight", 2, {32, 32}},
    {HF_MIXTRAL, "model.layers.1.self_attn.k_proj.weight", 2, {16, 32}},
    {HF_MIXTRAL, "model.layers.1.self_attn.v_proj.weight", 2, {16, 32}},
    {HF_MIXTRAL, "model.layers.1.self_attn.o_proj.weight", 2, {32, 32}},
    {HF_MIXTRAL, "model.layers.1.post_attention_layernorm.weight", 1, {32}},
    {HF_MIXTRAL, "model.layers.0.block_sparse_moe.gate.weight", 2, {4, 32}},
    {HF_MIXTRAL, "model.layers.0.block_sparse_moe.experts.3.w1.weight", 2, {24, 32}},
    {HF_MIXTRAL, "model.layers.0.block_sparse_moe.experts.3.w2.weight", 2, {32, 24}},
    {HF_MIXTRAL, "model.layers.0.block_sparse_moe.experts.3.w3.weight", 2, {24, 32}},
    {HF_MIXTRAL, "model.norm.weight", 1, {32}},
    {HF_MIXTRAL, "lm_head.weight", 2, {80, 32}},
    {HF_QWEN2_MOE, "model.layers.0.self_attn.q_proj.bias", 1, {32}},
    {HF_QWEN2_MOE, "model.layers.0.self_attn.v_proj.bias", 1, {16}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.gate.weight", 2, {4, 32}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.experts.0.gate_proj.weight", 2, {24, 32}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.experts.0.up_proj.weight", 2, {24, 32}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.experts.0.down_proj.weight", 2, {32, 24}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.shared_expert.gate_proj.weight", 2, {20, 32}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.shared_expert.down_proj.weight", 2, {32, 20}},
    {HF_QWEN2_MOE, "model.layers.0.mlp.shared_expert_gate.weight", 2, {1, 32}},
    {HF_QWEN3_MOE, "model.layers.0.self_attn.q_norm.weight", 1, {6}},
    {HF_QWEN3_MOE, "model.layers.0.mlp.gate_proj.weight", 2, {40, 32}},
    {HF_QWEN3_MOE, "model.layers.0.mlp.down_proj.weight", 2, {32, 40}},
    {HF_QWEN3_MOE, "model.layers.1.mlp.experts.2.up_proj.weight", 2, {24, 32}},
    {HF_OLMOE, "model.layers.0.self_attn.q_norm.weight", 1, {32}},
    {HF_OLMOE, "model.layers.0.self_attn.k_norm.weight", 1, {16}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.q_a_proj.weight", 2, {12, 32}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.q_a_layernorm.weight", 1, {12}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.q_b_proj.weight", 2, {48, 12}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 2, {14, 32}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.kv_a_layernorm.weight", 1, {10}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.kv_b_proj.weight", 2, {56, 10}},
    {HF_DEEPSEEK_V3, "model.layers.1.self_attn.o_proj.weight", 2, {32, 24}},
    {HF_DEEPSEEK_V3, "model.layers.1.mlp.gate.e_score_correction_bias", 1, {4}},
    {HF_DEEPSEEK_V3, "model.layers.1.mlp.shared_experts.up_proj.weight", 2, {48, 32}},
    {HF_DEEPSEEK_V3, "model.layers.0.mlp.up_proj.weight", 2, {40, 32}},
    {HF_GPT_OSS, "model.layers.1.self_attn.sinks", 1, {4}},
    {HF_GPT_OSS, "model.layers.1.self_attn.o_proj.bias", 1, {32}},
    {HF_GPT_OSS, "model.layers.1.mlp.router.weight", 2, {4, 32}},
    {HF_GPT_OSS, "model.layers.1.mlp.router.bias", 1, {4}},
    {HF_GPT_OSS, "model.layers.1.mlp.experts.gate_up_proj", 3, {4, 32, 48}},
    {HF_GPT_OSS, "model.layers.1.mlp.experts.gate_up_proj_bias", 2, {4, 48}},
    {HF_GPT_OSS, "model.layers.1.mlp.experts.down_proj", 3, {4, 24, 32}},
    {HF_GPT_OSS, "model.layers.1.mlp.experts.down_proj_bias", 2, {4, 32}},
    {FAMILY_MIXED_LATENT, "model.layers.1.self_attn.q_proj.weight", 2, {48, 32}},
    {FAMILY_MIXED_LATENT, "model.layers.1.mlp.experts.1.down_proj.bias", 1, {32}},
    {FAMILY_MIXED_LATENT, "model.layers.1.mlp.gate.bias", 1, {4}},
    {FAMILY_DENSE, "model.layers.1.mlp.gate_proj.weight", 2, {40, 32}},
};
/* The tensors of a whole model, so that none too many goes unseen. */
static const uint32_t totals[FAMILIES] = {
    [HF_MIXTRAL] = 3 + 2 * (6 + 1 + 12),
    [HF_QWEN2_MOE] = 3 + 2 * (6 + 3 + 1 + 12 + 3 + 1),
    [HF_QWEN3_MOE] = 2 + 2 * (6 + 2) + 3 + 1 + 12, /* tied: no head */
    [HF_OLMOE] = 3 + 2 * (6 + 2 + 1 + 12),
    [HF_DEEPSEEK_V3] = 3 + 2 * (2 + 7) + 3 + 2 + 12 + 3,
    [HF_GPT_OSS] = 3 + 2 * (6 + 4 + 1 + 2 + 4),
    [FAMILY_MIXED] = 3 + 2 * (6 + 3 + 1 + 2) + 3 + 3 + 12 + 3 + 1,
    [FAMILY_MIXED_LATENT] = 3 + 2 * (2 + 5 + 2) + 3 + 3 + 24 + 3 + 1,
    [FAMILY_DENSE] = 3 + 2 * (6 + 3),
};

START_TEST(names_and_shapes_are_those_of_the_hub) {
    rig r;
    hf_map *map = NULL;
    family_open(&r, _i, 1);
    ck_ok(hf_map_of(r.t, &map, err));
    if (_i < HF_STYLES) ck_assert_int_eq(map->style, _i);
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (table[k].family != _i) continue;
        const hf_tensor *t = family_find(map, table[k].name);
        ck_assert_msg(t != NULL, "%s: no %s", family_names[_i], table[k].name);
        ck_assert_msg(t->ndim == table[k].ndim, "%s has %d dimensions", t->name, t->ndim);
        for (int d = 0; d < t->ndim; d++)
            ck_assert_msg(t->shape[d] == table[k].shape[d], "%s: size %d is %lld", t->name, d, (long long)t->shape[d]);
    }
    ck_assert_uint_eq(map->n, totals[_i]);
    hf_map_free(map);
    rig_close(&r);
}
END_TEST

/* Marks every element that a slab of any tensor covers; each must be covered once, by parameters and state alike. */
START_TEST(every_parameter_has_one_place) {
    rig r;
    hf_map *map = NULL;
    family_open(&r, _i, 1);
    ck_ok(hf_map_of(r.t, &map, err));
    const params *p = &r.t->model->params;
    uint8_t *seen = calloc((size_t)p->begin[PARAM_CLASSES], 1);
    ck_assert_ptr_nonnull(seen);
    for (uint32_t i = 0; i < map->n; i++) {
        const hf_tensor *t = &map->at[i];
        hf_slab s = {0};
        int64_t total = 1, covered = 0;
        for (int d = 0; d < t->ndim; d++) total *= t->shape[d];
        ck_assert_int_eq(total, t->count);
        for (uint32_t k = 0; k < i; k++) ck_assert_str_ne(map->at[k].name, t->name);
        while (hf_slab_next(t, 7, &s)) {
            ck_assert_int_eq(s.begin, covered);
            covered += s.count;
            for (int64_t k = 0; k < s.count && t->state_layer < 0; k++) seen[p->at[s.param].offset + s.first + k]++;
        }
        ck_assert_int_eq(covered, t->count);
    }
    for (uint32_t i = 0; i < p->n; i++)
        for (int64_t k = 0; k < p->at[i].count; k++)
            ck_assert_msg(seen[p->at[i].offset + k] == 1, "%s: %s[%lld] has %u places", family_names[_i], p->at[i].name,
                          (long long)k, seen[p->at[i].offset + k]);
    free(seen);
    hf_map_free(map);
    rig_close(&r);
}
END_TEST

static float *read_tensor(const rig *r, const hf_map *map, const char *name) {
    const hf_tensor *t = family_find(map, name);
    ck_assert_msg(t != NULL, "no %s", name);
    float *out = malloc((size_t)t->count * sizeof *out);
    ck_assert_ptr_nonnull(out);
    ck_ok(hf_read(r->t, t, 0, out, err));
    return out;
}
static const float *ours(const rig *r, const char *name) {
    int64_t id = params_find(&r->t->model->params, name);
    ck_assert_msg(id >= 0, "no %s", name);
    return r->t->model->params.master + r->t->model->params.at[id].offset;
}

/* gate_up_proj[e][i][2j + s] is row s f + j, column i of expert e's w1; down_proj[e][j][i] is row i, column j of w2. */
START_TEST(gpt_oss_orders_follow_their_definition) {
    enum { E = 4, F = 24, H = 32 };
    rig r;
    hf_map *map = NULL;
    family_open(&r, HF_GPT_OSS, 1);
    family_fill(&r, 0);
    ck_ok(hf_map_of(r.t, &map, err));
    float *up = read_tensor(&r, map, "model.layers.1.mlp.experts.gate_up_proj");
    float *up_bias = read_tensor(&r, map, "model.layers.1.mlp.experts.gate_up_proj_bias");
    float *down = read_tensor(&r, map, "model.layers.1.mlp.experts.down_proj");
    float *down_bias = read_tensor(&r, map, "model.layers.1.mlp.experts.down_proj_bias");
    const float *w1 = ours(&r, "layers.1.experts.w1"), *w2 = ours(&r, "layers.1.experts.w2");
    const float *b1 = ours(&r, "layers.1.experts.b1"), *b2 = ours(&r, "layers.1.experts.b2");
    for (int e = 0; e < E; e++)
        for (int i = 0; i < H; i++) {
            ck_assert(down_bias[e * H + i] == b2[e * H + i]);
            for (int j = 0; j < F; j++) {
                ck_assert(down[(e * F + j) * H + i] == w2[(e * H + i) * F + j]);
                for (int s = 0; s < 2; s++) {
                    ck_assert(up[(e * H + i) * 2 * F + 2 * j + s] == w1[(e * 2 * F + s * F + j) * H + i]);
                    ck_assert(up_bias[e * 2 * F + 2 * j + s] == b1[e * 2 * F + s * F + j]);
                }
            }
        }
    free(up);
    free(up_bias);
    free(down);
    free(down_bias);
    hf_map_free(map);
    rig_close(&r);
}
END_TEST

/* q, k and v are rows of one matrix, gate and up halves of another, and the shared rotary key is under kv_a. */
START_TEST(packed_matrices_are_cut_by_rows) {
    rig r;
    hf_map *map = NULL;
    family_open(&r, HF_DEEPSEEK_V3, 1);
    family_fill(&r, 0);
    ck_ok(hf_map_of(r.t, &map, err));
    float *kv = read_tensor(&r, map, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
    ck_assert(memcmp(kv, ours(&r, "layers.1.attention.kv_down"), 10 * 32 * sizeof *kv) == 0);
    ck_assert(memcmp(kv + 10 * 32, ours(&r, "layers.1.attention.k_rope"), 4 * 32 * sizeof *kv) == 0);
    float *up = read_tensor(&r, map, "model.layers.1.mlp.experts.2.up_proj.weight");
    ck_assert(memcmp(up, ours(&r, "layers.1.experts.w1") + (2 * 48 + 24) * 32, 24 * 32 * sizeof *up) == 0);
    float *bias = read_tensor(&r, map, "model.layers.1.mlp.gate.e_score_correction_bias");
    ck_assert(bias[3] == 2.0F / 7 - 3);
    free(kv);
    free(up);
    free(bias);
    hf_map_free(map);
    rig_close(&r);
}
END_TEST

/* hf_scatter undoes hf_gather, and gradients come under the same names. */
START_TEST(orders_are_inverse) {
    enum { ROWS = 70, COLS = 33, N = ROWS * COLS };
    static const int32_t orders[] = {HF_PLAIN, HF_TRANSPOSED, HF_INTERLEAVED, HF_INTERLEAVED_TRANSPOSED};
    float *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b), *c = malloc(N * sizeof *c);
    ck_assert(a && b && c);
    for (int i = 0; i < N; i++) a[i] = (float)i;
    for (int o = 0; o < 4; o++) {
        hf_tensor t = {.order = orders[o], .rows = ROWS, .cols = COLS, .count = N};
        memset(b, 0, N * sizeof *b);
        memset(c, 0, N * sizeof *c);
        hf_gather(&t, a, b, N);
        hf_scatter(&t, b, c, N);
        ck_assert(memcmp(a, c, N * sizeof *a) == 0);
        ck_assert_int_eq(memcmp(a, b, N * sizeof *a) == 0, o == 0);
    }
    free(a);
    free(b);
    free(c);
}
END_TEST

START_TEST(gradients_have_the_same_names) {
    rig r;
    hf_map *map = NULL;
    rig_cfg c = family_cfg(HF_QWEN2_MOE, 1);
    c.trainer.programs = TRAINER_TRAIN;
    c.trainer.model.vocab = 256;
    rig_open(&r, &c, NULL);
    rig_step(&r, 1);
    ck_ok(hf_map_of(r.t, &map, err));
    const hf_tensor *k = family_find(map, "model.layers.1.self_attn.k_proj.weight");
    float got[16 * 32];
    ck_ok(hf_read(r.t, k, 1, got, err));
    int64_t id = params_find(&r.t->model->params, "layers.1.attention.qkv");
    const float *grad = r.t->model->params.grad + r.t->model->params.at[id].offset + 32 * 32;
    ck_assert(memcmp(got, grad, sizeof got) == 0);
    hf_map_free(map);
    rig_close(&r);
    family_open(&r, HF_DEEPSEEK_V3, 1); /* without training there are none */
    ck_ok(hf_map_of(r.t, &map, err));
    ck_fails(hf_read(r.t, &map->at[0], 1, got, err), MOE_E_ARG, "model.embed_tokens.weight has no gradient");
    hf_map_free(map);
    rig_close(&r);
}
END_TEST

/* An expert that no row has reached has a gradient of zeros, whatever memory holds. */
START_TEST(gradients_of_experts_without_rows_are_zeros) {
    rig r;
    hf_map *map = NULL;
    rig_cfg c = family_cfg(HF_MIXTRAL, 1);
    c.trainer.programs = TRAINER_TRAIN;
    c.trainer.model.vocab = 256;
    c.trainer.model.experts = 16;
    c.trainer.model.seq = 2;
    c.trainer.model.micro = c.trainer.global = 1;
    rig_open(&r, &c, NULL);
    const params *p = &r.t->model->params;
    for (uint32_t i = 0; i < p->n; i++) /* NaN */
        if (p->at[i].experts) rig_fill(&r, p->grad + p->at[i].offset, 0xff, (uint64_t)p->at[i].count * sizeof(float));
    rig_step(&r, 1);
    ck_ok(hf_map_of(r.t, &map, err));
    int empty = 0;
    for (uint32_t i = 0; i < map->n; i++) {
        const hf_tensor *x = &map->at[i];
        float *got = malloc((size_t)x->count * sizeof *got);
        int64_t zeros = 0;
        ck_ok(hf_read(r.t, x, 1, got, err));
        for (int64_t k = 0; k < x->count; k++) {
            ck_assert_msg(isfinite(got[k]), "%s[%d] = %g", x->name, (int)k, (double)got[k]);
            zeros += got[k] == 0;
        }
        empty += strstr(x->name, "experts") && zeros == x->count;
        free(got);
    }
    ck_assert_int_ge(empty, 2 * 3 * (16 - 2 * 2)); /* layers, matrices; 2 tokens reach at most 4 experts */
    hf_map_free(map);
    rig_close(&r);
}
END_TEST

int main(void) {
    Suite *s = suite_create("hf_map");
    TCase *t = tcase_create("map");
    tcase_add_loop_test(t, names_and_shapes_are_those_of_the_hub, 0, FAMILIES);
    tcase_add_loop_test(t, every_parameter_has_one_place, 0, FAMILIES);
    tcase_add_test(t, gpt_oss_orders_follow_their_definition);
    tcase_add_test(t, packed_matrices_are_cut_by_rows);
    tcase_add_test(t, orders_are_inverse);
    tcase_add_test(t, gradients_have_the_same_names);
    tcase_add_test(t, gradients_of_experts_without_rows_are_zeros);
    suite_add_tcase(s, t);
    return scratch_run(s);
}
