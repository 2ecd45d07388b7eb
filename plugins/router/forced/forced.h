/* Router "forced" for the CPU: experts by rule or by lot, never by logit, so that a load test or benchmark has a known
 * load. forced.c: options, description, needs, tables; route.c: one call forward and backward.
 *
 * A choice is a function of seed, layer, step and the token's global number alone: the same however ranks and
 * microbatches cut the batch, on any number of threads, and on recompute. Weights are the softmax over the logits of
 * the chosen experts, so the router still trains through them. */
#ifndef ROUTER_FORCED_H
#define ROUTER_FORCED_H
#include <moe/plugin.h>

/* Most experts: the tables below are made for each layer and rank. */
#define FORCED_MAX_EXPERTS (1 << 20)

/* One instance; const after create. E experts, k choices a token. */
typedef struct forced {
    int64_t experts, k, max_tokens;
    uint32_t layer;
    moe_random_key key; /* of the draws: seed and layer */
    /* zipf: tail[r] = sum of (i + 1)^-exponent over r <= i < E, tail[E] = 0; [E + 1]. NULL: balanced */
    double *tail;
    int32_t *order;           /* [E] zipf: the expert of each rank, the hottest first; balanced: whose turn it is */
    const moe_parallel *pool; /* NULL: the caller's thread only */
} forced;

/* Bytes of workspace that a call of route uses. */
uint64_t forced_workspace(const forced *f);

/* The two step calls of moe_router_v0. [step] Tokens are shared among the threads of moe.parallel/0 where the device
 * has it; every result is the same for any number of threads. On error counts are untouched. */
moe_status forced_route(const void *self, const moe_route_args *args, moe_err *err);
moe_status forced_route_bwd(const void *self, const moe_route_args *args, moe_err *err);

#endif
