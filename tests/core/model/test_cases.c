/* Faults that users of other systems met, in small: experts without tokens, stale memory, replicas, files in another
 * order. Each test bears the numbers of its cases. */
#include <io/safetensors.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

static float *read_all(const rig *r, const char *name, int gradient, int64_t *n) {
    moe_err err = {.size = sizeof err};
    float *out = malloc(1 << 20);
    ck_assert_ptr_nonnull(out);
    *n = trainer_read(r->t, name, gradient, out, &err);
    ck_assert_msg(*n > 0, "%s", err.msg);
    return out;
}

/* All router weights zero: every logit is equal, so every token goes to experts 0 and 1, the lowest. */
static void starve(rig *r) {
    moe_err err = {.size = sizeof err};
    float zeros[4 * 32] = {0};
    ck_assert_msg(!trainer_write(r->t, "layers.0.router.weight", zeros, &err), "%s", err.msg);
    ck_assert_msg(!trainer_write(r->t, "layers.1.router.weight", zeros, &err), "%s", err.msg);
}

static void starved_rank(rank_env *env) {
    rig_cfg *c = env->arg;
    rig r;
    int64_t n = 0;
    rig_open(&r, c, env);
    starve(&r);
    float *before = read_all(&r, "layers.0.experts.w1", 0, &n);
    step_result out = rig_step(&r, 1);
    ck_assert(out.dead == 2 && fabs(out.imbalance - 2) < 1e-12);
    float *g = read_all(&r, "layers.0.experts.w1", 1, &n), *after = read_all(&r, "layers.0.experts.w1", 0, &n);
    int64_t half = n / 2;
    double seen = 0;
    for (int64_t i = 0; i < half; i++) seen += fabs((double)g[i]);
    ck_assert_msg(seen > 0, "experts with tokens have no gradient");
    for (int64_t i = half; i < n; i++) { /* decay only: w (1 - lr * decay) */
        ck_assert_msg(g[i] == 0, "gradient %g of an expert without tokens", (double)g[i]);
        ck_assert(fabs((double)after[i] - 0.99 * (double)before[i]) <= 1e-7 * fabs((double)before[i]));
    }
    free(before);
    free(after);
    free(g);
    rig_close(&r);
}

START_TEST(C041_C045_C086_experts_without_tokens_get_zero_and_still_step) {
    if (!rig_has_ranks((uint32_t)_i)) return;
    rig_cfg c = rig_default();
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 0, 0};
    c.world = (uint32_t)_i;
    ranks_run(c.world, starved_rank, &c);
}
END_TEST

/* Whatever the step's memory held before, NaN above all, nothing of it is read. */
START_TEST(C054_C065_stale_memory_is_never_read) {
    rig_cfg c = rig_default();
    c.precision = _i ? "bf16" : "fp32";
    c.trainer.model.shared_ffn = 16;
    c.trainer.model.dense_layers = 1;
    rig clean, dirty;
    rig_open(&clean, &c, NULL);
    rig_open(&dirty, &c, NULL);
    for (int step = 1; step <= 3; step++) {
        rig_fill(&dirty, dirty.t->arena, 0xff, dirty.t->arena_bytes);
        double a = rig_step(&clean, step).loss, b = rig_step(&dirty, step).loss;
        int64_t n = 0;
        float *x = rig_tensors(&clean, 1, &n), *y = rig_tensors(&dirty, 1, &n);
        ck_assert_msg(a == b, "step %d: loss %.17g and %.17g", step, a, b);
        ck_assert(memcmp(x, y, (size_t)n * sizeof *x) == 0);
        free(x);
        free(y);
    }
    rig_close(&clean);
    rig_close(&dirty);
}
END_TEST

