/* Compiles an order into commands, and issues them. */
#include "exec/exec.h"

#include <moe/options.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "exec/issue.h"
#include "util/clock.h"
#include "util/tidy.h"

enum { CMD_NODE, CMD_RECORD, CMD_WAIT };

typedef struct node_run {
    exec *x;
    const graph_node *node;
} node_run;

typedef struct command {
    int32_t kind, lane;
    node_run run;
    void *event;
} command;

struct exec {
    exec_lanes *streams;
    command *commands; /* [n] */
    uint32_t n;
    void **events; /* [n_nodes], NULL where none */
    uint32_t n_nodes;
    const graph_node *nodes; /* [n_nodes] */
    exec_span *spans;        /* [n_nodes], NULL = nobody watches */
    exec_fail_fn on_fail;
    void *arg;
    atomic_int failed; /* 0, 1 while the error is being written, 2 after */
    moe_err err;
};

static _Thread_local const char *current_node;

const char *exec_current_node(void) {
    return current_node;
}

/* ---- streams ---- */
void exec_lanes_init(exec_lanes *e, const moe_device_v0 *device, void *self, uint32_t rank) {
    *e = (exec_lanes){.device = device, .self = self, .rank = rank};
}

/* A lane gets its stream when a graph first uses it. */
static moe_status open_lane(exec_lanes *e, int32_t lane, moe_err *err) {
    static const char *const names[MOE_LANES] = {"compute", "comm:ep", "comm:dp", "comm:pp", "comm:tp", "copy"};
    if (e->stream[lane]) return MOE_OK;
    return e->device->stream_create(e->self, names[lane], &e->stream[lane], err);
}

moe_status exec_lanes_open(exec_lanes *e, const graph *g, moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < g->n_nodes && !status; i++) status = open_lane(e, g->nodes[i].info.lane, err);
    return status;
}

void exec_lanes_free(exec_lanes *e) {
    for (int i = 0; i < MOE_LANES; i++)
        if (e->stream[i]) e->device->stream_destroy(e->self, e->stream[i]);
    *e = (exec_lanes){0};
}

/* ---- errors ---- */
static void keep_error(exec *x, const graph_node *node, const moe_err *err) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&x->failed, &none, 1)) return;
    moe_fail(&x->err, err->code, "%.380s (node %s, rank %u)", err->msg, node->info.name, x->streams->rank);
    atomic_store(&x->failed, 2);
    if (x->on_fail) x->on_fail(x->arg, &x->err);
}

void exec_cancel(exec_lanes *e, const moe_err *err) {
    exec *x = atomic_load(&e->running);
    int none = 0;
    if (!x || !atomic_compare_exchange_strong(&x->failed, &none, 1)) return;
    x->err = *err;
    atomic_store(&x->failed, 2);
}

/* Calls the node, and lets others see that its lane is inside of it. */
static moe_status call_node(const node_run *r, moe_err *err) {
    const graph_node *node = r->node;
    exec_inside *inside = &r->x->streams->inside[node->info.lane];
    if (node->async) return node->fn(node->ctx, err); /* by the issuing thread, which is not the lane's */
    atomic_fetch_add_explicit(&inside->runs, 1, memory_order_relaxed);
    atomic_store_explicit(&inside->node, node, memory_order_release);
    moe_status status = node->fn(node->ctx, err);
    atomic_store_explicit(&inside->node, NULL, memory_order_release);
    return status;
}

static void run_node(void *arg) {
    const node_run *r = arg;
    if (atomic_load_explicit(&r->x->failed, memory_order_relaxed)) return;
    moe_err err;
    err.size = sizeof err;
    err.code = MOE_OK;
    err.msg[0] = 0;
    exec_span *span = r->x->spans ? &r->x->spans[r->node - r->x->nodes] : NULL;
    if (span) span->begin = clock_ns();
    current_node = r->node->info.name;
    moe_status status = call_node(r, &err);
    current_node = NULL;
    if (span) span->end = clock_ns();
    if (status) {
        err.code = status;
        if (!tidy_line(err.msg, sizeof err.msg)) strcpy(err.msg, "failed without a reason");
        keep_error(r->x, r->node, &err);
    }
}

/* ---- compilation ---- */
typedef struct wait_state {
    const graph *g;
    const lanes *l;
    uint32_t known[MOE_LANES][MOE_LANES]; /* [lane][from]: place in `from` that `lane` has already waited for */
} wait_state;

/* Is `pred` over before `other` begins, or the earlier one of the same lane? */
static int implied_by(const wait_state *w, uint32_t pred, uint32_t other) {
    int32_t lane = w->g->nodes[pred].info.lane;
    if (pred == other) return 0;
    if (w->g->nodes[other].info.lane == lane) return w->l->pos[pred] < w->l->pos[other];
    return w->l->pos[pred] <= lanes_before(w->l, other)[lane];
}

/* The least set of predecessors that the lane of node n must wait for: of every other lane the last, without those that
 * an earlier wait or another predecessor implies. Returns their number, and notes the waits as done. */
