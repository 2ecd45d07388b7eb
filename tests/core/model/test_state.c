/* State of a run: what is saved comes back bit for bit, a resumed run is a run that never stopped, and a file that does
 * not fit the model is refused by name. */
#include <math.h>
#include <stdlib.h>

#include "core/io/scratch.h"
#include "io/safetensors.h"
#include "rig.h"
#include "train/trainer_impl.h"

enum { EXPERT_W1 = 2 * 24 * 32 };

static rig_cfg adamw(const char *precision) {
    rig_cfg c = rig_default();
    c.precision = precision;
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    c.trainer.lr.lr = 3e-3;
    c.router[0] = (moe_kv){"expert_bias", "true"};
    c.router[1] = (moe_kv){"aux_coef", "0.01"};
    return c;
}

static double train(rig *r, int64_t first, int64_t last, double *losses) {
    step_result out = {0};
    for (int64_t i = first; i <= last; i++) {
        ck_ok(trainer_step(r->t, i, 0, &out, err));
        if (losses) losses[i - first] = out.loss;
    }
    return out.loss;
}

static moe_status count_key(void *arg, const char *key, moe_err *err) {
    (void)key;
    (void)err;
    ++*(uint64_t *)arg;
    return MOE_OK;
}
static const char *save(const rig *r, const char *name) {
    const char *dir = scratch_path(name);
    uint64_t keys = 0;
    ck_ok(fs_make_dirs(dir, err));
    ck_ok(trainer_save(r->t, dir, count_key, &keys, err));
    ck_assert_uint_gt(keys, 0);
    return dir;
}

/* ---- files ---- */
static char *read_all(const char *dir, const char *name, size_t *n) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "no file %s", path);
    ck_assert(fseek(f, 0, SEEK_END) == 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*n + 1);
    ck_assert(bytes && fread(bytes, 1, *n, f) == *n);
    fclose(f);
    return bytes;
}
static int same_file(const char *a, const char *b, const char *name) {
    size_t n, m;
    char *x = read_all(a, name, &n), *y = read_all(b, name, &m);
    int same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}
static void expect_same(const char *a, const char *b) {
    ck_assert_msg(same_file(a, b, "model.safetensors"), "%s and %s hold other weights", a, b);
    ck_assert_msg(same_file(a, b, "optimizer.safetensors"), "%s and %s hold other moments", a, b);
}

/* What a copy of a file changes: NULL leaves alone. */
typedef struct edit {
    const char *drop, *add, *flatten, *narrow; /* names; flatten: to one dimension, narrow: to I32 */
    const char *fill;                          /* every tensor with this in its name becomes `value` */
    float value;
} edit;

static void copy_edited(const char *from, const char *to, const char *name, const edit *e) {
    char source[700], target[700];
    snprintf(source, sizeof source, "%s/%s", from, name);
    snprintf(target, sizeof target, "%s/%s", to, name);
    st_file *in;
    st_writer *out;
    const int64_t one = 1;
    ck_ok(st_open(source, &in, err));
    ck_ok(st_writer_create(target, &out, err));
    for (uint64_t i = 0; i < st_count(in); i++) {
        const st_tensor *t = st_at(in, i);
        if (e->drop && strcmp(t->name, e->drop) == 0) continue;
        int flat = e->flatten && strcmp(t->name, e->flatten) == 0,
            narrow = e->narrow && strcmp(t->name, e->narrow) == 0;
        ck_ok(st_writer_declare(out, t->name, narrow ? MOE_I32 : t->dtype, flat ? 1 : t->ndim,
                                flat ? &t->elements : t->shape, err));
    }
    if (e->add) ck_ok(st_writer_declare(out, e->add, MOE_F32, 1, &one, err));
    for (uint64_t i = 0; i < st_count(in); i++) {
        const st_tensor *t = st_at(in, i);
        float *data = malloc(t->bytes);
        ck_ok(st_read(in, t, data, t->bytes, err));
        if (e->fill && strstr(t->name, e->fill))
            for (int64_t k = 0; k < t->elements; k++) data[k] = e->value;
        if (!e->drop || strcmp(t->name, e->drop) != 0) ck_ok(st_write(out, data, t->bytes, err));
        free(data);
    }
    if (e->add) ck_ok(st_write(out, &e->value, 4, err));
    ck_ok(st_writer_finish(out, err));
    st_close(in);
}
/* A copy of a whole saved state with one file edited. */
static const char *edited(const char *from, const char *name, const char *file, const edit *e) {
    const char *dir = scratch_path(name);
    const edit none = {0};
    ck_ok(fs_make_dirs(dir, err));
    copy_edited(from, dir, "model.safetensors", strcmp(file, "model.safetensors") == 0 ? e : &none);
    copy_edited(from, dir, "optimizer.safetensors", strcmp(file, "optimizer.safetensors") == 0 ? e : &none);
    return dir;
}

