/* Emission of whole programs. */
#include "train/step.h"

#include <moe/options.h>
#include <stdio.h>

#include "model/blocks.h"
#include "model/collect.h"
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

/* Sum over the ranks that have other sequences: statistics are equal on all tp ranks. */
static void sum_ranks(emit *e, const char *name, tref t, const buf_id *bufs, uint32_t n) {
    emit_all_reduce(e, name, MESH_DP_CP, MOE_LANE_COMM_DP, MOE_SUM, t, bufs, n);
}

/* Numbers >= 0 in t, over all microbatches and ranks. */
static tref emit_count(emit *e, const char *name, tref t) {
    char zero[48], reduce[48];
    tref n = tref_new(e, name, MOE_I64, 1, 0, 0);
    snprintf(zero, sizeof zero, "zero.%s", name);
    snprintf(reduce, sizeof reduce, "%s.all_reduce", name);
    emit_zero(e, zero, n.buf, sizeof(int64_t));
    emit_op(e, name, MODEL_COUNT_VALID, NULL, &t, 1, &n, 1, NULL);
    sum_ranks(e, reduce, n, NULL, 0);
    return n;
}

/* ---- batches ---- */
/* All microbatches of the step in device memory. */
static batch_refs stage_batch(emit *e, const staging *s, int64_t tokens, int with_targets) {
    batch_refs b = {tref_none(), tref_none(), tref_none(), tref_none()};
    b.ids = stage_in(e, "tokens", s->tokens, MOE_I32, tokens);
    if (with_targets) b.targets = stage_in(e, "targets", s->targets, MOE_I32, tokens);
    if (!e->m->cfg.documents) return b;
    b.docs = stage_in(e, "docs", s->docs, MOE_I32, tokens);
    b.mask = stage_in(e, "mask", s->mask, MOE_U8, tokens);
    return b;
}

static tref rows_or_none(tref t, int64_t first, int64_t n) {
    return t.t.ndim ? tref_rows(t, first, n) : t;
}

static batch_refs microbatch(const batch_refs *all, int64_t i, int64_t tokens) {
    return (batch_refs){rows_or_none(all->ids, i * tokens, tokens), rows_or_none(all->targets, i * tokens, tokens),
                        rows_or_none(all->docs, i * tokens, tokens), rows_or_none(all->mask, i * tokens, tokens)};
}

/* The divisors: of the loss, and of the routers' losses. ignore_aux: so large a one that these vanish. */
static void emit_divisors(emit *e, const step_cfg *cfg, const batch_refs *all) {
    e->divisor = emit_count(e, "divisor", all->targets);
    if (e->m->cfg.documents && !cfg->ignore_aux)
        e->routed = emit_count(e, "routed", all->docs);
    else
        e->routed = stage_in(e, "routed", cfg->staging->routed, MOE_I64, 1);
}

static moe_status begin(program *p, emit *e, const step_cfg *cfg, int train, moe_err *err) {
    p->g = graph_create();
    if (!p->g) return moe_fail(err, MOE_E_NOMEM, "out of memory for the step graph");
    moe_status status = emit_init(e, p->g, cfg->model, train, cfg->staging->step);
    if (status) return *err = p->g->err, status;
    e->phase = MOE_SCHED_PREPARE;
    emit_zero(e, "zero.stats", e->stats_all, model_n_stats(cfg->model) * sizeof(double));
    emit_touch_stats(e, 1);
    faults_open(e, &p->faults);
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
    if (m->cfg.capacity > 0) emit_zero(e, "zero.drops", e->drops, 2 * sizeof(int64_t));
}

/* Sum of the experts' counts over the ranks. */
static void reduce_counts(emit *e) {
    const model *m = e->m;
    int64_t n = (int64_t)m->cfg.layers * m->cfg.experts;
    if (!n) return;
    tref counts = tref_of(graph_buffer_fixed(e->g, m->counts, (uint64_t)n * 8, "counts"), MOE_I64, n, 0, 0);
    sum_ranks(e, "counts.all_reduce", counts, e->counts, m->cfg.layers);
}

