/* The whole model and its step: gradients by finite differences, invariance to the split of the batch, to ranks, to
 * threads and to the order of nodes. */
#include <math.h>
#include <stdlib.h>

#include "rig.h"
#include "train/trainer_impl.h"

static step_result one_step(rig *r, int64_t step) {
    step_result out;
    moe_err err = {.size = sizeof err};
    moe_status status = trainer_step(r->t, step, 0, &out, &err);
    ck_assert_msg(!status, "%s", err.msg);
    return out;
}

START_TEST(loss_falls) {
    rig_cfg c = rig_default();
    c.precision = _i ? "bf16" : "fp32";
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1};
    c.trainer.lr.lr = 3e-3;
    rig r;
    rig_open(&r, &c, NULL);
    double first = one_step(&r, 1).loss, last = 0;
    for (int i = 2; i <= 60; i++) last = one_step(&r, i).loss;
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
    one_step(&r, 1);
    const model *m = r.t->model;
    float bias[2][4];
    for (int l = 0; l < 2; l++) {
        memcpy(bias[l], m->routers[l].state[0], sizeof bias[l]);
        ck_assert_msg(bias[l][0] != 0 || bias[l][1] != 0, "the bias of layer %d has not moved in a good step", l);
    }
    m->params.master[m->params.at[m->final_norm].offset] = NAN;
    int64_t n = 0;
    float *before = rig_tensors(&r, 0, &n);
    step_result out;
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(trainer_step(r.t, 2, 0, &out, &err), MOE_E_DATA);
    ck_assert_msg(strstr(err.msg, "gradient norm") != NULL, "%s", err.msg);
    float *after = rig_tensors(&r, 0, &n);
    ck_assert_msg(memcmp(before, after, (size_t)n * sizeof *after) == 0, "weights have moved");
    for (int l = 0; l < 2; l++) ck_assert_mem_eq(m->routers[l].state[0], bias[l], sizeof bias[l]);
    free(before);
    free(after);
    rig_close(&r);
}
END_TEST

/* ---- gradients ---- */
/* The variants whose whole backward is checked: experts alone, a dense layer first, shared expert, tied head. */
static rig_cfg variant(int i) {
    rig_cfg c = rig_default();
    c.trainer.model.seq = 5; /* divides no block */
    c.trainer.model.micro = 1;
    c.trainer.global = 2;
    c.trainer.model.head_rows = 3;
    if (i == 1) c.trainer.model.dense_layers = 1, c.trainer.model.shared_ffn = 16;
    if (i == 2) c.trainer.model.tied = 1, c.trainer.model.top_k = 4;
    if (i == 3) c.trainer.model.experts = 0;
    return c;
}

/* The loss at weights w + eps * d, d = +-1 in one tensor alone. */
static double loss_beside(rig *r, const char *name, const float *w, const float *d, int64_t n, double eps) {
    float *moved = malloc((size_t)n * sizeof *moved);
    moe_err err = {.size = sizeof err};
    ck_assert_ptr_nonnull(moved);
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)w[i] + eps * (double)d[i]);
    ck_assert_msg(!trainer_write(r->t, name, moved, &err), "%s", err.msg);
    free(moved);
    return one_step(r, 1).loss;
}

