/* The ranks dump their rows into memory that they share; rank 0 writes the file. */
#include "eval.h"

#include <hf/device.h>
#include <io/safetensors.h>
#include <math.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* Values of the whole batch: T = rows * seq tokens. */
typedef struct evaluation {
    session *s;
    const eval_batch *batch;
    const eval_options *o;
    eval_result result;     /* written by rank 0 */
    float *logits;          /* [T,V] */
    float **router_logits;  /* [layers] each [T,E], NULL in dense layers */
    int32_t **expert_ids;   /* [layers] each [T,k] */
    float **expert_weights; /* [layers] each [T,k] */
} evaluation;

/* ---- shared memory ---- */
static void free_values(evaluation *e) {
    for (uint32_t l = 0; l < e->s->trainer.model.layers; l++) {
        if (e->router_logits) free(e->router_logits[l]);
        if (e->expert_ids) free(e->expert_ids[l]);
        if (e->expert_weights) free(e->expert_weights[l]);
    }
    free(e->router_logits);
    free(e->expert_ids);
    free(e->expert_weights);
    free(e->logits);
}

static moe_status alloc_values(evaluation *e, moe_err *err) {
    const model_cfg *c = &e->s->trainer.model;
    size_t T = (size_t)(e->batch->rows * e->batch->seq);
    e->logits = malloc(T * (size_t)c->vocab * sizeof *e->logits);
    e->router_logits = calloc(c->layers, sizeof *e->router_logits);
    e->expert_ids = calloc(c->layers, sizeof *e->expert_ids);
    e->expert_weights = calloc(c->layers, sizeof *e->expert_weights);
    int whole = e->logits && e->router_logits && e->expert_ids && e->expert_weights;
    for (uint32_t l = 0; l < c->layers && whole; l++) {
        if (!model_layer_is_moe(c, l)) continue;
        e->router_logits[l] = malloc(T * c->experts * sizeof *e->router_logits[l]);
        e->expert_ids[l] = malloc(T * c->top_k * sizeof *e->expert_ids[l]);
        e->expert_weights[l] = malloc(T * c->top_k * sizeof *e->expert_weights[l]);
        whole = e->router_logits[l] && e->expert_ids[l] && e->expert_weights[l];
    }
    return whole ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for the values of %zu tokens", T);
}

/* ---- the file ---- */
static moe_status declare_layer(st_writer *w, uint32_t layer, const char *name, int32_t dtype, int64_t rows, int64_t n,
                                moe_err *err) {
    char full[64];
    snprintf(full, sizeof full, "layers.%u.%s", layer, name);
    return st_writer_declare(w, full, dtype, 2, (const int64_t[]){rows, n}, err);
}

static moe_status declare_values(const evaluation *e, st_writer *w, moe_err *err) {
    const model_cfg *c = &e->s->trainer.model;
    int64_t B = e->batch->rows, S = e->batch->seq;
    moe_status status = st_writer_declare(w, "loss", MOE_F64, 1, (const int64_t[]){1}, err);
    if (!status) status = st_writer_declare(w, "logits", MOE_F32, 3, (const int64_t[]){B, S, c->vocab}, err);
    for (uint32_t l = 0; l < c->layers && !status; l++) {
        if (!e->router_logits[l]) continue;
        status = declare_layer(w, l, "router_logits", MOE_F32, B * S, c->experts, err);
        if (!status) status = declare_layer(w, l, "expert_ids", MOE_I32, B * S, c->top_k, err);
        if (!status) status = declare_layer(w, l, "expert_weights", MOE_F32, B * S, c->top_k, err);
    }
    return status;
}

static moe_status write_values(const evaluation *e, st_writer *w, moe_err *err) {
    const model_cfg *c = &e->s->trainer.model;
    uint64_t T = (uint64_t)(e->batch->rows * e->batch->seq);
    moe_status status = st_write(w, &e->result.loss, sizeof e->result.loss, err);
    if (!status) status = st_write(w, e->logits, T * (uint64_t)c->vocab * 4, err);
    for (uint32_t l = 0; l < c->layers && !status; l++) {
        if (!e->router_logits[l]) continue;
        status = st_write(w, e->router_logits[l], T * c->experts * 4, err);
        if (!status) status = st_write(w, e->expert_ids[l], T * c->top_k * 4, err);
        if (!status) status = st_write(w, e->expert_weights[l], T * c->top_k * 4, err);
    }
    return status;
}

static moe_status declare_grads(const hf_map *map, st_writer *w, moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < map->n && !status; i++) {
        const hf_tensor *x = &map->at[i];
        char name[160];
        if (x->state_layer >= 0) continue;
        snprintf(name, sizeof name, "grad.%s", x->name);
        status = st_writer_declare(w, name, MOE_F32, x->ndim, x->shape, err);
    }
    return status;
}

