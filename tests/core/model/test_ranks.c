/* What a step reports and computes is the same for any number of ranks: balance losses, gradient norm, loss over many
 * steps, and the calls of the collectives themselves. Each test bears the number of its case. */
#include <math.h>
#include <stdlib.h>

#include "counting_comm.h"
#include "rig.h"
#include "run_suite.h"
#include "shuffle.h"
#include "train/trainer_impl.h"

static float *read_one(const rig *r, const char *name, int gradient, int64_t *n) {
    moe_err err = {.size = sizeof err};
    float *out = malloc(1 << 18);
    ck_assert_ptr_nonnull(out);
    *n = trainer_read(r->t, name, gradient, out, &err);
    ck_assert_msg(*n > 0 && *n <= 1 << 16, "%s", err.msg);
    return out;
}

static double relative(double a, double b) {
    return fabs(a - b) / fmax(fabs(b), 1e-30);
}

/* Largest |a - b| / largest |b| */
static double difference(const float *a, const float *b, int64_t n) {
    double diff = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        diff = fmax(diff, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    return diff / size;
}

/* ---- balance losses ---- */
enum { E = 4, HIDDEN = 32, ROUTER = E * HIDDEN, LAYERS = 2 };

typedef struct balance_case {
    rig_cfg cfg;
    double aux[2], z[2]; /* of each rank */
    float router[2][LAYERS][ROUTER];
} balance_case;

static void balance_rank(rank_env *env) {
    balance_case *c = env->arg;
    rig r;
    rig_open(&r, &c->cfg, env);
    step_result out = rig_step(&r, 1);
    ck_assert_int_eq(out.tokens, 8);
    c->aux[env->rank] = out.aux_loss;
    c->z[env->rank] = out.z_loss;
    for (int l = 0; l < LAYERS; l++) {
        char name[32];
        int64_t n = 0;
        snprintf(name, sizeof name, "layers.%d.router.weight", l);
        float *g = read_one(&r, name, 1, &n);
        ck_assert_int_eq(n, ROUTER);
        memcpy(c->router[env->rank][l], g, sizeof c->router[0][l]);
        free(g);
    }
    rig_close(&r);
}

/* Eight tokens in two sequences. */
static balance_case balance_of(uint32_t world, int64_t micro, int with_losses) {
    balance_case c = {.cfg = rig_default()};
    if (with_losses) rig_balance(&c.cfg);
    c.cfg.trainer.model.seq = 4;
    c.cfg.trainer.model.micro = micro;
    c.cfg.trainer.global = 2;
    c.cfg.world = world;
    ranks_run(world, balance_rank, &c);
    return c;
}

START_TEST(C023_balance_losses_know_no_ranks) {
    if (!rig_has_ranks(2)) return;
    balance_case one = balance_of(1, 2, 1), without = balance_of(1, 2, 0);
    balance_case split[] = {balance_of(1, 1, 1), balance_of(2, 1, 1)};
    for (int l = 0; l < LAYERS; l++) /* the losses are a part of this gradient that the comparison sees */
        ck_assert_double_gt(difference(without.router[0][l], one.router[0][l], ROUTER), 1e-3);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t rank = 0; rank < split[i].cfg.world; rank++) {
            const balance_case *s = &split[i];
            ck_assert_msg(relative(s->aux[rank], one.aux[0]) < 1e-5, "aux loss %.9g and %.9g", s->aux[rank],
                          one.aux[0]);
            ck_assert_msg(relative(s->z[rank], one.z[0]) < 1e-5, "z loss %.9g and %.9g", s->z[rank], one.z[0]);
            for (int l = 0; l < LAYERS; l++) {
                double d = difference(s->router[rank][l], one.router[0][l], ROUTER);
                ck_assert_msg(d < 1e-5, "rank %u of %u, layer %d: router gradients differ by %g", rank, s->cfg.world, l,
                              d);
            }
        }
}
END_TEST

/* ---- gradient norm ---- */
/* Rank 0 has gradients in experts 0 and 1 alone, with 20 as their sum of squares, rank 1 in experts 2 and 3, with 100:
 * the norm is that of the sum over the ranks. */
static void planted_rank(rank_env *env) {
    float *norm = env->arg;
    rig_cfg c = rig_default();
    rig r;
    c.world = 2;
    c.comm = &counting_table;
    rig_open(&r, &c, env);
    const params *p = &r.t->model->params;
    int64_t id = params_find(p, "layers.1.experts.w1");
    ck_assert_int_ge(id, 0);
    counting_comm *comm = r.t->parts->comm_self;
    comm->plant_n = (uint64_t)p->at[id].count / 2;
    comm->plant_at = p->grad + p->at[id].offset + env->rank * comm->plant_n;
    comm->plant = (float)sqrt((env->rank ? 100.0 : 20.0) / (double)comm->plant_n);
    norm[env->rank] = (float)rig_step(&r, 1).grad_norm;
    rig_close(&r);
}

