/* moe.join/0: matrices side by side in one: the columns that ranks have computed, gathered as one matrix after another.
 */
#include "act.h"

static const char op[] = MOE_OP_JOIN;

typedef struct join_call {
    const char *x;                       /* [n,T,w] */
    char *y;                             /* [T,n*w] */
    int64_t parts, tokens, bytes, block; /* bytes of a row of x */
} join_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_join(a, err), saved, workspace);
}

static void join_rows(void *arg, int64_t piece, cpu_worker *w) {
    const join_call *c = arg;
    (void)w;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++)
        for (int64_t i = 0; i < c->parts; i++)
            act_copy(c->y + cpu_row_at(t * c->parts + i, c->bytes), c->x + cpu_row_at(i * c->tokens + t, c->bytes),
                     c->bytes, 0);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const int64_t *shape = a->in[0].shape;
    join_call c = {a->in[0].data,
                   a->out[0].data,
                   shape[0],
                   shape[1],
                   shape[2] * op_act_bytes(a->in[0].dtype),
                   cpu_piece_rows(shape[0] * shape[2])};
    (void)err;
    cpu_run(dev, cpu_blocks(c.tokens, c.block), join_rows, &c);
    return MOE_OK;
}

const moe_op CPU_OP(join) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
