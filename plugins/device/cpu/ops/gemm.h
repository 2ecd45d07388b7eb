/* FP32 products of large matrices by one thread, close to what its arithmetic units can do; see gemm.c. */
#ifndef CPU_OPS_GEMM_H
#define CPU_OPS_GEMM_H
#include "ops.h"

enum { GEMM_DEPTH = 128, GEMM_MOST_COLUMNS = 64 }; /* most of a panel that is packed at once, on any instruction set */
enum { GEMM_MOST_ROWS = 1024 };                    /* of a call */
enum { GEMM_ROOM = (GEMM_MOST_ROWS + GEMM_MOST_COLUMNS) * GEMM_DEPTH }; /* floats of scratch of a call */

/* out [rows, columns] (+)= a b. a is stored [rows, depth] or, trans_a, [depth, rows]; b [depth, columns] or, trans_b,
 * [columns, depth]; leading dimensions in elements. All sizes >= 1, rows at most GEMM_MOST_ROWS. out overlaps neither.
 * An element of out is the sum over blocks of depth, each summed in order, whatever rows and columns are around it. */
typedef struct gemm_call {
    const float *a, *b;
    float *out;
    int64_t lda, ldb, ldo;
    int64_t rows, columns, depth;
    int trans_a, trans_b;
    int add; /* 0: out is overwritten */
} gemm_call;

/* room [GEMM_ROOM], 64-byte aligned. */
#define gemm_run CPU_SYMBOL(gemm_run)
void gemm_run(const gemm_call *c, float *room);
#endif
