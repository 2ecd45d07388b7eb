/* What a step computes does not depend on how its batch is cut, whatever the model and its routers do with documents,
 * capacity, jitter and losses over the whole batch. */
#include <math.h>
#include <stdlib.h>

#include "plugin_open.h"
#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

typedef struct outcome {
    rig_cfg cfg;
    step_result result;
    float *gradients; /* of rank 0 */
    int64_t n;
} outcome;

static void one_step(rank_env *env) {
    outcome *o = env->arg;
    rig r;
    rig_open(&r, &o->cfg, env);
    step_result result = rig_step(&r, 1);
    int64_t n = 0;
    float *gradients = rig_tensors(&r, 1, &n);
    if (env->rank == 0) {
        o->result = result;
        o->gradients = gradients;
        o->n = n;
    } else {
        free(gradients);
    }
    rig_close(&r);
}

/* ---- features ---- */
static void with_documents(rig_cfg *c) {
    c->trainer.model.documents = 1;
}
static void with_global_loss(rig_cfg *c) {
    c->router[1] = (moe_kv){"aux_scope", "global"};
}
static void with_global_loss_and_documents(rig_cfg *c) {
    with_global_loss(c);
    with_documents(c);
}
static void with_capacity(rig_cfg *c) {
    c->trainer.model.capacity = 1;
    c->trainer.model.capacity_scope = CAPACITY_SEQUENCE;
}
static void with_jitter(rig_cfg *c) {
    c->router[3] = (moe_kv){"jitter", "0.1"};
}
static void with_latents(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    m->attention = ATTENTION_MLA;
    m->kv_heads = m->heads;
    m->rope.dim = 4;
    m->kv_lora = 12;
    m->v_dim = 6;
}
static void with_windows_and_sinks(rig_cfg *c) {
    c->trainer.model.window = 5;
    c->trainer.model.sliding[0] = 2;
    c->trainer.model.sinks = 1;
    c->trainer.model.qkv_bias = 1;
    c->trainer.model.expert_biases = 1;
}

static void (*const features[])(rig_cfg *) = {with_documents,        with_global_loss, with_global_loss_and_documents,
                                              with_capacity,         with_jitter,      with_latents,
                                              with_windows_and_sinks};
enum { FEATURES = sizeof features / sizeof features[0] };

static outcome run(int feature, int64_t micro, uint32_t world) {
    outcome o = {.cfg = rig_default()};
    rig_balance(&o.cfg);
    o.cfg.trainer.global = 8;
    o.cfg.trainer.model.micro = micro;
    o.cfg.world = world;
    features[feature](&o.cfg);
    ranks_run(world, one_step, &o);
    return o;
}

static double difference(const outcome *a, const outcome *b) {
    rig r;
    rig_cfg one = b->cfg;
    one.world = 1;
    rig_open(&r, &one, NULL);
    double d = rig_difference(&r, a->gradients, b->gradients);
    rig_close(&r);
    return d;
}

static int close_to(double a, double b) {
    return fabs(a - b) <= 1e-5 * fabs(b);
}

START_TEST(C023_C028_a_batch_may_be_cut_in_any_way) {
    static const struct {
        int64_t micro;
        uint32_t world;
    } cuts[] = {{1, 1}, {2, 2}, {1, 4}};
    outcome whole = run(_i, 8, 1);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        if (!rig_has_ranks(cuts[i].world)) continue;
        outcome o = run(_i, cuts[i].micro, cuts[i].world);
        double d = difference(&o, &whole);
        ck_assert_msg(d < 1e-5, "feature %d, micro %d on %u ranks: gradients differ by %g", _i, (int)cuts[i].micro,
                      cuts[i].world, d);
        ck_assert_msg(close_to(o.result.loss, whole.result.loss) &&
                          close_to(o.result.aux_loss, whole.result.aux_loss) &&
                          close_to(o.result.z_loss, whole.result.z_loss),
                      "feature %d: loss %.9g %.9g, aux %.9g %.9g, z %.9g %.9g", _i, o.result.loss, whole.result.loss,
                      o.result.aux_loss, whole.result.aux_loss, o.result.z_loss, whole.result.z_loss);
        ck_assert(o.result.tokens == whole.result.tokens && o.result.dropped == whole.result.dropped);
        free(o.gradients);
    }
    free(whole.gradients);
}
END_TEST

/* Each feature changes something: a switch that is not wired would pass the test above. */
START_TEST(every_feature_has_an_effect) {
    outcome bare = {.cfg = rig_default()}, o = run(_i, 8, 1);
    rig_balance(&bare.cfg);
    bare.cfg.trainer.global = bare.cfg.trainer.model.micro = 8;
    ranks_run(1, one_step, &bare);
    ck_assert_msg(o.n != bare.n || memcmp(o.gradients, bare.gradients, (size_t)o.n * sizeof(float)) != 0,
                  "feature %d changes nothing", _i);
    free(o.gradients);
    free(bare.gradients);
}
END_TEST

