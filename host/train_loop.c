/* What each rank does; rank 0 also writes. */
#include "train_loop.h"

#include <hf/load.h>
#include <inttypes.h>
#include <io/checkpoint.h>
#include <io/fs.h>
#include <io/safetensors.h>
#include <math.h>
#include <moe/options.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <util/clock.h>

#include "identity.h"
#include "metrics.h"
#include "progress.h"
#include "ranks.h"
#include "stop.h"
#include "trace.h"

/* Shared by the ranks; written by rank 0 alone but for the atomics. */
typedef struct loop {
    session *s;
    run_dir *dir;
    const train_options *options;
    metrics *metrics;
    progress *progress;
    trace *trace; /* NULL = none */
    double flops_per_token, peak_gflops;
    int64_t warned;          /* last step with a warning about routing, 0 = none */
    atomic_llong peak_bytes; /* largest rank */
    int signal_number;
} loop;

__attribute__((format(printf, 2, 3))) static void say(loop *l, const char *format, ...) {
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    progress_message(l->progress, text);
}

/* ---- checkpoints ---- */
static moe_status add_key(void *arg, const char *key, moe_err *err) {
    return ckpt_add_key(arg, key, err);
}

static moe_status prune(const loop *l, moe_err *err) {
    return ckpt_prune(l->dir->path, l->s->ckpt_keep, l->s->ckpt_keep_every, err);
}

/* On all ranks: each gives its part of the values to rank 0, which writes. */
static moe_status save(loop *l, trainer *t, uint32_t rank, int64_t step, moe_err *err) {
    ckpt *c = NULL;
    if (rank) return trainer_save(t, NULL, NULL, NULL, err);
    moe_status status = ckpt_begin(l->dir->path, step, &c, err);
    if (status) return status;
    status = trainer_save(t, ckpt_path(c), add_key, c, err);
    if (!status) status = ckpt_set(c, "recipe", l->s->resolved, err);
    if (!status) status = identity_write(c, l->s, err);
    if (!status) status = metrics_sync(l->metrics, err); /* a checkpoint has the lines of its steps beside it */
    if (!status) status = ckpt_prepare(c, err);
    if (status) {
        ckpt_abort(c);
        return status;
    }
    stop_hold();
    status = ckpt_commit(c, err);
    if (!status) status = prune(l, err);
    stop_release();
    return status;
}

/* The keys of meta.json are the tensors of the files, as trainer_save has told them: a file of another checkpoint, or
 * one that is missing, is found before anything is loaded. */
static moe_status check_keys(const ckpt_view *view, moe_err *err) {
    const char **names = NULL;
    uint64_t n = 0;
    moe_status status = MOE_OK;
    st_file **files = calloc(view->n_files + 1, sizeof *files);
    if (!files) return fs_fail(err, MOE_E_NOMEM, view->dir, "out of memory for its files");
    for (uint64_t f = 0; f < view->n_files && !status; f++) {
        status = st_open(view->files[f], &files[f], err);
        if (!status) n += st_count(files[f]);
    }
    if (!status && (names = calloc(n + 1, sizeof *names)) == NULL)
        status = fs_fail(err, MOE_E_NOMEM, view->dir, "out of memory for keys");
    n = 0;
    for (uint64_t f = 0; f < view->n_files && !status; f++)
        for (uint64_t i = 0; i < st_count(files[f]); i++) names[n++] = st_at(files[f], i)->name;
    if (!status) status = ckpt_check_keys(view, names, n, err);
    for (uint64_t f = 0; f < view->n_files; f++) st_close(files[f]);
    free(names);
    free(files);
    return status;
}

static moe_status load(loop *l, trainer *t, moe_err *err) {
    ckpt_view *view = NULL;
    moe_status status = ckpt_open(l->dir->checkpoint, &view, err);
    if (!status) status = identity_check(view, l->s, IDENTITY_RUN, err);
    if (!status && view->step != l->dir->first_step - 1)
        status = fs_fail(err, MOE_E_DATA, l->dir->checkpoint, "holds step %" PRId64 ": another name was given to it",
                         view->step);
    if (!status) status = check_keys(view, err);
    ckpt_close(view);
    return status ? status : trainer_load(t, l->dir->checkpoint, 1, err);
}

/* ---- one rank ---- */
static int due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* Routing that collapses is said aloud: half of a layer's experts idle, at most every 100 steps. */
static void warn_collapse(loop *l, int64_t step, const step_result *r) {
    uint32_t experts = l->s->trainer.model.experts;
    if (!experts || r->dead * 2 < experts || (l->warned && step < l->warned + 100)) return;
    l->warned = step;
    say(l, "warning: step %" PRId64 ": %" PRId64 " of %u experts of a layer got no token (imbalance %.2f)", step,
        r->dead, experts, r->imbalance);
}

