/* Experts that no row has reached: their weight gradients are noted, and neither written nor read. The same training on
 * a precision that takes the flags and on one that does not, with few tokens and several microbatches. What gradients
 * hold before a step is NaN. */
#include <math.h>
#include <stdlib.h>

#include "rig.h"
#include "run_suite.h"
#include "shuffle.h"
#include "train/trainer_impl.h"

enum { EXPERTS = 32, STEPS = 4, RANKS = 2 };

/* ---- a precision that does not take them ---- */
static const moe_precision_v0 *built(const char *id) {
    return plugin_open("precision", id)->vtable;
}
static moe_status needs_fp32(void *self, moe_precision_needs *out, moe_err *err) {
    moe_status s = built("fp32")->needs(self, out, err);
    out->takes_filled = 0;
    return s;
}
static moe_status needs_bf16(void *self, moe_precision_needs *out, moe_err *err) {
    moe_status s = built("bf16")->needs(self, out, err);
    out->takes_filled = 0;
    return s;
}
/* Does the device under test? */
static int takes(void) {
    return strcmp(test_device(), "cuda") != 0;
}

/* ---- one training ---- */
typedef struct training {
    rig_cfg cfg;
    float *gradients[STEPS], *weights; /* of the whole model */
    step_result result[STEPS];
    int64_t n, flags[RANKS], left[RANKS]; /* elements; flags of a rank; experts that a step has left out, all steps */
} training;

static rig_cfg few_tokens(void) {
    rig_cfg c = rig_default();
    rig_balance(&c);
    c.trainer.model.experts = EXPERTS;
    c.trainer.model.seq = 2;
    c.trainer.model.micro = 1;
    c.trainer.global = 6; /* at most 24 choices of 32 experts a layer */
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 0.5F, 0};
    c.trainer.lr.lr = 3e-3;
    return c;
}

static void poison(const rig *r) {
    const params *p = &r->t->model->params;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->at[i].kind == PARAM_LINEAR && p->at[i].experts)
            rig_fill(r, p->grad + p->at[i].offset, 0xff, (uint64_t)p->at[i].count * sizeof(float));
}

static int all_bytes(const void *at, int byte, uint64_t n) {
    const unsigned char *p = at;
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != byte) return 0;
    return 1;
}

/* Experts whose flag is 0: nothing has been written to their gradients. */
static int64_t count_left(const rig *r) {
    const params *p = &r->t->model->params;
    int64_t left = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const param *a = &p->at[i];
        if (a->flags < 0) continue;
        int64_t each = a->count / a->experts;
        uint64_t bytes = (uint64_t)each * sizeof(float);
        int32_t flag[EXPERTS];
        float *blocks = malloc((uint64_t)a->experts * bytes);
        rig_get(r, flag, p->filled + a->flags, (uint64_t)a->experts * sizeof *flag);
        rig_get(r, blocks, p->grad + a->offset, (uint64_t)a->experts * bytes);
        for (int64_t e = 0; e < a->experts; e++) {
            ck_assert(flag[e] == 0 || flag[e] == 1);
            ck_assert_msg(all_bytes(blocks + e * each, 0xff, bytes) == !flag[e], "%s, expert %d, flag %d", a->name,
                          (int)e, flag[e]);
            left += !flag[e];
        }
        free(blocks);
    }
    return left;
}

/* One assertion for millions of numbers: each is a message to the process that watches. */
static int64_t count_not_finite(const float *x, int64_t n) {
    int64_t not = 0;
    for (int64_t i = 0; i < n; i++) not += !isfinite(x[i]);
    return not ;
}

static void train_rank(rank_env *env) {
    training *t = env->arg;
    rig r;
    int64_t n = 0;
    rig_open(&r, &t->cfg, env);
    t->flags[env->rank] = r.t->model->params.n_filled;
    for (int i = 0; i < STEPS; i++) {
        poison(&r);
        step_result out = rig_step(&r, i + 1);
        t->left[env->rank] += count_left(&r);
        float *g = rig_tensors(&r, 1, &n);
        ck_assert_int_eq(count_not_finite(g, n), 0);
        if (env->rank == 0)
            t->gradients[i] = g, t->result[i] = out;
        else
            free(g);
    }
    float *w = rig_tensors(&r, 0, &n);
    if (env->rank == 0)
        t->weights = w, t->n = n;
    else
        free(w);
    rig_close(&r);
}

static training train(const rig_cfg *cfg, int flags) {
    moe_precision_v0 table = *built(cfg->precision);
    training t = {.cfg = *cfg};
    if (!flags) {
        table.needs = strcmp(cfg->precision, "bf16") == 0 ? needs_bf16 : needs_fp32;
        t.cfg.precision_table = &table;
    }
    ranks_run(cfg->world, train_rank, &t);
    t.cfg.precision_table = NULL;
    return t;
}

static void drop(training *t) {
    for (int i = 0; i < STEPS; i++) free(t->gradients[i]);
    free(t->weights);
}

