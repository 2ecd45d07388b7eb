/* The whole model and its step: invariance to the split of the batch, to ranks, to threads and to the order of nodes.
 */
#include <math.h>
#include <stdlib.h>

#include "rig.h"
#include "run_suite.h"
#include "shuffle.h"
#include "train/trainer_impl.h"

START_TEST(loss_falls) {
    rig_cfg c = rig_default();
    c.precision = _i ? "bf16" : "fp32";
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    c.trainer.lr.lr = 3e-3;
    rig r;
    rig_open(&r, &c, NULL);
    double first = rig_step(&r, 1).loss, last = 0;
    for (int i = 2; i <= 60; i++) last = rig_step(&r, i).loss;
    ck_assert_msg(fabs(first - log(256)) < 0.5, "first loss %g is not near ln 256", first);
    ck_assert_msg(last < first - 2, "loss %g after 60 steps, %g at first", last, first);
    rig_close(&r);
}
END_TEST

/* A gradient that is not a number, behind all routers: neither the weights nor the balance of the experts move. */
START_TEST(a_skipped_step_moves_neither_weights_nor_bias) {
    rig_cfg c = rig_default();
    c.router[0] = (moe_kv){"expert_bias", "true"};
    rig r;
    rig_open(&r, &c, NULL);
    rig_step(&r, 1);
    const model *m = r.t->model;
    float bias[2][4];
    for (int l = 0; l < 2; l++) {
        rig_copy(&r, bias[l], m->routers[l].state[0], sizeof bias[l]);
        ck_assert_msg(bias[l][0] != 0 || bias[l][1] != 0, "the bias of layer %d has not moved in a good step", l);
    }
    const float nan = NAN;
    float *norm = m->params.master + m->params.at[m->final_norm].offset;
    rig_copy(&r, norm, &nan, sizeof nan);
    int64_t n = 0;
    float *before = rig_tensors(&r, 0, &n);
    step_result out;
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(trainer_step(r.t, 2, 0, &out, &err), MOE_E_DATA);
    ck_assert_msg(strstr(err.msg, "gradient norm") != NULL, "%s", err.msg);
    float *after = rig_tensors(&r, 0, &n);
    ck_assert_msg(memcmp(before, after, (size_t)n * sizeof *after) == 0, "weights have moved");
    for (int l = 0; l < 2; l++) {
        float now[4];
        rig_copy(&r, now, m->routers[l].state[0], sizeof now);
        ck_assert_mem_eq(now, bias[l], sizeof now);
    }
    free(before);
    free(after);
    rig_close(&r);
}
END_TEST

/* Gradients of one step, at given ways of cutting the same global batch. */
static float *gradients(const rig_cfg *c, double *loss, int64_t *n) {
    rig r;
    rig_open(&r, c, NULL);
    *loss = rig_step(&r, 1).loss;
    float *g = rig_tensors(&r, 1, n);
    rig_close(&r);
    return g;
}

/* Largest difference relative to the largest element, tensor by tensor. */
static double worst(const rig_cfg *c, const float *a, const float *b) {
    rig r;
    rig_cfg one = *c;
    one.world = 1;
    rig_open(&r, &one, NULL);
    double d = rig_difference(&r, a, b);
    rig_close(&r);
    return d;
}

START_TEST(C022_one_microbatch_of_8_is_8_of_1) {
    rig_cfg c = rig_default();
    rig_balance(&c);
    c.trainer.global = 8;
    c.trainer.model.micro = 8;
    double loss[2];
    int64_t n;
    float *whole = gradients(&c, &loss[0], &n);
    c.trainer.model.micro = 1;
    float *ones = gradients(&c, &loss[1], &n);
    ck_assert_msg(fabs(loss[0] - loss[1]) < 1e-5 * loss[0], "loss %.9g and %.9g", loss[0], loss[1]);
    ck_assert_msg(worst(&c, ones, whole) < 1e-5, "gradients differ by %g", worst(&c, ones, whole));
    free(whole);
    free(ones);
}
END_TEST