/* One tensor: central differences along two random directions against the gradient. */
static void check_tensor(rig *r, const char *name, int64_t n, int variant_number) {
    float *w = malloc((size_t)n * sizeof *w), *g = malloc((size_t)n * sizeof *g), *d = malloc((size_t)n * sizeof *d);
    moe_err err = {.size = sizeof err};
    ck_assert(w && g && d);
    one_step(r, 1);
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
        if (eps * along > 0.02) eps = 0.02 / along;
        double slope = (loss_beside(r, name, w, d, n, eps) - loss_beside(r, name, w, d, n, -eps)) / (2 * eps);
        ck_assert_msg(fabs(slope - along) < 0.02 * along + 2e-5, "variant %d, %s: slope %g, gradient %g",
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

/* Gradients of one step, at given ways of cutting the same global batch. */
static float *gradients(const rig_cfg *c, double *loss, int64_t *n) {
    rig r;
    rig_open(&r, c, NULL);
    *loss = one_step(&r, 1).loss;
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

/* Balance loss per sequence, so that a choice never sees how sequences are grouped. */
static void with_balance(rig_cfg *c) {
    c->router[0] = (moe_kv){"aux_coef", "0.02"};
    c->router[1] = (moe_kv){"aux_scope", "sequence"};
    c->router[2] = (moe_kv){"z_coef", "0.001"};
}

START_TEST(C022_one_microbatch_of_8_is_8_of_1) {
    rig_cfg c = rig_default();
    with_balance(&c);
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
        step_result out = one_step(&r, i + 1);
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
        with_balance(&c[i].cfg);
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
/* A scheduler that draws a random topological order; the seed is an option. */
typedef struct shuffler {
    uint64_t seed;
} shuffler;

static moe_status shuffle_create(const moe_scheduler_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)host;
    shuffler *s = malloc(sizeof *s);
    if (!s) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    s->seed = (uint64_t)moe_kv_int(cfg->kv, cfg->n_kv, "seed", 0);
    *self = s;
    return MOE_OK;
}
static moe_status shuffle_shape(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    (void)in;
    (void)err;
    out->n_buckets = 1 + (uint32_t)(((const shuffler *)self)->seed % 5);
    return MOE_OK;
}
static moe_status shuffle_order(const void *self, const moe_sched_view *v, uint32_t *order, moe_err *err) {
    const shuffler *s = self;
    uint32_t *ready = malloc((v->n_nodes + 1) * sizeof *ready), *left = calloc(v->n_nodes + 1, sizeof *left);
    if (!ready || !left) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    uint32_t n_ready = 0;
    moe_random_key key = moe_random_key_make(s->seed, MOE_RANDOM_SAMPLE, "order");
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        left[i] = v->pred_start[i + 1] - v->pred_start[i];
        if (!left[i]) ready[n_ready++] = i;
    }
    for (uint32_t at = 0; at < v->n_nodes; at++) {
        uint32_t k = moe_random_words(key, at, 0).v[0] % n_ready, node = ready[k];
        ready[k] = ready[--n_ready];
        order[at] = node;
        for (uint32_t i = node + 1; i < v->n_nodes; i++)
            for (uint32_t e = v->pred_start[i]; e < v->pred_start[i + 1]; e++)
                if (v->pred[e] == node && --left[i] == 0) ready[n_ready++] = i;
    }
    free(ready);
    free(left);
    return MOE_OK;
}
static const moe_scheduler_v0 shuffle_table = {.size = sizeof shuffle_table,
                                               .create = shuffle_create,
                                               .destroy = free,
                                               .shape = shuffle_shape,
                                               .order = shuffle_order};

START_TEST(every_topological_order_gives_the_same_bits) {
    rig_cfg c = rig_default();
    with_balance(&c);
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
    double loss = one_step(&r, 1).loss;
    if (env->rank == 0) {
        c->loss = loss;
        c->gradients = rig_tensors(&r, 1, &c->n);
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
    Suite *s = suite_create("model");
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, loss_falls, 0, 2);
    tcase_add_test(t, a_skipped_step_moves_neither_weights_nor_bias);
    tcase_add_loop_test(t, C044_C053_every_gradient_by_finite_differences, 0, 4);
    tcase_add_test(t, C022_one_microbatch_of_8_is_8_of_1);
    tcase_add_loop_test(t, threads_change_no_bit, 0, 2);
    tcase_add_loop_test(t, C026_C050_C051_C052_C055_data_parallel_ranks_are_one_rank, 2, 3);
    tcase_add_loop_test(t, C026_C050_C051_C052_C055_data_parallel_ranks_are_one_rank, 4, 5);
    for (int i = 0; i < 4; i++) tcase_add_loop_test(t, every_topological_order_gives_the_same_bits, 25 * i, 25 * i + 1);
    tcase_add_test(t, C087_reduction_beside_backward_changes_no_bit);
    tcase_add_test(t, C063_ranks_that_would_wait_for_each_other_are_refused);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
