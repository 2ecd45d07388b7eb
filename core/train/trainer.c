/* Life of a rank, its steps and evaluations. */
#include "train/trainer.h"

#include <math.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "train/agree.h"
#include "train/trainer_impl.h"

/* ---- set-up ---- */
static int arenas_of(const trainer_cfg *cfg) {
    if (cfg->programs & TRAINER_DUMP_GRADS) return PARAMS_GRADS;
    if (!(cfg->programs & TRAINER_TRAIN)) return PARAMS_WEIGHTS;
    return cfg->optimizer.kind == OPTIMIZER_ADAMW ? PARAMS_MOMENTS : PARAMS_GRADS;
}

/* Some 40 nodes each: what one graph is allowed to grow to. */
enum { MAX_LAYER_MICROBATCHES = 1 << 18 };

static moe_status check_batch(trainer *t, moe_err *err) {
    const trainer_cfg *c = &t->cfg;
    int64_t slice = c->model.micro * t->mesh.degree[MESH_DP];
    t->n_micro = 1;
    if (!(c->programs & TRAINER_TRAIN)) return MOE_OK;
    if (c->global < 1 || c->global % slice)
        return moe_fail(err, MOE_E_ARG, "[batch] global = %lld is not a multiple of micro * dp = %lld * %u",
                        (long long)c->global, (long long)c->model.micro, t->mesh.degree[MESH_DP]);
    if (c->global / slice > INT32_MAX)
        return moe_fail(err, MOE_E_ARG, "[batch] global = %lld is too large", (long long)c->global);
    t->n_micro = (uint32_t)(c->global / slice);
    if ((int64_t)t->n_micro * (c->model.layers + 2) > MAX_LAYER_MICROBATCHES)
        return moe_fail(err, MOE_E_ARG,
                        "[batch] %u microbatches of %u layers make too large a step graph (at most %d layers in all); "
                        "raise micro",
                        t->n_micro, c->model.layers, MAX_LAYER_MICROBATCHES);
    return lr_check(&c->lr, err);
}

static moe_status check_mesh(const trainer *t, moe_err *err) {
    static const mesh_axis later[] = {MESH_CP, MESH_PP};
    for (int i = 0; i < 2; i++)
        if (t->mesh.degree[later[i]] > 1)
            return moe_fail(err, MOE_E_UNSUPPORTED, "[parallel] %s = %u: this version runs tp, dp, ep and etp",
                            mesh_axis_name(later[i]), t->mesh.degree[later[i]]);
    return MOE_OK;
}

static void on_fail(void *arg, const moe_err *err) {
    trainer *t = arg;
    t->parts->comm->abort(t->parts->comm_self, err->msg);
}

/* Against the recipe's limit, and against what the device has for all ranks that share it. */
static moe_status check_memory(trainer *t, moe_err *err) {
    uint64_t total = trainer_memory_of(t).total, there = t->parts->device_info.memory_total;
    uint64_t sharers = t->parts->comm->launch == MOE_LAUNCH_THREADS ? t->parts->cfg.world : 1;
    const double mib = 1.0 / 1048576;
    if (t->cfg.memory_limit && total > t->cfg.memory_limit)
        return moe_fail(err, MOE_E_ARG, "the plan needs %llu bytes, [memory] limit is %llu (%.1f MiB against %.1f MiB)",
                        (unsigned long long)total, (unsigned long long)t->cfg.memory_limit, (double)total * mib,
                        (double)t->cfg.memory_limit * mib);
    if (there && total > there / sharers)
        return moe_fail(
            err, MOE_E_NOMEM,
            "the plan needs %llu bytes on each of %llu rank%s, the device has %llu (%.1f MiB against %.1f MiB)",
            (unsigned long long)total, (unsigned long long)sharers, sharers == 1 ? "" : "s", (unsigned long long)there,
            (double)(total * sharers) * mib, (double)there * mib);
    return MOE_OK;
}

