/* moe.rmsnorm/0: residual add and root-mean-square norm in one pass over the row. With BF16 rows the norm is taken of
 * s as stored (rounded), so that backward differentiates exactly what forward computed. */
#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_RMSNORM;
enum { MOST_PARTS = 64, LEAST_ROWS = 32, COLUMNS = 1024 };

typedef struct norm_call {
    const moe_tensor *a, *b, *s, *y;  /* [T,h] act; b and s NULL where absent */
    const moe_tensor *dy, *dres, *dx; /* [T,h] act; dres NULL where absent */
    const float *w;                   /* [h] */
    float *rstd, *parts, *dw;         /* [T]; [n_parts,h]; [h] */
    int64_t tokens, width, block, n_parts;
    float eps;
} norm_call;

/* Rows of one part of dw: at most MOST_PARTS parts, whatever the number of threads. */
static int64_t part_rows(int64_t tokens) {
    int64_t rows = cpu_blocks(tokens, MOST_PARTS);
    return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

static moe_status check_width(int64_t width, moe_err *err) {
    if (width >= 1 && width <= CPU_SCRATCH_FLOATS / 4) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: rows of %lld elements, want 1..%lld", op, (long long)width,
                    (long long)(CPU_SCRATCH_FLOATS / 4));
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = cpu_want_lists(a, op, 3, 3, 2, 2, err);
    if (s == MOE_OK) s = cpu_want(&a->in[0], op, "a", CPU_ACT, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s != MOE_OK) return s;
    int32_t act = a->in[0].dtype;
    const int64_t *shape = a->in[0].shape; /* T, h */
    if (cpu_present(&a->in[1]) != cpu_present(&a->out[0]))
        return moe_fail(err, MOE_E_ARG, "%s: s is given exactly where b is", op);
    if (cpu_present(&a->in[1])) s = cpu_want(&a->in[1], op, "b", act, 2, shape, err);
    if (s == MOE_OK) s = cpu_want(&a->in[2], op, "w", MOE_F32, 1, CPU_SHAPE(shape[1]), err);
    if (s == MOE_OK && cpu_present(&a->out[0])) s = cpu_want(&a->out[0], op, "s", act, 2, shape, err);
    if (s == MOE_OK) s = cpu_want(&a->out[1], op, "y", act, 2, shape, err);
    if (s == MOE_OK) s = cpu_want_attr(a, op, sizeof(moe_rmsnorm_attr), err);
    if (s == MOE_OK) s = check_width(shape[1], err);
    if (s != MOE_OK) return s;
    float eps = ((const moe_rmsnorm_attr *)a->attr)->eps;
    if (!(eps >= 0.0f) || isinf(eps)) return moe_fail(err, MOE_E_ARG, "%s: eps is %g", op, (double)eps);
    *saved = (uint64_t)shape[0] * sizeof(float);
    *workspace = (uint64_t)cpu_blocks(shape[0], part_rows(shape[0])) * (uint64_t)shape[1] * sizeof(float);
    return MOE_OK;
}

/* s = a + b of one row, as it is stored; returns where it can be read. room [2,h]. */
static const float *add_row(const norm_call *c, int64_t at, float *room) {
    const float *a = cpu_load(c->a, at, c->width, room); /* [h] */
    if (!c->b) return a;
    const float *b = cpu_load(c->b, at, c->width, room + c->width); /* [h] */
    float *s = cpu_store_begin(c->s, at, room);                     /* [h] */
    CPU_IN_PLACE
    for (int64_t i = 0; i < c->width; i++) s[i] = a[i] + b[i];
    cpu_store_end(c->s, at, c->width, s);
    return cpu_load(c->s, at, c->width, room);
}

static void norm_rows(void *arg, int64_t piece, cpu_worker *w) {
    const norm_call *c = arg;
    int64_t h = c->width, end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        int64_t at = cpu_row_at(t, h);
        const float *s = add_row(c, at, w->scratch);                       /* [h] */
        float *restrict y = cpu_store_begin(c->y, at, w->scratch + 2 * h); /* [h] */
        const float *restrict weight = c->w;                               /* [h] */
        float rstd = 1.0f / sqrtf(vm_dot(s, s, h) / (float)h + c->eps);
        c->rstd[t] = rstd;
        for (int64_t i = 0; i < h; i++) y[i] = weight[i] * (s[i] * rstd);
        cpu_store_end(c->y, at, h, y);
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    norm_call c = {.a = &a->in[0], .b = cpu_optional(a->in, a->n_in, 1), .y = &a->out[1]};
    c.s = cpu_optional(a->out, a->n_out, 0);
    c.w = a->in[2].data;
    c.rstd = a->saved;
    c.tokens = c.a->shape[0];
    c.width = c.a->shape[1];
    c.block = cpu_piece_rows(c.width);
    c.eps = ((const moe_rmsnorm_attr *)a->attr)->eps;
    cpu_run(dev, cpu_blocks(c.tokens, c.block), norm_rows, &c);
    return MOE_OK;
}

