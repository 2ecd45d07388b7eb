/* Under any mesh: the gradient norm is the whole model's, and a state saved under one mesh is, under any other, the
 * same files, the same moments and the same further steps. */
#include <io/fs.h>
#include <io/safetensors.h>
#include <math.h>
#include <stdlib.h>

#include "../io/scratch.h"
#include "rig.h"
#include "train/trainer_impl.h"

enum { STEPS = 8, HALF = 4, MOST = 8 };

/* world, tp, cp, dp, pp, etp, ep */
static const mesh_cfg meshes[] = {
    {1, 1, 1, 1, 1, 1, 1}, {2, 2, 1, 1, 1, 1, 2}, {4, 2, 1, 2, 1, 1, 4}, {3, 1, 1, 3, 1, 1, 1}, {4, 1, 1, 4, 1, 2, 2},
    {2, 1, 1, 2, 1, 1, 1}, {8, 2, 1, 4, 1, 2, 2}, {2, 1, 1, 2, 1, 2, 1}, {6, 2, 1, 3, 1, 1, 2},
};
enum { N_MESHES = sizeof meshes / sizeof meshes[0] };

typedef struct run {
    rig_cfg cfg;
    const char *from, *to; /* states to load before and to save after; NULL = none */
    int64_t first, last;
    double loss[STEPS + 1];
    float norm[MOST][STEPS + 1];
    double formula; /* norm of the gradients of the last step, as all ranks together read them */
} run;

static run run_of(int number) {
    run r = {.cfg = rig_default(), .first = 1, .last = STEPS};
    rig_balance(&r.cfg);
    r.cfg.dispatcher = meshes[number].ep * meshes[number].etp > 1 ? "alltoall" : "local";
    r.cfg.world = meshes[number].world;
    r.cfg.trainer.mesh = meshes[number];
    r.cfg.trainer.model.dense_layers = 1;
    r.cfg.trainer.model.shared_ffn = 12;
    r.cfg.trainer.model.expert_biases = 1;
    r.cfg.trainer.model.micro = 1;
    r.cfg.trainer.global = 12;
    r.cfg.trainer.programs = TRAINER_TRAIN;
    r.cfg.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 0.5F, 1};
    r.cfg.trainer.lr.lr = 3e-3;
    return r;
}

static double norm_of_all(const rig *r) {
    int64_t n = 0;
    double sum = 0;
    float *g = rig_tensors(r, 1, &n);
    for (int64_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    free(g);
    return sqrt(sum);
}

static void run_rank(rank_env *env) {
    run *c = env->arg;
    rig r;
    moe_err err = {.size = sizeof err};
    rig_open(&r, &c->cfg, env);
    if (c->from) ck_assert_msg(!trainer_load(r.t, c->from, 1, &err), "%s", err.msg);
    for (int64_t i = c->first; i <= c->last; i++) {
        step_result out = rig_step(&r, i);
        if (!env->rank) c->loss[i] = out.loss;
        c->norm[env->rank][i] = (float)out.grad_norm;
    }
    double formula = norm_of_all(&r);
    if (!env->rank) c->formula = formula;
    if (c->to) rig_save(&r, c->to);
    rig_close(&r);
}

static void go(run *c) {
    ranks_run(c->cfg.world, run_rank, c);
    for (uint32_t i = 1; i < c->cfg.world; i++) ck_assert_mem_eq(c->norm[0], c->norm[i], sizeof c->norm[0]);
    if (c->first > c->last) return;
    double apart = fabs((double)c->norm[0][c->last] - c->formula) / c->formula;
    ck_assert_msg(apart < 1e-6, "norm %.9g, of all gradients %.9g", (double)c->norm[0][c->last], c->formula);
}

/* ---- norm ---- */
START_TEST(C058_C060_norm_is_the_whole_models_under_every_mesh) {
    run one = run_of(0), many = run_of(_i);
    one.last = many.last = 2;
    go(&one);
    go(&many);
    for (int i = 1; i <= 2; i++) {
        double apart = fabs((double)many.norm[0][i] - (double)one.norm[0][i]) / (double)one.norm[0][i];
        ck_assert_msg(apart < 1e-5, "step %d: norm %.9g, of one rank %.9g", i, (double)many.norm[0][i],
                      (double)one.norm[0][i]);
    }
}
END_TEST

/* ---- files ---- */
static void check_same_files(const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[2][400], *bytes[2];
        uint64_t n[2];
        const char *const dirs[] = {a, b};
        for (int k = 0; k < 2; k++) {
            snprintf(path[k], sizeof path[k], "%s/%s", dirs[k], files[i]);
            ck_ok(fs_load(path[k], 1 << 26, &bytes[k], &n[k], err));
        }
        ck_assert_msg(n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0, "%s and %s differ", path[0], path[1]);
        free(bytes[0]);
        free(bytes[1]);
    }
}

