/* Reduction, norm and optimiser nodes of each bucket.
 *
 * Edges: reductions write the buffers of the parameters that a bucket has a part of, sums of squares read them, and the
 * clip node, which all sums come before, counts as the write of all weights: whatever reads weights comes before it.
 * After it every bucket has buffers of its own, so that one bucket's gather waits for no other's step. */
#include "train/update.h"

#include <stdio.h>

#include "model/collect.h"

/* ---- reduction ---- */
/* The last node also reads or writes the gradients of a bucket's parameters. */
static void touch_grads(emit *e, const param_bucket *b, int write) {
    for (uint32_t i = b->first; i <= b->last && !e->g->status; i++)
        if (write)
            graph_writes(e->g, e->g->n_nodes - 1, e->grad[i]);
        else
            graph_reads(e->g, e->g->n_nodes - 1, e->grad[i]);
}

static uint32_t members_of(const emit *e, const param_bucket *b) {
    return e->m->place.mesh->degree[model_reduce_axis(b->over)];
}

/* Elements [begin, begin + n) of an arena of F32, as a buffer of its own. */
static tref flat_of(emit *e, param_arena from, const char *name, uint32_t bucket, int64_t begin, int64_t n) {
    const params *p = &e->m->params;
    float *at = params_address(p, from, &p->buckets[bucket], begin);
    return tref_of(graph_buffer_fixed(e->g, at, (uint64_t)n * 4, "%s.%u", name, bucket), MOE_F32, n, 0, 0);
}

void emit_reduce_grads(emit *e) {
    const params *p = &e->m->params;
    for (uint32_t i = 0; i < p->n_buckets && !e->g->status; i++) {
        const param_bucket *b = &p->buckets[i];
        mesh_axis axis = model_reduce_axis(b->over);
        if (members_of(e, b) == 1) continue;
        char name[64];
        tref all = flat_of(e, PARAM_GRAD, "grads", i, b->begin, b->count);
        snprintf(name, sizeof name, "grads.%u.%s", i, p->sliced ? "reduce_scatter" : "all_reduce");
        if (p->sliced)
            emit_reduce_scatter(e, name, axis, MOE_LANE_COMM_DP, all,
                                flat_of(e, PARAM_GRAD, "grads.own", i, b->own, b->slice));
        else
            emit_all_reduce(e, name, axis, MOE_LANE_COMM_DP, MOE_SUM, all, NULL, 0);
        touch_grads(e, b, 1);
    }
}

/* ---- norm ---- */
/* Every element of the whole model once: each rank its own slices, and then the sum over the ranks. */
static tref emit_norm(emit *e, float clip) {
    const params *p = &e->m->params;
    moe_clip_attr *attr = graph_alloc(e->g, sizeof *attr);
    tref sum = tref_new(e, "grad_sumsq", MOE_F64, 1, 0, 0), stats = tref_new(e, "grad_norm", MOE_F32, 2, 0, 0);
    if (!attr) return stats;
    *attr = (moe_clip_attr){sizeof *attr, clip};
    emit_zero(e, "zero.sumsq", sum.buf, sizeof(double));
    for (uint32_t i = 0; i < p->n_buckets && !e->g->status; i++) {
        tref own = flat_of(e, PARAM_GRAD, "grads.norm", i, p->buckets[i].own, p->buckets[i].slice);
        emit_op(e, "sumsq", MODEL_SUMSQ, NULL, &own, 1, &sum, 1, NULL);
        touch_grads(e, &p->buckets[i], 0);
    }
    emit_all_reduce(e, "grad_norm.all_reduce", MESH_WORLD, MOE_LANE_COMM_DP, MOE_SUM, sum, NULL, 0);
    emit_op(e, "clip_coef", MODEL_CLIP_COEF, attr, &sum, 1, &stats, 1, NULL);
    for (uint32_t i = 0; i < p->n && !e->g->status; i++) graph_writes(e->g, e->g->n_nodes - 1, e->weight[i]);
    return stats;
}

/* ---- optimiser ---- */
/* Weights [begin, begin + n) as products read them: the copies, or the masters. */
static tref read_weights(emit *e, uint32_t bucket, int64_t begin, int64_t n) {
    const params *p = &e->m->params;
    if (p->weight_dtype != MOE_BF16 || p->buckets[bucket].kind != PARAM_LINEAR)
        return flat_of(e, PARAM_MASTER, "weights", bucket, begin, n);
    void *at = p->copy ? p->copy + begin : NULL;
    return tref_of(graph_buffer_fixed(e->g, at, (uint64_t)n * 2, "copies.%u", bucket), MOE_BF16, n, 0, 0);
}