/* One row: dx = dres + rstd (g - xhat mean(g xhat)) with g = dy w, xhat = s rstd; part += dy xhat. room [4,h]. */
static void norm_row_backward(const norm_call *c, int64_t t, float *restrict part, float *room) {
    int64_t h = c->width, at = cpu_row_at(t, h);
    const float *dy = cpu_load(c->dy, at, h, room); /* [h] */
    const float *s = cpu_load(c->s, at, h, room + h);
    const float *restrict weight = c->w;
    float *restrict g = room + 2 * h; /* [h] */
    float rstd = c->rstd[t];
    for (int64_t i = 0; i < h; i++) {
        g[i] = dy[i] * weight[i];
        part[i] += dy[i] * (s[i] * rstd);
    }
    float mean = vm_dot(g, s, h) * rstd / (float)h;
    for (int64_t i = 0; i < h; i++) g[i] = rstd * (g[i] - s[i] * rstd * mean);
    if (c->dres) {
        const float *restrict dres = cpu_load(c->dres, at, h, room + 3 * h); /* [h] */
        for (int64_t i = 0; i < h; i++) g[i] += dres[i];
    }
    cpu_store(c->dx, at, h, g);
}

static void norm_rows_backward(void *arg, int64_t piece, cpu_worker *w) {
    const norm_call *c = arg;
    float *part = c->parts + cpu_row_at(piece, c->width); /* [h] */
    memset(part, 0, (size_t)c->width * sizeof(float));
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) norm_row_backward(c, t, part, w->scratch);
}

static void add_parts(void *arg, int64_t piece, cpu_worker *w) {
    const norm_call *c = arg;
    (void)w;
    int64_t from = piece * COLUMNS, n = cpu_min(c->width - from, COLUMNS);
    float *restrict dw = c->dw + from; /* [n] */
    for (int64_t p = 0; p < c->n_parts; p++) {
        const float *restrict part = c->parts + cpu_row_at(p, c->width) + from; /* [n] */
        for (int64_t i = 0; i < n; i++) dw[i] += part[i];
    }
}

static moe_status check_backward(const moe_op_args *a, moe_err *err) {
    moe_status s = cpu_want_lists(a, op, 3, 4, 2, 2, err);
    if (s == MOE_OK) s = cpu_want(&a->in[0], op, "dy", CPU_ACT, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s != MOE_OK) return s;
    int32_t act = a->in[0].dtype;
    const int64_t *shape = a->in[0].shape; /* T, h */
    s = cpu_want(&a->in[1], op, "s", act, 2, shape, err);
    if (s == MOE_OK) s = cpu_want(&a->in[2], op, "w", MOE_F32, 1, CPU_SHAPE(shape[1]), err);
    if (s == MOE_OK && cpu_optional(a->in, a->n_in, 3)) s = cpu_want(&a->in[3], op, "dres", act, 2, shape, err);
    if (s == MOE_OK) s = cpu_want(&a->out[0], op, "dx", act, 2, shape, err);
    if (s == MOE_OK) s = cpu_want(&a->out[1], op, "dw", MOE_F32, 1, CPU_SHAPE(shape[1]), err);
    return s == MOE_OK ? check_width(shape[1], err) : s;
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = check_backward(a, err);
    if (s != MOE_OK) return s;
    norm_call c = {.dy = &a->in[0], .s = &a->in[1], .dres = cpu_optional(a->in, a->n_in, 3), .dx = &a->out[0]};
    c.w = a->in[2].data;
    c.dw = a->out[1].data;
    c.rstd = a->saved;
    c.parts = a->workspace;
    c.tokens = c.dy->shape[0];
    c.width = c.dy->shape[1];
    c.block = part_rows(c.tokens);
    c.n_parts = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, c.n_parts, norm_rows_backward, &c);
    cpu_run(dev, cpu_blocks(c.width, COLUMNS), add_parts, &c);
    return MOE_OK;
}

const moe_op CPU_OP(rmsnorm) = {sizeof(moe_op), 0, op, sizes, forward, backward};
