/* moe.head_norm/0: root-mean-square norm of segments inside packed rows (the query and key heads), in place. The
 * segments as they came and their 1/rms are kept, so that backward differentiates what forward computed. */
#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_HEAD_NORM;
enum { MOST_PARTS = 64, LEAST_ROWS = 32, COLUMNS = 1024 };

typedef struct head_call {
    const moe_tensor *in, *out;                                  /* [T,W] act: x, or its gradient */
    const float *w;                                              /* [width] */
    float *rstd, *parts, *dw;                                    /* [T,segments]; [n_parts,width]; [width] */
    moe_tensor kept;                                             /* [T,segments*width] act */
    int64_t tokens, row, first, segments, width, block, n_parts; /* row: W */
    float eps;
} head_call;

/* Rows of one part of dw: at most MOST_PARTS parts, whatever the number of threads. */
static int64_t part_rows(int64_t tokens) {
    int64_t rows = cpu_blocks(tokens, MOST_PARTS);
    return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

static moe_status check_attr(const moe_op_args *a, int64_t row, moe_err *err) {
    moe_status s = cpu_want_attr(a, op, sizeof(moe_head_norm_attr), err);
    if (s != MOE_OK) return s;
    const moe_head_norm_attr *at = a->attr;
    int64_t end;
    if (!(at->eps >= 0.0f) || isinf(at->eps)) return moe_fail(err, MOE_E_ARG, "%s: eps is %g", op, (double)at->eps);
    if (at->width < 1 || at->width > CPU_SCRATCH_FLOATS / 4)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: segments of %lld elements, want 1..%lld", op, (long long)at->width,
                        (long long)(CPU_SCRATCH_FLOATS / 4));
    if (at->first < 0 || at->segments < 1 || __builtin_mul_overflow(at->segments, at->width, &end) ||
        __builtin_add_overflow(end, at->first, &end) || end > row)
        return moe_fail(err, MOE_E_ARG, "%s: %lld segments of %lld elements from %lld on do not lie in rows of %lld",
                        op, (long long)at->segments, (long long)at->width, (long long)at->first, (long long)row);
    return MOE_OK;
}

/* x, w and x in place; the gradient goes through the same tensors. */
static moe_status check(const moe_op_args *a, const char *x, moe_err *err) {
    char output[32];
    moe_status s = cpu_want(&a->in[0], op, x, CPU_ACT, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s == MOE_OK) s = check_attr(a, a->in[0].shape[1], err);
    if (s != MOE_OK) return s;
    snprintf(output, sizeof output, "%s (output)", x);
    s = cpu_want(&a->in[1], op, "w", MOE_F32, 1, CPU_SHAPE(((const moe_head_norm_attr *)a->attr)->width), err);
    return s == MOE_OK ? cpu_want(&a->out[0], op, output, a->in[0].dtype, 2, a->in[0].shape, err) : s;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = cpu_want_lists(a, op, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = check(a, "x", err);
    if (s != MOE_OK) return s;
    const moe_head_norm_attr *at = a->attr;
    int64_t tokens = a->in[0].shape[0], elements = tokens * at->segments * at->width;
    *saved = (uint64_t)(tokens * at->segments) * sizeof(float) + (uint64_t)(elements * cpu_act_bytes(a->in[0].dtype));
    *workspace = (uint64_t)(cpu_blocks(tokens, part_rows(tokens)) * at->width) * sizeof(float);
    return MOE_OK;
}

/* What both directions share; saved is rstd, then the segments. */
static head_call read_call(const moe_op_args *a) {
    const moe_head_norm_attr *at = a->attr;
    head_call c = {.in = &a->in[0], .out = &a->out[0], .w = a->in[1].data, .rstd = a->saved};
    c.tokens = c.in->shape[0];
    c.row = c.in->shape[1];
    c.first = at->first;
    c.segments = at->segments;
    c.width = at->width;
    c.eps = at->eps;
    c.kept = (moe_tensor){.dtype = c.in->dtype, .ndim = 2, .shape = {c.tokens, c.segments * c.width, 1, 1}};
    if (c.rstd) c.kept.data = c.rstd + c.tokens * c.segments;
    return c;
}

/* The whole row where the output is another buffer: what is not in a segment passes. */
static void pass_row(const head_call *c, int64_t t) {
    int64_t bytes = c->row * cpu_act_bytes(c->in->dtype);
    if (c->in->data != c->out->data)
        memcpy((char *)c->out->data + t * bytes, (const char *)c->in->data + t * bytes, (size_t)bytes);
}

static void norm_rows(void *arg, int64_t piece, cpu_worker *w) {
    const head_call *c = arg;
    int64_t n = c->width, act = cpu_act_bytes(c->in->dtype), end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        pass_row(c, t);
        int64_t kept = cpu_row_at(t, c->segments * n), at = cpu_row_at(t, c->row) + c->first;
        memcpy((char *)c->kept.data + kept * act, (const char *)c->in->data + at * act,
               (size_t)(c->segments * n * act));
        for (int64_t i = 0; i < c->segments; i++) {
            const float *restrict x = cpu_load(&c->kept, kept + i * n, n, w->scratch); /* [n] */
            float *restrict y = cpu_store_begin(c->out, at + i * n, w->scratch + n);   /* [n] */
            const float *restrict weight = c->w;                                       /* [n] */
            float rstd = 1.0f / sqrtf(vm_dot(x, x, n) / (float)n + c->eps);
            c->rstd[t * c->segments + i] = rstd;
            for (int64_t j = 0; j < n; j++) y[j] = weight[j] * (x[j] * rstd);
            cpu_store_end(c->out, at + i * n, n, y);
        }
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    head_call c = read_call(a);
    c.block = cpu_piece_rows(c.segments * c.width);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), norm_rows, &c);
    return MOE_OK;
}

