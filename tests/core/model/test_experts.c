/* Experts in files and out of dense blocks: which numbers lie under which expert's name. */
#include <math.h>
#include <stdlib.h>

#include "core/io/scratch.h"
#include "io/safetensors.h"
#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

static rig_cfg adamw(uint32_t world) {
    rig_cfg c = rig_default();
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    c.trainer.lr.lr = 3e-3;
    c.trainer.global = 8;
    c.world = world;
    c.router[0] = (moe_kv){"expert_bias", "true"};
    return c;
}

/* Loads `from` (NULL: nothing), trains `steps` steps, saves as `to` on rank 0. */
typedef struct leg {
    rig_cfg cfg;
    const char *from, *to;
    int64_t first, steps;
} leg;

static void travel(rank_env *env) {
    leg *l = env->arg;
    rig r;
    rig_open(&r, &l->cfg, env);
    if (l->from) ck_ok(trainer_load(r.t, scratch_path(l->from), 1, err));
    for (int64_t i = 0; i < l->steps; i++) rig_step(&r, l->first + i);
    rig_save(&r, scratch_path(l->to));
    rig_close(&r);
}

static void go(uint32_t world, const char *from, const char *to, int64_t first, int64_t steps) {
    leg l = {adamw(world), from, to, first, steps};
    ranks_run(world, travel, &l);
}

/* Bytes of a file of a saved state; the caller frees. */
static char *bytes_of(const char *dir, const char *file, uint64_t *n) {
    char path[700], *out = NULL;
    snprintf(path, sizeof path, "%s/%s", scratch_path(dir), file);
    ck_ok(fs_load(path, 1 << 26, &out, n, err));
    return out;
}

static void check_same(const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        uint64_t n[2];
        char *x = bytes_of(a, files[i], &n[0]), *y = bytes_of(b, files[i], &n[1]);
        ck_assert_msg(n[0] == n[1] && memcmp(x, y, n[0]) == 0, "%s of %s and %s differ", files[i], a, b);
        free(x);
        free(y);
    }
}

START_TEST(C103_files_survive_a_round_trip_over_meshes) {
    if (!rig_has_ranks(2)) return;
    go(2, NULL, "two", 1, 3);
    go(1, "two", "one", 0, 0);
    go(4, "one", "four", 0, 0);
    go(2, "four", "two-again", 0, 0);
    check_same("two", "one");
    check_same("two", "four");
    check_same("two", "two-again");
}
END_TEST

/* ---- names ---- */
/* Every number of expert e is e. */
static void fill_experts(rig *r, const char *name) {
    const params *p = &r->t->model->params;
    int64_t id = params_find(p, name), count = p->at[id].count, each = count / p->at[id].experts;
    float *values = malloc((size_t)count * sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < count; i++) values[i] = (float)(i / each);
    ck_ok(trainer_write(r->t, name, values, err));
    free(values);
}

static void numbered(rank_env *env) {
    static const char *const names[] = {"layers.0.experts.w1", "layers.0.experts.w2", "layers.1.experts.w1",
                                        "layers.1.experts.w2"};
    leg *l = env->arg;
    rig r;
    rig_open(&r, &l->cfg, env);
    for (int i = 0; i < 4; i++) fill_experts(&r, names[i]);
    rig_save(&r, scratch_path(l->to));
    rig_close(&r);
}

START_TEST(C100_C101_experts_have_their_global_numbers) {
    if (!rig_has_ranks(2)) return;
    leg l = {.cfg = adamw(2), .to = "numbered"};
    char path[700], name[64];
    st_file *f = NULL;
    ranks_run(2, numbered, &l);
    snprintf(path, sizeof path, "%s/model.safetensors", scratch_path("numbered"));
    ck_ok(st_open(path, &f, err));
    for (int layer = 0; layer < 2; layer++)
        for (int e = 0; e < 4; e++)
            for (int w = 1; w <= 2; w++) {
                snprintf(name, sizeof name, "layers.%d.experts.%d.w%d", layer, e, w);
                const st_tensor *t = st_find(f, name);
                ck_assert_msg(t != NULL, "no %s", name);
                float *values = malloc(t->bytes);
                ck_ok(st_read(f, t, values, t->bytes, err));
                for (int64_t i = 0; i < t->elements; i++)
                    ck_assert_msg(values[i] == (float)e, "%s[%d] = %g", name, (int)i, (double)values[i]);
                free(values);
            }
    ck_assert_ptr_null(st_find(f, "layers.0.experts.4.w1"));
    st_close(f);
}
END_TEST

