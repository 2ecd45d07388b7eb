/* moehost export: a checkpoint of a run as a folder that transformers loads. The model is planned only: values
 * go from the checkpoint's files to the folder's. */
#include <hf/family.h>
#include <hf/save.h>
#include <inttypes.h>
#include <io/checkpoint.h>
#include <io/fs.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export_config.h"
#include "identity.h"
#include "ranks.h"
#include "run_dir.h"
#include "wire.h"

typedef struct export_job {
    session *s;
    const char *dir;
    hf_save_options options;
} export_job;

/* ---- the router in transformers' terms ---- */
static const char *option_of(const part_ref *r, const char *key) {
    const char *value = moe_kv_find(r->kv, r->n_kv, key);
    return value ? value : "";
}

static double number_of(const part_ref *r, const char *key) {
    return strtod(option_of(r, key), NULL);
}

static int is(const part_ref *r, const char *key, const char *word) {
    return strcmp(option_of(r, key), word) == 0;
}

static int same_router(const part_ref *a, const part_ref *b) {
    int same = strcmp(a->desc->id, b->desc->id) == 0 && a->n_kv == b->n_kv;
    for (uint64_t i = 0; i < a->n_kv && same; i++) same = strcmp(a->kv[i].value, b->kv[i].value) == 0;
    return same;
}

/* Of the first MoE layer; `unlike` when another differs or it is not the router whose options these are. */
static hf_routing read_routing(const session *s) {
    const model_cfg *c = &s->trainer.model;
    const part_ref *r = &s->routers[c->dense_layers < c->layers ? c->dense_layers : 0];
    if (!c->experts || !r->desc) return (hf_routing){.scale = 1};
    hf_routing out = {.sigmoid = is(r, "score", "sigmoid"),
                      .after = is(r, "order", "after"),
                      .renormalise = is(r, "renormalise", "true"),
                      .expert_bias = is(r, "expert_bias", "true"),
                      .scale = number_of(r, "scale"),
                      .groups = (uint32_t)number_of(r, "groups"),
                      .groups_kept = (uint32_t)number_of(r, "groups_kept"),
                      .aux_coef = number_of(r, "aux_coef")};
    if (strcmp(r->desc->id, "topk") != 0) out.unlike = "a router other than topk";
    if (out.groups > 1 && out.groups_kept == out.groups) out.groups = out.groups_kept = 1; /* no limit */
    if (out.groups > 1 && !is(r, "group_score", "sum2")) out.unlike = "group_score other than sum2";
    for (uint32_t l = c->dense_layers; l < c->layers; l++)
        if (!same_router(r, &s->routers[l])) out.unlike = "routers that differ between layers";
    return out;
}

/* ---- the whole ---- */
static moe_status save_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    const export_job *job = arg;
    (void)rank;
    trainer *t = NULL;
    moe_status status = session_trainer(job->s, &job->s->trainer, bootstrap, &t, err);
    if (!status) status = hf_save(t, job->dir, &job->options, err);
    if (status && t) trainer_abort(t, err->msg);
    trainer_destroy(t);
    return status;
}

static moe_status find_checkpoint(const session *s, const char *run, const char *given, char **dir, int64_t *step,
                                  moe_err *err) {
    ckpt_view *view = NULL;
    moe_status status = given ? run_dir_take_checkpoint(given, dir, err) : ckpt_latest(run, dir, step, err);
    if (!status && !*dir) status = fs_fail(err, MOE_E_ARG, run, "there is no checkpoint");
    if (!status) status = ckpt_open(*dir, &view, err); /* verifies the checksums */
    if (!status) status = identity_check(view, s, IDENTITY_MODEL, err);
    if (!status) *step = view->step;
    ckpt_close(view);
    return status;
}

static int export_run(session *s, const command_args *args) {
    const char *run = args->positional[0], *dtype = command_value(args, "dtype");
    export_job job = {.s = s, .dir = args->positional[1], .options.shard_bytes = HF_SHARD_BYTES};
    char *checkpoint = NULL, *config = NULL;
    int64_t step = 0;
    moe_err err = {.size = sizeof err};
    hf_routing routing = read_routing(s);
    job.options.dtype = dtype && strcmp(dtype, "f32") == 0 ? MOE_F32 : MOE_BF16;
    moe_status status = hf_family_check(&s->trainer.model, &routing, &err);
    if (status) {
        fprintf(stderr, "moehost export: %s\n", err.msg);
        return EXIT_CODE_USAGE;
    }
    if (s->trainer.model.capacity > 0)
        fprintf(stderr, "moehost: note: [capacity] factor = %g: transformers drops nothing\n",
                (double)s->trainer.model.capacity);
    status = find_checkpoint(s, run, command_value(args, "ckpt"), &checkpoint, &step, &err);
    if (!status) status = hf_config_text(&s->trainer.model, &routing, job.options.dtype, &config, &err);
    if (!status) status = export_config_complete(&config, s->weights, &err);
    job.options.checkpoint = checkpoint;
    job.options.config = config;
    if (!status) status = session_run(job.s, save_rank, &job, &err);
    if (status)
        fprintf(stderr, "moehost export: %s\n", err.msg);
    else
        printf("%s: step %" PRId64 " of %s, %s\n", job.dir, step, run, job.options.dtype == MOE_F32 ? "F32" : "BF16");
    free(checkpoint);
    free(config);
    return wire_exit_code(status);
}

/* RUN_DIR is a checkpoint's folder, RUN/ckpt/step-N: says what to give instead. */
static int refuse_checkpoint(const char *given, const char *out) {
    char *run = realpath(given, NULL);
    for (int i = 0; i < 2 && run && strrchr(run, '/') > run; i++) *strrchr(run, '/') = 0;
    fprintf(stderr,
            "moehost export: %s: is a checkpoint, not the directory of a run; give: moehost export %s %s --ckpt %s\n",
            given, run ? run : "RUN_DIR", out, given);
    free(run);
    return EXIT_CODE_USAGE;
}

int cmd_export(int argc, char **argv) {
    command_args args, inner;
    int code = command_parse("export", argc, argv, &args);
    if (code >= 0) return code;
    if (run_dir_is_checkpoint(args.positional[0])) return refuse_checkpoint(args.positional[0], args.positional[1]);
    if (hf_folder_in_use(args.positional[1]) && !command_flag(&args, "overwrite")) {
        fprintf(stderr, "moehost export: %s: holds a model already; give --overwrite or another folder\n",
                args.positional[1]);
        return EXIT_CODE_USAGE;
    }
    session s;
    inner = args;
    inner.positional[0] = fs_join(args.positional[0], "recipe.ini");
    if (!inner.positional[0]) return EXIT_CODE_FAILED;
    code = session_open(&s, &inner, TRAINER_LOGITS | SESSION_ALONE);
    s.trainer.model.micro = 1;
    s.trainer.plan_only = 1;
    if (!code) code = export_run(&s, &args);
    session_free(&s);
    free(inner.positional[0]);
    return command_finish(code);
}