static uint32_t choose_waits(wait_state *w, uint32_t n, uint32_t out[MOE_LANES]) {
    const graph *g = w->g;
    uint32_t *known = w->known[g->nodes[n].info.lane], last[MOE_LANES], n_last = 0, n_out = 0;
    int64_t of_lane[MOE_LANES] = {-1, -1, -1, -1, -1, -1};
    for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++) {
        int64_t *best = &of_lane[g->nodes[g->pred[e]].info.lane];
        if (*best < 0 || w->l->pos[g->pred[e]] > w->l->pos[*best]) *best = g->pred[e];
    }
    for (int i = 0; i < MOE_LANES; i++)
        if (of_lane[i] >= 0) last[n_last++] = (uint32_t)of_lane[i];
    for (uint32_t i = 0; i < n_last; i++) {
        int32_t from = g->nodes[last[i]].info.lane;
        int implied = from == g->nodes[n].info.lane || known[from] >= w->l->pos[last[i]];
        for (uint32_t j = 0; j < n_last && !implied; j++) implied = implied_by(w, last[i], last[j]);
        if (!implied) out[n_out++] = last[i];
    }
    for (uint32_t i = 0; i < n_out; i++) {
        const uint32_t *before = lanes_before(w->l, out[i]);
        for (int lane = 0; lane < MOE_LANES; lane++)
            if (before[lane] > known[lane]) known[lane] = before[lane];
        known[g->nodes[out[i]].info.lane] = w->l->pos[out[i]];
    }
    return n_out;
}

static void emit_node(exec *x, wait_state *w, uint32_t n) {
    const graph_node *node = &w->g->nodes[n];
    uint32_t preds[MOE_LANES], n_waits = choose_waits(w, n, preds);
    for (uint32_t i = 0; i < n_waits; i++)
        x->commands[x->n++] = (command){.kind = CMD_WAIT, .lane = node->info.lane, .event = x->events[preds[i]]};
    x->commands[x->n++] = (command){.kind = CMD_NODE, .lane = node->info.lane, .run = {x, node}};
    if (x->events[n])
        x->commands[x->n++] = (command){.kind = CMD_RECORD, .lane = node->info.lane, .event = x->events[n]};
}

/* An event for every node that another lane waits for: the same walk as emission, ahead of it. */
static moe_status make_events(exec *x, const graph *g, const lanes *l, const uint32_t *order, moe_err *err) {
    const exec_lanes *s = x->streams;
    wait_state w = {.g = g, .l = l};
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t preds[MOE_LANES], n = choose_waits(&w, order[i], preds);
        for (uint32_t k = 0; k < n && !status; k++)
            if (!x->events[preds[k]]) status = s->device->event_create(s->self, &x->events[preds[k]], err);
    }
    return status;
}

moe_status exec_create(exec **out, graph *g, const uint32_t *order, const lanes *l, exec_lanes *streams,
                       exec_fail_fn on_fail, void *arg, moe_err *err) {
    exec *x = calloc(1, sizeof *x);
    uint32_t n_pred = g->n_nodes ? g->pred_start[g->n_nodes] : 0;
    uint32_t *issued = malloc((g->n_nodes + 1) * sizeof *issued);
    wait_state w = {.g = g, .l = l};
    moe_status status = MOE_E_NOMEM;
    if (x) {
        *x = (exec){.streams = streams, .n_nodes = g->n_nodes, .nodes = g->nodes, .on_fail = on_fail, .arg = arg};
        x->commands = calloc((size_t)g->n_nodes * 2 + n_pred + 1, sizeof *x->commands);
        x->events = calloc(g->n_nodes + 1, sizeof *x->events);
    }
    if (!x || !x->commands || !x->events || !issued) {
        moe_fail(err, MOE_E_NOMEM, "out of memory for the executor");
        goto fail;
    }
    status = issue_order(g, order, issued, err);
    if (!status) status = exec_lanes_open(streams, g, err);
    if (!status) status = make_events(x, g, l, issued, err);
    for (uint32_t i = 0; i < g->n_nodes && !status; i++) emit_node(x, &w, issued[i]);
    for (uint32_t i = 0; i < g->n_nodes && !status; i++)
        if (g->nodes[i].stream) *g->nodes[i].stream = streams->stream[g->nodes[i].info.lane];
    if (status) goto fail;
    free(issued);
    *out = x;
    return MOE_OK;
fail:
    free(issued);
    exec_destroy(x);
    return status;
}

void exec_destroy(exec *x) {
    if (!x) return;
    for (uint32_t i = 0; x->events && i < x->n_nodes; i++)
        if (x->events[i]) x->streams->device->event_destroy(x->streams->self, x->events[i]);
    free(x->events);
    free(x->commands);
    free(x);
}

void exec_watch(exec *x, exec_span *spans) {
    x->spans = spans;
}

uint32_t exec_commands(const exec *x) {
    return x->n;
}

/* ---- running ---- */
moe_status exec_issue(exec *x, moe_err *err) {
    const moe_device_v0 *device = x->streams->device;
    void *self = x->streams->self;
    moe_status status = MOE_OK;
    atomic_store(&x->streams->running, x);
    for (uint32_t i = 0; i < x->n && !status; i++) {
        command *c = &x->commands[i];
        void *stream = x->streams->stream[c->lane];
        switch (c->kind) {
            case CMD_WAIT:
                status = device->event_wait(self, stream, c->event, err);
                break;
            case CMD_RECORD:
                status = device->event_record(self, c->event, stream, err);
                break;
            default:
                if (c->run.node->async)
                    run_node(&c->run);
                else
                    status = device->call_host(self, stream, run_node, &c->run, err);
        }
    }
    return status;
}

moe_status exec_finish(exec *x, moe_err *err) {
    exec_lanes *s = x->streams;
    moe_status status = MOE_OK;
    for (int i = 0; i < MOE_LANES && !status; i++)
        if (s->stream[i]) status = s->device->stream_sync(s->self, s->stream[i], err);
    atomic_store(&s->running, NULL);
    while (atomic_load(&x->failed) == 1) sched_yield(); /* exec_cancel is at it */
    if (atomic_load(&x->failed) != 2) return status;
    *err = x->err;
    return x->err.code;
}