START_TEST(threads_change_no_bit) {
    rig_cfg c = rig_default();
    c.precision = _i ? "bf16" : "fp32";
    c.trainer.model.seq = 70;
    double loss[3];
    int64_t n;
    float *one = gradients(&c, &loss[0], &n);
    for (int t = 2; t <= 3; t++) {
        c.threads = t == 2 ? "2" : "3";
        float *more = gradients(&c, &loss[t - 1], &n);
        ck_assert(loss[t - 1] == loss[0]);
        ck_assert(memcmp(one, more, (size_t)n * sizeof *one) == 0);
        free(more);
    }
    free(one);
}
END_TEST

/* ---- ranks ---- */
typedef struct rank_case {
    rig_cfg cfg;
    float *gradients, *weights; /* of rank 0 */
    float *replica[8];          /* weights of the others */
    double loss[5];
    int64_t n;
} rank_case;

static void train_rank(rank_env *env) {
    rank_case *c = env->arg;
    rig r;
    rig_open(&r, &c->cfg, env);
    for (int i = 0; i < 5; i++) {
        step_result out = rig_step(&r, i + 1);
        if (env->rank == 0) c->loss[i] = out.loss;
    }
    int64_t n;
    float *g = rig_tensors(&r, 1, &n), *w = rig_tensors(&r, 0, &n);
    if (env->rank == 0) {
        c->gradients = g;
        c->weights = w;
        c->n = n;
    } else {
        free(g);
        c->replica[env->rank] = w;
    }
    rig_close(&r);
}

START_TEST(C026_C050_C051_C052_C055_data_parallel_ranks_are_one_rank) {
    rank_case c[2] = {{.cfg = rig_default()}, {.cfg = rig_default()}};
    for (int i = 0; i < 2; i++) {
        rig_balance(&c[i].cfg);
        c[i].cfg.trainer.global = 8;
        c[i].cfg.world = i ? (uint32_t)_i : 1;
        ranks_run(c[i].cfg.world, train_rank, &c[i]);
    }
    for (int i = 0; i < 5; i++)
        ck_assert_msg(fabs(c[0].loss[i] - c[1].loss[i]) < 1e-5 * c[0].loss[i], "step %d: loss %.9g and %.9g", i + 1,
                      c[0].loss[i], c[1].loss[i]);
    ck_assert_msg(worst(&c[0].cfg, c[1].gradients, c[0].gradients) < 1e-5, "gradients differ by %g",
                  worst(&c[0].cfg, c[1].gradients, c[0].gradients));
    ck_assert_msg(worst(&c[0].cfg, c[1].weights, c[0].weights) < 1e-5, "weights differ");
    for (uint32_t i = 1; i < c[1].cfg.world; i++) { /* C055: replicas stay the same bits */
        ck_assert(memcmp(c[1].replica[i], c[1].weights, (size_t)c[1].n * sizeof(float)) == 0);
        free(c[1].replica[i]);
    }
    for (int i = 0; i < 2; i++) free(c[i].gradients), free(c[i].weights);
}
END_TEST

/* ---- order ---- */
START_TEST(every_topological_order_gives_the_same_bits) {
    rig_cfg c = rig_default();
    rig_balance(&c);
    c.trainer.model.shared_ffn = 16;
    c.trainer.model.micro = 1;
    c.trainer.global = 3;
    double first = 0, loss = 0;
    int64_t n;
    float *serial = gradients(&c, &first, &n);
    c.scheduler = &shuffle_table;
    c.n_scheduler_kv = 1;
    for (int seed = _i; seed < _i + 25; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        const moe_kv kv = {"seed", text};
        c.scheduler_kv = &kv;
        float *other = gradients(&c, &loss, &n);
        ck_assert_msg(loss == first, "seed %d: loss %.17g, not %.17g", seed, loss, first);
        ck_assert_msg(memcmp(serial, other, (size_t)n * sizeof *serial) == 0, "seed %d: other gradients", seed);
        free(other);
    }
    free(serial);
}
END_TEST