/* ---- dense blocks as experts ---- */
/* w of the dense model under the name of the MoE model, `copies` times, scaled. */
static void copy_weights(const rig *from, const char *dense, rig *to, const char *name, int copies, float scale) {
    int64_t n = from->t->model->params.at[params_find(&from->t->model->params, dense)].count;
    float *w = malloc((size_t)(n * copies) * sizeof *w);
    moe_err err = {.size = sizeof err};
    ck_assert_ptr_nonnull(w);
    ck_assert(trainer_read(from->t, dense, 0, w, &err) == n);
    for (int64_t i = 0; i < n; i++) w[i] *= scale;
    for (int64_t i = n; i < n * copies; i++) w[i] = w[i - n];
    ck_assert_msg(!trainer_write(to->t, name, w, &err), "%s", err.msg);
    free(w);
}

/* Loss of a MoE model whose four experts are all the dense model's MLP, its second product scaled; the router sees all
 * experts alike. */
static double upcycled_loss(const rig *dense, const char *renormalise, float scale) {
    rig_cfg c = rig_default();
    rig r;
    int64_t n = 0;
    const char *name;
    c.trainer.lr.lr = 0;
    c.router[0] = (moe_kv){"renormalise", renormalise};
    rig_open(&r, &c, NULL);
    for (uint32_t i = 0; (name = trainer_param_name(r.t, i, &n)); i++)
        if (!strstr(name, "experts") && !strstr(name, "router")) copy_weights(dense, name, &r, name, 1, 1);
    for (int l = 0; l < 2; l++) {
        char from[64], to[64];
        static const float zero[4 * 32];
        for (int w = 1; w <= 2; w++) {
            snprintf(from, sizeof from, "layers.%d.mlp.w%d", l, w);
            snprintf(to, sizeof to, "layers.%d.experts.w%d", l, w);
            copy_weights(dense, from, &r, to, 4, w == 2 ? scale : 1);
        }
        snprintf(to, sizeof to, "layers.%d.router.weight", l);
        ck_ok(trainer_write(r.t, to, zero, err));
    }
    double loss = rig_step(&r, 1).loss;
    rig_close(&r);
    return loss;
}

START_TEST(C109_a_dense_block_copied_into_experts_is_the_same_model) {
    rig_cfg c = rig_default();
    rig dense;
    c.trainer.model.experts = 0;
    c.trainer.model.dense_ffn = c.trainer.model.expert_ffn;
    c.trainer.lr.lr = 0;
    rig_open(&dense, &c, NULL);
    double loss = rig_step(&dense, 1).loss;
    double same = upcycled_loss(&dense, "true", 1), half = upcycled_loss(&dense, "false", 1);
    double made_up = upcycled_loss(&dense, "false", 2); /* two of four equal weights: a sum of 1/2 */
    ck_assert_msg(fabs(same - loss) < 1e-6, "renormalised: loss %.9g, dense %.9g", same, loss);
    ck_assert_msg(fabs(half - loss) > 1e-4, "weights that sum to 1/2 change nothing: %.9g", half);
    ck_assert_msg(fabs(made_up - loss) < 1e-6, "scaled back: loss %.9g, dense %.9g", made_up, loss);
    rig_close(&dense);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("experts");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, C103_files_survive_a_round_trip_over_meshes);
    tcase_add_test(t, C100_C101_experts_have_their_global_numbers);
    tcase_add_test(t, C109_a_dense_block_copied_into_experts_is_the_same_model);
    return run_suite("experts", t);
}
