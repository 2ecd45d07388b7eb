/* moe.add/0: one tensor added to another, element by element. */
#include "act.h"

static const char op[] = MOE_OP_ADD;

typedef struct add_call {
    const moe_tensor *x, *y;
    int64_t n;
} add_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_add(a, err), saved, workspace);
}

ACT_INLINE void add_part(void *y, const void *x, int64_t n, int narrow) {
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES)
        act_store(y, i, VM_LANES, act_load(y, i, VM_LANES, narrow) + act_load(x, i, VM_LANES, narrow), narrow);
    if (i < n) act_store(y, i, n - i, act_load(y, i, n - i, narrow) + act_load(x, i, n - i, narrow), narrow);
}

static void add_piece(void *arg, int64_t piece, cpu_worker *w) {
    const add_call *c = arg;
    (void)w;
    int64_t at = piece * CPU_PIECE_ELEMENTS, n = cpu_min(c->n - at, CPU_PIECE_ELEMENTS);
    if (c->x->dtype == MOE_F32)
        add_part(act_at(c->y, at, 0), act_at(c->x, at, 0), n, 0);
    else
        add_part(act_at(c->y, at, 1), act_at(c->x, at, 1), n, 1);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    add_call c = {&a->in[0], &a->out[0], op_elements(&a->in[0])};
    (void)err;
    cpu_run(dev, cpu_blocks(c.n, CPU_PIECE_ELEMENTS), add_piece, &c);
    return MOE_OK;
}

const moe_op CPU_OP(add) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
