/* The step graph that a scheduler is tried on: a small MoE model, every operation of one optimiser step with unit
 * costs. Its nodes have the names, lanes and phases of the step that the trainer builds; its pieces are the
 * scheduler's. */
#ifndef HOST_TRYOUT_GRAPH_H
#define HOST_TRYOUT_GRAPH_H
#include <graph/graph.h>

typedef struct tryout_cost {
    const char *name; /* operation: the end of a node's name */
    uint32_t units;   /* of TRYOUT_UNIT seconds */
} tryout_cost;

#define TRYOUT_UNIT 0.001

enum { TRYOUT_MOST_PIECES = 64 };

typedef struct tryout_graph_cfg {
    uint32_t layers, microbatches, dp;
    uint32_t pieces_fwd, pieces_bwd, n_buckets; /* as the scheduler's shape says; each at least 1 */
} tryout_graph_cfg;

/* Every operation with its cost. */
const tryout_cost *tryout_costs(size_t *n);
/* Bytes of gradients of a rank, for shape. */
uint64_t tryout_grad_bytes(uint32_t layers);
/* *out finished; graph_destroy. */
moe_status tryout_graph(graph **out, const tryout_graph_cfg *cfg, moe_err *err);

#endif
