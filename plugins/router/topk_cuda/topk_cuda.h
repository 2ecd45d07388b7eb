/* Router "topk" for device cuda: ../topk with a warp a token, whose row lies in shared memory. plugin.c: description,
 * sizes; route.cu, backward.cu: the calls; row.cuh: what a warp does with a row; call.cuh: what both calls have and how
 * they end; bias.cu: end_step. Choices have the bits of the CPU's router, since every score is made of the same single
 * operations in the same order. C and C++. */
#ifndef ROUTER_TOPK_CUDA_H
#define ROUTER_TOPK_CUDA_H
#include "topk.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TOPK_BLOCK_TOKENS = 32 }; /* that a block takes one after the other */

typedef struct topk_cuda {
    topk t;
    int padded, k_padded; /* experts and choices, rounded up to the eight lanes of a sum */
    int warps;            /* of a block: as many rows as its shared memory holds, at most 4 */
    int row_bytes;        /* shared memory of a warp */
    int units;            /* that a launch takes: sequences where the balance loss is formed over them, else 1 */
} topk_cuda;

/* ---- workspace, each part at a multiple of 64 bytes:
 * bad [4] U64; count, share [units, padded] U64; part [max_tokens, 2] F64; load [units, padded] F32 */
uint64_t topk_cuda_workspace(const topk_cuda *c);

/* [step] Enqueue on args->stream. Errors in the data go to args->fault: an expert_bias that is not finite or a divisor
 * or batch_counts that cannot be as token -1; an id out of range; a logit, of the first token that has one, as its
 * column. Counts and losses are then untouched. */
moe_status topk_cuda_route(const void *self, const moe_route_args *args, moe_err *err);
moe_status topk_cuda_route_bwd(const void *self, const moe_route_args *args, moe_err *err);
/* [step] Counts that are negative change nothing: end_step has nowhere to tell them. */
moe_status topk_cuda_end_step(const void *self, const moe_end_step_args *args, moe_err *err);

#ifdef __cplusplus
}
#endif
#endif
