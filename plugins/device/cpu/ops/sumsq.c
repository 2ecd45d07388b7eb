/* moe.sumsq/0: sum of squares in FP64, by blocks of a fixed size that are added in order: the one gradient norm. */
#include "args.h"

static const char op[] = MOE_OP_SUMSQ;
enum { BLOCK = 65536, LANES = 16 };

typedef struct sumsq_call {
    const float *g; /* [n] */
    double *parts;  /* [n_parts] */
    int64_t n;
} sumsq_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_sumsq(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = (uint64_t)cpu_blocks(a->in[0].shape[0], BLOCK) * sizeof(double);
    return MOE_OK;
}

static void square_block(void *arg, int64_t piece, cpu_worker *w) {
    const sumsq_call *c = arg;
    (void)w;
    int64_t i = piece * BLOCK, end = cpu_min(c->n, i + BLOCK);
    double lane[LANES] = {0}, sum = 0.0;
    for (; i + LANES <= end; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (double)c->g[i + l] * (double)c->g[i + l];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    for (; i < end; i++) sum += (double)c->g[i] * (double)c->g[i];
    c->parts[piece] = sum;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    sumsq_call c = {.g = a->in[0].data, .parts = a->workspace, .n = a->in[0].shape[0]};
    int64_t n_parts = cpu_blocks(c.n, BLOCK);
    cpu_run(dev, n_parts, square_block, &c);
    double sum = 0.0;
    for (int64_t i = 0; i < n_parts; i++) sum += c.parts[i];
    *(double *)a->out[0].data += sum;
    return MOE_OK;
}

const moe_op CPU_OP(sumsq) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
