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

/* ---- segments ---- */
/* Elements of a bucket that one call takes: a run of parameters without flags, or experts of one parameter with flags.
 * A bucket that is reduced has none with flags and is one segment. */
typedef struct segment {
    int64_t begin, count; /* flat */
    tref filled;          /* [G] flags of its blocks, which are of like size; absent: all of it holds values */
    int64_t read;         /* elements of the gradient that the step has written at most */
} segment;

/* The experts of parameter i from `begin` on that end by `end`; or, where a bucket begins or ends within one, its part
 * of that one. */
static segment experts_of(const emit *e, uint32_t i, int64_t begin, int64_t end) {
    const param *a = &e->m->params.at[i];
    int64_t each = a->count / a->experts, first = (begin - a->offset) / each, at = a->offset + first * each, n = 1;
    segment s = {.begin = begin, .count = at + each - begin};
    if (begin == at && at + each <= end) {
        n = ((end < a->offset + a->count ? end : a->offset + a->count) - at) / each;
        s.count = n * each;
    } else if (begin + s.count > end) {
        s.count = end - begin;
    }
    s.filled = tref_rows(tref_filled(e, i), first, n);
    s.read = (int64_t)((double)s.count * (double)e->most_filled[i] / (double)a->experts);
    return s;
}

/* The next segment of [.., end) of bucket b. s: the one before, or at first {where to begin, 0}. 0: there is none. */
static int next_segment(const emit *e, const param_bucket *b, int64_t end, segment *s) {
    const params *p = &e->m->params;
    int64_t begin = s->begin + s->count;
    if (begin >= end || e->g->status) return 0;
    for (uint32_t i = b->first; i <= b->last; i++) {
        const param *a = &p->at[i];
        if (a->flags < 0 || a->offset + a->count <= begin || a->offset >= end) continue;
        if (a->offset <= begin) {
            *s = experts_of(e, i, begin, end);
            return 1;
        }
        end = a->offset;
        break;
    }
    *s = (segment){begin, end - begin, tref_none(), end - begin};
    return 1;
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
        const param_bucket *b = &p->buckets[i];
        for (segment s = {.begin = b->own}; next_segment(e, b, b->own + b->slice, &s);) {
            tref in[] = {tref_touched(flat_of(e, PARAM_GRAD, "grads.norm", i, s.begin, s.count), s.read), s.filled};
            emit_op(e, "sumsq", MODEL_SUMSQ, NULL, in, s.filled.t.ndim ? 2 : 1, &sum, 1, NULL);
            touch_grads(e, b, 0);
        }
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

/* One step of a segment. Returns its weights as products read them. */
static tref emit_step(emit *e, const optimizer_cfg *o, const moe_adamw_attr *attr, uint32_t bucket, const segment *s,
                      tref hyper, tref stats) {
    int64_t begin = s->begin, n = s->count;
    tref grad = flat_of(e, PARAM_GRAD, "grads.step", bucket, begin, n);
    tref in[] = {tref_touched(grad, s->read), hyper, stats, s->filled};
    uint32_t n_in = s->filled.t.ndim ? 4 : 3;
    tref own = read_weights(e, bucket, begin, n), w = own, copy = tref_none();
    if (own.t.dtype == MOE_BF16) {
        copy = own;
        w = flat_of(e, PARAM_MASTER, "masters", bucket, begin, n);
    }
    if (o->kind == OPTIMIZER_ADAMW) {
        tref m = flat_of(e, PARAM_M, "m", bucket, begin, n), v = flat_of(e, PARAM_V, "v", bucket, begin, n);
        tref out[] = {tref_updated(w), tref_updated(m), tref_updated(v), copy};
        emit_op(e, "adamw", MODEL_ADAMW, attr, in, n_in, out, N_OF(out), NULL);
    } else {
        tref out[] = {tref_updated(w), copy};
        emit_op(e, "sgd", MODEL_SGD, attr, in, n_in, out, N_OF(out), NULL);
    }
    return own;
}

/* One step of the elements that this rank steps, and then the others' from them. */
static void emit_optimizer(emit *e, const optimizer_cfg *o, uint32_t bucket, tref hyper, tref stats) {
    const params *p = &e->m->params;
    const param_bucket *b = &p->buckets[bucket];
    moe_adamw_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (!attr) return;
    *attr = (moe_adamw_attr){sizeof *attr, o->beta1, o->beta2, o->eps, b->kind == PARAM_VECTOR ? 0 : o->weight_decay};
    int64_t begin = p->sliced ? b->own : b->begin, n = p->sliced ? b->slice : b->count;
    tref own = tref_none();
    for (segment s = {.begin = begin}; next_segment(e, b, begin + n, &s);)
        own = emit_step(e, o, attr, bucket, &s, hyper, stats);
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