/* One segment: dx = rstd (g - xhat mean(g xhat)) with g = dy w, xhat = x rstd; part += dy xhat. room [3,n]. */
static void norm_backward(const head_call *c, int64_t at, int64_t kept, float rstd, float *restrict part, float *room) {
    int64_t n = c->width;
    const float *dy = cpu_load(c->in, at, n, room);         /* [n] */
    const float *x = cpu_load(&c->kept, kept, n, room + n); /* [n] */
    const float *restrict weight = c->w;                    /* [n] */
    float *restrict g = room + 2 * n;                       /* [n] */
    for (int64_t j = 0; j < n; j++) {
        g[j] = dy[j] * weight[j];
        part[j] += dy[j] * (x[j] * rstd);
    }
    float mean = vm_dot(g, x, n) * rstd / (float)n;
    for (int64_t j = 0; j < n; j++) g[j] = rstd * (g[j] - x[j] * rstd * mean);
    cpu_store(c->out, at, n, g);
}

static void norm_rows_backward(void *arg, int64_t piece, cpu_worker *w) {
    const head_call *c = arg;
    float *part = c->parts + cpu_row_at(piece, c->width); /* [n] */
    memset(part, 0, (size_t)c->width * sizeof(float));
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        pass_row(c, t);
        int64_t at = cpu_row_at(t, c->row) + c->first;
        for (int64_t i = 0; i < c->segments; i++) {
            int64_t segment = t * c->segments + i;
            norm_backward(c, at + i * c->width, segment * c->width, c->rstd[segment], part, w->scratch);
        }
    }
}

static void add_parts(void *arg, int64_t piece, cpu_worker *w) {
    const head_call *c = arg;
    (void)w;
    int64_t from = piece * COLUMNS, n = cpu_min(c->width - from, COLUMNS);
    float *restrict dw = c->dw + from; /* [n] */
    for (int64_t p = 0; p < c->n_parts; p++) {
        const float *restrict part = c->parts + cpu_row_at(p, c->width) + from; /* [n] */
        for (int64_t i = 0; i < n; i++) dw[i] += part[i];
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = cpu_want_lists(a, op, 2, 2, 2, 2, err);
    if (s == MOE_OK) s = check(a, "dx", err);
    if (s == MOE_OK) s = cpu_want(&a->out[1], op, "dw", MOE_F32, 1, a->in[1].shape, err);
    if (s != MOE_OK) return s;
    head_call c = read_call(a);
    c.dw = a->out[1].data;
    c.parts = a->workspace;
    c.block = part_rows(c.tokens);
    c.n_parts = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, c.n_parts, norm_rows_backward, &c);
    cpu_run(dev, cpu_blocks(c.width, COLUMNS), add_parts, &c);
    return MOE_OK;
}

const moe_op CPU_OP(head_norm) = {sizeof(moe_op), 0, op, sizes, forward, backward};
