/* moe.sumsq/0: sum of squares in FP64, by blocks of a fixed size that are added in order: the one gradient norm. */
#include "gradient.h"

static const char op[] = MOE_OP_SUMSQ;
enum { BLOCK = 65536, LANES = 16 };

typedef struct sumsq_call {
    gradient g;
    double *parts; /* [n_parts] */
} sumsq_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_sumsq(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = (uint64_t)cpu_blocks(a->in[0].shape[0], BLOCK) * sizeof(double);
    return MOE_OK;
}

static double square(float x) {
    return (double)x * (double)x; /* exact */
}

/* Adds elements [i, end), of which number k goes to lane k % LANES. */
static void square_run(const float *g, int64_t i, int64_t end, double lanes[LANES]) {
    double lane[LANES];
    for (; i < end && i % LANES; i++) lanes[i % LANES] += square(g[i]);
    memcpy(lane, lanes, sizeof lane);
    for (; i + LANES <= end; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += square(g[i + l]);
    for (; i < end; i++) lane[i % LANES] += square(g[i]);
    memcpy(lanes, lane, sizeof lane);
}

/* Whole rounds of all lanes, then what is left. Blocks of zeros change no lane, and are left out. */
static void square_block(void *arg, int64_t piece, cpu_worker *w) {
    const sumsq_call *c = arg;
    (void)w;
    int64_t begin = piece * BLOCK, end = cpu_min(c->g.n, begin + BLOCK), rounds = end - (end - begin) % LANES, to;
    double lane[LANES] = {0}, sum = 0.0;
    int filled;
    for (int64_t i = begin; i < rounds; i = to) {
        to = gradient_alike(&c->g, i, rounds, &filled);
        if (filled) square_run(c->g.data, i, to, lane);
    }
    for (int l = 0; l < LANES; l++) sum += lane[l];
    for (int64_t i = rounds; i < end; i = to) {
        to = gradient_alike(&c->g, i, end, &filled);
        for (int64_t k = i; k < to && filled; k++) sum += square(c->g.data[k]);
    }
    c->parts[piece] = sum;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    sumsq_call c = {.g = gradient_of(&a->in[0], op_optional(a->in, a->n_in, 1)), .parts = a->workspace};
    int64_t n_parts = cpu_blocks(c.g.n, BLOCK);
    cpu_run(dev, n_parts, square_block, &c);
    double sum = 0.0;
    for (int64_t i = 0; i < n_parts; i++) sum += c.parts[i];
    *(double *)a->out[0].data += sum;
    return MOE_OK;
}

const moe_op CPU_OP(sumsq) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