/* One step of the elements that this rank steps, and then the others' from them. */
static void emit_optimizer(emit *e, const optimizer_cfg *o, uint32_t bucket, tref hyper, tref stats) {
    const params *p = &e->m->params;
    const param_bucket *b = &p->buckets[bucket];
    moe_adamw_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (!attr) return;
    *attr = (moe_adamw_attr){sizeof *attr, o->beta1, o->beta2, o->eps, b->kind == PARAM_VECTOR ? 0 : o->weight_decay};
    int64_t begin = p->sliced ? b->own : b->begin, n = p->sliced ? b->slice : b->count;
    tref in[] = {flat_of(e, PARAM_GRAD, "grads.step", bucket, begin, n), hyper, stats};
    tref own = read_weights(e, bucket, begin, n), w = own, copy = tref_none();
    if (own.t.dtype == MOE_BF16) {
        copy = own;
        w = flat_of(e, PARAM_MASTER, "masters", bucket, begin, n);
    }
    if (o->kind == OPTIMIZER_ADAMW) {
        tref m = flat_of(e, PARAM_M, "m", bucket, begin, n), v = flat_of(e, PARAM_V, "v", bucket, begin, n);
        tref out[] = {tref_updated(w), tref_updated(m), tref_updated(v), copy};
        emit_op(e, "adamw", MODEL_ADAMW, attr, in, N_OF(in), out, N_OF(out), NULL);
    } else {
        tref out[] = {tref_updated(w), copy};
        emit_op(e, "sgd", MODEL_SGD, attr, in, N_OF(in), out, N_OF(out), NULL);
    }
    if (!p->sliced || members_of(e, b) == 1) return;
    char name[64];
    snprintf(name, sizeof name, "weights.%u.all_gather", bucket);
    emit_all_gather(e, name, model_reduce_axis(b->over), MOE_LANE_COMM_DP, own,
                    read_weights(e, bucket, b->begin, b->count));
}

/* ---- router state ---- */
typedef struct end_step_node {
    moe_end_step_args args;
    moe_tensor *state, counts, update;
    const moe_router_v0 *table;
    const void *self;
} end_step_node;

static moe_status run_end_step(void *ctx, moe_err *err) {
    end_step_node *n = ctx;
    return n->table->end_step(n->self, &n->args, err);
}

/* update: {norm, coefficient} of clip_coef; where the coefficient is NaN the state stays. */
static void emit_end_step(emit *e, uint32_t layer, tref update) {
    const model *m = e->m;
    const model_router *r = &m->routers[layer];
    const moe_router_v0 *table = parts_router(m->parts, layer);
    if (!table->end_step) return;
    end_step_node *n = graph_alloc(e->g, sizeof *n);
    if (!n) return;
    *n = (end_step_node){.state = graph_alloc(e->g, r->needs.n_state * sizeof *n->state),
                         .counts = tref_of(BUF_NONE, MOE_I64, m->cfg.experts, 0, 0).t,
                         .update = update.t,
                         .table = table,
                         .self = m->parts->router_self[layer]};
    n->args = (moe_end_step_args){
        .size = sizeof n->args, .step = e->step, .state = n->state, .counts = &n->counts, .update = &n->update};
    char name[48];
    snprintf(name, sizeof name, "L%u.router.end_step", layer);
    moe_sched_node info = emit_info(e, name, MOE_LANE_COMPUTE);
    uint32_t node = graph_node_add(e->g, &info, run_end_step, n, &n->args.stream,
                                   parts_async(m->parts, &m->parts->cfg.routers[layer]));
    emit_bind(e, node, &n->counts.data, (tref){.buf = e->counts[layer]}, 0);
    emit_bind(e, node, &n->update.data, update, 0);
    for (uint32_t i = 0; i < r->needs.n_state && !e->g->status; i++) {
        const moe_param_spec *s = &r->needs.state[i];
        n->state[i] = (moe_tensor){.dtype = s->dtype, .ndim = s->ndim};
        for (int d = 0; d < 4; d++) n->state[i].shape[d] = d < s->ndim ? s->shape[d] : 1;
        emit_bind(e, node, &n->state[i].data, (tref){.buf = e->state[layer][i]}, 1);
    }
}

tref emit_update(emit *e, const step_cfg *cfg, tref hyper) {
    const model *m = e->m;
    tref stats = emit_norm(e, cfg->optimizer.clip);
    for (uint32_t i = 0; i < m->params.n_buckets && !e->g->status; i++)
        emit_optimizer(e, &cfg->optimizer, i, hyper, stats);
    for (uint32_t l = 0; l < m->cfg.layers && !e->g->status; l++)
        if (model_layer_is_moe(&m->cfg, l)) emit_end_step(e, l, stats);
    return stats;
}
