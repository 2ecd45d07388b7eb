/* moe.sigmoid/0: the logistic function of every element, in place: the gate of the shared experts. */
#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_SIGMOID;

typedef struct sigmoid_call {
    const float *in, *y; /* x or dy; y in backward */
    float *out;
    int64_t n;
} sigmoid_call;

/* `t` is F32 and of the shape of `like`. */
static moe_status check(const moe_tensor *t, const char *name, const moe_tensor *like, moe_err *err) {
    if (like->ndim < 1 || like->ndim > 4) return moe_fail(err, MOE_E_ARG, "%s: %s has ndim %d", op, name, like->ndim);
    return cpu_want(t, op, name, MOE_F32, like->ndim, like->shape, err);
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = cpu_want_lists(a, op, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = check(&a->in[0], "x", &a->in[0], err);
    if (s == MOE_OK) s = check(&a->out[0], "y", &a->in[0], err);
    if (s != MOE_OK) return s;
    *saved = *workspace = 0;
    return MOE_OK;
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
    sigmoid_call c = {.in = a->in[0].data, .out = a->out[0].data, .n = cpu_elements(&a->in[0])};
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
    moe_status s = cpu_want_lists(a, op, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = check(&a->in[0], "dy", &a->in[0], err);
    if (s == MOE_OK) s = check(&a->in[1], "y", &a->in[0], err);
    if (s == MOE_OK) s = check(&a->out[0], "dx", &a->in[0], err);
    if (s != MOE_OK) return s;
    sigmoid_call c = {.in = a->in[0].data, .y = a->in[1].data, .out = a->out[0].data, .n = cpu_elements(&a->in[0])};
    cpu_run(dev, cpu_blocks(c.n, CPU_PIECE_ELEMENTS), squash_backward, &c);
    return MOE_OK;
}

const moe_op CPU_OP(sigmoid) = {sizeof(moe_op), 0, op, sizes, forward, backward};
