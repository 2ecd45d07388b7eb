/* moe.swiglu_prob/0: the gated activation of an expert with the token's probability in the same pass, plain or with
 * both halves clamped. Rows are worked on in runs of valid or padding rows; rows past the last offset are not touched.
 */
#include "act.h"

static const char op[] = MOE_OP_SWIGLU_PROB;
enum { AHEAD = 2 }; /* rows that are fetched before their turn */

typedef struct swiglu_call {
    const moe_tensor *z, *a, *dz; /* [N,2f] act, a or da [N,f] act, [N,2f] act */
    const float *p;               /* [N], or NULL: 1 */
    float *dp;                    /* [N], or NULL */
    const moe_rows *rows;         /* or NULL */
    int64_t n_rows, width, block; /* width: f */
    float alpha, limit;           /* limit 0: not clamped */
} swiglu_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_swiglu_prob(a, err), saved, workspace);
}

static moe_status share_rows(void *dev, const moe_op_args *a, swiglu_call *c, cpu_piece_fn fn, moe_err *err) {
    c->rows = a->rows;
    const moe_swiglu_attr at = op_swiglu_attr(a);
    c->alpha = at.alpha;
    c->limit = at.limit;
    c->n_rows = c->z->shape[0];
    c->width = c->z->shape[1] / 2;
    c->block = cpu_piece_rows(2 * c->width);
    if (c->rows) {
        moe_status s = cpu_rows_read(c->rows, op, &c->n_rows, err);
        if (s != MOE_OK) return s;
    }
    cpu_run(dev, cpu_blocks(c->n_rows, c->block), fn, c);
    return MOE_OK;
}

/* Elements [i, i + n) of both halves as they take part, and what the formula needs of them. */
typedef struct gate_part {
    vm_vector up;                   /* up, or clamped up + 1 */
    vm_vector swish;                /* gate sigmoid(alpha gate) */
    vm_vector slope;                /* its derivative: s (1 + alpha gate (1 - s)), s = sigmoid(alpha gate) */
    vm_mask gate_passes, up_passes; /* all ones where it was not clamped */
} gate_part;

ACT_INLINE gate_part load_gate(const swiglu_call *c, const void *gate, const void *up, int64_t i, int64_t n,
                               int clamped, int narrow) {
    vm_vector g = act_load(gate, i, n, narrow), u = act_load(up, i, n, narrow), x = g;
    gate_part p = {.up = u};
    if (clamped) {
        p.gate_passes = ~(vm_mask)(g > c->limit);
        p.up_passes = ~((vm_mask)(u > c->limit) | (vm_mask)(u < -c->limit));
        g = vm_at_most(g, c->limit);
        p.up = vm_at_least(vm_at_most(u, c->limit), -c->limit) + 1.0f;
        x = c->alpha * g;
    }
    vm_vector s = vm_sigmoids(x);
    p.swish = g * s;
    p.slope = s * (1.0f + x * (1.0f - s));
    return p;
}

/* Asks for element i of the row AHEAD of this one, where the tensor has that row (rows of `elements` elements): the
 * activation takes so long that the hardware does not look that far. */
ACT_INLINE void fetch_ahead(const moe_tensor *t, int64_t row, int64_t rows, int64_t elements, int64_t i, int narrow) {
    if (row + AHEAD < rows) __builtin_prefetch(act_at(t, cpu_row_at(row + AHEAD, elements) + i, narrow), 0, 2);
}

/* ---- forward ---- */
ACT_INLINE void activate_row(const swiglu_call *c, int64_t row, int clamped, int narrow) {
    const int64_t f = c->width, act = narrow ? 2 : 4;
    const char *gate = act_at(c->z, cpu_row_at(row, 2 * f), narrow), *up = gate + f * act; /* [f] */
    char *a = act_at(c->a, cpu_row_at(row, f), narrow);                                    /* [f] */
    const float p = c->p ? c->p[row] : 1.0f;
    int64_t i = 0;
    for (; i + VM_LANES <= f; i += VM_LANES) {
        fetch_ahead(c->z, row, c->n_rows, 2 * f, i, narrow);
        fetch_ahead(c->z, row, c->n_rows, 2 * f, i + f, narrow);
        gate_part g = load_gate(c, gate, up, i, VM_LANES, clamped, narrow);
        act_store(a, i, VM_LANES, p * (g.swish * g.up), narrow);
    }
    if (i < f) {
        gate_part g = load_gate(c, gate, up, i, f - i, clamped, narrow);
        act_store(a, i, f - i, p * (g.swish * g.up), narrow);
    }
}

