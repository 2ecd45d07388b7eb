/* moe.sigmoid/0: the logistic function of every element, in place: the gate of the shared experts. */
#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_SIGMOID;

typedef struct sigmoid_call {
    const float *in, *y; /* x or dy; y in backward */
    float *out;
    int64_t n;
} sigmoid_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_sigmoid(a, err), saved, workspace);
}

static void squash(void *arg, int64_t piece, cpu_worker *w) {
    const sigmoid_call *c = arg;
    (void)w;
    int64_t i = piece * CPU_PIECE_ELEMENTS, end = cpu_min(c->n, i + CPU_PIECE_ELEMENTS);
    CPU_IN_PLACE
    for (int64_t j = i; j < end; j++) c->out[j] = vm_sigmoid(c->in[j]);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    sigmoid_call c = {.in = a->in[0].data, .out = a->out[0].data, .n = op_elements(&a->in[0])};
    cpu_run(dev, cpu_blocks(c.n, CPU_PIECE_ELEMENTS), squash, &c);
    return MOE_OK;
}

static void squash_backward(void *arg, int64_t piece, cpu_worker *w) {
    const sigmoid_call *c = arg;
    (void)w;
    int64_t i = piece * CPU_PIECE_ELEMENTS, end = cpu_min(c->n, i + CPU_PIECE_ELEMENTS);
    CPU_IN_PLACE
    for (int64_t j = i; j < end; j++) c->out[j] = c->in[j] * c->y[j] * (1.0f - c->y[j]);
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_sigmoid_backward(a, err);
    if (s != MOE_OK) return s;
    sigmoid_call c = {.in = a->in[0].data, .y = a->in[1].data, .out = a->out[0].data, .n = op_elements(&a->in[0])};
    cpu_run(dev, cpu_blocks(c.n, CPU_PIECE_ELEMENTS), squash_backward, &c);
    return MOE_OK;
}

const moe_op CPU_OP(sigmoid) = {sizeof(moe_op), 0, op, sizes, forward, backward};