static moe_status build_dump(program *p, const step_cfg *cfg, moe_err *err) {
    return step_build_dump(p, cfg, cfg->model->params.grad != NULL, err);
}

static moe_status make_programs(trainer *t, moe_err *err) {
    moe_status (*const build[PROGRAMS])(program *, const step_cfg *, moe_err *) = {step_build_train, step_build_eval,
                                                                                   step_build_logits, build_dump};
    const step_cfg cfg = {.model = t->model,
                          .optimizer = t->cfg.optimizer,
                          .n_micro = t->n_micro,
                          .ignore_aux = t->cfg.ignore_aux,
                          .no_update = t->cfg.no_update,
                          .staging = &t->staging};
    moe_status status = MOE_OK;
    for (int i = 0; i < PROGRAMS && !status; i++) {
        if (!(t->cfg.programs & (1u << i))) continue;
        status = build[i](&t->programs[i], &cfg, err);
        if (!status) status = exec_lanes_open(&t->lanes, t->programs[i].g, err);
        if (t->programs[i].arena > t->arena_bytes) t->arena_bytes = t->programs[i].arena;
        if (t->programs[i].lazy > t->lazy_bytes) t->lazy_bytes = t->programs[i].lazy;
        uint64_t host = t->programs[i].g ? t->programs[i].g->host_bytes : 0;
        if (host > t->host_bytes) t->host_bytes = host;
    }
    /* once more: the device holds more with the streams of the lanes */
    if (!status) status = t->parts->device->info(t->parts->device_self, &t->parts->device_info, err);
    if (!status) status = check_memory(t, err);
    return status;
}

static moe_status start_programs(trainer *t, moe_err *err) {
    const moe_device_v0 *d = t->parts->device;
    moe_status status = d->alloc(t->parts->device_self, MOE_SPACE_DEVICE, t->arena_bytes, &t->arena, err);
    if (!status && t->lazy_bytes)
        status = d->alloc(t->parts->device_self, MOE_SPACE_LAZY, t->lazy_bytes, &t->lazy, err);
    if (!status && t->host_bytes)
        status = d->alloc(t->parts->device_self, MOE_SPACE_HOST, t->host_bytes, &t->host, err);
    for (int i = 0; i < PROGRAMS && !status; i++)
        if (t->programs[i].g)
            status = program_start(&t->programs[i], t->arena, t->lazy, t->host, &t->lanes, on_fail, t, err);
    return status;
}

/* A set-up call of this rank has failed: the others end too. Where it failed because another rank has ended, that
 * rank's reason is in the comm, even if the call - of the bootstrap - does not know it. */
static void end_others(trainer *t, moe_status status, moe_err *err) {
    moe_err cause = {.size = sizeof cause};
    if (status == MOE_E_COMM && t->parts->comm->poll(t->parts->comm_self, &cause)) *err = cause;
    trainer_abort(t, err->msg);
}

static moe_status start_parts(trainer *t, const parts_cfg *with, moe_err *err) {
    parts_cfg cfg = *with;
    cfg.dog = t->dog;
    watchdog_enter(t->dog, "the start of device, comm, precision and scheduler");
    moe_status status = parts_create(&t->parts, &cfg, err);
    watchdog_leave(t->dog);
    if (status) return status;
    exec_lanes_init(&t->lanes, t->parts->device, t->parts->device_self, t->parts->cfg.rank);
    watchdog_attach(t->dog, t->parts->comm, t->parts->comm_self, &t->lanes, NULL);
    watchdog_enter(t->dog, "the making of the groups");
    status = mesh_groups_open(&t->groups, &t->mesh, with->rank, t->parts->comm, t->parts->comm_self, err);
    watchdog_leave(t->dog);
    return status ? status : watch_groups(t, err);
}

