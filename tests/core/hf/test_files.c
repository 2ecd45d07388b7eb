/* Files: what is saved comes back bit for bit into a model of other values, whole and in shards; and what does not fit
 * is refused by name before anything has changed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <io/safetensors.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "families.h"

/* ---- round trips ---- */
static void expect_loaded(const char *dir, int family, const rig *from) {
    rig to;
    family_open(&to, family, 99);
    ck_assert(!family_same(from, &to));
    ck_ok(hf_load(to.t, dir, err));
    ck_assert_msg(family_same(from, &to), "%s: other values came back", family_names[family]);
    rig_close(&to);
}

START_TEST(saved_and_loaded_is_bit_equal) {
    rig from;
    family_open(&from, _i, 1);
    family_fill(&from, 0.3F);
    expect_loaded(family_save(&from, "one", MOE_F32, HF_SHARD_BYTES), _i, &from);
    expect_loaded(family_save(&from, "many", MOE_F32, 9000), _i, &from);
    ck_assert(scratch_exists("one/model.safetensors") && scratch_exists("one/config.json"));
    ck_assert(!scratch_exists("many/model.safetensors") && scratch_exists("many/model.safetensors.index.json"));
    ck_assert_int_gt(scratch_count("many"), 5);
    rig_close(&from);
}
END_TEST

/* BF16 holds what rounds to itself; the expert bias stays FP32 whatever the type. */
START_TEST(bf16_rounds_once_and_keeps_the_expert_bias) {
    rig a, b;
    family_open(&a, HF_DEEPSEEK_V3, 1);
    family_fill(&a, 0.3F);
    family_open(&b, HF_DEEPSEEK_V3, 2);
    ck_ok(hf_load(b.t, family_save(&a, "first", MOE_BF16, HF_SHARD_BYTES), err));
    const params *p = &a.t->model->params;
    for (uint32_t i = 0; i < p->n; i++)
        for (int64_t k = p->at[i].offset; k < p->at[i].offset + p->at[i].count; k++) {
            uint16_t bits;
            params_round_bf16(&p->master[k], &bits, 1);
            uint32_t wide = (uint32_t)bits << 16;
            ck_assert(memcmp(&wide, &b.t->model->params.master[k], sizeof wide) == 0);
        }
    ck_assert(memcmp(a.t->model->routers[1].state[0], b.t->model->routers[1].state[0], 4 * sizeof(float)) == 0);
    expect_loaded(family_save(&b, "second", MOE_BF16, HF_SHARD_BYTES), HF_DEEPSEEK_V3, &b);
    rig_close(&a);
    rig_close(&b);
}
END_TEST

static moe_status no_key(void *arg, const char *key, moe_err *err) {
    (void)arg;
    (void)key;
    (void)err;
    return MOE_OK;
}

/* A trainer that only plans takes the values from a checkpoint's files. */
START_TEST(checkpoint_to_folder_without_a_model_in_memory) {
    rig from, plan;
    rig_cfg c = family_cfg(_i, 5);
    const char *ckpt = scratch_path("ckpt"), *dir = scratch_path("hf");
    const hf_save_options o = {.dtype = MOE_F32, .shard_bytes = 9000, .checkpoint = ckpt, .config = "{}\n"};
    family_open(&from, _i, 1);
    family_fill(&from, 0.3F);
    ck_ok(fs_make_dirs(ckpt, err));
    ck_ok(trainer_save(from.t, ckpt, no_key, NULL, err));
    c.trainer.plan_only = 1;
    rig_open(&plan, &c, NULL);
    ck_ok(hf_save(plan.t, dir, &o, err));
    ck_fails(hf_load(plan.t, dir, err), MOE_E_ARG, "only plans");
    ck_ok(hf_check(plan.t, dir, err));
    rig_close(&plan);
    expect_loaded(dir, _i, &from);
    rig_close(&from);
    if (_i != HF_MIXTRAL) return;
    c.trainer.model.dense_layers = 1; /* another model than the checkpoint's */
    rig_open(&plan, &c, NULL);
    ck_fails(hf_save(plan.t, scratch_path("other"), &o, err), MOE_E_DATA, "tensors, the model has");
    ck_assert(!scratch_exists("other/config.json"));
    ck_fails(hf_check(plan.t, dir, err), MOE_E_DATA, "are unknown to it: model.layers.0.block_sparse_moe.gate.weight");
    rig_close(&plan);
}
END_TEST

