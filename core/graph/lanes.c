/* One pass over the order. */
#include "graph/lanes.h"

#include <moe/options.h>
#include <stdlib.h>

static void join(uint32_t *into, const lanes *l, const graph *g, uint32_t from) {
    const uint32_t *b = lanes_before(l, from);
    for (int i = 0; i < MOE_LANES; i++)
        if (b[i] > into[i]) into[i] = b[i];
    uint32_t *own = &into[g->nodes[from].info.lane];
    if (l->pos[from] > *own) *own = l->pos[from];
}

moe_status lanes_init(lanes *l, const graph *g, const uint32_t *order, moe_err *err) {
    *l = (lanes){.n_nodes = g->n_nodes,
                 .pos = calloc(g->n_nodes + 1, sizeof *l->pos),
                 .before = calloc((size_t)(g->n_nodes + 1) * MOE_LANES, sizeof *l->before)};
    if (!l->pos || !l->before) {
        lanes_free(l);
        return moe_fail(err, MOE_E_NOMEM, "out of memory for the lanes of %u nodes", g->n_nodes);
    }
    int64_t last[MOE_LANES];
    for (int i = 0; i < MOE_LANES; i++) last[i] = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = order[i];
        int32_t lane = g->nodes[n].info.lane;
        uint32_t *before = l->before + (size_t)n * MOE_LANES;
        if (last[lane] >= 0) join(before, l, g, (uint32_t)last[lane]);
        for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++) join(before, l, g, g->pred[e]);
        l->pos[n] = before[lane] + 1;
        last[lane] = n;
    }
    return MOE_OK;
}

void lanes_free(lanes *l) {
    free(l->pos);
    free(l->before);
    *l = (lanes){0};
}
