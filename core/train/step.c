/* Emission of whole programs. */
#include "train/step.h"

#include <moe/options.h>

#include "model/blocks.h"
#include "train/update.h"

static tref stage_in(emit *e, const char *name, void *host, int32_t dtype, int64_t n) {
    uint64_t bytes = (uint64_t)n * dtype_bytes(dtype);
    tref device = tref_new(e, name, dtype, n, 0, 0);
    emit_copy(e, name, device, tref_of(graph_buffer_fixed(e->g, host, bytes, "host.%s", name), dtype, n, 0, 0), bytes);
    return device;
}

static void stage_out(emit *e, const char *name, void *host, tref t, int64_t n) {
    uint64_t bytes = (uint64_t)n * dtype_bytes(t.t.dtype);
    emit_copy(e, name, tref_of(graph_buffer_fixed(e->g, host, bytes, "host.%s", name), t.t.dtype, n, 0, 0), t, bytes);
}

/* Valid tokens of all microbatches and ranks: the one divisor of loss and gradients. */
static tref emit_divisor(emit *e, const step_cfg *cfg, tref targets) {
    tref n = tref_new(e, "divisor", MOE_I64, 1, 0, 0);
    emit_zero(e, "zero.divisor", n.buf, sizeof(int64_t));
    emit_op(e, "count_valid", MODEL_COUNT_VALID, NULL, &targets, 1, &n, 1, NULL);
    emit_all_reduce(e, cfg, "divisor.all_reduce", n, 1, NULL, 0);
    return n;
}

static moe_status begin(program *p, emit *e, const step_cfg *cfg, int train, moe_err *err) {
    p->g = graph_create();
    if (!p->g) return moe_fail(err, MOE_E_NOMEM, "out of memory for the step graph");
    moe_status status = emit_init(e, p->g, cfg->model, train, cfg->staging->step);
    if (status) return *err = p->g->err, status;
    e->phase = MOE_SCHED_PREPARE;
    e->dp_rank = cfg->dp_rank;
    e->dp_size = cfg->dp_size;
    emit_zero(e, "zero.stats", e->stats_all, model_n_stats(cfg->model) * sizeof(double));
    emit_touch_stats(e, 1);
    return MOE_OK;
}

/* Gradients that only ever receive += begin at zero; products overwrite theirs at first use. */
static void zero_grads(emit *e) {
    const model *m = e->m;
    for (uint32_t i = 0; i < m->params.n && !e->g->status; i++) {
        const param *p = &m->params.at[i];
        if (p->kind == PARAM_LINEAR && i != (uint32_t)m->embed) continue;
        emit_zero(e, "zero.grad", e->grad[i], (uint64_t)p->count * sizeof(float));
        e->grad_live[i] = 1;
    }
    for (uint32_t l = 0; l < m->cfg.layers && !e->g->status; l++)
        if (model_layer_is_moe(&m->cfg, l)) emit_zero(e, "zero.counts", e->counts[l], m->cfg.experts * sizeof(int64_t));
}

/* Sums over the ranks, and results to the host. */
static void emit_results(emit *e, const step_cfg *cfg, tref stop) {
    const model *m = e->m;
    staging *s = cfg->staging;
    int64_t n_counts = (int64_t)m->cfg.layers * m->cfg.experts, n_stats = (int64_t)model_n_stats(m);
    tref stats = tref_of(e->stats_all, MOE_F64, n_stats, 0, 0);
    tref counts =
        tref_of(graph_buffer_fixed(e->g, m->counts, (uint64_t)n_counts * 8, "counts"), MOE_I64, n_counts, 0, 0);
    emit_all_reduce(e, cfg, "stats.all_reduce", stats, n_stats, e->stats, m->cfg.layers + 1);
    emit_all_reduce(e, cfg, "stop.all_reduce", stop, 1, NULL, 0);
    if (n_counts) emit_all_reduce(e, cfg, "counts.all_reduce", counts, n_counts, e->counts, m->cfg.layers);
    stage_out(e, "stats.out", s->stats, stats, n_stats);
    emit_touch_stats(e, 0);
    stage_out(e, "stop.out", s->stats + n_stats, stop, 1);
    stage_out(e, "valid.out", s->valid, e->divisor, 1);
    if (!n_counts) return;
    stage_out(e, "counts.out", s->counts, counts, n_counts);
    for (uint32_t l = 0; l < m->cfg.layers; l++) graph_reads(e->g, e->g->n_nodes - 1, e->counts[l]);
}