/* Every bit of two trainings, with flags and without. */
static void compare(const rig_cfg *cfg, int reduced) {
    training with = train(cfg, 1), without = train(cfg, 0);
    uint64_t bytes = (uint64_t)with.n * sizeof(float);
    for (uint32_t i = 0; i < cfg->world; i++) {
        int64_t own = cfg->trainer.model.experts / cfg->trainer.mesh.ep * 4; /* two layers of two matrices */
        ck_assert_int_eq(with.flags[i], takes() && !reduced ? own : 0);
        ck_assert_int_eq(without.flags[i], 0);
        if (with.flags[i]) ck_assert_int_gt(with.left[i], 0);
        if (with.flags[i]) ck_assert_int_lt(with.left[i], own * STEPS);
    }
    ck_assert_int_eq(with.n, without.n);
    for (int i = 0; i < STEPS; i++) {
        ck_assert(with.result[i].loss == without.result[i].loss);
        ck_assert(with.result[i].grad_norm == without.result[i].grad_norm);
        ck_assert_msg(memcmp(with.gradients[i], without.gradients[i], bytes) == 0, "gradients of step %d", i + 1);
    }
    ck_assert_msg(memcmp(with.weights, without.weights, bytes) == 0, "weights differ");
    drop(&with);
    drop(&without);
}

START_TEST(weights_and_gradients_are_those_of_written_zeros) {
    rig_cfg c = few_tokens();
    c.precision = _i % 2 ? "bf16" : "fp32";
    c.threads = _i % 4 / 2 ? "2" : "1";
    if (_i / 4) c.trainer.optimizer = (optimizer_cfg){.kind = OPTIMIZER_SGD, .weight_decay = 0.1F, .clip = 0.5F};
    compare(&c, 0);
}
END_TEST

/* Any order of nodes, and buckets that begin and end within an expert. */
START_TEST(any_order_and_any_buckets_give_the_same) {
    rig_cfg c = few_tokens();
    char seed[16];
    snprintf(seed, sizeof seed, "%d", _i);
    const moe_kv kv = {"seed", seed};
    c.trainer.model.experts = EXPERTS - 1; /* which no bucket border divides */
    c.scheduler = &shuffle_table;
    c.scheduler_kv = &kv;
    c.n_scheduler_kv = 1;
    compare(&c, 0);
    rig r;
    int within = 0;
    rig_open(&r, &c, NULL);
    const params *p = &r.t->model->params;
    for (uint32_t i = 0; i < p->n_buckets; i++) {
        const param *a = &p->at[p->buckets[i].first];
        within |= a->flags >= 0 && (p->buckets[i].begin - a->offset) % (a->count / a->experts);
    }
    if (takes()) ck_assert_int_eq(within, _i % 5 > 1); /* a bucket or two, or more */
    rig_close(&r);
}
END_TEST

static const struct mesh_case {
    uint32_t ep, etp;
    int distributed, reduced;
} meshes[] = {{2, 1, 0, 0}, {2, 1, 1, 0}, {1, 2, 1, 0}, {1, 1, 0, 1}, {1, 1, 1, 1}};

START_TEST(ranks_have_flags_where_nothing_is_reduced) {
    rig_cfg c = few_tokens();
    if (!rig_has_ranks(RANKS)) return;
    c.world = RANKS;
    c.trainer.mesh.ep = meshes[_i].ep;
    c.trainer.mesh.etp = meshes[_i].etp;
    c.trainer.optimizer.distributed = meshes[_i].distributed;
    if (!meshes[_i].reduced) c.dispatcher = "alltoall";
    compare(&c, meshes[_i].reduced);
}
END_TEST

/* ---- inner values of a batch ---- */
static float *dumped(int train, int64_t *n) {
    rig_cfg c = few_tokens();
    const int32_t tokens[] = {17, 201};
    moe_err err = {.size = sizeof err};
    trainer_values v;
    rig r;
    c.trainer.lr.lr = 0;
    c.trainer.global = 1;
    c.trainer.programs = train ? TRAINER_TRAIN | TRAINER_DUMP : TRAINER_DUMP | TRAINER_DUMP_GRADS;
    rig_open(&r, &c, NULL);
    ck_assert_int_eq(r.t->model->params.n_filled > 0, train && takes());
    if (train) rig_step(&r, 1);
    poison(&r);
    ck_assert_msg(!trainer_dump(r.t, tokens, NULL, &v, &err), "%s", err.msg);
    float *g = rig_tensors(&r, 1, n);
    rig_close(&r);
    return g;
}

/* The flags of a training step say nothing about the gradients of a dump after it. */
START_TEST(a_dump_after_a_step_has_its_own) {
    int64_t n = 0;
    float *alone = dumped(0, &n), *after = dumped(1, &n);
    ck_assert(memcmp(alone, after, (size_t)n * sizeof *after) == 0);
    free(alone);
    free(after);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("filled");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, weights_and_gradients_are_those_of_written_zeros, 0, 8);
    tcase_add_loop_test(t, any_order_and_any_buckets_give_the_same, 0, 10);
    tcase_add_loop_test(t, ranks_have_flags_where_nothing_is_reduced, 0, (int)(sizeof meshes / sizeof meshes[0]));
    tcase_add_test(t, a_dump_after_a_step_has_its_own);
    return run_suite("filled", t);
}
