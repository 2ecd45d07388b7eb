/* The CPU device as its operations see it: an opaque instance, a worker's scratch, and one way to share a loop among
 * the compute threads. Everything under ops/ includes this (through ops.h) and nothing else of the device. */
#ifndef CPU_H
#define CPU_H
#include <moe/device.h>
#include <moe/ops.h>
#include <moe/options.h>

typedef struct cpu_device cpu_device; /* the `dev` of moe_op calls */

/* Bytes of scratch of every worker: a constant, so that operations can cut their blocks to it. */
#define CPU_SCRATCH_BYTES (UINT64_C(4) << 20)
#define CPU_SCRATCH_FLOATS ((int64_t)(CPU_SCRATCH_BYTES / sizeof(float)))

/* What the thread that runs a piece owns. Content of scratch is undefined when a piece begins. */
typedef struct cpu_worker {
    float *scratch;         /* 64-byte aligned; this thread's until the piece returns */
    uint64_t scratch_bytes; /* CPU_SCRATCH_BYTES */
    uint32_t index;         /* below cpu_threads; no two threads of one cpu_run have the same */
    uint32_t reserved;
} cpu_worker;

typedef void (*cpu_piece_fn)(void *arg, int64_t i, cpu_worker *w);

/* Runs fn(arg, i, w) once for each i in [0, n) and returns when all are done; n <= 0 does nothing. Pieces are handed
 * out in ascending order to the calling thread and the pool. Which thread takes which is open, so pieces write
 * disjoint outputs, and their number and size do not depend on cpu_threads where a result depends on them. All pieces
 * run on the caller alone when the pool is busy with another lane's loop. Called by an operation, on a stream's worker;
 * not from inside a piece (the scratch would be given out twice). Never allocates. */
void cpu_run(cpu_device *dev, int64_t n, cpu_piece_fn fn, void *arg);

/* The calling thread's own worker, for work that is not worth sharing. Its scratch is the one that cpu_run hands to the
 * caller's pieces, so do not keep data in it across cpu_run. */
cpu_worker *cpu_self(cpu_device *dev);

/* Threads that can run pieces at once, the caller included; >= 1. What it may decide: see cpu_run. */
uint32_t cpu_threads(const cpu_device *dev);

/* ---- products of BF16 matrices by the machine's own BF16 instructions (bf16.c) ---- */
typedef struct cpu_bf16 cpu_bf16;
/* NULL where they would not be faster than converting to FP32, or the user has switched them off. Lives as long as the
 * device. */
const cpu_bf16 *cpu_bf16_products(const cpu_device *dev);
/* out [rows, columns] (+)= a b, sums in FP32. a is stored [rows, depth] or, trans_a, [depth, rows]; b [depth, columns]
 * or, trans_b, [columns, depth]; leading dimensions in elements. All sizes >= 1. (a, b) transposed: none, a or b. */
typedef struct cpu_bf16_call {
    const uint16_t *a, *b;
    float *out;
    int64_t lda, ldb, ldo;
    int64_t rows, columns, depth;
    int trans_a, trans_b;
    int add; /* 0: out is overwritten */
} cpu_bf16_call;
/* Any thread, several at once. A dnnl_status_t: 0 is success. */
int cpu_bf16_multiply(const cpu_bf16 *products, const cpu_bf16_call *call);
#endif