START_TEST(C059_norm_of_gradients_on_two_ranks) {
    if (!test_on_cpu()) return; /* the comm writes into gradients */
    float norm[2] = {0, 0};
    ranks_run(2, planted_rank, norm);
    ck_assert_msg(memcmp(&norm[0], &norm[1], sizeof norm[0]) == 0, "%.9g and %.9g", (double)norm[0], (double)norm[1]);
    ck_assert_msg(relative((double)norm[0], sqrt(120)) < 1e-6, "norm %.9g, not %.9g", (double)norm[0], sqrt(120));
}
END_TEST

typedef struct norm_case {
    rig_cfg cfg;
    int64_t buckets;  /* 0 = the serial scheduler */
    float norm[2][2]; /* of each rank: norm, clip coefficient */
    double formula[2];
} norm_case;

static void norm_rank(rank_env *env) {
    norm_case *c = env->arg;
    rig_cfg own = c->cfg;
    char text[16];
    snprintf(text, sizeof text, "%d", (int)c->buckets);
    const moe_kv kv[] = {{"seed", "5"}, {"buckets", text}};
    if (c->buckets) own.scheduler = &shuffle_table, own.scheduler_kv = kv, own.n_scheduler_kv = 2;
    rig r;
    int64_t n = 0;
    rig_open(&r, &own, env);
    rig_step(&r, 1);
    memcpy(c->norm[env->rank], r.t->staging.norm, sizeof c->norm[0]);
    float *g = rig_tensors(&r, 1, &n);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    c->formula[env->rank] = sqrt(sum);
    free(g);
    rig_close(&r);
}

static norm_case norm_of(uint32_t world, int64_t buckets) {
    norm_case c = {.cfg = rig_default(), .buckets = buckets};
    rig_balance(&c.cfg);
    c.cfg.world = world;
    c.cfg.trainer.optimizer.clip = 0.01F; /* small: every step is clipped */
    c.cfg.trainer.model.shared_ffn = 16;
    c.cfg.trainer.model.dense_layers = 1;
    ranks_run(world, norm_rank, &c);
    for (uint32_t i = 0; i < world; i++) {
        double norm = (double)c.norm[i][0], coef = (double)c.norm[i][1];
        ck_assert_msg(relative(norm, c.formula[i]) < 1e-6, "rank %u: norm %.9g, formula %.9g", i, norm, c.formula[i]);
        ck_assert_msg(relative(coef * c.formula[i], (double)0.01F) < 1e-6, "rank %u: clipped by %.9g", i, coef);
    }
    return c;
}

START_TEST(C059_norm_is_the_formula_and_the_same_bits_everywhere) {
    if (!rig_has_ranks(2)) return;
    norm_case one = norm_of(1, 0), two = norm_of(2, 0);
    ck_assert_mem_eq(two.norm[0], two.norm[1], sizeof two.norm[0]);
    ck_assert_msg(relative((double)two.norm[0][0], (double)one.norm[0][0]) < 1e-5, "norm %.9g, of one rank %.9g",
                  (double)two.norm[0][0], (double)one.norm[0][0]);
    for (int64_t buckets = 2; buckets <= 6; buckets += 2) { /* nor does the way of the gradients change it */
        norm_case other = norm_of(2, buckets);
        for (int i = 0; i < 2; i++) ck_assert_mem_eq(other.norm[i], two.norm[0], sizeof two.norm[0]);
    }
}
END_TEST

/* ---- many steps ---- */
enum { STEPS = 20 };

typedef struct steps_case {
    rig_cfg cfg;
    double loss[2][STEPS];
    int64_t counts[2][LAYERS * E]; /* of the last step */
    int64_t w1, router;            /* elements on every rank */
} steps_case;

static void steps_rank(rank_env *env) {
    steps_case *c = env->arg;
    rig r;
    int64_t w1 = 0, router = 0;
    rig_open(&r, &c->cfg, env);
    for (int i = 0; i < STEPS; i++) c->loss[env->rank][i] = rig_step(&r, i + 1).loss;
    memcpy(c->counts[env->rank], r.t->staging.counts, sizeof c->counts[0]);
    free(read_one(&r, "layers.0.experts.w1", 0, &w1));
    free(read_one(&r, "layers.0.router.weight", 0, &router));
    ck_assert_int_eq(w1, E * 2 * 24 * HIDDEN); /* `experts` of the recipe, not that times the ranks */
    ck_assert_int_eq(router, ROUTER);
    rig_close(&r);
}

START_TEST(C061_one_rank_of_16_is_two_of_8_for_20_steps) {
    if (!rig_has_ranks(2)) return;
    steps_case c[2] = {{.cfg = rig_default()}, {.cfg = rig_default()}};
    for (uint32_t i = 0; i < 2; i++) {
        rig_balance(&c[i].cfg);
        if (_i) c[i].cfg.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
        if (_i) c[i].cfg.trainer.lr.lr = 3e-3;
        c[i].cfg.trainer.global = 16;
        c[i].cfg.trainer.model.micro = i ? 8 : 16;
        c[i].cfg.world = i + 1;
        ranks_run(c[i].cfg.world, steps_rank, &c[i]);
    }
    for (int i = 0; i < STEPS; i++) {
        ck_assert_msg(relative(c[1].loss[0][i], c[0].loss[0][i]) < 1e-5, "step %d: loss %.9g and %.9g", i + 1,
                      c[1].loss[0][i], c[0].loss[0][i]);
        ck_assert(c[1].loss[0][i] == c[1].loss[1][i]);
    }
    ck_assert(relative(c[0].loss[0][STEPS - 1], c[0].loss[0][0]) > 1e-2); /* it has learnt something */
    for (int l = 0; l < LAYERS; l++) {
        int64_t sum = 0;
        for (int e = 0; e < E; e++) sum += c[1].counts[1][l * E + e];
        ck_assert_int_eq(sum, 16 * 16 * 2); /* sequences, tokens, choices: those of the whole batch on every rank */
    }
}
END_TEST