moe_status step_build_train(program *p, const step_cfg *cfg, moe_err *err) {
    const model *m = cfg->model;
    staging *s = cfg->staging;
    int64_t T = m->cfg.micro * m->cfg.seq, all = T * cfg->n_micro;
    emit e;
    moe_shape_in in = {.size = sizeof in,
                       .n_layers = m->cfg.layers,
                       .n_microbatches = cfg->n_micro,
                       .pp = 1,
                       .grad_bytes = (uint64_t)m->params.begin[PARAM_CLASSES] * 4,
                       .memory_limit = cfg->memory_limit};
    moe_shape_out shape = {sizeof shape, 1, 1, 1};
    moe_status status = begin(p, &e, cfg, 1, err);
    if (!status) status = m->parts->scheduler->shape(m->parts->scheduler_self, &in, &shape, err);
    if (!status && (shape.pieces_fwd != 1 || shape.pieces_bwd != 1 || !shape.n_buckets))
        status =
            moe_fail(err, MOE_E_UNSUPPORTED,
                     "scheduler/%s asks for %u and %u pieces and %u buckets; this version runs 1 and 1 pieces and at "
                     "least 1 bucket",
                     m->parts->cfg.scheduler.desc->id, shape.pieces_fwd, shape.pieces_bwd, shape.n_buckets);
    if (status) return status;
    tref tokens = stage_in(&e, "tokens", s->tokens, MOE_I32, all);
    tref targets = stage_in(&e, "targets", s->targets, MOE_I32, all);
    tref hyper = stage_in(&e, "hyper", s->hyper, MOE_F32, 4), stop = stage_in(&e, "stop", s->stop, MOE_F64, 1);
    zero_grads(&e);
    e.divisor = emit_divisor(&e, cfg, targets);
    for (uint32_t i = 0; i < cfg->n_micro && !p->g->status; i++) {
        e.mb = (int32_t)i;
        emit_microbatch_train(&e, tref_rows(tokens, i * T, T), tref_rows(targets, i * T, T));
    }
    e.mb = -1;
    e.phase = MOE_SCHED_REDUCE;
    emit_reduce_grads(&e, cfg, shape.n_buckets);
    emit_results(&e, cfg, stop);
    e.phase = MOE_SCHED_UPDATE;
    stage_out(&e, "norm.out", s->norm, emit_update(&e, cfg, hyper), 2);
    return program_order(p, m->parts, err);
}

moe_status step_build_eval(program *p, const step_cfg *cfg, moe_err *err) {
    const model *m = cfg->model;
    staging *s = cfg->staging;
    int64_t T = m->cfg.micro * m->cfg.seq, n_stats = (int64_t)model_n_stats(m);
    emit e;
    moe_status status = begin(p, &e, cfg, 0, err);
    if (status) return status;
    tref tokens = stage_in(&e, "tokens", s->tokens, MOE_I32, T),
         targets = stage_in(&e, "targets", s->targets, MOE_I32, T);
    tref valid = emit_divisor(&e, cfg, targets), stats = tref_of(e.stats_all, MOE_F64, n_stats, 0, 0);
    e.mb = 0;
    emit_microbatch_eval(&e, tokens, targets);
    e.phase = MOE_SCHED_REDUCE;
    emit_all_reduce(&e, cfg, "eval.all_reduce", stats, n_stats, e.stats, m->cfg.layers + 1);
    stage_out(&e, "stats.out", s->stats, stats, n_stats);
    emit_touch_stats(&e, 0);
    stage_out(&e, "valid.out", s->valid, valid, 1);
    return program_order(p, m->parts, err);
}

moe_status step_build_logits(program *p, const step_cfg *cfg, moe_err *err) {
    const model *m = cfg->model;
    int64_t T = m->cfg.micro * m->cfg.seq;
    emit e;
    moe_status status = begin(p, &e, cfg, 0, err);
    if (status) return status;
    tref tokens = stage_in(&e, "tokens", cfg->staging->tokens, MOE_I32, T);
    tref logits = tref_new(&e, "logits.all", m->act, T, m->cfg.vocab, 0);
    e.mb = 0;
    emit_microbatch_logits(&e, tokens, logits);
    stage_out(&e, "logits.out", cfg->staging->logits, logits, T * m->cfg.vocab);
    return program_order(p, m->parts, err);
}
