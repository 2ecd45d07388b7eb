/* Matrix products in the three roles of moe.linear/0, dense or by groups of rows, on tiles shared among the compute
 * threads: what linear.c and router_linear.c have in common. A group of rows is cut into tiles; large ones
 * are gemm.h's, others oneDNN's, in one or a few calls by the thread that runs the tile. No sum depends on the number
 * of threads. */
#ifndef CPU_OPS_PRODUCT_H
#define CPU_OPS_PRODUCT_H
#include "ops.h"

/* Rows begin[g] .. begin[g] + count[g] - 1 of the row-wise operands belong to group g. Operands by role:
 *   MOE_FPROP  a = x [M,K],  b = w [G,N,K],  out = y  [M,N]
 *   MOE_DGRAD  a = dy [M,N], b = w [G,N,K],  out = dx [M,K]
 *   MOE_WGRAD  a = dy [M,N], b = x [M,K],    out = dw [G,N,K]
 * Each is F32 or BF16 on its own; sums are FP32, rounded once where out is BF16. Only rows of groups are touched. */
typedef struct product {
    int32_t role;
    uint32_t accumulate; /* 0: out is overwritten */
    /* [groups] which blocks of dw hold values, as under moe.linear/0; read only. NULL: all do, and those of groups
     * without rows become zero. */
    const int32_t *filled;
    int64_t n, k, groups;
    moe_tensor a, b, out;         /* data and dtype are read */
    const int64_t *begin, *count; /* [groups] */
    int64_t *room;                /* [PRODUCT_ROOM(groups)] for the order of the tiles */
} product;

/* Elements of product.room. */
#define PRODUCT_ROOM(groups) (2 * (groups) + 1)

/* Runs it. MOE_E_DEVICE when oneDNN fails (it takes memory for itself), with its status. op: for the message. */
#define product_run CPU_SYMBOL(product_run)
moe_status product_run(cpu_device *dev, const product *p, const char *op, moe_err *err);
#endif