/* Steps under one mesh, then the state through every other mesh and back: the files stay as they are. */
START_TEST(C100_C103_files_are_the_same_under_every_mesh) {
    char last[300], next[300];
    snprintf(last, sizeof last, "%s", scratch_path("trained"));
    run first = run_of(_i);
    first.last = 2;
    first.to = last;
    go(&first);
    for (int i = 0; i < N_MESHES; i++) {
        char name[16];
        snprintf(name, sizeof name, "mesh-%d", i);
        snprintf(next, sizeof next, "%s", scratch_path(name));
        run move = run_of(i);
        move.last = 0; /* no step */
        move.from = last;
        move.to = next;
        go(&move);
        check_same_files(last, next);
        memcpy(last, next, sizeof last);
    }
}
END_TEST

/* The further steps under another mesh follow those that were never stopped. */
START_TEST(C102_steps_go_on_under_another_mesh) {
    static const int pairs[][2] = {{1, 2}, {2, 4}, {4, 0}, {0, 6}, {3, 5}, {6, 3}};
    char at[300];
    snprintf(at, sizeof at, "%s", scratch_path("half"));
    run whole = run_of(pairs[_i][0]), before = whole, after = run_of(pairs[_i][1]);
    before.last = HALF;
    before.to = at;
    after.first = HALF + 1;
    after.from = at;
    go(&whole);
    go(&before);
    go(&after);
    for (int i = HALF + 1; i <= STEPS; i++) {
        double apart = fabs(whole.loss[i] - after.loss[i]) / whole.loss[i];
        ck_assert_msg(apart < 1e-5, "step %d: loss %.9g, never stopped %.9g", i, after.loss[i], whole.loss[i]);
    }
}
END_TEST

/* ---- marked values ---- */
/* gate halves are 1, up halves 2, all else 0.5, saved by three ranks and read by others. */
static void mark(rig *r) {
    int64_t n = 0;
    const char *name;
    moe_err err = {.size = sizeof err};
    for (uint32_t i = 0; (name = trainer_param_name(r->t, i, &n)); i++) {
        const param *p = &r->t->model->params.at[i];
        int64_t inner = p->whole[p->ndim - 1], rows = p->whole[p->ndim - 2 < 0 ? 0 : p->ndim - 2];
        int gated = strstr(name, ".w1") != NULL;
        float *values = malloc((size_t)n * sizeof *values);
        for (int64_t k = 0; k < n; k++) values[k] = !gated ? 0.5F : k / inner % rows < rows / 2 ? 1 : 2;
        ck_assert_msg(!trainer_write(r->t, name, values, &err), "%s", err.msg);
        free(values);
    }
}

static void marked_rank(rank_env *env) {
    run *c = env->arg;
    rig r;
    rig_open(&r, &c->cfg, env);
    mark(&r);
    rig_save(&r, c->to);
    rig_close(&r);
}

/* The same bytes in the device memory of two rigs. */
static void same_memory(const rig *r, const void *a, const rig *s, const void *b, uint64_t bytes) {
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    if (bytes) rig_get(r, x, a, bytes);
    if (bytes) rig_get(s, y, b, bytes);
    ck_assert(memcmp(x, y, bytes) == 0);
    free(x);
    free(y);
}

static void reading_rank(rank_env *env) {
    run *c = env->arg;
    rig r, fresh;
    moe_err err = {.size = sizeof err};
    rig_open(&r, &c->cfg, env);
    rig_open(&fresh, &c->cfg, env);
    ck_assert_msg(!trainer_load(r.t, c->from, 1, &err), "%s", err.msg);
    mark(&fresh);
    const params *p = &r.t->model->params, *q = &fresh.t->model->params;
    for (int kind = 0; kind < PARAM_CLASSES; kind++)
        for (param_span s = params_next_held(p, PARAM_MASTER, (param_class)kind, p->begin[kind], p->begin[kind + 1]);
             s.count; s = params_next_held(p, PARAM_MASTER, (param_class)kind, s.begin + s.count, p->begin[kind + 1])) {
            const param_bucket *there = s.bucket ? &q->buckets[s.bucket - p->buckets] : NULL;
            same_memory(&r, params_address(p, PARAM_MASTER, s.bucket, s.begin), &fresh,
                        params_address(q, PARAM_MASTER, there, s.begin), (uint64_t)s.count * 4);
        }
    if (p->copy) same_memory(&r, p->copy, &fresh, q->copy, (uint64_t)p->begin[PARAM_LINEAR + 1] * 2);
    rig_close(&fresh);
    rig_close(&r);
}