moe_status trainer_create(trainer **out, const trainer_cfg *cfg, const parts_cfg *with, moe_err *err) {
    trainer *t = calloc(1, sizeof *t);
    if (!t) return moe_fail(err, MOE_E_NOMEM, "out of memory for the trainer");
    t->cfg = *cfg;
    moe_status status = mesh_init(&t->mesh, &cfg->mesh, err);
    if (!status) status = check_mesh(t, err);
    if (!status) t->dp_rank = mesh_coord(&t->mesh, MESH_DP, with->rank);
    if (!status) status = check_batch(t, err);
    if (!status) status = watch_start(t, with, err);
    if (!status) status = start_parts(t, with, err);
    const model_place place = {&t->mesh, with->rank, cfg->node_size, &t->groups};
    const int train = cfg->programs & TRAINER_TRAIN;
    const model_use use = {.arenas = arenas_of(cfg),
                           .distributed = train && cfg->optimizer.distributed,
                           .plan_only = cfg->plan_only,
                           .n_micro = train ? t->n_micro : 0,
                           .memory_limit = cfg->memory_limit};
    if (!status) status = model_create(&t->model, &cfg->model, &place, t->parts, &use, err);
    if (!status) status = staging_make(t, err);
    if (!status) status = make_programs(t, err);
    watchdog_enter(t->dog, "the comparison of the communication calls");
    if (!status) status = agree_on_calls(t->parts->cfg.bootstrap, &t->named_groups, t->programs, PROGRAMS, err);
    watchdog_leave(t->dog);
    if (!status && !cfg->plan_only) status = start_programs(t, err);
    if (status) {
        if (t->parts) end_others(t, status, err);
        trainer_destroy(t);
    } else {
        *out = t;
    }
    return status;
}

void trainer_destroy(trainer *t) {
    if (!t) return;
    watchdog_detach(t->dog);
    for (int i = 0; i < PROGRAMS; i++) program_free(&t->programs[i]);
    free(t->spans);
    exec_lanes_free(&t->lanes);
    if (t->parts) {
        const moe_device_v0 *d = t->parts->device;
        d->free(t->parts->device_self, MOE_SPACE_DEVICE, t->arena, t->arena_bytes);
        d->free(t->parts->device_self, MOE_SPACE_LAZY, t->lazy, t->lazy_bytes);
        d->free(t->parts->device_self, MOE_SPACE_HOST, t->host, t->host_bytes);
        d->free(t->parts->device_self, MOE_SPACE_HOST, t->staging_block, t->staging_bytes);
    }
    model_destroy(t->model);
    if (t->parts) parts_drop_layers(t->parts);
    mesh_groups_close(&t->groups);
    parts_destroy(t->parts);
    watchdog_destroy(t->dog);
    free(t->group_ranks);
    free(t);
}

void trainer_abort(trainer *t, const char *reason) {
    t->parts->comm->abort(t->parts->comm_self, reason);
}

trainer_memory trainer_memory_of(trainer *t) {
    moe_err ignored = {.size = sizeof ignored};
    t->parts->device->info(t->parts->device_self, &t->parts->device_info, &ignored);
    trainer_memory m = {.params = params_bytes(&t->model->params, arenas_of(&t->cfg)),
                        .arena = t->arena_bytes,
                        .device_own = t->parts->device_info.own_memory,
                        .rows = t->lazy_bytes,
                        .staging = t->staging_bytes + t->host_bytes,
                        .weights = params_weight_bytes(&t->model->params)};
    for (uint32_t l = 0; l < t->model->cfg.layers; l++) m.windows += t->model->routers[l].dispatch.own_memory;
    m.total = m.params + m.arena + m.device_own + m.staging + m.windows;
    return m;
}

const char *trainer_device_name(const trainer *t) {
    return t->parts->device_info.name;
}

uint32_t trainer_nodes(const trainer *t) {
    return t->programs[PROGRAM_TRAIN].g ? t->programs[PROGRAM_TRAIN].g->n_nodes : 0;
}