static void activate_rows(void *arg, int64_t piece, cpu_worker *w) {
    const swiglu_call *c = arg;
    (void)w;
    int64_t row = piece * c->block, end = cpu_min(c->n_rows, row + c->block);
    while (row < end) {
        int valid;
        int64_t stop = cpu_rows_run(c->rows, row, end, &valid);
        if (!valid) cpu_zero(c->a, cpu_row_at(row, c->width), (stop - row) * c->width);
        for (; valid && row < stop; row++) {
            if (c->z->dtype == MOE_F32)
                c->limit > 0.0f ? activate_row(c, row, 1, 0) : activate_row(c, row, 0, 0);
            else
                c->limit > 0.0f ? activate_row(c, row, 1, 1) : activate_row(c, row, 0, 1);
        }
        row = stop;
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_tensor *p = op_optional(a->in, a->n_in, 1);
    swiglu_call c = {.z = &a->in[0], .a = &a->out[0], .p = p ? p->data : NULL};
    return share_rows(dev, a, &c, activate_rows, err);
}

/* ---- backward: dz may lie over z ---- */
/* Elements [i, i + n) of a row; returns da act. Nothing goes through what was cut. */
ACT_INLINE vm_vector differentiate(const swiglu_call *c, const char *z, const char *da, char *dz, float p, int64_t i,
                                   int64_t n, int clamped, int narrow) {
    const int64_t half = c->width * (narrow ? 2 : 4);
    gate_part g = load_gate(c, z, z + half, i, n, clamped, narrow);
    vm_vector d = act_load(da, i, n, narrow), dgate = p * d * g.up * g.slope, dup = p * d * g.swish;
    if (clamped) {
        dgate = (vm_vector)((vm_mask)dgate & g.gate_passes);
        dup = (vm_vector)((vm_mask)dup & g.up_passes);
    }
    act_store(dz, i, n, dgate, narrow);
    act_store(dz + half, i, n, dup, narrow);
    return d * g.swish * g.up;
}

ACT_INLINE void activate_row_backward(const swiglu_call *c, int64_t row, int clamped, int narrow) {
    const int64_t f = c->width;
    const char *z = act_at(c->z, cpu_row_at(row, 2 * f), narrow); /* [2f] */
    const char *da = act_at(c->a, cpu_row_at(row, f), narrow);    /* [f] */
    char *dz = act_at(c->dz, cpu_row_at(row, 2 * f), narrow);     /* [2f] */
    const float p = c->p ? c->p[row] : 1.0f;
    vm_vector dot = {0};
    int64_t i = 0;
    for (; i + VM_LANES <= f; i += VM_LANES) {
        fetch_ahead(c->z, row, c->n_rows, 2 * f, i, narrow);
        fetch_ahead(c->z, row, c->n_rows, 2 * f, i + f, narrow);
        fetch_ahead(c->a, row, c->n_rows, f, i, narrow);
        dot += differentiate(c, z, da, dz, p, i, VM_LANES, clamped, narrow);
    }
    if (i < f) dot += differentiate(c, z, da, dz, p, i, f - i, clamped, narrow);
    if (c->dp) c->dp[row] = vm_lanes(dot);
}

static void activate_rows_backward(void *arg, int64_t piece, cpu_worker *w) {
    const swiglu_call *c = arg;
    (void)w;
    int64_t row = piece * c->block, end = cpu_min(c->n_rows, row + c->block);
    while (row < end) {
        int valid;
        int64_t stop = cpu_rows_run(c->rows, row, end, &valid);
        if (!valid) cpu_zero(c->dz, cpu_row_at(row, 2 * c->width), (stop - row) * 2 * c->width);
        if (!valid && c->dp) memset(c->dp + row, 0, (size_t)(stop - row) * sizeof(float));
        for (; valid && row < stop; row++) {
            if (c->z->dtype == MOE_F32)
                c->limit > 0.0f ? activate_row_backward(c, row, 1, 0) : activate_row_backward(c, row, 0, 0);
            else
                c->limit > 0.0f ? activate_row_backward(c, row, 1, 1) : activate_row_backward(c, row, 0, 1);
        }
        row = stop;
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_swiglu_prob_backward(a, err);
    if (s != MOE_OK) return s;
    const moe_tensor *p = op_optional(a->in, a->n_in, 2), *dp = op_optional(a->out, a->n_out, 1);
    swiglu_call c = {.z = &a->in[1], .a = &a->in[0], .dz = &a->out[0]};
    c.p = p ? p->data : NULL;
    c.dp = dp ? dp->data : NULL;
    return share_rows(dev, a, &c, activate_rows_backward, err);
}

const moe_op CPU_OP(swiglu_prob) = {sizeof(moe_op), 0, op, sizes, forward, backward};