/* A smaller export over a larger one: no shard of the old is left, a tokenizer is. */
START_TEST(an_older_export_leaves_no_weights) {
    rig r;
    family_open(&r, HF_MIXTRAL, 1);
    ck_assert(!hf_folder_in_use(scratch_path("x")));
    family_save(&r, "x", MOE_F32, 9000);
    ck_assert(hf_folder_in_use(scratch_path("x")));
    scratch_save("x/tokenizer.json", "{}", 2);
    scratch_save("x/model-00001-of-00007.safetensors.part", "{}", 2);
    family_save(&r, "x", MOE_F32, HF_SHARD_BYTES);
    ck_assert_int_eq(scratch_count("x"), 3);
    ck_assert(scratch_exists("x/model.safetensors") && scratch_exists("x/tokenizer.json"));
    family_save(&r, "x", MOE_BF16, 9000);
    ck_assert(!scratch_exists("x/model.safetensors") && scratch_exists("x/tokenizer.json"));
    rig_close(&r);
}
END_TEST

/* ---- a model over a good one ---- */
/* The export fails, where file_bytes is not 0 because files may not be larger; what it would have replaced is bit for
 * bit there, and nothing else. */
static void expect_kept(const rig *r, const rig *old, uint64_t file_bytes, uint64_t shard_bytes, moe_status code,
                        const char *words) {
    struct rlimit was;
    ck_assert(getrlimit(RLIMIT_FSIZE, &was) == 0);
    const struct rlimit limit = {file_bytes, was.rlim_max};
    const hf_save_options o = {.dtype = MOE_F32, .shard_bytes = shard_bytes, .config = "{\"new\": 1}\n"};
    int files = scratch_count("x");
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    ck_assert(!file_bytes || setrlimit(RLIMIT_FSIZE, &limit) == 0);
    ck_fails(hf_save(r->t, scratch_path("x"), &o, err), code, words);
    ck_assert(setrlimit(RLIMIT_FSIZE, &was) == 0);
    signal(SIGXFSZ, handler);
    ck_assert_int_eq(scratch_count("x"), files);
    expect_loaded(scratch_path("x"), HF_MIXTRAL, old);
    char *text = NULL;
    uint64_t n = 0;
    ck_ok(fs_load(scratch_path("x/config.json"), 100, &text, &n, err));
    ck_assert_str_eq(text, "{}\n");
    free(text);
}

START_TEST(an_export_that_fails_leaves_the_model_that_was_there) {
    rig old, r;
    uint64_t shard_bytes = _i ? 19000 : HF_SHARD_BYTES;
    family_open(&old, HF_MIXTRAL, 1);
    family_open(&r, HF_MIXTRAL, 2);
    family_fill(&r, 0.3F);
    family_save(&old, "x", MOE_F32, shard_bytes);
    scratch_save("x/tokenizer.json", "{}", 2);
    expect_kept(&r, &old, 12000, shard_bytes, MOE_E_IO, "File too large");
    const params *p = &r.t->model->params;
    p->master[p->at[r.t->model->head].offset] = NAN; /* of the last tensor: all files before it are whole */
    expect_kept(&r, &old, 0, shard_bytes, MOE_E_DATA, "lm_head.weight[0,0] is nan: not written");
    rig_close(&r);
    family_open(&r, HF_MIXTRAL, 3);
    expect_loaded(family_save(&r, "x", MOE_F32, shard_bytes), HF_MIXTRAL, &r);
    ck_assert(scratch_exists("x/tokenizer.json"));
    rig_close(&r);
    rig_close(&old);
}
END_TEST

/* rename() and remove() of this program: from call number `calls_left` on they fail, and what is there then is what a
 * kill at that place leaves. Negative: never. */
static int calls_left = -1;

int rename(const char *from, const char *to) {
    if (calls_left > 0) calls_left--;
    if (calls_left) return renameat(AT_FDCWD, from, AT_FDCWD, to);
    errno = EIO;
    return -1;
}

