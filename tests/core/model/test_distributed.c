/* The distributed optimiser changes no bit: with it and without it the same losses, norms and weights, on every rank,
 * for sizes that no number of ranks divides; and memory falls as promised. */
#include <math.h>
#include <stdlib.h>

#include "../io/scratch.h"
#include "rig.h"
#include "train/trainer_impl.h"

enum { STEPS = 20, MOST = 4, SEQUENCES = 12 };

typedef struct run {
    rig_cfg cfg;
    int64_t first, last;
    const char *from, *to; /* states to load before and to save after; NULL = none */
    double loss[STEPS + 1];
    float norm[MOST][STEPS + 1];
    char *read[MOST];  /* of each rank, the weights as products read them */
    uint64_t bytes[4]; /* of read; of the parameters' memory; elements, those of LINEAR */
    float *weights;    /* of rank 0, masters of all ranks */
    int64_t n;
} run;

static run run_of(uint32_t dp, int kind, const char *precision, int distributed) {
    run r = {.cfg = rig_default(), .first = 1, .last = STEPS};
    rig_balance(&r.cfg);
    r.cfg.precision = precision;
    r.cfg.world = dp;
    r.cfg.trainer.model.micro = 1;
    r.cfg.trainer.model.shared_ffn = 14;
    r.cfg.trainer.model.expert_ffn = 23;
    r.cfg.trainer.model.dense_layers = 1;
    r.cfg.trainer.model.dense_ffn = 37;
    r.cfg.trainer.global = SEQUENCES;
    r.cfg.trainer.optimizer = (optimizer_cfg){kind, 0.9F, 0.95F, 1e-8F, 0.1F, 1, distributed};
    r.cfg.trainer.programs = TRAINER_TRAIN;
    if (kind == OPTIMIZER_ADAMW) r.cfg.trainer.lr.lr = 3e-3;
    return r;
}

/* What the next forward would read, LINEAR and the rest. */
static char *weights_as_read(const rig *r, uint64_t *bytes) {
    const params *p = &r->t->model->params;
    int64_t linear = p->begin[PARAM_LINEAR + 1], all = p->begin[PARAM_CLASSES];
    uint64_t first = (uint64_t)linear * (p->copy ? 2 : 4), rest = (uint64_t)(all - linear) * 4;
    char *out = malloc(first + rest);
    ck_assert_ptr_nonnull(out);
    rig_get(r, out, p->copy ? (const void *)p->copy : params_address(p, PARAM_MASTER, NULL, 0), first);
    rig_get(r, out + first, params_address(p, PARAM_MASTER, NULL, linear), rest);
    *bytes = first + rest;
    return out;
}

static void run_rank(rank_env *env) {
    run *c = env->arg;
    rig r;
    uint64_t bytes = 0;
    int64_t n = 0;
    moe_err err = {.size = sizeof err};
    rig_open(&r, &c->cfg, env);
    if (c->from) ck_assert_msg(!trainer_load(r.t, c->from, 1, &err), "%s", err.msg);
    for (int64_t i = c->first; i <= c->last; i++) {
        step_result out = rig_step(&r, i);
        if (!env->rank) c->loss[i] = out.loss;
        c->norm[env->rank][i] = (float)out.grad_norm;
    }
    if (c->to) rig_save(&r, c->to);
    c->read[env->rank] = weights_as_read(&r, &bytes);
    float *w = rig_tensors(&r, 0, &n);
    if (!env->rank) {
        const int64_t *begin = r.t->model->params.begin;
        uint64_t numbers[] = {bytes, trainer_memory_of(r.t).params, (uint64_t)begin[PARAM_CLASSES],
                              (uint64_t)begin[PARAM_LINEAR + 1]};
        memcpy(c->bytes, numbers, sizeof numbers);
        c->weights = w;
        c->n = n;
    } else {
        free(w);
    }
    rig_close(&r);
}

static void go(run *c) {
    ranks_run(c->cfg.world, run_rank, c);
    for (uint32_t i = 1; i < c->cfg.world; i++) {
        ck_assert_msg(memcmp(c->read[0], c->read[i], c->bytes[0]) == 0, "ranks 0 and %u have other weights", i);
        ck_assert_mem_eq(c->norm[0], c->norm[i], sizeof c->norm[0]);
    }
}

static void drop(run *c) {
    for (int i = 0; i < MOST; i++) free(c->read[i]);
    free(c->weights);
}

/* ---- the numbers ---- */
static const struct {
    int kind;
    const char *precision;
    double tolerance; /* of losses, against one rank */
} kinds[] = {{OPTIMIZER_SGD, "fp32", 1e-5}, {OPTIMIZER_ADAMW, "fp32", 1e-5}, {OPTIMIZER_ADAMW, "bf16", 0.02}};

