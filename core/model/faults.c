/* Emission around the calls, and the words. */
#include "model/faults.h"

#include <moe/device.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/collect.h"

/* ---- emission ---- */
/* The fill of an array whose size is known at the end. */
typedef struct zero_node {
    const moe_device_v0 *device;
    void *self, *stream, *at;
    const faults *f;
} zero_node;

static moe_status run_zero(void *ctx, moe_err *err) {
    const zero_node *n = ctx;
    return n->device->fill(n->self, n->stream, n->at, 0, n->f->n * sizeof(moe_fault), err);
}

void faults_open(emit *e, faults *f) {
    const parts *p = e->m->parts;
    if (!parts_async(p, &p->cfg.device)) return;
    zero_node *n = graph_alloc(e->g, sizeof *n);
    if (!n) return;
    *f = (faults){.buf = graph_buffer_add(e->g, 0, "faults")};
    *n = (zero_node){.device = p->device, .self = p->device_self, .f = f};
    uint32_t node = emit_node(e, "zero.faults", MOE_LANE_COMPUTE, run_zero, n, &n->stream, 1);
    emit_bind(e, node, &n->at, (tref){.buf = f->buf}, 1);
    e->faults = f;
}

void faults_add(emit *e, uint32_t node, void **where, fault_site site) {
    faults *f = e->faults;
    if (!f || e->g->status) return;
    if (f->n == f->cap) {
        uint32_t cap = f->cap ? f->cap * 2 : 64;
        fault_site *at = realloc(f->at, cap * sizeof *at);
        if (!at) {
            graph_fail(e->g, MOE_E_NOMEM, "out of memory for %u places of faults", cap);
            return;
        }
        f->at = at;
        f->cap = cap;
    }
    site.node = node;
    site.layer = e->layer;
    graph_patch_add(e->g, where, f->buf, f->n * sizeof(moe_fault));
    graph_reads(e->g, node, f->buf); /* "reads": these calls are in no order, and all before the search */
    f->at[f->n++] = site;
}

void faults_close(emit *e, int64_t *host) {
    faults *f = e->faults;
    if (!f || e->g->status) return;
    graph_buffer_resize(e->g, f->buf, f->n * sizeof(moe_fault));
    tref all = tref_of(f->buf, MOE_I64, f->n, 4, 0), first = tref_new(e, "fault", MOE_I64, 4, 0, 0);
    tref own = tref_of(graph_buffer_fixed(e->g, host, 32, "host.fault"), MOE_I64, 4, 0, 0);
    tref any = tref_of(graph_buffer_fixed(e->g, host + 4, 32, "host.fault.any"), MOE_I64, 4, 0, 0);
    emit_op(e, "first_fault", MODEL_FIRST_FAULT, NULL, &all, 1, &first, 1, NULL);
    if (!e->g->status) graph_writes(e->g, e->g->n_nodes - 1, f->buf);
    emit_copy(e, "fault.out", own, first, 32);
    e->fault = first;
    if (e->m->place.mesh->degree[MESH_WORLD] > 1) {
        e->fault = tref_new(e, "fault.any", MOE_I64, 4, 0, 0);
        emit_copy(e, "fault.any", e->fault, first, 32);
        emit_all_reduce(e, "fault.all_reduce", MESH_WORLD, MOE_LANE_COMM_DP, MOE_MAX, tref_rows(e->fault, 0, 1), NULL,
                        0);
    }
    emit_copy(e, "fault.any.out", any, e->fault, 32);
}

void faults_free(faults *f) {
    free(f->at);
    *f = (faults){0};
}

/* ---- words ---- */
static void say_choice(const fault_site *s, long long token, long long value, char *text, uint64_t bytes) {
    if (value < -1 || value >= s->limit)
        snprintf(text, bytes, "%s: token %lld has expert %lld, want -1 or below %lld", s->what, token, value,
                 (long long)s->limit);
    else if (s->kind == FAULT_CHOICE)
        snprintf(text, bytes, "%s: token %lld slot %lld has a weight that is not a number", s->what, token, value);
    else
        snprintf(text, bytes, "layer %d: token %lld chose expert %lld twice", s->layer, token, value);
}

void faults_say(const faults *f, const int64_t *fault, char *text, uint64_t bytes) {
    const fault_site *s = &f->at[fault[3]];
    long long token = fault[1], value = fault[2];
    if (fault[0] == MOE_E_OVERFLOW)
        snprintf(text, bytes, "layer %d: %lld rows needed, the buffers have %lld", s->layer, value, (long long)s->rows);
    else if (s->kind == FAULT_ID)
        snprintf(text, bytes, "%s: token %lld has id %lld, the table has %lld rows", s->what, token, value,
                 (long long)s->limit);
    else if (s->kind == FAULT_TARGET)
        snprintf(text, bytes, "%s: token %lld has target %lld, want -1..%lld", s->what, token, value,
                 (long long)s->limit - 1);
    else if (s->kind == FAULT_LOGIT)
        snprintf(text, bytes, "layer %d: logit of token %lld, expert %lld is not finite", s->layer, token, value);
    else
        say_choice(s, token, value, text, bytes);
}