static void fill_row(loop *l, int64_t step, const step_result *r, double took, metrics_row *row) {
    *row = (metrics_row){.step = step};
    double gflops = l->flops_per_token * (double)r->tokens / took * 1e-9;
    if (gflops > l->peak_gflops && l->peak_gflops > 0) l->peak_gflops = gflops; /* measured while others ran */
    METRICS_SET(row, tokens, step * l->s->trainer.global * l->s->trainer.model.seq);
    METRICS_SET(row, loss, r->loss);
    METRICS_SET(row, lr, r->lr);
    METRICS_SET(row, grad_norm, r->grad_norm);
    METRICS_SET(row, step_ms, took * 1e3);
    METRICS_SET(row, tokens_per_s, (double)r->tokens / took);
    METRICS_SET(row, model_gflops, gflops);
    if (l->peak_gflops > 0) METRICS_SET(row, mfu, gflops / l->peak_gflops);
    METRICS_SET(row, peak_bytes, (int64_t)atomic_load(&l->peak_bytes));
    if (!l->s->trainer.model.experts) return;
    METRICS_SET(row, dropped, r->dropped);
    METRICS_SET(row, imbalance, r->imbalance);
    METRICS_SET(row, dead, r->dead);
    if (l->s->mesh.degree[MESH_ETP_EP] > 1) {
        METRICS_SET(row, dispatch_bytes, r->sent);
        METRICS_SET(row, dispatch_far_bytes, r->sent_far);
    }
    if (!isnan(r->aux_loss)) METRICS_SET(row, aux_loss, r->aux_loss);
    if (!isnan(r->z_loss)) METRICS_SET(row, z_loss, r->z_loss);
    if (!isnan(r->router_entropy)) METRICS_SET(row, router_entropy, r->router_entropy);
}

static moe_status publish(loop *l, const metrics_row *row, moe_err *err) {
    progress_step(l->progress, row);
    return metrics_write(l->metrics, row, err);
}

/* One of the first steps has run and is to be traced; after the last of them nobody watches any more. */
static moe_status note_times(loop *l, trainer *t, const moe_bootstrap *b, int64_t step, moe_err *err) {
    moe_status status = MOE_OK;
    if (l->s->launch)
        status = trace_gather(l->trace, t, b, step, err);
    else
        trace_add(l->trace, t, b->rank, step);
    if (status) return status;
    return step + 1 == l->dir->first_step + l->s->trace ? trainer_watch(t, 0, err) : MOE_OK;
}

static void note_peak(loop *l, uint64_t bytes) {
    long long seen = atomic_load(&l->peak_bytes);
    while ((long long)bytes > seen && !atomic_compare_exchange_weak(&l->peak_bytes, &seen, (long long)bytes)) {
    }
}

/* The largest rank's, where ranks share no memory: what a rank needs grows in its first steps, if at all. */
static moe_status share_peak(loop *l, const moe_bootstrap *b, int64_t step, moe_err *err) {
    int64_t bytes = (int64_t)atomic_load(&l->peak_bytes);
    if (!l->s->launch || !(step == l->dir->first_step || step == l->s->steps || due(step, l->s->log_every)))
        return MOE_OK;
    moe_status status = ranks_max(b, &bytes, err);
    note_peak(l, (uint64_t)bytes);
    return status;
}

/* All ranks stop after this step: because of which signal? It may have reached some of them only. */
static moe_status note_signal(loop *l, const moe_bootstrap *b, moe_err *err) {
    int64_t signal_number = stop_requested();
    moe_status status = ranks_max(b, &signal_number, err);
    if (session_keeps(l->s, b->rank)) l->signal_number = (int)signal_number;
    return status;
}

static moe_status steps(loop *l, trainer *t, const moe_bootstrap *b, moe_err *err) {
    const session *s = l->s;
    const uint32_t rank = b->rank;
    moe_status status = s->trace ? trainer_watch(t, 1, err) : MOE_OK;
    int stop = 0;
    for (int64_t step = l->dir->first_step; step <= s->steps && !status && !stop; step++) {
        step_result r;
        metrics_row row = {.step = step};
        double begin = clock_seconds();
        int asked = stop_requested();
        status = trainer_step(t, step, asked != 0, &r, err);
        if (status) break;
        double took = clock_seconds() - begin;
        note_peak(l, trainer_memory_of(t).total);
        status = share_peak(l, b, step, err);
        if (!status && step < l->dir->first_step + s->trace) status = note_times(l, t, b, step, err);
        if (!rank) fill_row(l, step, &r, took, &row);
        if (!rank) warn_collapse(l, step, &r);
        stop = r.stop;
        int last = step == s->steps || stop;
        if (stop && !status) status = note_signal(l, b, err);
        if (!status && s->eval_batches > 0 && !stop && (due(step, s->eval_every) || last)) {
            double loss = 0;
            status = trainer_eval(t, s->eval_batches, &loss, err);
            METRICS_SET(&row, val_loss, loss);
        }
        if (!rank && !status) status = publish(l, &row, err);
        if (!status && (last || due(step, s->ckpt_every))) status = save(l, t, rank, step, err);
    }
    return status;
}