START_TEST(C104_C107_marked_values_return_to_their_places) {
    char at[300];
    snprintf(at, sizeof at, "%s", scratch_path("marked"));
    run from = run_of(3), to = run_of(_i);
    from.to = at;
    to.from = at;
    to.cfg.precision = _i % 2 ? "bf16" : "fp32";
    ranks_run(from.cfg.world, marked_rank, &from);
    ranks_run(to.cfg.world, reading_rank, &to);
}
END_TEST

/* ---- experts without rows ---- */
typedef struct idle_case {
    rig_cfg cfg;
    float w[4], m[4], router[128];
} idle_case;

/* The router's weights are zero: ties take experts 0 and 1, and rank 1 of ep = 2, with experts 2 and 3, gets no row. */
static void idle_rank(rank_env *env) {
    static const char *const experts = "layers.1.experts.w2", *const router = "layers.1.router.weight";
    idle_case *c = env->arg;
    rig r;
    moe_err err = {.size = sizeof err};
    enum { W = 4 * 32 * 24 };
    float *w = malloc(W * sizeof *w), *m = malloc(W * sizeof *m), g[128] = {0};
    rig_open(&r, &c->cfg, env);
    ck_assert_msg(!trainer_write(r.t, router, g, &err), "%s", err.msg);
    for (int i = 0; i < W; i++) w[i] = 1;
    ck_assert_msg(!trainer_write(r.t, experts, w, &err), "%s", err.msg);
    rig_step(&r, 1);
    ck_assert_int_eq(trainer_read(r.t, experts, 0, w, &err), W);
    ck_assert_int_eq(trainer_read(r.t, experts, 1, m, &err), W);
    ck_assert_int_eq(trainer_read(r.t, router, 1, g, &err), 128);
    for (int e = 0; e < 4 && !env->rank; e++) {
        for (int i = 0; i < W / 4; i++) { /* all elements of an idle expert are alike */
            if (e >= 2) ck_assert(w[e * W / 4 + i] == w[e * W / 4] && m[e * W / 4 + i] == 0);
            if (e < 2 && m[e * W / 4 + i] != 0) c->m[e] = 1;
        }
        c->w[e] = w[e * W / 4];
    }
    if (!env->rank) memcpy(c->router, g, sizeof g);
    free(w);
    free(m);
    rig_close(&r);
}

START_TEST(C045_a_rank_without_rows_decays_and_steps) {
    idle_case c[2] = {{.cfg = run_of(0).cfg}, {.cfg = run_of(0).cfg}};
    for (int i = 0; i < 2; i++) {
        c[i].cfg.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 0, 1};
        c[i].cfg.trainer.lr.lr = 0.1;
        if (i) {
            c[i].cfg.world = 2;
            c[i].cfg.dispatcher = "alltoall";
            c[i].cfg.trainer.mesh = (mesh_cfg){2, 1, 1, 2, 1, 1, 2};
        }
        ranks_run(c[i].cfg.world, idle_rank, &c[i]);
        ck_assert(c[i].m[0] == 1 && c[i].m[1] == 1); /* the others have gradients */
        for (int e = 2; e < 4; e++)
            ck_assert_msg(fabs((double)c[i].w[e] - 0.99) < 1e-6, "expert %d: %.9g", e, (double)c[i].w[e]);
    }
    double diff = 0, size = 1e-30;
    for (int i = 0; i < 128; i++) {
        diff = fmax(diff, fabs((double)c[0].router[i] - (double)c[1].router[i]));
        size = fmax(size, fabs((double)c[0].router[i]));
    }
    ck_assert_msg(diff < 1e-5 * size, "router gradients differ by %g", diff / size);
}
END_TEST

int main(void) {
    Suite *s = suite_create("meshes");
    TCase *t = tcase_create("meshes");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, C058_C060_norm_is_the_whole_models_under_every_mesh, 1, N_MESHES);
    tcase_add_loop_test(t, C100_C103_files_are_the_same_under_every_mesh, 1, 5);
    tcase_add_loop_test(t, C102_steps_go_on_under_another_mesh, 0, 6);
    tcase_add_loop_test(t, C104_C107_marked_values_return_to_their_places, 0, N_MESHES);
    tcase_add_test(t, C045_a_rank_without_rows_decays_and_steps);
    suite_add_tcase(s, t);
    return scratch_run(s);
}
