/* Lanes: what an order means when each lane is a stream. For every node, how far each lane must have come before the
 * node starts - the vector clocks from which the plan knows what may share memory and the executor where to wait. */
#ifndef CORE_GRAPH_LANES_H
#define CORE_GRAPH_LANES_H
#include "graph/graph.h"

typedef struct lanes {
    uint32_t n_nodes;
    uint32_t *pos;    /* [n_nodes] place of a node in its lane, from 1 */
    uint32_t *before; /* [n_nodes][MOE_LANES] place up to which a lane is complete before the node starts, 0 = none */
} lanes;

/* order: valid (graph_check_order). Owned by the caller: lanes_free. */
moe_status lanes_init(lanes *l, const graph *g, const uint32_t *order, moe_err *err);
void lanes_free(lanes *l);

static inline const uint32_t *lanes_before(const lanes *l, uint32_t node) {
    return l->before + (size_t)node * MOE_LANES;
}

#endif