START_TEST(distributed_or_not_is_the_same_bits) {
    if (!rig_has_ranks(MOST)) return;
    run one = run_of(1, kinds[_i].kind, kinds[_i].precision, 0);
    go(&one);
    for (uint32_t dp = 2; dp <= MOST; dp++) {
        run plain = run_of(dp, kinds[_i].kind, kinds[_i].precision, 0);
        run shared = run_of(dp, kinds[_i].kind, kinds[_i].precision, 1);
        go(&plain);
        go(&shared);
        ck_assert_mem_eq(plain.loss, shared.loss, sizeof plain.loss);
        ck_assert_mem_eq(plain.norm[0], shared.norm[0], sizeof plain.norm[0]);
        ck_assert(plain.n == shared.n && plain.bytes[0] == shared.bytes[0]);
        ck_assert(memcmp(plain.weights, shared.weights, (size_t)plain.n * 4) == 0);
        ck_assert(memcmp(plain.read[0], shared.read[0], plain.bytes[0]) == 0);
        for (int i = 1; i <= STEPS; i++) {
            double apart = fabs(shared.loss[i] - one.loss[i]) / one.loss[i];
            ck_assert_msg(apart < kinds[_i].tolerance, "dp %u, step %d: loss %.9g, of one rank %.9g", dp, i,
                          shared.loss[i], one.loss[i]);
        }
        drop(&plain);
        drop(&shared);
    }
    ck_assert(one.loss[STEPS] < one.loss[1] * 0.99); /* it has learnt something */
    drop(&one);
}
END_TEST

/* ---- memory ---- */
/* Of a rank: FP32 weights and gradients, and 8 / dp bytes of moments an element; BF16 copies and gradients, and 12 / dp
 * of masters and moments; of what is read in FP32 always, the masters whole. One rank has flags of the gradients of two
 * matrices of four experts, where the device takes them. */
START_TEST(memory_falls_with_the_ranks) {
    if (!rig_has_ranks(MOST)) return;
    const uint64_t flags = strcmp(test_device(), "cuda") != 0 ? 2 * 4 * sizeof(int32_t) : 0;
    for (uint32_t dp = 1; dp <= MOST; dp++)
        for (int half = 0; half < 2; half++)
            for (int on = 0; on < 2; on++) {
                run c = run_of(dp, OPTIMIZER_ADAMW, half ? "bf16" : "fp32", on);
                c.last = 0;
                go(&c);
                uint64_t n = c.bytes[2], linear = c.bytes[3], of = on ? dp : 1;
                uint64_t want = half ? linear * 6 + linear * 12 / of + (n - linear) * 8 + (n - linear) * 8 / of
                                     : n * 8 + n * 8 / of;
                want += dp == 1 ? flags : 0;
                ck_assert_msg(c.bytes[1] == want, "dp %u, %s, %d: %llu bytes, not %llu", dp, c.cfg.precision, on,
                              (unsigned long long)c.bytes[1], (unsigned long long)want);
                drop(&c);
            }
}
END_TEST

/* ---- in two parts ---- */
START_TEST(C102_resumed_is_never_stopped) {
    if (!rig_has_ranks(MOST)) return;
    const char *precision = _i ? "bf16" : "fp32";
    char at[300];
    snprintf(at, sizeof at, "%s", scratch_path("at"));
    run whole = run_of(3, OPTIMIZER_ADAMW, precision, 1), before = whole, after = whole, other = whole;
    before.last = 5;
    before.to = at;
    after.first = other.first = 6;
    after.from = other.from = at;
    other.cfg.trainer.optimizer.distributed = 0; /* the files are the same */
    go(&whole);
    go(&before);
    go(&after);
    go(&other);
    ck_assert_mem_eq(whole.loss + 6, after.loss + 6, (STEPS - 5) * sizeof(double));
    ck_assert_mem_eq(whole.loss + 6, other.loss + 6, (STEPS - 5) * sizeof(double));
    ck_assert(memcmp(whole.weights, after.weights, (size_t)whole.n * 4) == 0);
    ck_assert(memcmp(whole.weights, other.weights, (size_t)whole.n * 4) == 0);
    drop(&whole);
    drop(&before);
    drop(&after);
    drop(&other);
}
END_TEST

int main(void) {
    Suite *s = suite_create("distributed");
    TCase *t = tcase_create("distributed");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, distributed_or_not_is_the_same_bits, 0, 3);
    tcase_add_test(t, memory_falls_with_the_ranks);
    tcase_add_loop_test(t, C102_resumed_is_never_stopped, 0, 2);
    suite_add_tcase(s, t);
    return scratch_run(s);
}
