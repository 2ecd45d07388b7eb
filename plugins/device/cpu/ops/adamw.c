/* moe.adamw/0: one step of Adam with decoupled weight decay on flat FP32 master weights; writes the BF16 copy in the
 * same pass. */
#include "act.h"
#include "gradient.h"

static const char op[] = MOE_OP_ADAMW;
enum { RUN = GRADIENT_RUN }; /* elements that are updated, then copied while they are near */

typedef struct adamw_call {
    gradient grad;
    float *w, *m, *v; /* [n] */
    uint16_t *copy;   /* [n] BF16, or NULL */
    float coef, lr, inv_c1, inv_c2, beta1, beta2, eps, decay;
} adamw_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_adamw(a, err), saved, workspace);
}

/* Elements [from, from + n). */
static void step_run(const adamw_call *call, int64_t from, int64_t n) {
    const adamw_call c = *call;
    float room[RUN];
    const float *restrict grad = gradient_run(&call->grad, from, n, room);
    float *restrict w = c.w + from, *restrict m = c.m + from, *restrict v = c.v + from;
    float fresh1 = 1.0f - c.beta1, fresh2 = 1.0f - c.beta2;
    for (int64_t i = 0; i < n; i++) {
        float g = c.coef * grad[i];
        m[i] = c.beta1 * m[i] + fresh1 * g;
        v[i] = c.beta2 * v[i] + fresh2 * (g * g);
        float step = m[i] * c.inv_c1 / (sqrtf(v[i] * c.inv_c2) + c.eps);
        w[i] -= c.lr * (step + c.decay * w[i]);
    }
    if (c.copy) act_round_n(c.copy + from, w, n);
}

static void step_block(void *arg, int64_t piece, cpu_worker *worker) {
    const adamw_call *c = arg;
    (void)worker;
    int64_t end = cpu_min(c->grad.n, (piece + 1) * CPU_PIECE_ELEMENTS);
    int64_t run = c->copy || c->grad.filled ? RUN : CPU_PIECE_ELEMENTS;
    for (int64_t i = piece * CPU_PIECE_ELEMENTS; i < end; i += run) step_run(c, i, cpu_min(run, end - i));
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    const moe_adamw_attr *at = a->attr;
    const moe_tensor *copy = op_optional(a->out, a->n_out, 3);
    const float *hyper = a->in[1].data, *stats = a->in[2].data; /* {lr, c1, c2, 0}, {norm, coef} */
    if (isnan(stats[1])) return MOE_OK;                         /* the gradient is not finite: the step is skipped */
    adamw_call c = {.w = a->out[0].data, .m = a->out[1].data, .v = a->out[2].data};
    c.grad = gradient_of(&a->in[0], op_optional(a->in, a->n_in, 3));
    c.copy = copy ? copy->data : NULL;
    c.coef = stats[1];
    c.lr = hyper[0];
    c.inv_c1 = 1.0f / hyper[1];
    c.inv_c2 = 1.0f / hyper[2];
    c.beta1 = at->beta1;
    c.beta2 = at->beta2;
    c.eps = at->eps;
    c.decay = at->weight_decay;
    cpu_run(dev, cpu_blocks(c.grad.n, CPU_PIECE_ELEMENTS), step_block, &c);
    return MOE_OK;
}

const moe_op CPU_OP(adamw) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
