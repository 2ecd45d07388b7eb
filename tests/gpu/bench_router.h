/* The router of the device under test with tensors for it; see bench.h. */
#ifndef GPU_BENCH_ROUTER_H
#define GPU_BENCH_ROUTER_H
#include <moe/options.h>
#include <moe/router.h>

#include "bench.h"

/* router/topk: softmax, renormalised, balance loss per microbatch. */
typedef struct bench_router {
    bench *b;
    const moe_router_v0 *table;
    void *self;
    int64_t experts;
    moe_route_args args;
    moe_tensor logits, ids, weights, counts, losses, divisor; /* [T,E], [T,k], [T,k], [E], [losses], [1] */
    moe_tensor d_weights, d_logits;
} bench_router;

/* 0: missing. The logits are random. What it creates bench_router_close destroys, but the tensors, which are the row's;
 * a row that fails leaves the instance behind. */
int bench_router_open(bench *b, bench_router *r, int64_t tokens, int64_t hidden, int64_t experts, int64_t k);
void bench_router_close(bench_router *r);
bench_step bench_route, bench_route_back; /* arg: bench_router */

#endif