/* ---- ranks and order together ---- */
typedef struct order_case {
    rig_cfg cfg;
    int seed[2]; /* of each rank; -1 = the serial scheduler */
    double loss;
    float *gradients; /* of rank 0 */
    int64_t n;
    moe_status status[2];
    moe_err err[2];
} order_case;

static void ordered_rank(rank_env *env) {
    order_case *c = env->arg;
    rig_cfg own = c->cfg;
    rig r;
    char text[16];
    snprintf(text, sizeof text, "%d", c->seed[env->rank]);
    const moe_kv kv = {"seed", text};
    if (c->seed[env->rank] >= 0) {
        own.scheduler = &shuffle_table;
        own.scheduler_kv = &kv;
        own.n_scheduler_kv = 1;
    }
    moe_err *err = &c->err[env->rank];
    err->size = sizeof *err;
    c->status[env->rank] = rig_try_open(&r, &own, env, err);
    if (c->status[env->rank]) return;
    double loss = rig_step(&r, 1).loss;
    int64_t n = 0;
    float *gradients = rig_tensors(&r, 1, &n);
    if (env->rank == 0) {
        c->loss = loss;
        c->gradients = gradients;
        c->n = n;
    } else {
        free(gradients);
    }
    rig_close(&r);
}

START_TEST(C087_reduction_beside_backward_changes_no_bit) {
    order_case serial = {.cfg = rig_default(), .seed = {-1, -1}};
    serial.cfg.world = 2;
    ranks_run(2, ordered_rank, &serial);
    ck_assert(!serial.status[0] && !serial.status[1]);
    for (int seed = 1; seed <= 8; seed++) { /* up to five buckets, reduced while backward goes on */
        order_case c = {.cfg = serial.cfg, .seed = {seed, seed}};
        ranks_run(2, ordered_rank, &c);
        ck_assert_msg(!c.status[0] && !c.status[1], "%s", c.err[0].msg);
        ck_assert(c.loss == serial.loss);
        ck_assert(memcmp(c.gradients, serial.gradients, (size_t)c.n * sizeof(float)) == 0);
        free(c.gradients);
    }
    free(serial.gradients);
}
END_TEST

START_TEST(C063_ranks_that_would_wait_for_each_other_are_refused) {
    order_case c = {.cfg = rig_default(), .seed = {1, 2}};
    c.cfg.world = 2;
    ranks_run(2, ordered_rank, &c);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_ne(c.status[r], MOE_OK);
        ck_assert_msg(strstr(c.err[r].msg, "communication calls") || c.status[r] == MOE_E_COMM, "%s", c.err[r].msg);
    }
    ck_assert(c.status[0] == MOE_E_ARG || c.status[1] == MOE_E_ARG);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, loss_falls, 0, 2);
    tcase_add_test(t, a_skipped_step_moves_neither_weights_nor_bias);
    tcase_add_test(t, C022_one_microbatch_of_8_is_8_of_1);
    tcase_add_loop_test(t, threads_change_no_bit, 0, 2);
    tcase_add_loop_test(t, C026_C050_C051_C052_C055_data_parallel_ranks_are_one_rank, 2, 3);
    tcase_add_loop_test(t, C026_C050_C051_C052_C055_data_parallel_ranks_are_one_rank, 4, 5);
    for (int i = 0; i < 4; i++) tcase_add_loop_test(t, every_topological_order_gives_the_same_bits, 25 * i, 25 * i + 1);
    tcase_add_test(t, C087_reduction_beside_backward_changes_no_bit);
    tcase_add_test(t, C063_ranks_that_would_wait_for_each_other_are_refused);
    return run_suite("model", t);
}