int remove(const char *path) {
    struct stat st;
    if (calls_left > 0) calls_left--;
    if (calls_left && lstat(path, &st)) return -1;
    if (calls_left) return unlinkat(AT_FDCWD, path, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
    errno = EIO;
    return -1;
}

/* Wherever a kill falls: the old model, the new one, or none without config.json; and the next export is whole. */
START_TEST(a_kill_never_mixes_two_models) {
    rig old, new, to;
    int failed = 0, done = 0, none = 0;
    family_open(&old, HF_MIXTRAL, 1);
    family_open(&new, HF_MIXTRAL, 2);
    family_open(&to, HF_MIXTRAL, 3);
    for (int k = 1; !done; k++) {
        const hf_save_options o = {.dtype = MOE_F32, .shard_bytes = _i & 1 ? 80000 : HF_SHARD_BYTES, .config = "{}\n"};
        moe_err e = {.code = MOE_OK};
        const char *dir = family_save(&old, "x", MOE_F32, _i & 2 ? 80000 : HF_SHARD_BYTES);
        calls_left = k;
        done = hf_save(new.t, dir, &o, &e) == MOE_OK;
        calls_left = -1;
        failed += !done;
        if (hf_load(to.t, dir, &e)) {
            none++;
            ck_assert_msg(!scratch_exists("x/config.json"), "killed at call %d: %s", k, e.msg);
        } else {
            ck_assert_msg(family_same(&to, &old) || family_same(&to, &new), "killed at call %d: a mixture", k);
        }
        ck_assert(!done || family_same(&to, &new));
    }
    ck_assert_int_gt(failed, 4);
    ck_assert_int_gt(none, 0);
    rig_close(&to);
    rig_close(&new);
    rig_close(&old);
}
END_TEST

/* Where a file must go stands a directory: seen before anything is written or removed. */
START_TEST(an_export_does_not_replace_directories) {
    rig r;
    const hf_save_options o = {.dtype = MOE_F32, .shard_bytes = 9000, .config = "{}\n"};
    family_open(&r, HF_MIXTRAL, 1);
    family_save(&r, "x", MOE_F32, HF_SHARD_BYTES);
    ck_ok(fs_make_dirs(scratch_path("x/model.safetensors.index.json/y"), err));
    ck_fails(hf_save(r.t, scratch_path("x"), &o, err), MOE_E_IO, "is not a regular file");
    ck_assert(scratch_exists("x/model.safetensors") && scratch_exists("x/config.json"));
    ck_assert(scratch_exists("x/model.safetensors.index.json/y"));
    ck_assert_int_eq(scratch_count("x"), 3);
    rig_close(&r);
}
END_TEST

/* A kill amid the writing leaves a hidden folder: no model, and gone after the next export. */
START_TEST(what_a_kill_left_is_no_model_and_goes) {
    rig r;
    family_open(&r, HF_MIXTRAL, 1);
    ck_ok(fs_make_dirs(scratch_path("x/.moehost-export-abcdef"), err));
    scratch_save("x/.moehost-export-abcdef/model.safetensors", "{}", 2);
    scratch_save("x/.moehost-exporter", "{}", 2); /* another's */
    ck_assert(!hf_folder_in_use(scratch_path("x")));
    family_save(&r, "x", MOE_F32, HF_SHARD_BYTES);
    ck_assert_int_eq(scratch_count("x"), 3);
    ck_assert(scratch_exists("x/.moehost-exporter"));
    rig_close(&r);
}
END_TEST

/* ---- values that are no numbers ---- */
static float *place_of(const rig *r, const char *name, int64_t at) {
    const params *p = &r->t->model->params;
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].name, name) == 0) return &p->master[p->at[i].offset + at];
    ck_abort_msg("no %s", name);
    return NULL;
}