static void introduce(loop *l, trainer *t) {
    const session *s = l->s;
    const trainer_memory m = trainer_memory_of(t);
    int64_t total = 0, n = 0;
    for (uint32_t i = 0; trainer_param_name(t, i, &n); i++) total += n;
    say(l, "%s: %.2f M parameters, %u nodes a step, %.1f MiB a rank (%.1f weights and optimiser, %.1f step)", s->name,
        (double)total * 1e-6, trainer_nodes(t), (double)m.total / 1048576, (double)m.params / 1048576,
        (double)m.arena / 1048576);
    say(l, "device: %s; product peak %.0f GFLOP/s; data: %" PRId64 " training windows, %" PRId64 " for validation",
        trainer_device_name(t), l->peak_gflops, data_count_windows(s->data, DATA_TRAIN),
        data_count_windows(s->data, DATA_VALID));
    if (!l->dir->checkpoint && s->weights) say(l, "starting from the weights of %s", s->weights);
    if (l->dir->again) say(l, "the run ended before its first checkpoint: it starts again from step 1");
    if (l->dir->first_step > 1)
        say(l, "resuming after step %" PRId64 " from %s", l->dir->first_step - 1, l->dir->checkpoint);
}

/* Made by rank 0 before its first step, which the other ranks cannot end without it. */
static moe_status start_trace(loop *l, moe_err *err) {
    char *path = fs_join(l->dir->path, "trace.json");
    moe_status status = path ? trace_open(path, &l->trace, err) : moe_fail(err, MOE_E_NOMEM, "out of memory");
    free(path);
    return status;
}

/* Every plugin has agreed and the checkpoint is loaded: from here on files change. */
static moe_status begin(loop *l, trainer *t, moe_err *err) {
    exit_guard(); /* ahead of what the libraries have registered while they were made ready */
    moe_status status = run_dir_begin(l->dir, l->s->resolved, err);
    char *path = fs_join(l->dir->path, "metrics.jsonl");
    if (!status)
        status = path ? metrics_open(path, l->dir->first_step, &l->metrics, err)
                      : moe_fail(err, MOE_E_NOMEM, "out of memory");
    free(path);
    if (!status && l->s->trace) status = start_trace(l, err);
    if (!status && !l->options->quiet) introduce(l, t);
    return status;
}

static moe_status run_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    loop *l = arg;
    trainer *t = NULL;
    moe_status status = session_trainer(l->s, &l->s->trainer, bootstrap, &t, err);
    if (status) return status;
    note_peak(l, trainer_memory_of(t).total);
    if (!rank) status = trainer_peak(t, 1024, &l->peak_gflops, err);
    if (!status && l->dir->checkpoint)
        status = load(l, t, err);
    else if (!status && l->s->weights)
        status = hf_load(t, l->s->weights, err);
    if (!status && !rank) status = begin(l, t, err);
    if (!status) status = steps(l, t, bootstrap, err);
    if (status) trainer_abort(t, err->msg);
    trainer_destroy(t);
    return status;
}

/* ---- the whole ---- */
moe_status train_loop(session *s, run_dir *dir, const train_options *o, int *signal_number, moe_err *err) {
    loop l = {.s = s, .dir = dir, .options = o, .flops_per_token = model_flops_total(&s->trainer.model)};
    const progress_config p = {.fd = STDOUT_FILENO,
                               .message_fd = o->quiet ? STDERR_FILENO : STDOUT_FILENO,
                               .quiet = o->quiet,
                               .total = s->steps,
                               .log_every = s->log_every};
    const int leads = session_speaks(s);
    moe_status status = leads ? progress_create(&p, &l.progress, err) : MOE_OK;
    if (!status) status = session_run(s, run_rank, &l, err);
    if (!status && leads && dir->first_step > s->steps)
        status = prune(&l, err); /* a kill came between the last save and here */
    progress_finish(l.progress);
    metrics_close(l.metrics);
    moe_err untraced = {.size = sizeof untraced};
    if (trace_close(l.trace, &untraced) && !status) *err = untraced, status = untraced.code;
    *signal_number = l.signal_number;
    return status;
}
