/* Reduction and optimiser nodes. The optimiser works on flat ranges, one a parameter class. */
#include "train/update.h"

#include <stdio.h>

#include "model/collect.h"

/* ---- reduction ---- */
void emit_reduce_grads(emit *e, uint32_t n_buckets) {
    const params *p = &e->m->params;
    int64_t total = p->begin[PARAM_CLASSES], target = total / (n_buckets ? n_buckets : 1) + 1;
    uint32_t first = 0;
    for (uint32_t i = 0; i < p->n && !e->g->status; i++) {
        int64_t end = i + 1 < p->n ? p->at[i + 1].offset : total, begin = p->at[first].offset;
        if (end - begin < target && i + 1 < p->n) continue;
        char name[64];
        snprintf(name, sizeof name, "grads.%u-%u.all_reduce", first, i);
        buf_id flat =
            graph_buffer_fixed(e->g, params_at(p->grad, begin), (uint64_t)(end - begin) * 4, "grads.%u-%u", first, i);
        emit_all_reduce(e, name, MESH_STAGE, MOE_LANE_COMM_DP, MOE_SUM, tref_of(flat, MOE_F32, end - begin, 0, 0),
                        e->grad + first, i + 1 - first);
        first = i + 1;
    }
}

/* ---- optimiser ---- */
/* The last node also reads the gradients, or also writes the weights, of all parameters of a class. */
static void touch_class(emit *e, int kind, int weights) {
    const params *p = &e->m->params;
    uint32_t node = e->g->n_nodes - 1;
    if (e->g->status) return;
    for (uint32_t i = 0; i < p->n; i++) {
        if ((int)p->at[i].kind != kind) continue;
        graph_reads(e->g, node, e->grad[i]);
        if (weights) graph_writes(e->g, node, e->weight[i]);
    }
}

static tref flat_of(emit *e, float *flat, const char *name, int kind) {
    const params *p = &e->m->params;
    int64_t n = p->begin[kind + 1] - p->begin[kind];
    return tref_of(graph_buffer_fixed(e->g, params_at(flat, p->begin[kind]), (uint64_t)n * 4, "%s.%d", name, kind),
                   MOE_F32, n, 0, 0);
}

static void emit_optimizer(emit *e, const step_cfg *cfg, int kind, tref grad, tref hyper, tref stats) {
    const params *p = &e->m->params;
    const optimizer_cfg *o = &cfg->optimizer;
    moe_adamw_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (!attr) return;
    float decay = kind == PARAM_VECTOR ? 0 : o->weight_decay;
    *attr = (moe_adamw_attr){sizeof *attr, o->beta1, o->beta2, o->eps, decay};
    tref copy = tref_none(), w = flat_of(e, p->master, "master", kind), in[] = {grad, hyper, stats};
    if (p->copy && kind == PARAM_LINEAR)
        copy = tref_of(graph_buffer_fixed(e->g, p->copy, (uint64_t)w.t.shape[0] * 2, "copy"), MOE_BF16, w.t.shape[0], 0,
                       0);
    if (o->kind == OPTIMIZER_ADAMW) {
        tref m = flat_of(e, p->m, "m", kind), v = flat_of(e, p->v, "v", kind);
        tref out[] = {tref_updated(w), tref_updated(m), tref_updated(v), copy};
        emit_op(e, "adamw", MODEL_ADAMW, attr, in, N_OF(in), out, N_OF(out), NULL);
    } else {
        tref out[] = {tref_updated(w), copy};
        emit_op(e, "sgd", MODEL_SGD, attr, in, N_OF(in), out, N_OF(out), NULL);
    }
    touch_class(e, kind, 1);
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
    moe_clip_attr *clip = graph_alloc(e->g, sizeof *clip);
    tref sum = tref_new(e, "grad_sumsq", MOE_F64, 1, 0, 0), stats = tref_new(e, "grad_norm", MOE_F32, 2, 0, 0);
    tref grads[PARAM_CLASSES];
    if (!clip) return stats;
    *clip = (moe_clip_attr){sizeof *clip, cfg->optimizer.clip};
    emit_zero(e, "zero.sumsq", sum.buf, sizeof(double));
    for (int kind = 0; kind < PARAM_CLASSES; kind++) {
        grads[kind] = flat_of(e, m->params.grad, "grad", kind);
        emit_op(e, "sumsq", MODEL_SUMSQ, NULL, &grads[kind], 1, &sum, 1, NULL);
        touch_class(e, kind, 0);
    }
    emit_op(e, "clip_coef", MODEL_CLIP_COEF, clip, &sum, 1, &stats, 1, NULL);
    for (int kind = 0; kind < PARAM_CLASSES; kind++) emit_optimizer(e, cfg, kind, grads[kind], hyper, stats);
    for (uint32_t l = 0; l < m->cfg.layers && !e->g->status; l++)
        if (model_layer_is_moe(&m->cfg, l)) emit_end_step(e, l, stats);
    return stats;
}