START_TEST(values_that_are_no_numbers_are_not_written) {
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    rig r;
    hf_save_options o = {.dtype = MOE_F32, .shard_bytes = 9000, .config = "{}\n"};
    const char *dir = scratch_path("x");
    family_open(&r, HF_MIXTRAL, 1);
    float *w = place_of(&r, "layers.1.attention.out", 3 * 32 + 17);
    for (int i = 0; i < 4; i++) {
        *w = odd[i];
        o.dtype = i % 2 ? MOE_BF16 : MOE_F32;
        ck_fails(hf_save(r.t, dir, &o, err), MOE_E_DATA, "model.layers.1.self_attn.o_proj.weight[3,17] is ");
        ck_assert_int_eq(scratch_count("x"), 0);
    }
    *w = 3.4e38F; /* FP32 holds it, BF16 rounds it to infinity */
    ck_fails(hf_save(r.t, dir, &o, err), MOE_E_DATA, "o_proj.weight[3,17] is 3.4e+38, too large for BF16");
    o.dtype = MOE_F32;
    ck_ok(hf_save(r.t, dir, &o, err));
    rig_close(&r);
}
END_TEST

/* ---- what does not fit ---- */
typedef struct edit {
    const char *drop, *rename, *to; /* tensors to leave out, to write under another name */
    const char *add;                /* one more, F32 [1] */
    const char *reshape;            /* written as a vector */
    int32_t dtype;                  /* of all */
    float value;                    /* of all; 0: as the model's */
} edit;

/* A folder like hf_save's with one file, edited. */
static const char *write_edited(const rig *r, const char *name, const edit *e) {
    hf_map *map = NULL;
    st_writer *w = NULL;
    const char *dir = scratch_path(name);
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_ok(fs_make_dirs(dir, err));
    ck_ok(hf_map_of(r->t, &map, err));
    ck_ok(st_writer_create(path, &w, err));
    for (uint32_t i = 0; i < map->n; i++) {
        const hf_tensor *t = &map->at[i];
        if (e->drop && strstr(t->name, e->drop)) continue;
        const char *as = e->rename && strcmp(t->name, e->rename) == 0 ? e->to : t->name;
        int flat = e->reshape && strcmp(t->name, e->reshape) == 0;
        ck_ok(st_writer_declare(w, as, e->dtype, flat ? 1 : t->ndim, flat ? &t->count : t->shape, err));
    }
    const int64_t one = 1;
    if (e->add) ck_ok(st_writer_declare(w, e->add, MOE_F32, 1, &one, err));
    for (uint32_t i = 0; i < map->n; i++) {
        const hf_tensor *t = &map->at[i];
        if (e->drop && strstr(t->name, e->drop)) continue;
        float *values = malloc((size_t)t->count * 4);
        ck_assert_ptr_nonnull(values);
        ck_ok(hf_read(r->t, t, 0, values, err));
        for (int64_t k = 0; k < t->count && e->value != 0; k++) values[k] = e->value;
        ck_ok(st_write(w, values, (uint64_t)t->count * st_dtype_bits(e->dtype) / 8, err));
        free(values);
    }
    float zero = 0;
    if (e->add) ck_ok(st_write(w, &zero, sizeof zero, err));
    ck_ok(st_writer_finish(w, err));
    hf_map_free(map);
    return dir;
}

static void expect_refused(int family, const edit *e, moe_status code, const char *words, const char *more) {
    rig r, twin;
    family_open(&r, family, 1);
    family_open(&twin, family, 1);
    const char *dir = write_edited(&r, "edited", e);
    family_fill(&r, 3);
    family_fill(&twin, 3);
    ck_fails(hf_load(r.t, dir, err), code, words);
    ck_fails(hf_load(r.t, dir, err), code, more);
    ck_assert_msg(family_same(&r, &twin), "a file that was refused has changed the model");
    rig_close(&r);
    rig_close(&twin);
}

START_TEST(C106_missing_and_unknown_tensors_are_errors_by_name) {
    expect_refused(HF_QWEN2_MOE, &(edit){.drop = "shared_expert_gate"}, MOE_E_DATA,
                   "2 tensors of the model are missing:", "model.layers.1.mlp.shared_expert_gate.weight");
    expect_refused(HF_MIXTRAL, &(edit){.add = "model.layers.0.block_sparse_moe.gate.e_score_correction_bias"},
                   MOE_E_DATA, "1 are unknown to it:", "model.layers.0.block_sparse_moe.gate.e_score_correction_bias");
    expect_refused(HF_DEEPSEEK_V3, &(edit){.drop = "e_score_correction_bias"}, MOE_E_DATA, "1 tensors of the model",
                   "model.layers.1.mlp.gate.e_score_correction_bias");
    expect_refused(HF_MIXTRAL,
                   &(edit){.rename = "model.layers.1.block_sparse_moe.experts.2.w3.weight",
                           .to = "model.layers.1.block_sparse_moe.experts.4.w3.weight"},
                   MOE_E_DATA, "missing: model.layers.1.block_sparse_moe.experts.2.w3.weight",
                   "1 are unknown to it: model.layers.1.block_sparse_moe.experts.4.w3.weight");
}
END_TEST