/* ---- capacity ---- */
START_TEST(capacity_drops_what_it_says) {
    rig_cfg c = rig_default();
    c.trainer.global = 2;
    c.trainer.model.capacity = 0.5F; /* 32 tokens, 2 of 4 experts: 8 choices an expert stay, of 64 in each layer */
    rig r;
    rig_open(&r, &c, NULL);
    step_result s = rig_step(&r, 1);
    ck_assert_msg(s.dropped >= 0.5, "only %g dropped", s.dropped);
    ck_assert_int_eq(r.t->staging.drops[0], 2 * 64);
    rig_close(&r);
}
END_TEST

START_TEST(C035_a_generous_capacity_drops_nothing) {
    outcome free_run = {.cfg = rig_default()}, wide = {.cfg = rig_default()};
    wide.cfg.trainer.model.capacity = 16384;
    ranks_run(1, one_step, &free_run);
    ranks_run(1, one_step, &wide);
    ck_assert(wide.result.dropped == 0 && wide.result.loss == free_run.result.loss);
    ck_assert(memcmp(wide.gradients, free_run.gradients, (size_t)wide.n * sizeof(float)) == 0);
    free(free_run.gradients);
    free(wide.gradients);
}
END_TEST

START_TEST(padding_rows_to_the_capacity_changes_no_bit) {
    outcome bare = {.cfg = rig_default()}, padded;
    bare.cfg.trainer.model.capacity = 1;
    padded = bare;
    padded.cfg.trainer.model.capacity_pad = 1;
    ranks_run(1, one_step, &bare);
    ranks_run(1, one_step, &padded);
    ck_assert(bare.result.dropped > 0);
    if (test_on_cpu()) { /* elsewhere products of other sizes may sum in another order */
        ck_assert(bare.result.loss == padded.result.loss);
        ck_assert(memcmp(bare.gradients, padded.gradients, (size_t)bare.n * sizeof(float)) == 0);
    }
    ck_assert(fabs(bare.result.loss - padded.result.loss) <= 1e-7 * bare.result.loss);
    ck_assert(difference(&bare, &padded) <= 2e-6);
    free(bare.gradients);
    free(padded.gradients);
}
END_TEST

/* Jitter is drawn anew each step, and not at all in evaluation. */
START_TEST(jitter_is_for_training_alone) {
    double loss[2];
    for (int jitter = 0; jitter < 2; jitter++) {
        rig_cfg c = rig_default();
        moe_err err = {.size = sizeof err};
        if (jitter) with_jitter(&c);
        rig r;
        rig_open(&r, &c, NULL);
        ck_assert(!trainer_eval(r.t, 2, &loss[jitter], &err));
        rig_close(&r);
    }
    ck_assert(loss[0] == loss[1]);
}
END_TEST

/* ---- state ---- */
/* topk whose bias begins at one, or as random numbers. */
static const char *bias_init;
static moe_status needs_with_init(void *self, moe_router_needs *needs, moe_err *err) {
    static moe_param_spec spec;
    moe_status status = ((const moe_router_v0 *)plugin_open("router", "topk")->vtable)->needs(self, needs, err);
    spec = needs->state[0];
    spec.init = bias_init;
    needs->state = &spec;
    return status;
}

START_TEST(router_state_begins_as_declared) {
    moe_router_v0 table = *(const moe_router_v0 *)plugin_open("router", "topk")->vtable;
    rig_cfg c = rig_default();
    rig r;
    bias_init = _i ? "normal 0.5" : "ones";
    table.needs = needs_with_init;
    c.router[0] = (moe_kv){"expert_bias", "true"};
    c.router_table = &table;
    rig_open(&r, &c, NULL);
    float a[4], b[4];
    rig_get(&r, a, r.t->model->routers[0].state[0], sizeof a);
    rig_get(&r, b, r.t->model->routers[1].state[0], sizeof b);
    for (int i = 0; i < 4; i++) {
        if (_i)
            ck_assert_msg(a[i] != 0 && a[i] != b[i], "layers 0 and 1: %g, %g", (double)a[i], (double)b[i]);
        else
            ck_assert(a[i] == 1 && b[i] == 1);
    }
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("features");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, C023_C028_a_batch_may_be_cut_in_any_way, 0, FEATURES);
    tcase_add_loop_test(t, every_feature_has_an_effect, 0, FEATURES);
    tcase_add_test(t, capacity_drops_what_it_says);
    tcase_add_test(t, C035_a_generous_capacity_drops_nothing);
    tcase_add_test(t, padding_rows_to_the_capacity_changes_no_bit);
    tcase_add_test(t, jitter_is_for_training_alone);
    tcase_add_loop_test(t, router_state_begins_as_declared, 0, 2);
    return run_suite("features", t);
}
