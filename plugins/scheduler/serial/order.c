/* Kahn's algorithm (CACM 5(11), 1962) with a binary heap of node indices in place of the queue, so that the answer is
 * the one order that is smallest by index: a valid order comes back as it was. */
#include "order.h"

#include <moe/options.h>
#include <stdlib.h>

typedef struct sorter {
    const moe_sched_view *view;
    uint32_t *succ_start, *succ; /* the edges turned round, as in the view */
    uint32_t *waits;             /* [n] predecessors that have not run */
    uint32_t *heap, n_heap;      /* nodes that may run; the least is at 0 */
} sorter;

static void heap_push(sorter *s, uint32_t x) {
    uint32_t i = s->n_heap++;
    for (; i > 0 && s->heap[(i - 1) / 2] > x; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
}

static uint32_t heap_pop(sorter *s) {
    const uint32_t least = s->heap[0], x = s->heap[--s->n_heap];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= x) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = x;
    return least;
}

static moe_status check_edges(const moe_sched_view *v, moe_err *err) {
    for (uint32_t i = 0; i < v->n_nodes; i++)
        if (v->pred_start[i + 1] < v->pred_start[i])
            return moe_fail(err, MOE_E_ARG, "pred_start[%u] = %u is below pred_start[%u] = %u", i + 1,
                            v->pred_start[i + 1], i, v->pred_start[i]);
    for (uint32_t i = 0; i < v->n_nodes; i++) /* only now: a bad start may lie past the list */
        for (uint32_t e = v->pred_start[i]; e < v->pred_start[i + 1]; e++)
            if (v->pred[e] >= v->n_nodes)
                return moe_fail(err, MOE_E_ARG, "node %u (%s) waits for node %u, but there are %u", i, v->nodes[i].name,
                                v->pred[e], v->n_nodes);
    return MOE_OK;
}

static void turn_edges(sorter *s) {
    const moe_sched_view *v = s->view;
    const uint32_t n = v->n_nodes, first = v->pred_start[0], end = v->pred_start[n];
    for (uint32_t e = first; e < end; e++) s->succ_start[v->pred[e] + 1]++;
    for (uint32_t i = 0; i < n; i++) s->succ_start[i + 1] += s->succ_start[i];
    for (uint32_t i = n; i-- > 0;) { /* from the back: succ_start[p + 1] counts down to the start of p's successors */
        s->waits[i] = v->pred_start[i + 1] - v->pred_start[i];
        for (uint32_t e = v->pred_start[i]; e < v->pred_start[i + 1]; e++) s->succ[--s->succ_start[v->pred[e] + 1]] = i;
    }
}
/* After turn_edges the successors of p are succ[succ_start[p + 1]] .. up to those of p + 1. */
static uint32_t succ_end(const sorter *s, uint32_t p) {
    const moe_sched_view *v = s->view;
    return p + 1 < v->n_nodes ? s->succ_start[p + 2] : v->pred_start[v->n_nodes] - v->pred_start[0];
}

static uint32_t run_all(sorter *s, uint32_t *order) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < s->view->n_nodes; i++)
        if (s->waits[i] == 0) heap_push(s, i);
    while (s->n_heap) {
        const uint32_t i = heap_pop(s);
        order[done++] = i;
        for (uint32_t e = s->succ_start[i + 1]; e < succ_end(s, i); e++)
            if (--s->waits[s->succ[e]] == 0) heap_push(s, s->succ[e]);
    }
    return done;
}

/* Every node that is left waits for one that is left: walking back n times ends inside a cycle. */
static uint32_t left_pred(const sorter *s, uint32_t i) {
    const moe_sched_view *v = s->view;
    uint32_t e = v->pred_start[i];
    while (s->waits[v->pred[e]] == 0) e++;
    return v->pred[e];
}
static moe_status refuse_cycle(const sorter *s, moe_err *err) {
    const moe_sched_view *v = s->view;
    uint32_t i = 0;
    while (s->waits[i] == 0) i++;
    for (uint32_t k = 0; k < v->n_nodes; k++) i = left_pred(s, i);
    const uint32_t p = left_pred(s, i);
    return moe_fail(err, MOE_E_ARG, "the graph has a cycle: node %u (%s) waits for node %u (%s), which comes after it",
                    i, v->nodes[i].name, p, v->nodes[p].name);
}

moe_status order_by_index(const moe_sched_view *view, uint32_t *order, moe_err *err) {
    const uint32_t n = view->n_nodes;
    if (n == 0) return MOE_OK;
    moe_status status = check_edges(view, err);
    if (status != MOE_OK) return status;
    sorter s = {.view = view,
                .succ_start = calloc((size_t)n + 1, sizeof(uint32_t)),
                .succ = calloc((size_t)(view->pred_start[n] - view->pred_start[0]) + 1, sizeof(uint32_t)),
                .waits = calloc(n, sizeof(uint32_t)),
                .heap = calloc(n, sizeof(uint32_t))};
    if (!s.succ_start || !s.succ || !s.waits || !s.heap)
        status = moe_fail(err, MOE_E_NOMEM, "scheduler/serial: order of %u nodes", n);
    else {
        turn_edges(&s);
        if (run_all(&s, order) != n) status = refuse_cycle(&s, err);
    }
    free(s.heap);
    free(s.waits);
    free(s.succ);
    free(s.succ_start);
    return status;
}