START_TEST(long_lists_say_how_many) {
    expect_refused(HF_MIXTRAL, &(edit){.drop = "experts"}, MOE_E_DATA, "24 tensors of the model are missing:", " ...");
    expect_refused(HF_MIXTRAL, &(edit){.drop = "norm"}, MOE_E_DATA,
                   "5 tensors of the model are missing:", "model.layers.0.input_layernorm.weight");
}
END_TEST

START_TEST(shapes_and_types_are_checked) {
    expect_refused(HF_MIXTRAL, &(edit){.reshape = "model.layers.1.self_attn.k_proj.weight"}, MOE_E_DATA,
                   "model.layers.1.self_attn.k_proj.weight is [512]", "the model's is [16,32]");
    expect_refused(HF_MIXTRAL, &(edit){.dtype = ST_I8}, MOE_E_DATA, "model.embed_tokens.weight is I8", "F16");
    expect_refused(HF_MIXTRAL, &(edit){.dtype = MOE_F8E4M3}, MOE_E_DATA, "embed_tokens.weight is F8_E4M3", "F16");
    expect_refused(HF_MIXTRAL, &(edit){.dtype = MOE_I32}, MOE_E_DATA, "embed_tokens.weight is I32", "F16");
}
END_TEST

/* In any of the three types, and in the second of two files. */
START_TEST(values_that_are_no_numbers_are_not_loaded) {
    static const uint32_t odd[] = {0x7fc00000, 0xff800001, 0x7f800000, 0xff800000};
    rig r;
    family_open(&r, HF_MIXTRAL, 1);
    for (int i = 0; i < 4; i++) {
        st_file *f = NULL;
        family_save(&r, "x", MOE_F32, 80 * 32 * 4);
        const char *path = scratch_path("x/model-00002-of-00014.safetensors");
        ck_ok(st_open(path, &f, err));
        const st_tensor *t = st_at(f, 0);
        for (uint64_t k = 1; t->ndim < 2; k++) t = st_at(f, k);
        char words[200];
        snprintf(words, sizeof words, "model-00002-of-00014.safetensors: %s[%d,%d] is ", t->name, 1, 2);
        uint64_t at = t->offset + (uint64_t)(t->shape[1] + 2) * 4;
        st_close(f);
        FILE *file = fopen(path, "r+");
        ck_assert(file && fseek(file, (long)at, SEEK_SET) == 0 && fwrite(&odd[i], 4, 1, file) == 1);
        fclose(file);
        ck_fails(hf_load(r.t, scratch_path("x"), err), MOE_E_DATA, words);
    }
    static const struct {
        int32_t dtype;
        uint32_t bits; /* two values */
    } half[] = {{MOE_BF16, 0x7f807f80}, {MOE_BF16, 0xffc1ffc1}, {ST_F16, 0x7c007c00}, {ST_F16, 0xfe00fe00}};
    for (int i = 0; i < 4; i++) {
        float value;
        memcpy(&value, &half[i].bits, sizeof value);
        const char *dir = write_edited(&r, "half", &(edit){.dtype = half[i].dtype, .value = value});
        ck_fails(hf_load(r.t, dir, err), MOE_E_DATA, "model.safetensors: model.embed_tokens.weight[0,0] is ");
    }
    rig_close(&r);
}
END_TEST

