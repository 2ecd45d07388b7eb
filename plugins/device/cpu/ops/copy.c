/* moe.copy/0: what the memory moves, for measuring. Streaming stores are made here, because the size from which the C
 * library makes them itself is a guess (measured: 240 MiB on a machine with 32 MiB of last-level cache, at two thirds
 * of the speed below it). */
#include "args.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static const char op[] = MOE_OP_COPY;
enum { PIECE = 1 << 20 }; /* elements */

typedef struct copy_call {
    const float *x; /* [n] */
    float *y;       /* [n] */
    int64_t n;
    int streaming;
} copy_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_copy(a, err), saved, workspace);
}

/* Copies n floats past the caches. */
static void stream(float *restrict y, const float *restrict x, int64_t n) {
    int64_t i = 0;
#if defined(__SSE2__)
    for (; i < n && (uintptr_t)(y + i) % 16; i++) y[i] = x[i];
    for (; i + 16 <= n; i += 16) /* one line of the cache */
        for (int64_t j = i; j < i + 16; j += 4) _mm_stream_ps(y + j, _mm_loadu_ps(x + j));
    _mm_sfence();
#endif
    memcpy(y + i, x + i, (size_t)(n - i) * sizeof(float));
}

static void copy_piece(void *arg, int64_t piece, cpu_worker *w) {
    const copy_call *c = arg;
    (void)w;
    int64_t from = piece * PIECE, n = cpu_min(c->n - from, PIECE);
    if (c->streaming)
        stream(c->y + from, c->x + from, n);
    else
        memcpy(c->y + from, c->x + from, (size_t)n * sizeof(float));
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    copy_call c = {.x = a->in[0].data, .y = a->out[0].data, .n = a->in[0].shape[0]};
    c.streaming = ((const moe_copy_attr *)a->attr)->streaming != 0;
    cpu_run(dev, cpu_blocks(c.n, PIECE), copy_piece, &c);
    return MOE_OK;
}

const moe_op CPU_OP(copy) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
