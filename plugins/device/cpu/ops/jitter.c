/* moe.jitter/0: every element times its own random number near 1. The number is a function of key, step, token and
 * column alone, so forward and backward, other threads and another split of the rows draw the same. Numbers are made
 * by runs of whole blocks of four, in arrays of one word each, so that the compiler makes vectors of the cipher. */
#include <moe/random.h>

#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_JITTER;
enum { BLOCKS = 512, COLUMNS = 4 * BLOCKS }; /* of a row at a time */

typedef struct jitter_call {
    const moe_tensor *in, *out; /* [T,h] act */
    moe_random_key key;
    int64_t tokens, width, block;
    uint64_t first, step; /* first: element of the generator where row 0 begins */
    float eps;
    int add; /* out += instead of = */
} jitter_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_jitter(a, err), saved, workspace);
}

/* factor [4 blocks]: the numbers of generator elements [element, element + blocks). room [4,BLOCKS]. */
static void draw(const jitter_call *c, uint64_t element, int64_t blocks, float *restrict factor, float *restrict room) {
    float *restrict w0 = room, *restrict w1 = room + BLOCKS, *restrict w2 = room + 2 * BLOCKS,
                    *restrict w3 = room + 3 * BLOCKS;
    for (int64_t i = 0; i < blocks; i++) {
        moe_random_block r = moe_random_words(c->key, element + (uint64_t)i, c->step);
        w0[i] = moe_random_unit(r.v[0]);
        w1[i] = moe_random_unit(r.v[1]);
        w2[i] = moe_random_unit(r.v[2]);
        w3[i] = moe_random_unit(r.v[3]);
    }
    float eps = c->eps;
    for (int64_t i = 0; i < blocks; i++) {
        factor[4 * i] = 1.0f + eps * (2.0f * w0[i] - 1.0f);
        factor[4 * i + 1] = 1.0f + eps * (2.0f * w1[i] - 1.0f);
        factor[4 * i + 2] = 1.0f + eps * (2.0f * w2[i] - 1.0f);
        factor[4 * i + 3] = 1.0f + eps * (2.0f * w3[i] - 1.0f);
    }
}

static void jitter_row(const jitter_call *c, int64_t t, float *room) {
    float *restrict factor = room; /* [COLUMNS] */
    uint64_t element = c->first + (uint64_t)(t * cpu_blocks(c->width, 4));
    for (int64_t from = 0; from < c->width; from += COLUMNS, element += BLOCKS) {
        int64_t n = cpu_min(c->width - from, COLUMNS), at = cpu_row_at(t, c->width) + from;
        draw(c, element, cpu_blocks(n, 4), factor, room + COLUMNS);
        const float *restrict x = cpu_load(c->in, at, n, room + COLUMNS);    /* [n] */
        float *restrict y = cpu_store_begin(c->out, at, room + 2 * COLUMNS); /* [n] */
        if (c->add) {
            cpu_load(c->out, at, n, y);
            for (int64_t i = 0; i < n; i++) y[i] += x[i] * factor[i];
        } else {
            for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor[i];
        }
        cpu_store_end(c->out, at, n, y);
    }
}

static void jitter_rows(void *arg, int64_t piece, cpu_worker *w) {
    const jitter_call *c = arg;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) jitter_row(c, t, w->scratch);
}

static moe_status run(void *dev, const moe_op_args *a, int add, moe_err *err) {
    const moe_jitter_attr *at = a->attr;
    if (!at->step) return moe_fail(err, MOE_E_ARG, "%s: step is NULL", op);
    jitter_call c = {.in = &a->in[0], .out = &a->out[0], .key = {at->key[0], at->key[1]}, .eps = at->eps, .add = add};
    c.tokens = c.in->shape[0];
    c.width = c.in->shape[1];
    c.step = *at->step;
    c.first = (uint64_t)at->first_token * (uint64_t)cpu_blocks(c.width, 4);
    c.block = cpu_piece_rows(c.width);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), jitter_rows, &c);
    return MOE_OK;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    return run(dev, a, 0, err);
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_jitter_backward(a, err);
    return s == MOE_OK ? run(dev, a, 1, err) : s;
}

const moe_op CPU_OP(jitter) = {sizeof(moe_op), 0, op, sizes, forward, backward};