/* Layers past the model's are left only where config.json announces them. */
START_TEST(announced_layers_for_prediction_are_left) {
    rig r;
    family_open(&r, HF_DEEPSEEK_V3, 1);
    const char *dir = write_edited(&r, "mtp", &(edit){.add = "model.layers.2.eh_proj.weight"});
    ck_fails(hf_load(r.t, dir, err), MOE_E_DATA, "unknown to it: model.layers.2.eh_proj.weight");
    scratch_save("mtp/config.json", "{\"num_nextn_predict_layers\": 1}", 31);
    ck_ok(hf_load(r.t, dir, err));
    dir = write_edited(&r, "mtp", &(edit){.add = "model.layers.3.eh_proj.weight"});
    ck_fails(hf_load(r.t, dir, err), MOE_E_DATA, "unknown to it: model.layers.3.eh_proj.weight");
    scratch_save("mtp/config.json", "{\"num_nextn\": ", 14);
    ck_fails(hf_load(r.t, dir, err), MOE_E_DATA, "config.json: line 1");
    rig_close(&r);
}
END_TEST

START_TEST(buffers_and_a_tied_head_may_be_left) {
    rig r;
    family_open(&r, HF_QWEN3_MOE, 1); /* tied */
    ck_ok(hf_load(r.t, write_edited(&r, "a", &(edit){.add = "model.layers.1.self_attn.rotary_emb.inv_freq"}), err));
    ck_fails(hf_load(r.t, write_edited(&r, "b", &(edit){.add = "lm_head.weight"}), err), MOE_E_DATA,
             "model.embed_tokens.weight is [1]");
    rig_close(&r);
    rig_cfg c = family_cfg(HF_QWEN3_MOE, 1);
    c.trainer.model.tied = 0; /* writes a head of its own */
    rig_open(&r, &c, NULL);
    const char *other = family_save(&r, "c", MOE_F32, HF_SHARD_BYTES);
    const params *p = &r.t->model->params;
    memcpy(p->master + p->at[r.t->model->head].offset, p->master + p->at[r.t->model->embed].offset, 80 * 32 * 4);
    const char *same = family_save(&r, "d", MOE_F32, HF_SHARD_BYTES);
    rig_close(&r);
    family_open(&r, HF_QWEN3_MOE, 2);
    ck_ok(hf_load(r.t, same, err));
    ck_fails(hf_load(r.t, other, err), MOE_E_DATA, "lm_head.weight differs from model.embed_tokens.weight");
    rig_close(&r);
}
END_TEST

/* ---- C107: what the products read is what the file holds ---- */
START_TEST(C107_loaded_experts_are_what_the_step_reads) {
    static const char *const precisions[] = {"fp32", "bf16"};
    rig r;
    rig_cfg c = family_cfg(HF_MIXTRAL, 1);
    c.precision = precisions[_i];
    rig_open(&r, &c, NULL);
    ck_ok(hf_load(r.t, write_edited(&r, "half", &(edit){.value = 0.5F}), err));
    float *w = malloc(4 * 48 * 32 * sizeof *w);
    moe_err e;
    ck_assert_int_eq(trainer_read(r.t, "layers.1.experts.w1", 0, w, &e), 4 * 48 * 32);
    for (int i = 0; i < 4 * 48 * 32; i++) ck_assert(w[i] == 0.5F);
    free(w);
    const params *p = &r.t->model->params;
    ck_assert_int_eq(p->copy != NULL, _i);
    for (int64_t k = 0; p->copy && k < p->at[0].count; k++) ck_assert_uint_eq(p->copy[p->at[0].offset + k], 0x3f00);
    rig_close(&r);
}
END_TEST

/* ---- number formats ---- */
START_TEST(half_precision_is_exact) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h;
        float out, sign = h & 0x8000 ? -1.0F : 1.0F;
        int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
        ck_assert(hf_to_f32(ST_F16, &in, &out, 1));
        ck_assert_int_eq(signbit(out) != 0, h >> 15);
        if (exponent == 31)
            ck_assert(fraction ? isnan(out) : isinf(out));
        else if (exponent == 0)
            ck_assert(out == sign * ldexpf((float)fraction, -24));
        else
            ck_assert(out == sign * ldexpf((float)(1024 + fraction), exponent - 25));
        ck_assert(hf_to_f32(MOE_BF16, &in, &out, 1));
        uint32_t bits;
        memcpy(&bits, &out, sizeof bits);
        ck_assert_uint_eq(bits, h << 16);
    }
    ck_assert(!hf_to_f32(MOE_F8E4M3, "", NULL, 0));
}
END_TEST