moe_status trainer_watch(trainer *t, int on, moe_err *err) {
    program *p = &t->programs[PROGRAM_TRAIN];
    exec_watch(p->x, NULL);
    free(t->spans);
    t->spans = on ? calloc(p->g->n_nodes + 1, sizeof *t->spans) : NULL;
    if (on && !t->spans) return moe_fail(err, MOE_E_NOMEM, "out of memory for the times of %u nodes", p->g->n_nodes);
    exec_watch(p->x, t->spans);
    return MOE_OK;
}

int trainer_span_at(const trainer *t, uint32_t i, trainer_span *out) {
    const program *p = &t->programs[PROGRAM_TRAIN];
    if (!t->spans || i >= p->g->n_nodes) return 0;
    const exec_span *s = &t->spans[p->order[i]];
    const moe_sched_node *n = &p->g->nodes[p->order[i]].info;
    *out = (trainer_span){.name = n->name,
                          .lane = n->lane,
                          .phase = n->phase,
                          .layer = n->layer,
                          .microbatch = n->microbatch,
                          .begin = s->begin,
                          .end = s->end,
                          .bytes = p->g->nodes[p->order[i]].bytes};
    return 1;
}

/* ---- a step ---- */
/* Sequences of microbatch i on this rank: the ranks' microbatches lie side by side in the global batch. */
static moe_status fill_batch(trainer *t, int split, int64_t first, uint32_t i, moe_err *err) {
    const model_cfg *c = &t->cfg.model;
    int64_t T = c->micro * c->seq;
    int64_t sample = first + ((int64_t)i * t->mesh.degree[MESH_DP] + t->dp_rank) * c->micro;
    staging *s = &t->staging;
    int32_t *docs = s->docs ? s->docs + i * T : NULL;
    moe_status status =
        data_fill(t->cfg.data, split, sample, c->micro, s->tokens + i * T, s->targets + i * T, docs, err);
    for (int64_t j = 0; j < T && docs && !status; j++) s->mask[i * T + j] = docs[j] >= 0;
    s->routed[0] = T * t->n_micro * t->mesh.degree[MESH_DP];
    if (status) trainer_abort(t, err->msg); /* the other ranks go on to communicate */
    return status;
}

/* Mean over MoE layers and tokens of the router loss of this name; NaN where no layer reports it. */
static double router_value(const trainer *t, const char *name) {
    const model *m = t->model;
    double sum = 0;
    int layers = 0;
    for (uint32_t l = 0; l < m->cfg.layers; l++)
        for (uint32_t i = 0; i < m->routers[l].needs.n_losses; i++)
            if (strcmp(m->routers[l].needs.losses[i], name) == 0) {
                sum += t->staging.stats[1 + (size_t)l * MODEL_MAX_LOSSES + i];
                layers++;
            }
    return layers ? sum / layers / (double)t->staging.routed[1] : (double)NAN;
}

/* Counts are what the routers say: none is negative, and a layer's are no more than its tokens have choices. */
static moe_status expert_load(const trainer *t, step_result *out, moe_err *err) {
    const model_cfg *c = &t->cfg.model;
    out->imbalance = (double)NAN;
    for (uint32_t l = 0; l < c->layers; l++) {
        if (!model_layer_is_moe(c, l)) continue;
        const int64_t *n = t->staging.counts + (size_t)l * c->experts;
        int64_t sum = 0, most = 0, dead = 0;
        for (uint32_t e = 0; e < c->experts; e++) {
            if (n[e] < 0 || n[e] > t->staging.routed[0] * c->top_k - sum)
                return moe_fail(err, MOE_E_UNSUPPORTED,
                                "router/%s layer %u: counts %lld choices of expert %u, after %lld of those before it; "
                                "%lld tokens have %u each",
                                t->parts->cfg.routers[l].desc->id, l, (long long)n[e], e, (long long)sum,
                                (long long)t->staging.routed[0], c->top_k);
            sum += n[e];
            if (n[e] > most) most = n[e];
            dead += n[e] == 0;
        }
        double ratio = sum ? (double)most * c->experts / (double)sum : 0;
        if (!(out->imbalance >= ratio)) out->imbalance = ratio;
        if (dead > out->dead) out->dead = dead;
    }
    return MOE_OK;
}