/* A dense layer first, evaluation between all steps, two ranks: every rank joins every collective. */
static void mixed_rank(rank_env *env) {
    rig r;
    double loss = 0;
    moe_err err = {.size = sizeof err};
    rig_open(&r, env->arg, env);
    for (int step = 1; step <= 4; step++) {
        step_result out = rig_step(&r, step);
        ck_assert(isfinite(out.aux_loss) && out.aux_loss > 0.99);
        ck_assert_msg(!trainer_eval(r.t, 2, &loss, &err), "%s", err.msg);
        ck_assert(isfinite(loss));
    }
    rig_close(&r);
}

START_TEST(C031_C083_dense_and_moe_layers_on_every_rank) {
    if (!rig_has_ranks(2)) return;
    rig_cfg c = rig_default();
    c.trainer.model.dense_layers = 1;
    c.world = 2;
    ranks_run(2, mixed_rank, &c);
}
END_TEST

/* ---- files ---- */
static moe_status no_key(void *arg, const char *key, moe_err *err) {
    (void)arg;
    (void)key;
    (void)err;
    return MOE_OK;
}

/* Writes the tensors of a file again, last first. */
static void reverse_file(const char *dir, const char *name) {
    char path[256];
    st_file *in = NULL;
    st_writer *out = NULL;
    moe_err err = {.size = sizeof err};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_assert_msg(!st_open(path, &in, &err), "%s", err.msg);
    ck_assert_msg(!st_writer_create(path, &out, &err), "%s", err.msg);
    for (uint64_t i = st_count(in); i-- > 0;) {
        const st_tensor *t = st_at(in, i);
        ck_assert_msg(!st_writer_declare(out, t->name, t->dtype, t->ndim, t->shape, &err), "%s", err.msg);
    }
    for (uint64_t i = st_count(in); i-- > 0;) {
        const st_tensor *t = st_at(in, i);
        char *bytes = malloc(t->bytes + 1);
        ck_assert_msg(!st_read(in, t, bytes, t->bytes, &err), "%s", err.msg);
        ck_assert_msg(!st_write(out, bytes, t->bytes, &err), "%s", err.msg);
        free(bytes);
    }
    st_close(in);
    ck_assert_msg(!st_writer_finish(out, &err), "%s", err.msg);
}

START_TEST(C064_C104_state_is_found_by_name_never_by_place) {
    char dir[] = "/tmp/moehost-cases-XXXXXX", path[256];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    rig_cfg c = rig_default();
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    moe_err err = {.size = sizeof err};
    rig a, b;
    int64_t n = 0;
    rig_open(&a, &c, NULL);
    rig_open(&b, &c, NULL);
    float *w = read_all(&a, "layers.1.experts.w1", 0, &n);
    for (int64_t i = 0; i < n; i++) w[i] = i / (24 * 32) % 2 ? 2 : 1; /* gate half 1, up half 2 of each expert */
    ck_assert_msg(!trainer_write(a.t, "layers.1.experts.w1", w, &err), "%s", err.msg);
    ck_assert_msg(!trainer_save(a.t, dir, no_key, NULL, &err), "%s", err.msg);
    reverse_file(dir, "model.safetensors");
    reverse_file(dir, "optimizer.safetensors");
    ck_assert_msg(!trainer_load(b.t, dir, 1, &err), "%s", err.msg);
    float *v = read_all(&b, "layers.1.experts.w1", 0, &n);
    ck_assert(memcmp(v, w, (size_t)n * sizeof *v) == 0);
    for (int step = 1; step <= 2; step++) ck_assert(rig_step(&a, step).loss == rig_step(&b, step).loss);
    free(w);
    free(v);
    rig_close(&a);
    rig_close(&b);
    static const char *const names[] = {"model", "optimizer"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s.safetensors", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("cases");
    tcase_add_loop_test(t, C041_C045_C086_experts_without_tokens_get_zero_and_still_step, 1, 3);
    tcase_add_loop_test(t, C054_C065_stale_memory_is_never_read, 0, 2);
    tcase_add_test(t, C031_C083_dense_and_moe_layers_on_every_rank);
    tcase_add_test(t, C064_C104_state_is_found_by_name_never_by_place);
    return run_suite("cases", t);
}