/* ---- shards and their index ---- */
static void expect_index_refused(const char *text, moe_status code, const char *words) {
    rig r;
    family_open(&r, HF_MIXTRAL, 1);
    scratch_save("x/model.safetensors.index.json", text, strlen(text));
    ck_fails(hf_load(r.t, scratch_path("x"), err), code, words);
    rig_close(&r);
}

START_TEST(an_index_that_does_not_fit_is_refused) {
    rig r;
    family_open(&r, HF_MIXTRAL, 1);
    ck_fails(hf_load(r.t, scratch_path("nothing"), err), MOE_E_IO, "nothing: cannot open: No such file or directory");
    ck_fails(hf_load(r.t, scratch_save("file", "", 0), err), MOE_E_IO, "file: cannot open: Not a directory");
    ck_fails(hf_load(r.t, scratch_dir, err), MOE_E_IO, "neither model.safetensors nor");
    family_save(&r, "x", MOE_F32, HF_SHARD_BYTES);
    scratch_save("x/model.safetensors.index.json", "{}", 2);
    ck_fails(hf_load(r.t, scratch_path("x"), err), MOE_E_DATA, "holds both");
    char from[300], to[300];
    snprintf(from, sizeof from, "%s/x/model.safetensors", scratch_dir);
    snprintf(to, sizeof to, "%s/x/a.safetensors", scratch_dir);
    ck_assert(rename(from, to) == 0);
    rig_close(&r);
    expect_index_refused("{}", MOE_E_DATA, "has no weight_map");
    expect_index_refused("[]", MOE_E_DATA, "is no JSON object");
    expect_index_refused("{\"weight_map\": {\"x\": ", MOE_E_DATA, "line 1");
    expect_index_refused("{\"weight_map\": {\"x\": 3}}", MOE_E_DATA, "is no name of a file");
    expect_index_refused("{\"weight_map\": {\"x\": \"../x/a.safetensors\"}}", MOE_E_DATA, "is no name of a file");
    expect_index_refused("{\"weight_map\": {\"x\": \"b.safetensors\"}}", MOE_E_IO, "b.safetensors");
    expect_index_refused("{\"weight_map\": {\"x\": \"a.safetensors\"}}", MOE_E_DATA, "does not hold it");
    expect_index_refused("{\"weight_map\": {\"lm_head.weight\": \"a.safetensors\"}}", MOE_E_DATA, "does not name");
}
END_TEST

int main(void) {
    Suite *s = suite_create("hf_files");
    TCase *t = tcase_create("files");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, saved_and_loaded_is_bit_equal, 0, FAMILIES);
    tcase_add_test(t, bf16_rounds_once_and_keeps_the_expert_bias);
    tcase_add_loop_test(t, checkpoint_to_folder_without_a_model_in_memory, 0, FAMILIES);
    tcase_add_test(t, an_older_export_leaves_no_weights);
    tcase_add_loop_test(t, an_export_that_fails_leaves_the_model_that_was_there, 0, 2);
    tcase_add_loop_test(t, a_kill_never_mixes_two_models, 0, 4);
    tcase_add_test(t, an_export_does_not_replace_directories);
    tcase_add_test(t, what_a_kill_left_is_no_model_and_goes);
    tcase_add_test(t, values_that_are_no_numbers_are_not_written);
    tcase_add_test(t, values_that_are_no_numbers_are_not_loaded);
    tcase_add_test(t, C106_missing_and_unknown_tensors_are_errors_by_name);
    tcase_add_test(t, long_lists_say_how_many);
    tcase_add_test(t, shapes_and_types_are_checked);
    tcase_add_test(t, announced_layers_for_prediction_are_left);
    tcase_add_test(t, buffers_and_a_tied_head_may_be_left);
    tcase_add_loop_test(t, C107_loaded_experts_are_what_the_step_reads, 0, 2);
    tcase_add_test(t, half_precision_is_exact);
    tcase_add_test(t, an_index_that_does_not_fit_is_refused);
    suite_add_tcase(s, t);
    return scratch_run(s);
}
