/* Kind "scheduler": two pure functions. shape decides what changes the graph (pieces, recompute, gradient buckets);
 * core then builds the graph; order orders it. Every rank calls both with the same inputs and gets the same answer. */
#ifndef MOE_SCHEDULER_H
#define MOE_SCHEDULER_H
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MOE_LANE_COMPUTE,
    MOE_LANE_COMM_EP,
    MOE_LANE_COMM_DP,
    MOE_LANE_COMM_PP,
    MOE_LANE_COMM_TP,
    MOE_LANE_COPY,
    MOE_LANES
};
enum { MOE_SCHED_PREPARE, MOE_SCHED_FORWARD, MOE_SCHED_BACKWARD, MOE_SCHED_REDUCE, MOE_SCHED_UPDATE }; /* phases */

typedef struct moe_shape_in {
    uint32_t size, n_layers, n_microbatches, pp;
    uint64_t grad_bytes;   /* of all parameters of this rank */
    uint64_t memory_limit; /* bytes, 0 = none */
} moe_shape_in;
typedef struct moe_shape_out { /* filled with defaults by core: 1 piece, 1 bucket, nothing recomputed */
    uint32_t size, pieces_fwd, pieces_bwd, n_buckets;
} moe_shape_out;

typedef struct moe_sched_node {
    const char *name;          /* "L3.mb0.attention.fwd" */
    int32_t layer, microbatch; /* -1 = none */
    int32_t phase, lane;       /* MOE_SCHED_*, MOE_LANE_* */
    int32_t group;             /* number of the comm group, -1 = no communication */
    uint32_t deferrable;       /* 1: nothing of the same microbatch waits for it (weight gradients) */
    double cost;               /* seconds, 0 = unknown */
} moe_sched_node;
typedef struct moe_sched_buffer {
    uint64_t bytes;
    uint32_t fixed, reserved; /* 1: lives outside the plan's arena (parameters, state) */
} moe_sched_buffer;
/* Compressed rows: the entries of node i are list[start[i]] .. list[start[i+1] - 1]. */
typedef struct moe_sched_view {
    uint32_t size, n_nodes, n_buffers, reserved;
    const moe_sched_node *nodes;       /* [n_nodes], in an order that is valid */
    const moe_sched_buffer *buffers;   /* [n_buffers] */
    const uint32_t *pred_start, *pred; /* nodes that must come before node i */
    const uint32_t *use_start, *use;   /* buffers that node i reads or writes */
} moe_sched_view;

typedef struct moe_scheduler_cfg {
    uint32_t size, reserved;
    const moe_kv *kv; /* [n_kv] */
    uint64_t n_kv, seed;
} moe_scheduler_cfg;

typedef struct moe_scheduler_v0 {
    uint32_t size, reserved;
    moe_status (*create)(const moe_scheduler_cfg *cfg, const moe_host *host, void **self, moe_err *err); /* [main] */
    void (*destroy)(void *self);                                                                         /* [main] */
    moe_status (*shape)(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err); /* [main] pure */
    /* [main] pure. order [n_nodes]: every node once, each after all its predecessors. Nodes of one lane run in this
     * order; lanes wait for each other only where an edge crosses. Core checks the answer. */
    moe_status (*order)(const void *self, const moe_sched_view *view, uint32_t *order, moe_err *err);
    const void *(*extension)(const void *self, const char *id); /* [any] (optional: NULL) */
} moe_scheduler_v0;

#ifdef __cplusplus
}
#endif
#endif