/* All microbatches, forward and backward. Where a router's loss wants the counts of the whole global batch, every
 * forward comes before the first backward, and all activations live at once. */
static void emit_batch(emit *e, const step_cfg *cfg, const batch_refs *all) {
    const model *m = e->m;
    int64_t T = m->cfg.micro * m->cfg.seq;
    int together = model_needs_batch_counts(m);
    microbatch_acts **acts = graph_alloc(e->g, cfg->n_micro * sizeof(microbatch_acts *));
    for (uint32_t i = 0; acts && i < cfg->n_micro && !e->g->status; i++) {
        batch_refs one = microbatch(all, i, T);
        e->mb = (int32_t)i;
        acts[i] = emit_microbatch_forward(e, &one);
        if (!together) emit_microbatch_backward(e, acts[i]);
    }
    e->mb = -1;
    e->phase = MOE_SCHED_FORWARD;
    if (together) reduce_counts(e);
    for (uint32_t i = 0; together && i < cfg->n_micro && !e->g->status; i++) {
        e->mb = (int32_t)i;
        emit_microbatch_backward(e, acts[i]);
    }
    e->mb = -1;
    e->phase = MOE_SCHED_REDUCE;
    if (!together) reduce_counts(e);
}

/* The loss and the routers' losses of all ranks, and the loss's divisor, to the host. */
static void emit_stats(emit *e, const step_cfg *cfg, const char *name) {
    int64_t n = (int64_t)model_n_stats(e->m);
    tref stats = tref_of(e->stats_all, MOE_F64, n, 0, 0);
    sum_ranks(e, name, stats, e->stats, e->m->cfg.layers + 1);
    stage_out(e, "stats.out", cfg->staging->stats, stats, n);
    emit_touch_stats(e, 0);
    stage_out(e, "valid.out", cfg->staging->valid, e->divisor, 1);
}

/* What the movements of all ranks have sent. */
static void emit_sent(emit *e, const step_cfg *cfg) {
    int64_t *sent = cfg->staging->sent;
    if (!e->sent) return;
    tref t = stage_in(e, "sent", sent, MOE_I64, 4);
    if (!e->g->status) graph_writes(e->g, e->g->n_nodes - 1, e->sent_buf);
    emit_all_reduce(e, "sent.all_reduce", MESH_WORLD, MOE_LANE_COMM_DP, MOE_SUM, t, NULL, 0);
    stage_out(e, "sent.out", sent + 4, t, 4);
}

/* Sums over the ranks, and results to the host. */
static void emit_results(emit *e, const step_cfg *cfg, tref stop) {
    const model *m = e->m;
    staging *s = cfg->staging;
    int64_t n_counts = (int64_t)m->cfg.layers * m->cfg.experts, n_stats = (int64_t)model_n_stats(m);
    tref drops = tref_of(e->drops, MOE_I64, 2, 0, 0);
    emit_stats(e, cfg, "stats.all_reduce");
    emit_sent(e, cfg);
    emit_all_reduce(e, "stop.all_reduce", MESH_WORLD, MOE_LANE_COMM_DP, MOE_SUM, stop, NULL, 0);
    stage_out(e, "stop.out", s->stats + n_stats, stop, 1);
    stage_out(e, "routed.out", s->routed + 1, e->routed, 1);
    if (m->cfg.capacity > 0) {
        sum_ranks(e, "drops.all_reduce", drops, NULL, 0);
        stage_out(e, "drops.out", s->drops, drops, 2);
    }
    if (!n_counts) return;
    tref counts =
        tref_of(graph_buffer_fixed(e->g, m->counts, (uint64_t)n_counts * 8, "counts.all"), MOE_I64, n_counts, 0, 0);
    stage_out(e, "counts.out", s->counts, counts, n_counts);
    for (uint32_t l = 0; l < m->cfg.layers; l++) graph_reads(e->g, e->g->n_nodes - 1, e->counts[l]);
}