/* ---- calls of the collectives ---- */
typedef struct calls_case {
    rig_cfg cfg;
    const char *seed, *buckets; /* NULL = the serial scheduler */
    uint32_t grads, others;     /* all_reduce nodes of rank 0's step: of gradients, of anything else */
    uint64_t calls[2], elements[2];
    uint64_t total; /* elements of all gradients */
} calls_case;

/* Nodes of the step; those of gradients take the buckets in order. */
static void count_nodes(const rig *r, calls_case *c) {
    const program *p = &r->t->programs[PROGRAM_TRAIN];
    uint32_t bucket = 0;
    c->total = (uint64_t)r->t->model->params.begin[PARAM_CLASSES];
    for (uint32_t i = 0; i < p->g->n_nodes; i++) {
        const char *name = p->g->nodes[i].info.name;
        if (p->g->nodes[i].info.group < 0) continue;
        if (sscanf(name, "grads.%u.all_reduce", &bucket) == 1) {
            ck_assert_msg(bucket == c->grads, "%s comes after bucket %u", name, c->grads);
            c->grads++;
        } else {
            c->others++;
        }
    }
    ck_assert_uint_eq(c->grads, r->t->model->params.n_buckets);
}

static void calls_rank(rank_env *env) {
    calls_case *c = env->arg;
    rig_cfg own = c->cfg;
    const moe_kv kv[] = {{"seed", c->seed}, {"buckets", c->buckets}};
    if (c->seed) own.scheduler = &shuffle_table, own.scheduler_kv = kv, own.n_scheduler_kv = 2;
    own.comm = &counting_table;
    rig r;
    rig_open(&r, &own, env);
    if (env->rank == 0) count_nodes(&r, c);
    counting_comm *comm = r.t->parts->comm_self;
    for (int64_t step = 1; step <= 2; step++) {
        comm->reductions = comm->elements = 0;
        rig_step(&r, step);
        if (step == 2) ck_assert(comm->reductions == c->calls[env->rank] && comm->elements == c->elements[env->rank]);
        c->calls[env->rank] = comm->reductions;
        c->elements[env->rank] = comm->elements;
    }
    rig_close(&r);
}

static uint32_t buckets_of(const char *seed, const char *buckets) {
    calls_case c = {.cfg = rig_default(), .seed = seed, .buckets = buckets};
    c.cfg.world = 2;
    ranks_run(2, calls_rank, &c);
    /* divisor, statistics, wish to stop, counts, norm; and, where calls return before they are done, faults */
    ck_assert_uint_eq(c.others, test_on_cpu() ? 5 : 6);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(c.calls[i] == c.grads + c.others, "rank %d: %d calls a step, %u + %u nodes", i, (int)c.calls[i],
                      c.grads, c.others);
        ck_assert_uint_eq(c.elements[i], c.total);
    }
    return c.grads;
}

START_TEST(C088_every_order_makes_the_same_calls) {
    if (!rig_has_ranks(2)) return;
    static const char *const seeds[] = {"1", "2", "3"}, *const buckets[] = {"1", "2", "4", "7", "1000"};
    enum { RANGES = 4 }; /* attention and vocabulary, experts, router, norms: one bucket each at least */
    uint32_t before = 0;
    ck_assert_uint_eq(buckets_of(NULL, NULL), RANGES);
    for (int b = 0; b < 5; b++) {
        uint32_t made = buckets_of(seeds[0], buckets[b]);
        for (int s = 1; s < 3; s++) ck_assert_uint_eq(buckets_of(seeds[s], buckets[b]), made);
        uint32_t wanted = (uint32_t)atoi(buckets[b]);
        ck_assert_msg(made >= before && made >= RANGES && made < wanted + RANGES, "%u buckets for %u", made, wanted);
        ck_assert(wanted < RANGES || made + 1 >= wanted);
        before = made;
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("ranks");
    tcase_add_test(t, C023_balance_losses_know_no_ranks);
    tcase_add_test(t, C059_norm_of_gradients_on_two_ranks);
    tcase_add_test(t, C059_norm_is_the_formula_and_the_same_bits_everywhere);
    tcase_add_loop_test(t, C061_one_rank_of_16_is_two_of_8_for_20_steps, 0, 2);
    tcase_add_test(t, C088_every_order_makes_the_same_calls);
    return run_suite("ranks", t);
}
