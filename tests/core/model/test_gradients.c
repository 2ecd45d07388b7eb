/* Every gradient of the whole model by finite differences, for every kind of layer. */
#include <math.h>
#include <stdlib.h>

#include "rig.h"
#include "run_suite.h"

/* ---- the variants ---- */
/* Every token goes to every expert, so that no choice changes along a difference. */
static void settle(rig_cfg *c) {
    c->trainer.model.top_k = c->trainer.model.experts;
}
static void dense_and_shared(rig_cfg *c) {
    c->trainer.model.dense_layers = 1;
    c->trainer.model.shared_ffn = 16;
}
static void tied_and_all_experts(rig_cfg *c) {
    c->trainer.model.tied = 1;
    settle(c);
}
static void dense_only(rig_cfg *c) {
    c->trainer.model.experts = 0;
}
static void biased_attention(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    settle(c);
    m->qkv_bias = m->out_bias = m->sinks = 1;
    m->qk_norm = QK_NORM_HEAD;
    m->window = 3;
    m->sliding[0] = 1;
}
static void partly_turned(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    settle(c);
    m->qk_norm = QK_NORM_FULL;
    m->rope.dim = 4;
    m->rope.scaling = ROPE_LINEAR;
    m->rope.factor = 2;
}
static void latent(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    settle(c);
    m->attention = ATTENTION_MLA;
    m->kv_heads = m->heads;
    m->rope = (rope_cfg){.theta = 10000,
                         .dim = 4,
                         .interleaved = 1,
                         .scaling = ROPE_YARN,
                         .factor = 4,
                         .original = 4,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .mscale = 1,
                         .mscale_all_dim = 0.7F,
                         .truncate = 1};
    m->kv_lora = 12;
    m->q_lora = 10;
    m->v_dim = 6;
}
static void latent_with_full_queries(rig_cfg *c) {
    latent(c);
    c->trainer.model.q_lora = 0;
}
static void clamped_with_biases(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    settle(c);
    m->activation = ACTIVATION_CLAMPED_SWIGLU;
    m->activation_limit = 0.5F; /* cuts some */
    m->expert_biases = m->router_bias = 1;
    c->router[0] = (moe_kv){"order", "after"};
}
static void gated_with_capacity(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    settle(c);
    m->shared_ffn = 16;
    m->shared_gate = 1;
    m->capacity = 0.6F;
    m->capacity_drop = CAPACITY_DROP_POSITION;
    m->capacity_scope = CAPACITY_SEQUENCE;
    m->capacity_pad = 1;
}
static void documents(rig_cfg *c) {
    settle(c);
    c->trainer.model.documents = 1;
}
static void plain(rig_cfg *c) {
    (void)c;
}

static void (*const variants[])(rig_cfg *) = {
    plain,  dense_and_shared,         tied_and_all_experts, dense_only,          biased_attention, partly_turned,
    latent, latent_with_full_queries, clamped_with_biases,  gated_with_capacity, documents};

static rig_cfg variant(int i) {
    rig_cfg c = rig_default();
    c.trainer.model.seq = 5; /* divides no block */
    c.trainer.model.micro = 1;
    c.trainer.global = 2;
    c.trainer.model.head_rows = 3;
    variants[i](&c);
    return c;
}

/* ---- differences ---- */
/* The loss at weights w + eps * d, d = +-1 in one tensor alone. */
static double loss_beside(rig *r, const char *name, const float *w, const float *d, int64_t n, double eps) {
    float *moved = malloc((size_t)n * sizeof *moved);
    moe_err err = {.size = sizeof err};
    ck_assert_ptr_nonnull(moved);
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)w[i] + eps * (double)d[i]);
    ck_assert_msg(!trainer_write(r->t, name, moved, &err), "%s", err.msg);
    free(moved);
    return rig_step(r, 1).loss;
}

/* One tensor: central differences along two random directions against the gradient. */
static void check_tensor(rig *r, const char *name, int64_t n, int variant_number) {
    float *w = malloc((size_t)n * sizeof *w), *g = malloc((size_t)n * sizeof *g), *d = malloc((size_t)n * sizeof *d);
    moe_err err = {.size = sizeof err};
    ck_assert(w && g && d);
    rig_step(r, 1);
    ck_assert(trainer_read(r->t, name, 0, w, &err) == n && trainer_read(r->t, name, 1, g, &err) == n);
    double size = 0;
    for (int64_t i = 0; i < n; i++) size += (double)g[i] * (double)g[i];
    ck_assert_msg(size > 0, "variant %d: the gradient of %s is zero", variant_number, name);
    for (uint64_t k = 0; k < 2; k++) {
        moe_random_key key = moe_random_key_make(17 + k, MOE_RANDOM_SAMPLE, name);
        double along = 0, eps = 2e-3;
        for (int64_t i = 0; i < n; i++) { /* mostly along the gradient's signs, so that the sum does not cancel */
            uint32_t word = moe_random_words(key, (uint64_t)i, 0).v[0];
            d[i] = (word % 8 ? 1.0F : -1.0F) * (g[i] < 0 ? -1.0F : 1.0F);
            along += (double)g[i] * (double)d[i];
        }
        if (eps * fabs(along) > 0.02) eps = 0.02 / fabs(along);
        double slope = (loss_beside(r, name, w, d, n, eps) - loss_beside(r, name, w, d, n, -eps)) / (2 * eps);
        ck_assert_msg(fabs(slope - along) < 0.02 * fabs(along) + 2e-5, "variant %d, %s: slope %g, gradient %g",
                      variant_number, name, slope, along);
    }
    ck_assert_msg(!trainer_write(r->t, name, w, &err), "%s", err.msg);
    free(w);
    free(g);
    free(d);
}

START_TEST(C044_C053_every_gradient_by_finite_differences) {
    rig_cfg c = variant(_i);
    c.trainer.lr.lr = 0; /* steps read gradients and move nothing */
    rig r;
    rig_open(&r, &c, NULL);
    int64_t n = 0;
    const char *name;
    for (uint32_t i = 0; (name = trainer_param_name(r.t, i, &n)); i++) check_tensor(&r, name, n, _i);
    rig_close(&r);
}
END_TEST

/* "plain layers" is what sanitizers see on slow devices. */
int main(void) {
    const int n = sizeof variants / sizeof variants[0];
    TCase *first = tcase_create("plain layers"), *others = tcase_create("other layers");
    Suite *s = suite_create("gradients");
    tcase_set_timeout(first, 300);
    tcase_set_timeout(others, 300);
    tcase_add_loop_test(first, C044_C053_every_gradient_by_finite_differences, 0, 1);
    tcase_add_loop_test(others, C044_C053_every_gradient_by_finite_differences, 1, n);
    suite_add_tcase(s, first);
    suite_add_tcase(s, others);
    return run_suite_of(s);
}