/* ---- round trip ---- */
START_TEST(a_resumed_run_is_one_that_never_stopped) {
    rig_cfg c = adamw(_i ? "bf16" : "fp32");
    double whole[5], resumed[5];
    rig a, b;
    rig_open(&a, &c, NULL);
    train(&a, 1, 3, NULL);
    const char *at3 = save(&a, "at3");
    c.trainer.model.seed++; /* other initial weights: every one must come from the file */
    rig_open(&b, &c, NULL);
    train(&b, 1, 1, NULL); /* other moments and router state, too */
    ck_ok(trainer_load(b.t, at3, 1, err));
    expect_same(at3, save(&b, "again"));
    train(&a, 4, 8, whole);
    train(&b, 4, 8, resumed);
    for (int i = 0; i < 5; i++)
        ck_assert_msg(whole[i] == resumed[i], "step %d: %.17g and %.17g", i + 4, whole[i], resumed[i]);
    ck_assert(whole[0] != whole[4]);
    expect_same(save(&a, "end"), save(&b, "end of resumed"));
    rig_close(&a);
    rig_close(&b);
}
END_TEST

START_TEST(without_optimizer_only_the_model_is_loaded) {
    rig_cfg c = adamw("fp32");
    rig a, b;
    rig_open(&a, &c, NULL);
    rig_open(&b, &c, NULL);
    train(&a, 1, 2, NULL);
    train(&b, 1, 1, NULL);
    const char *from = save(&a, "from"), *before = save(&b, "before");
    ck_ok(trainer_load(b.t, from, 0, err));
    const char *after = save(&b, "after");
    ck_assert(same_file(from, after, "model.safetensors"));
    ck_assert(same_file(before, after, "optimizer.safetensors") && !same_file(from, after, "optimizer.safetensors"));
    rig_close(&a);
    rig_close(&b);
}
END_TEST

START_TEST(sgd_has_no_optimizer_state) {
    rig_cfg c = rig_default();
    rig r;
    rig_open(&r, &c, NULL);
    const char *dir = save(&r, "sgd");
    ck_assert_int_eq(scratch_count("sgd"), 1);
    ck_ok(trainer_load(r.t, dir, 1, err));
    rig_close(&r);
}
END_TEST

static moe_status refuse_key(void *arg, const char *key, moe_err *err) {
    (void)arg;
    return moe_fail(err, MOE_E_ARG, "no %s please", key);
}

START_TEST(a_save_that_fails_leaves_no_file) {
    rig_cfg c = adamw("fp32");
    rig r;
    rig_open(&r, &c, NULL);
    ck_ok(fs_make_dirs(scratch_path("none"), err));
    ck_fails(trainer_save(r.t, scratch_path("none"), refuse_key, NULL, err), MOE_E_ARG, "please");
    ck_assert_int_eq(scratch_count("none"), 0);
    uint64_t keys = 0;
    ck_fails(trainer_save(r.t, scratch_path("no such directory"), count_key, &keys, err), MOE_E_IO,
             "no such directory");
    ck_fails(trainer_load(r.t, scratch_path("none"), 1, err), MOE_E_IO, "model.safetensors");
    rig_close(&r);
}
END_TEST

/* ---- names ---- */
START_TEST(C100_experts_are_saved_under_their_global_numbers) {
    rig_cfg c = adamw("fp32");
    rig r;
    rig_open(&r, &c, NULL);
    char path[700];
    st_file *f;
    snprintf(path, sizeof path, "%s/model.safetensors", save(&r, "names"));
    ck_ok(st_open(path, &f, err));
    float *all = malloc(4 * EXPERT_W1 * sizeof *all), *one = malloc(EXPERT_W1 * sizeof *one);
    moe_err why = {.size = sizeof why};
    for (int l = 0; l < 2; l++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.experts.w1", l);
        ck_assert_ptr_null(st_find(f, name));
        ck_assert_int_eq(trainer_read(r.t, name, 0, all, &why), 4 * EXPERT_W1);
        for (int e = 0; e < 4; e++) {
            snprintf(name, sizeof name, "layers.%d.experts.%d.w1", l, e);
            const st_tensor *t = st_find(f, name);
            ck_assert_msg(t && t->ndim == 2 && t->shape[0] == 48 && t->shape[1] == 32, "%s", name);
            ck_ok(st_read(f, t, one, EXPERT_W1 * 4, err));
            ck_assert_msg(memcmp(one, all + e * EXPERT_W1, EXPERT_W1 * 4) == 0, "%s is another expert", name);
        }
        snprintf(name, sizeof name, "layers.%d.experts.4.w1", l);
        ck_assert_ptr_null(st_find(f, name));
    }
    st_close(f);
    free(all);
    free(one);
    rig_close(&r);
}
END_TEST

