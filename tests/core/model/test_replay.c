/* What happens twice happens the same way: routing that is recomputed in backward, and a run that is loaded from what
 * another number of ranks, or the same, has saved. Each test bears the number of its case. */
#include <math.h>
#include <stdlib.h>

#include "core/io/scratch.h"
#include "io/safetensors.h"
#include "jitter_router.h"
#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

static jitter_router *router_of(const rig *r, int layer) {
    return r->t->parts->router_self[layer];
}

/* ---- recompute ---- */
START_TEST(C019_recompute_adds_nothing) {
    static const char *const styles[][2] = {
        {"score", "softmax"}, {"score", "sigmoid"}, {"order", "after"}, {"aux_scope", "sequence"}};
    rig_cfg c = rig_default();
    rig r[2]; /* none, full */
    step_result out[2];
    int64_t n = 0;
    c.router[0] = (moe_kv){"aux_coef", "0.02"};
    c.router[1] = (moe_kv){"z_coef", "0.001"};
    c.router[2] = (moe_kv){"expert_bias", "true"};
    c.router[3] = (moe_kv){styles[_i][0], styles[_i][1]};
    if (!test_on_cpu()) return; /* a router in plain C */
    for (int i = 0; i < 2; i++) {
        c.router_table = i ? &recompute_table : &jitter_table;
        rig_open(&r[i], &c, NULL);
    }
    for (int64_t step = 1; step <= 3; step++) {
        for (int i = 0; i < 2; i++) out[i] = rig_step(&r[i], step);
        ck_assert_msg(out[0].aux_loss == out[1].aux_loss, "aux loss %.17g, recomputed %.17g", out[0].aux_loss,
                      out[1].aux_loss);
        ck_assert_msg(out[0].z_loss == out[1].z_loss, "z loss %.17g, recomputed %.17g", out[0].z_loss, out[1].z_loss);
        ck_assert(out[0].router_entropy == out[1].router_entropy && out[0].loss == out[1].loss);
        ck_assert_mem_eq(r[0].t->staging.counts, r[1].t->staging.counts, 2 * 4 * sizeof(int64_t));
        float *a = rig_tensors(&r[0], 1, &n), *b = rig_tensors(&r[1], 1, &n);
        ck_assert_msg(memcmp(a, b, (size_t)n * sizeof *a) == 0, "gradients of step %d differ", (int)step);
        free(a);
        free(b);
    }
    for (int l = 0; l < 2; l++) {
        ck_assert_uint_eq(router_of(&r[1], l)->again, 3 * 2); /* steps, microbatches */
        ck_assert_uint_eq(router_of(&r[1], l)->different, 0);
        ck_assert_mem_eq(r[0].t->model->routers[l].state[0], r[1].t->model->routers[l].state[0], 4 * sizeof(float));
    }
    rig_close(&r[0]);
    rig_close(&r[1]);
}
END_TEST

/* ---- files ---- */
static void save(const rig *r, const char *name) {
    rig_save(r, scratch_path(name));
}