/* On all ranks, which together have the whole; w NULL: another rank writes. */
static moe_status write_grads(const trainer *t, const hf_map *map, st_writer *w, moe_err *err) {
    hf_device d;
    moe_status status = hf_device_open(&d, t, hf_slab_most(map, HF_SLAB), err);
    for (uint32_t i = 0; i < map->n && !status; i++) {
        const hf_tensor *x = &map->at[i];
        if (x->state_layer >= 0) continue;
        float *grad = malloc((size_t)x->count * sizeof *grad);
        status =
            grad ? hf_device_whole(&d, x, 1, grad, err) : moe_fail(err, MOE_E_NOMEM, "out of memory for %s", x->name);
        if (!status && w) status = st_write(w, grad, (uint64_t)x->count * 4, err);
        free(grad);
    }
    hf_device_close(&d);
    return status;
}

/* A rank's part of rank 0's file. */
static moe_status give_grads(const evaluation *e, const trainer *t, moe_err *err) {
    hf_map *map = NULL;
    if (!e->o->grads) return MOE_OK;
    moe_status status = hf_map_of(t, &map, err);
    if (!status) status = write_grads(t, map, NULL, err);
    hf_map_free(map);
    return status;
}

static moe_status write_file(const evaluation *e, const trainer *t, moe_err *err) {
    hf_map *map = NULL;
    st_writer *w = NULL;
    moe_status status = hf_map_of(t, &map, err);
    if (!status) status = st_writer_create(e->o->dump, &w, err);
    if (!status) status = declare_values(e, w, err);
    if (!status && e->o->grads) status = declare_grads(map, w, err);
    if (!status) status = write_values(e, w, err);
    if (!status && e->o->grads) status = write_grads(t, map, w, err);
    if (!status)
        status = st_writer_finish(w, err);
    else
        st_writer_abort(w);
    hf_map_free(map);
    return status;
}

/* ---- a rank ---- */
/* Rows of this rank to their place among all. */
static void keep_values(evaluation *e, const trainer *t, const trainer_values *v, uint32_t rank) {
    const model_cfg *c = &e->s->trainer.model;
    if (session_keeps(e->s, rank)) e->result = (eval_result){v->loss, v->valid};
    if (mesh_coord(&e->s->mesh, MESH_TP, rank)) return; /* all tp ranks have the same */
    size_t n = (size_t)(c->micro * c->seq), first = mesh_coord(&e->s->mesh, MESH_DP, rank) * n, E = c->experts,
           k = c->top_k;
    trainer_dump_logits(t, e->logits + first * (size_t)c->vocab);
    for (uint32_t l = 0; l < c->layers; l++) {
        if (!e->router_logits[l]) continue;
        memcpy(e->router_logits[l] + first * E, v->router_logits[l], n * E * sizeof(float));
        memcpy(e->expert_ids[l] + first * k, v->expert_ids[l], n * k * sizeof(int32_t));
        memcpy(e->expert_weights[l] + first * k, v->expert_weights[l], n * k * sizeof(float));
    }
}

/* Processes: each has its own rows only. */
static moe_status share_values(evaluation *e, const moe_bootstrap *b, moe_err *err) {
    const model_cfg *c = &e->s->trainer.model;
    const uint64_t T = (uint64_t)(c->micro * c->seq), n = mesh_coord(&e->s->mesh, MESH_TP, b->rank) ? 0 : T,
                   first = mesh_coord(&e->s->mesh, MESH_DP, b->rank) * T;
    moe_status status = ranks_share_rows(b, e->logits, (uint64_t)c->vocab * 4, first, n, err);
    for (uint32_t l = 0; l < c->layers && !status; l++) {
        if (!e->router_logits[l]) continue;
        status = ranks_share_rows(b, e->router_logits[l], c->experts * 4, first, n, err);
        if (!status) status = ranks_share_rows(b, e->expert_ids[l], c->top_k * 4, first, n, err);
        if (!status) status = ranks_share_rows(b, e->expert_weights[l], c->top_k * 4, first, n, err);
    }
    return status;
}

static moe_status run(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    evaluation *e = arg;
    const model_cfg *c = &e->s->trainer.model;
    int64_t first = mesh_coord(&e->s->mesh, MESH_DP, rank) * c->micro * c->seq;
    trainer_values values;
    trainer *t = NULL;
    moe_status status = session_trainer(e->s, &e->s->trainer, bootstrap, &t, err);
    if (!status) status = weights_load(e->o->weights, t, err);
    if (!status)
        status =
            trainer_dump(t, e->batch->tokens + first, e->batch->mask ? e->batch->mask + first : NULL, &values, err);
    if (!status) keep_values(e, t, &values, rank);
    if (!status) status = e->s->launch ? share_values(e, bootstrap, err) : ranks_meet(bootstrap, err);
    if (!status) status = rank ? give_grads(e, t, err) : write_file(e, t, err);
    if (status && t) trainer_abort(t, err->msg); /* the other ranks may wait for this one */
    trainer_destroy(t);
    return status;
}

moe_status eval_run(session *s, const eval_batch *batch, const eval_options *o, eval_result *out, moe_err *err) {
    evaluation e = {.s = s, .batch = batch, .o = o, .result = {.loss = (double)NAN}};
    moe_status status = alloc_values(&e, err);
    if (!status) status = session_run(s, run, &e, err);
    free_values(&e);
    if (!status) *out = e.result;
    return status;
}
