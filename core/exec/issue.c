/* One walk over the order; after every node the next ones of the lanes beside compute, as far as they are ready. */
#include "exec/issue.h"

#include <moe/options.h>
#include <stdlib.h>

typedef struct issuer {
    const graph *g;
    uint32_t *succ_start, *succ; /* the edges turned round */
    uint32_t *waits;             /* [n_nodes] predecessors that have not been issued */
    uint32_t *next;              /* [n_nodes] the following node of the same lane; UINT32_MAX = none */
    uint32_t front[MOE_LANES];   /* the first node of each lane that has not been issued */
    uint32_t *out, n_out;
} issuer;

static void turn_edges(issuer *s) {
    const graph *g = s->g;
    uint32_t n = g->n_nodes, n_edges = n ? g->pred_start[n] : 0, sum = 0;
    for (uint32_t e = 0; e < n_edges; e++) s->succ_start[g->pred[e]]++;
    for (uint32_t i = 0; i <= n; i++) s->succ_start[i] = sum += s->succ_start[i]; /* the ends, which count down */
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t e = g->pred_start[i]; e < g->pred_start[i + 1]; e++) s->succ[--s->succ_start[g->pred[e]]] = i;
    for (uint32_t i = 0; i < n; i++) s->waits[i] = g->pred_start[i + 1] - g->pred_start[i];
}

static void line_up(issuer *s, const uint32_t *order) {
    uint32_t n = s->g->n_nodes;
    for (int i = 0; i < MOE_LANES; i++) s->front[i] = UINT32_MAX;
    for (uint32_t at = n; at-- > 0;) {
        int32_t lane = s->g->nodes[order[at]].info.lane;
        s->next[order[at]] = s->front[lane];
        s->front[lane] = order[at];
    }
}

static void issue(issuer *s, uint32_t node) {
    s->out[s->n_out++] = node;
    s->front[s->g->nodes[node].info.lane] = s->next[node];
    for (uint32_t e = s->succ_start[node]; e < s->succ_start[node + 1]; e++) s->waits[s->succ[e]]--;
}

/* A lane whose front is ready; MOE_LANES = none. The compute lane is the long one, which the walk itself takes on. */
static int ready_lane(const issuer *s) {
    int lane = 0;
    while (lane < MOE_LANES && (lane == MOE_LANE_COMPUTE || s->front[lane] == UINT32_MAX || s->waits[s->front[lane]]))
        lane++;
    return lane;
}

moe_status issue_order(const graph *g, const uint32_t *order, uint32_t *out, moe_err *err) {
    uint32_t n = g->n_nodes, n_edges = n ? g->pred_start[n] : 0;
    issuer s = {.g = g,
                .succ_start = calloc((size_t)n + 1, sizeof(uint32_t)),
                .succ = malloc(((size_t)n_edges + 1) * sizeof(uint32_t)),
                .waits = malloc(((size_t)n + 1) * sizeof(uint32_t)),
                .next = malloc(((size_t)n + 1) * sizeof(uint32_t)),
                .out = out};
    moe_status status = MOE_OK;
    if (s.succ_start && s.succ && s.waits && s.next) {
        turn_edges(&s);
        line_up(&s, order);
        for (uint32_t i = 0; i < n; i++) {
            if (s.front[g->nodes[order[i]].info.lane] != order[i]) continue; /* it went ahead */
            issue(&s, order[i]);
            for (int lane; (lane = ready_lane(&s)) < MOE_LANES;) issue(&s, s.front[lane]);
        }
    } else {
        status = moe_fail(err, MOE_E_NOMEM, "out of memory for the order of issue of %u nodes", n);
    }
    free(s.succ_start);
    free(s.succ);
    free(s.waits);
    free(s.next);
    return status;
}