/* Largest |a - b| / largest |b| of one tensor, FP32 */
static double apart(st_file *fa, const st_tensor *ta, st_file *fb, const st_tensor *tb) {
    float *a = malloc(ta->bytes), *b = malloc(tb->bytes);
    ck_assert(a && b && ta->bytes == tb->bytes && ta->dtype == MOE_F32);
    ck_ok(st_read(fa, ta, a, ta->bytes, err));
    ck_ok(st_read(fb, tb, b, tb->bytes, err));
    double diff = 0, size = 1e-30;
    for (int64_t i = 0; i < ta->elements; i++) {
        diff = fmax(diff, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    free(a);
    free(b);
    return diff / size;
}

/* Two saved states hold the same names, and under every name values at most `tolerance` apart. */
static void compare(const char *a, const char *b, const char *file, double tolerance) {
    char path[2][700];
    st_file *f[2];
    const char *const dirs[] = {a, b};
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", scratch_path(dirs[i]), file);
        ck_ok(st_open(path[i], &f[i], err));
    }
    ck_assert_uint_eq(st_count(f[0]), st_count(f[1]));
    for (uint64_t i = 0; i < st_count(f[0]); i++) {
        const st_tensor *x = st_at(f[0], i), *y = st_find(f[1], x->name);
        ck_assert_msg(y != NULL, "%s lacks %s", path[1], x->name);
        double d = apart(f[0], x, f[1], y);
        ck_assert_msg(d <= tolerance, "%s of %s and %s: %g apart", x->name, a, b, d);
    }
    for (int i = 0; i < 2; i++) st_close(f[i]);
}

/* ---- a run in two parts ---- */
enum { RANKS = 2, LAST = 8 };

typedef struct run_case {
    rig_cfg cfg;
    const char *from, *at, *end; /* what is loaded (NULL: nothing), saved after step first - 1, and at the end */
    int64_t first, last;         /* steps to compare */
    double loss[LAST + 1];
    uint64_t drawn[RANKS][2]; /* of each layer, in the steps to compare */
    float bias[RANKS][2][4];  /* before them */
} run_case;

static run_case adamw(uint32_t world) {
    run_case c = {.cfg = rig_default()};
    c.cfg.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    c.cfg.trainer.lr.lr = 3e-3;
    c.cfg.trainer.global = 8;
    c.cfg.world = world;
    rig_balance(&c.cfg);
    c.cfg.router[3] = (moe_kv){"expert_bias", "true"};
    return c;
}

/* Without a file: steps 1 .. first - 1, saved as `at`. With one: a step that leaves other weights, moments and biases
 * behind, then the file. */
static void bring_up(run_case *c, rig *r, uint32_t rank) {
    if (c->from) {
        rig_step(r, 77);
        ck_ok(trainer_load(r->t, scratch_path(c->from), 1, err));
    } else {
        for (int64_t step = 1; step < c->first; step++) rig_step(r, step);
    }
    if (c->at) save(r, c->at);
    for (int l = 0; l < 2; l++) {
        rig_get(r, c->bias[rank][l], r->t->model->routers[l].state[0], sizeof c->bias[0][0]);
        if (c->cfg.router_table) router_of(r, l)->drawn = 0;
    }
}

static void run_rank(rank_env *env) {
    run_case *c = env->arg;
    rig r;
    rig_open(&r, &c->cfg, env);
    bring_up(c, &r, env->rank);
    for (int64_t step = c->first; step <= c->last; step++) {
        double loss = rig_step(&r, step).loss;
        if (env->rank == 0) c->loss[step] = loss;
    }
    for (int l = 0; l < 2 && c->cfg.router_table; l++) c->drawn[env->rank][l] = router_of(&r, l)->drawn;
    if (c->end) save(&r, c->end);
    rig_close(&r);
}

/* The steps after a load, on other ranks than those that have saved: 2 to 1 and 1 to 2. */
START_TEST(C102_optimizer_state_moves_to_another_number_of_ranks) {
    run_case whole = adamw(_i ? 1 : 2), moved = adamw(_i ? 2 : 1);
    if (!rig_has_ranks(2)) return;
    whole.at = "at5", whole.end = "end";
    moved.from = "at5", moved.at = "loaded", moved.end = "end of moved";
    whole.first = moved.first = 6;
    whole.last = moved.last = 7; /* the loss of step 7 is the first that moments have a part in */
    ranks_run(whole.cfg.world, run_rank, &whole);
    ranks_run(moved.cfg.world, run_rank, &moved);
    compare("loaded", "at5", "model.safetensors", 0);
    compare("loaded", "at5", "optimizer.safetensors", 0);
    for (int i = 6; i <= 7; i++)
        ck_assert_msg(fabs(whole.loss[i] - moved.loss[i]) < 1e-5 * whole.loss[i],
                      "step %d: loss %.9g, uninterrupted %.9g", i, moved.loss[i], whole.loss[i]);
    compare("end of moved", "end", "optimizer.safetensors", 1e-5);
    compare("end of moved", "end", "model.safetensors", 1e-4);
}
END_TEST

START_TEST(C105_resumed_ranks_keep_their_random_streams) {
    run_case whole = adamw(RANKS), resumed = adamw(RANKS);
    if (!test_on_cpu()) return; /* a router in plain C */
    whole.at = "at3", whole.end = "end";
    resumed.from = "at3", resumed.at = "loaded", resumed.end = "end of resumed";
    run_case *const runs[] = {&whole, &resumed};
    for (int i = 0; i < 2; i++) {
        runs[i]->first = 4;
        runs[i]->last = LAST;
        runs[i]->cfg.router_table = &jitter_table;
        ranks_run(RANKS, run_rank, runs[i]);
    }
    for (int64_t step = 4; step <= LAST; step++)
        ck_assert_msg(whole.loss[step] == resumed.loss[step], "step %d: %.17g, resumed %.17g", (int)step,
                      whole.loss[step], resumed.loss[step]);
    for (int l = 0; l < 2; l++) {
        ck_assert(whole.bias[0][l][0] != 0 || whole.bias[0][l][1] != 0); /* there was something to save */
        for (int rank = 0; rank < RANKS; rank++) {
            ck_assert_mem_eq(resumed.bias[rank][l], whole.bias[0][l], sizeof whole.bias[0][l]);
            ck_assert_msg(whole.drawn[rank][l] == resumed.drawn[rank][l],
                          "rank %d, layer %d draws other numbers after the load", rank, l);
        }
        ck_assert_msg(whole.drawn[0][l] != whole.drawn[1][l], "both ranks draw the same numbers");
    }
    compare("end of resumed", "end", "model.safetensors", 0);
    compare("end of resumed", "end", "optimizer.safetensors", 0);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("replay");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, C019_recompute_adds_nothing, 0, 4);
    tcase_add_loop_test(t, C102_optimizer_state_moves_to_another_number_of_ranks, 0, 2);
    tcase_add_test(t, C105_resumed_ranks_keep_their_random_streams);
    return run_suite("replay", t);
}
