/* moe.sent/0: the payload of an exchange, added to counters of the host. */
#include "args.h"

static const char op[] = MOE_OP_SENT;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_sent(a, err);
    if (s == MOE_OK) *saved = *workspace = 0;
    return s;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_sent_attr *at = a->attr;
    const moe_tensor *sent = op_optional(a->out, a->n_out, 0), *far = op_optional(a->out, a->n_out, 1);
    const int64_t *rows = a->in[0].data;
    const uint32_t each = at->members / (uint32_t)a->in[0].shape[0]; /* members that share a number */
    int64_t all = 0, away = 0;
    (void)dev, (void)err;
    for (uint32_t m = 0; m < at->members; m++) {
        const int64_t bytes = m == at->me ? 0 : rows[m / each] * at->bytes;
        all += bytes;
        if (at->node_size && (at->first_rank + m) / at->node_size != (at->first_rank + at->me) / at->node_size)
            away += bytes;
    }
    if (sent) *(int64_t *)sent->data += all;
    if (far) *(int64_t *)far->data += away;
    return MOE_OK;
}

const moe_op CPU_OP(sent) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