static moe_status collect(const trainer *t, double lr, step_result *out, moe_err *err) {
    const staging *s = &t->staging;
    *out = (step_result){.loss = s->stats[0] / (double)*s->valid,
                         .aux_loss = router_value(t, "aux_loss"),
                         .z_loss = router_value(t, "z_loss"),
                         .router_entropy = router_value(t, "entropy"),
                         .lr = lr,
                         .grad_norm = (double)s->norm[0],
                         .tokens = *s->valid,
                         .sent = s->sent[4] + s->sent[6],
                         .sent_far = s->sent[5] + s->sent[7],
                         .dropped = s->drops[0] ? (double)s->drops[1] / (double)s->drops[0] : 0,
                         .stop = (int)s->stats[model_n_stats(t->model)]};
    return expert_load(t, out, err);
}

moe_status trainer_step(trainer *t, int64_t step, int stop, step_result *out, moe_err *err) {
    const optimizer_cfg *o = &t->cfg.optimizer;
    staging *s = &t->staging;
    moe_status status = MOE_OK;
    for (uint32_t i = 0; !status && i < t->n_micro; i++)
        status = fill_batch(t, DATA_TRAIN, (step - 1) * t->cfg.global, i, err);
    if (status) return status;
    double lr = lr_at(&t->cfg.lr, step);
    *s->step = (uint64_t)step;
    *s->stop = stop ? 1 : 0;
    memset(s->sent, 0, 8 * sizeof *s->sent);
    s->hyper[0] = (float)lr;
    s->hyper[1] = (float)(1 - pow((double)o->beta1, (double)step));
    s->hyper[2] = (float)(1 - pow((double)o->beta2, (double)step));
    s->hyper[3] = 0;
    status = trainer_run(t, PROGRAM_TRAIN, err);
    if (!status) status = collect(t, lr, out, err);
    if (status) return status;
    if ((out->tokens && !isfinite(out->loss)) || (!t->cfg.no_update && !isfinite(out->grad_norm)))
        return moe_fail(err, MOE_E_DATA, "step %lld: loss %g, gradient norm %g: not a finite number; weights unchanged",
                        (long long)step, out->loss, out->grad_norm);
    return MOE_OK;
}

moe_status trainer_eval(trainer *t, int64_t batches, double *loss, moe_err *err) {
    int64_t slice = t->cfg.model.micro * t->mesh.degree[MESH_DP], valid = 0;
    int64_t windows = data_count_windows(t->cfg.data, DATA_VALID);
    double sum = 0;
    if (windows < 1)
        return moe_fail(err, MOE_E_ARG, "the validation data hold no window of %lld tokens",
                        (long long)t->cfg.model.seq);
    for (int64_t i = 0; i < batches && i * slice < windows; i++) {
        moe_status status = fill_batch(t, DATA_VALID, i * slice, 0, err);
        if (!status) status = trainer_run(t, PROGRAM_EVAL, err);
        if (status) return status;
        sum += t->staging.stats[0];
        valid += *t->staging.valid;
    }
    *loss = sum / (double)valid;
    return MOE_OK;
}

moe_status trainer_logits(trainer *t, const int32_t *tokens, int64_t live, float *out, moe_err *err) {
    const model_cfg *c = &t->cfg.model;
    int64_t T = c->micro * c->seq;
    memcpy(t->staging.tokens, tokens, (size_t)T * sizeof *tokens);
    for (int64_t i = 0; i < T && t->staging.docs; i++) {
        t->staging.mask[i] = i < live;
        t->staging.docs[i] = i < live ? 0 : -1;
    }
    moe_status status = trainer_run(t, PROGRAM_LOGITS, err);
    if (!status) staging_logits(t, out);
    return status;
}