moe_status step_build_train(program *p, const step_cfg *cfg, moe_err *err) {
    const model *m = cfg->model;
    staging *s = cfg->staging;
    emit e;
    moe_status status = begin(p, &e, cfg, 1, err);
    if (status) return status;
    batch_refs all = stage_batch(&e, s, m->cfg.micro * m->cfg.seq * cfg->n_micro, 1);
    if (m->place.mesh->degree[MESH_ETP_EP] > 1) {
        e.sent = (sent_bytes *)s->sent;
        e.sent_buf = graph_buffer_fixed(e.g, s->sent, 4 * sizeof *s->sent, "sent");
    }
    tref hyper = stage_in(&e, "hyper", s->hyper, MOE_F32, 4), stop = stage_in(&e, "stop", s->stop, MOE_F64, 1);
    zero_grads(&e);
    emit_divisors(&e, cfg, &all);
    emit_batch(&e, cfg, &all);
    emit_reduce_grads(&e);
    emit_results(&e, cfg, stop);
    faults_close(&e, s->fault);
    e.phase = MOE_SCHED_UPDATE;
    if (!cfg->no_update) stage_out(&e, "norm.out", s->norm, emit_update(&e, cfg, hyper), 2);
    return program_order(p, m->parts, err);
}

moe_status step_build_eval(program *p, const step_cfg *cfg, moe_err *err) {
    const model *m = cfg->model;
    emit e;
    moe_status status = begin(p, &e, cfg, 0, err);
    if (status) return status;
    batch_refs batch = stage_batch(&e, cfg->staging, m->cfg.micro * m->cfg.seq, 1);
    /* a loss that is not divided on the device: head_loss sees no divisor */
    tref valid = emit_count(&e, "divisor", batch.targets);
    e.mb = 0;
    emit_microbatch_eval(&e, &batch);
    e.phase = MOE_SCHED_REDUCE;
    e.divisor = valid;
    emit_stats(&e, cfg, "eval.all_reduce");
    faults_close(&e, cfg->staging->fault);
    return program_order(p, m->parts, err);
}

moe_status step_build_logits(program *p, const step_cfg *cfg, moe_err *err) {
    const model *m = cfg->model;
    int64_t T = m->cfg.micro * m->cfg.seq;
    emit e;
    moe_status status = begin(p, &e, cfg, 0, err);
    if (status) return status;
    batch_refs batch = stage_batch(&e, cfg->staging, T, 0);
    tref logits = tref_new(&e, "logits.all", m->act, T, m->cfg.vocab, 0);
    e.mb = 0;
    emit_microbatch_logits(&e, &batch, logits);
    stage_out(&e, "logits.out", cfg->staging->logits, logits, T * m->cfg.vocab);
    faults_close(&e, cfg->staging->fault);
    return program_order(p, m->parts, err);
}

moe_status step_build_dump(program *p, const step_cfg *cfg, int with_grads, moe_err *err) {
    const model *m = cfg->model;
    staging *s = cfg->staging;
    emit e;
    moe_status status = begin(p, &e, cfg, with_grads, err);
    if (status) return status;
    e.taps = &s->taps;
    batch_refs all = stage_batch(&e, s, m->cfg.micro * m->cfg.seq, 1);
    emit_divisors(&e, cfg, &all);
    if (with_grads) {
        zero_grads(&e);
        emit_batch(&e, cfg, &all);
        emit_reduce_grads(&e);
    } else {
        e.mb = 0;
        emit_microbatch_eval(&e, &all);
    }
    e.mb = -1;
    e.phase = MOE_SCHED_REDUCE;
    emit_stats(&e, cfg, "stats.all_reduce");
    stage_out(&e, "routed.out", s->routed + 1, e.routed, 1);
    faults_close(&e, s->fault);
    return program_order(p, m->parts, err);
}
