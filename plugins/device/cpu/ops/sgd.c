/* moe.sgd/0: the plain step, on flat FP32 master weights; what parity of gradients is tested with. */
#include "act.h"
#include "gradient.h"

static const char op[] = MOE_OP_SGD;
enum { RUN = GRADIENT_RUN }; /* elements that are updated, then copied while they are near */

typedef struct sgd_call {
    gradient grad;
    float *w;       /* [n] */
    uint16_t *copy; /* [n] BF16, or NULL */
    float coef, lr, decay;
} sgd_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_sgd(a, err), saved, workspace);
}

/* Elements [from, from + n). */
static void step_run(const sgd_call *call, int64_t from, int64_t n) {
    const sgd_call c = *call;
    float room[RUN];
    const float *restrict grad = gradient_run(&call->grad, from, n, room);
    float *restrict w = c.w + from;
    for (int64_t i = 0; i < n; i++) w[i] -= c.lr * (c.coef * grad[i] + c.decay * w[i]);
    if (c.copy) act_round_n(c.copy + from, w, n);
}

static void step_block(void *arg, int64_t piece, cpu_worker *worker) {
    const sgd_call *c = arg;
    (void)worker;
    int64_t end = cpu_min(c->grad.n, (piece + 1) * CPU_PIECE_ELEMENTS);
    int64_t run = c->copy || c->grad.filled ? RUN : CPU_PIECE_ELEMENTS;
    for (int64_t i = piece * CPU_PIECE_ELEMENTS; i < end; i += run) step_run(c, i, cpu_min(run, end - i));
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    const moe_tensor *copy = op_optional(a->out, a->n_out, 1);
    const float *hyper = a->in[1].data, *stats = a->in[2].data; /* {lr, c1, c2, 0}, {norm, coef} */
    if (isnan(stats[1])) return MOE_OK;                         /* the gradient is not finite: the step is skipped */
    sgd_call c = {.w = a->out[0].data, .copy = copy ? copy->data : NULL};
    c.grad = gradient_of(&a->in[0], op_optional(a->in, a->n_in, 3));
    c.coef = stats[1];
    c.lr = hyper[0];
    c.decay = ((const moe_adamw_attr *)a->attr)->weight_decay;
    cpu_run(dev, cpu_blocks(c.grad.n, CPU_PIECE_ELEMENTS), step_block, &c);
    return MOE_OK;
}

const moe_op CPU_OP(sgd) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
