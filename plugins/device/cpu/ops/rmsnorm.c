/* moe.rmsnorm/0: residual add and root-mean-square norm in one pass over the row. With BF16 rows the norm is taken of
 * s as stored (rounded), so that backward differentiates exactly what forward computed. */
#include "norm.h"

static const char op[] = MOE_OP_RMSNORM;

typedef struct norm_call {
    const moe_tensor *a, *b, *s, *y;  /* [T,h] act; b and s NULL where absent */
    const moe_tensor *dy, *dres, *dx; /* [T,h] act; dres NULL where absent */
    const float *w;                   /* [h] */
    float *rstd, *parts, *dw;         /* [T]; [n_parts,h]; [h] */
    int64_t tokens, width, block, n_parts;
    float eps;
} norm_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_rmsnorm(a, NORM_MOST, err);
    if (s != MOE_OK) return s;
    const int64_t *shape = a->in[0].shape; /* T, h */
    *saved = (uint64_t)shape[0] * sizeof(float);
    *workspace = (uint64_t)cpu_blocks(shape[0], parts_rows(shape[0])) * (uint64_t)shape[1] * sizeof(float);
    return MOE_OK;
}

/* s = a + b as stored (or a) at elements [i, i + n). */
ACT_INLINE vm_vector add_part(const norm_call *c, int64_t at, int64_t i, int64_t n, int narrow) {
    vm_vector s = act_load(act_at(c->a, at, narrow), i, n, narrow);
    if (!c->b) return s;
    return act_store(act_at(c->s, at, narrow), i, n, s + act_load(act_at(c->b, at, narrow), i, n, narrow), narrow);
}

ACT_INLINE void norm_row(const norm_call *c, int64_t t, int narrow) {
    int64_t h = c->width, at = cpu_row_at(t, h), i = 0;
    vm_vector sum = {0}, sum2 = {0};
    for (; i + 2 * VM_LANES <= h; i += 2 * VM_LANES) {
        vm_vector s = add_part(c, at, i, VM_LANES, narrow), s2 = add_part(c, at, i + VM_LANES, VM_LANES, narrow);
        sum += s * s;
        sum2 += s2 * s2;
    }
    for (; i < h; i += VM_LANES) {
        vm_vector s = add_part(c, at, i, cpu_min(h - i, VM_LANES), narrow);
        sum += s * s;
    }
    float rstd = 1.0f / sqrtf(vm_lanes(sum + sum2) / (float)h + c->eps);
    c->rstd[t] = rstd;
    const void *s = act_at(c->b ? c->s : c->a, at, narrow);
    void *y = act_at(c->y, at, narrow);
    for (i = 0; i + VM_LANES <= h; i += VM_LANES)
        act_store(y, i, VM_LANES, vm_load(c->w + i) * (act_load(s, i, VM_LANES, narrow) * rstd), narrow);
    if (i < h) act_store(y, i, h - i, act_load(c->w, i, h - i, 0) * (act_load(s, i, h - i, narrow) * rstd), narrow);
}

static void norm_rows(void *arg, int64_t piece, cpu_worker *w) {
    const norm_call *c = arg;
    (void)w;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++)
        if (c->y->dtype == MOE_F32)
            norm_row(c, t, 0);
        else
            norm_row(c, t, 1);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    norm_call c = {.a = &a->in[0], .b = op_optional(a->in, a->n_in, 1), .y = &a->out[1]};
    c.s = op_optional(a->out, a->n_out, 0);
    c.w = a->in[2].data;
    c.rstd = a->saved;
    c.tokens = c.a->shape[0];
    c.width = c.a->shape[1];
    c.block = cpu_piece_rows(c.width);
    c.eps = ((const moe_rmsnorm_attr *)a->attr)->eps;
    cpu_run(dev, cpu_blocks(c.tokens, c.block), norm_rows, &c);
    return MOE_OK;
}

/* dx of elements [i, i + n): mean is that of g xhat. */
ACT_INLINE void write_gradient(const norm_call *c, int64_t at, float rstd, float mean, int64_t i, int64_t n,
                               int narrow) {
    vm_vector d = act_load(act_at(c->dy, at, narrow), i, n, narrow),
              x = act_load(act_at(c->s, at, narrow), i, n, narrow);
    vm_vector g = rstd * (d * act_load(c->w, i, n, 0) - x * rstd * mean);
    if (c->dres) g += act_load(act_at(c->dres, at, narrow), i, n, narrow);
    act_store(act_at(c->dx, at, narrow), i, n, g, narrow);
}

/* One row: dx = dres + rstd (g - xhat mean(g xhat)) with g = dy w, xhat = s rstd; part += dy xhat. */
ACT_INLINE void norm_row_backward(const norm_call *c, int64_t t, float *part, int narrow) {
    int64_t h = c->width, at = cpu_row_at(t, h), i = 0;
    const void *dy = act_at(c->dy, at, narrow), *s = act_at(c->s, at, narrow);
    float rstd = c->rstd[t];
    vm_vector sum = {0}, sum2 = {0};
    for (; i + 2 * VM_LANES <= h; i += 2 * VM_LANES) {
        sum += norm_differentiate(dy, s, c->w, rstd, part, i, VM_LANES, narrow);
        sum2 += norm_differentiate(dy, s, c->w, rstd, part, i + VM_LANES, VM_LANES, narrow);
    }
    for (; i < h; i += VM_LANES)
        sum += norm_differentiate(dy, s, c->w, rstd, part, i, cpu_min(h - i, VM_LANES), narrow);
    float mean = vm_lanes(sum + sum2) * rstd / (float)h;
    for (i = 0; i + VM_LANES <= h; i += VM_LANES) write_gradient(c, at, rstd, mean, i, VM_LANES, narrow);
    if (i < h) write_gradient(c, at, rstd, mean, i, h - i, narrow);
}

static void norm_rows_backward(void *arg, int64_t piece, cpu_worker *w) {
    const norm_call *c = arg;
    (void)w;
    float *part = c->parts + cpu_row_at(piece, c->width); /* [h] */
    memset(part, 0, (size_t)c->width * sizeof(float));
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++)
        if (c->dy->dtype == MOE_F32)
            norm_row_backward(c, t, part, 0);
        else
            norm_row_backward(c, t, part, 1);
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_rmsnorm_backward(a, NORM_MOST, err);
    if (s != MOE_OK) return s;
    norm_call c = {.dy = &a->in[0], .s = &a->in[1], .dres = op_optional(a->in, a->n_in, 3), .dx = &a->out[0]};
    c.w = a->in[2].data;
    c.dw = a->out[1].data;
    c.rstd = a->saved;
    c.parts = a->workspace;
    c.tokens = c.dy->shape[0];
    c.width = c.dy->shape[1];
    c.block = parts_rows(c.tokens);
    c.n_parts = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, c.n_parts, norm_rows_backward, &c);
    parts_add(dev, (parts_sum){c.parts, c.dw, c.n_parts, c.width});
    return MOE_OK;
}

const moe_op CPU_OP(rmsnorm) = {sizeof(moe_op), 0, op, sizes, forward, backward};