static void save_rank(rank_env *env) {
    rig r;
    rig_open(&r, env->arg, env);
    train(&r, 1, 2, NULL);
    save(&r, env->rank ? "rank1" : "rank0");
    rig_close(&r);
}

START_TEST(replicas_save_the_same_file) {
    if (!rig_has_ranks(2)) return;
    rig_cfg c = adamw("fp32");
    c.world = 2;
    ranks_run(2, save_rank, &c);
    char first[300], second[300];
    snprintf(first, sizeof first, "%s/rank0", scratch_dir);
    snprintf(second, sizeof second, "%s/rank1", scratch_dir);
    expect_same(first, second);
    c.world = 1; /* and one rank can go on from it */
    rig r;
    rig_open(&r, &c, NULL);
    ck_ok(trainer_load(r.t, first, 1, err));
    expect_same(first, save(&r, "alone"));
    rig_close(&r);
}
END_TEST

/* ---- what does not fit ---- */
static const struct {
    const char *file, *words[3];
    edit e;
} misfits[] = {
    {"model.safetensors",
     {"1 tensors of the model are missing: layers.1.experts.2.w2"},
     {.drop = "layers.1.experts.2.w2"}},
    {"model.safetensors", {"1 tensors that the model does not have: layers.9.norm1"}, {.add = "layers.9.norm1"}},
    {"model.safetensors",
     {"tensor layers.0.router.weight", "128 x 1", "4 x 32"},
     {.flatten = "layers.0.router.weight"}},
    {"model.safetensors", {"tensor final_norm is I32", "the model's is F32"}, {.narrow = "final_norm"}},
    {"model.safetensors", {"missing: layers.0.router.expert_bias"}, {.drop = "layers.0.router.expert_bias"}},
    {"optimizer.safetensors", {"missing: v.embed"}, {.drop = "v.embed"}},
    {"optimizer.safetensors", {"does not have: m.extra"}, {.add = "m.extra"}},
};
enum { N_MISFITS = sizeof misfits / sizeof *misfits };

START_TEST(C106_tensors_that_do_not_fit_are_named) {
    rig_cfg c = adamw("fp32");
    rig r, other;
    rig_open(&r, &c, NULL);
    c.trainer.model.seed++;
    rig_open(&other, &c, NULL);
    const char *bad = edited(save(&other, "good"), "bad", misfits[_i].file, &misfits[_i].e),
               *before = save(&r, "before");
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(trainer_load(r.t, bad, 1, &err), MOE_E_DATA);
    ck_assert_msg(strstr(err.msg, misfits[_i].file) != NULL, "%s", err.msg);
    for (int k = 0; k < 3 && misfits[_i].words[k]; k++)
        ck_assert_msg(strstr(err.msg, misfits[_i].words[k]) != NULL, "'%s' lacks '%s'", err.msg, misfits[_i].words[k]);
    ck_assert(same_file(before, save(&r, "after"), misfits[_i].file)); /* nothing of that file was taken */
    rig_close(&r);
    rig_close(&other);
}
END_TEST

START_TEST(C106_several_missing_tensors_are_listed) {
    rig_cfg c = adamw("fp32");
    rig small, large;
    rig_open(&small, &c, NULL);
    c.trainer.model.experts = 6;
    rig_open(&large, &c, NULL);
    const char *dir = save(&small, "small");
    /* router and bias have other shapes: the first is named */
    ck_fails(trainer_load(large.t, dir, 0, err), MOE_E_DATA, "layers.0.router");
    c.trainer.model.experts = 4;
    c.trainer.model.layers = 3;
    rig deep;
    rig_open(&deep, &c, NULL);
    ck_fails(trainer_load(deep.t, dir, 0, err), MOE_E_DATA, "14 tensors of the model are missing: ");
    ck_fails(trainer_load(deep.t, dir, 0, err), MOE_E_DATA, " layers.2.experts.3.w1 layers.2.experts.0.w2 ");
    rig_close(&small);
    rig_close(&large);
    rig_close(&deep);
}
END_TEST

START_TEST(C107_loaded_experts_reach_the_products) {
    rig_cfg c = adamw("bf16");
    rig r;
    rig_open(&r, &c, NULL);
    const edit half = {.fill = ".experts.", .value = 0.5F};
    ck_ok(trainer_load(r.t, edited(save(&r, "random"), "half", "model.safetensors", &half), 1, err));
    const params *p = &r.t->model->params;
    int experts = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!p->at[i].experts) continue;
        experts++;
        const int64_t n = p->at[i].count;
        float *master = malloc((size_t)n * sizeof *master);
        uint16_t *copy = malloc((size_t)n * sizeof *copy);
        rig_get(&r, master, p->master + p->at[i].offset, (uint64_t)n * sizeof *master);
        rig_get(&r, copy, p->copy + p->at[i].offset, (uint64_t)n * sizeof *copy);
        for (int64_t k = 0; k < n; k++) /* masters, and the BF16 copies that the products read */
            if (master[k] != 0.5F || copy[k] != 0x3f00)
                ck_abort_msg("%s[%d] is %g, copy %04x", p->at[i].name, (int)k, (double)master[k], copy[k]);
        free(master);
        free(copy);
    }
    ck_assert_int_eq(experts, 4);
    rig_close(&r);
}
END_TEST

/* ---- router state ---- */
/* An expert that is never chosen: its bias goes up by the rate each step, in FP32 although the model is BF16. */
START_TEST(C012_bias_moves_in_small_steps_beside_bf16_weights) {
    rig_cfg c = adamw("bf16");
    rig r;
    rig_open(&r, &c, NULL);
    float *there = r.t->model->routers[0].state[0], bias;
    const float one = 1;
    const char *start = save(&r, "start");
    const edit large = {.fill = "layers.0.router.expert_bias", .value = 1000};
    ck_ok(trainer_load(r.t, edited(start, "large", "model.safetensors", &large), 1, err));
    rig_get(&r, &bias, there, sizeof bias);
    ck_assert(bias == 1000.0F);
    rig_set(&r, there, &one, sizeof one);
    train(&r, 1, 10, NULL);
    rig_get(&r, &bias, there, sizeof bias);
    ck_assert_msg(fabs((double)bias - 1.01) < 1e-6, "bias %.9g after 10 steps of 0.001", (double)bias);
    rig_close(&r);
}
END_TEST

START_TEST(C018_evaluation_changes_nothing) {
    rig_cfg c = adamw(_i ? "bf16" : "fp32");
    rig a, b;
    double loss = 0, again = 0;
    rig_open(&a, &c, NULL);
    rig_open(&b, &c, NULL);
    train(&a, 1, 2, NULL);
    train(&b, 1, 2, NULL);
    ck_ok(trainer_eval(b.t, 5, &loss, err));
    ck_ok(trainer_eval(b.t, 5, &again, err));
    ck_assert(isfinite(loss) && loss == again);
    expect_same(save(&a, "trained"), save(&b, "evaluated"));
    step_result x, y;
    ck_ok(trainer_step(a.t, 3, 0, &x, err));
    ck_ok(trainer_step(b.t, 3, 0, &y, err));
    ck_assert(x.loss == y.loss && x.grad_norm == y.grad_norm && x.aux_loss == y.aux_loss);
    ck_assert(x.imbalance == y.imbalance && x.tokens == y.tokens && x.dead == y.dead); /* counters */
    expect_same(save(&a, "end"), save(&b, "end after evaluation"));
    rig_close(&a);
    rig_close(&b);
}
END_TEST

/* ---- single tensors ---- */
START_TEST(unknown_names_are_refused) {
    rig_cfg c = rig_default();
    rig r;
    float x;
    int64_t n;
    moe_err err = {.size = sizeof err};
    c.trainer.programs = TRAINER_EVAL;
    rig_open(&r, &c, NULL);
    ck_assert_int_eq(trainer_read(r.t, "layers.7.norm1", 0, &x, &err), -1);
    ck_assert_str_eq(err.msg, "there is no parameter named layers.7.norm1");
    ck_assert_int_eq(trainer_read(r.t, "final_norm", 1, &x, &err), -1);
    ck_assert_str_eq(err.msg, "there is no gradient named final_norm");
    ck_assert_ptr_null(trainer_param_name(r.t, 1000, &n));
    rig_close(&r);
}
END_TEST

int main(void) {
    Suite *s = suite_create("state");
    TCase *t = tcase_create("state");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, a_resumed_run_is_one_that_never_stopped, 0, 2);
    tcase_add_test(t, without_optimizer_only_the_model_is_loaded);
    tcase_add_test(t, sgd_has_no_optimizer_state);
    tcase_add_test(t, a_save_that_fails_leaves_no_file);
    tcase_add_test(t, C100_experts_are_saved_under_their_global_numbers);
    tcase_add_test(t, replicas_save_the_same_file);
    tcase_add_loop_test(t, C106_tensors_that_do_not_fit_are_named, 0, N_MISFITS);
    tcase_add_test(t, C106_several_missing_tensors_are_listed);
    tcase_add_test(t, C107_loaded_experts_reach_the_products);
    tcase_add_test(t, C012_bias_moves_in_small_steps_beside_bf16_weights);
    tcase_add_loop_test(t, C018_evaluation_changes_nothing, 0, 2);
    tcase_add_test(t, unknown_names_are_refused);
    suite_add_tcase(s, t);
    return scratch_run(s);
}
