/* moe.head_norm/0: root-mean-square norm of segments inside packed rows (the query and key heads), in place. The
 * segments as they came and their 1/rms are kept, so that backward differentiates what forward computed. */
#include "norm.h"

static const char op[] = MOE_OP_HEAD_NORM;
enum { AHEAD = 2, GROUP = 64 }; /* rows that are fetched before their turn; segments at a time, backward */

typedef struct head_call {
    const moe_tensor *in, *out;                                  /* [T,W] act: x, or its gradient */
    const float *w;                                              /* [width] */
    float *rstd, *parts, *dw;                                    /* [T,segments]; [n_parts,width]; [width] */
    moe_tensor kept;                                             /* [T,segments*width] act */
    int64_t tokens, row, first, segments, width, block, n_parts; /* row: W */
    float eps;
} head_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_head_norm(a, NORM_MOST, err);
    if (s != MOE_OK) return s;
    const moe_head_norm_attr *at = a->attr;
    int64_t tokens = a->in[0].shape[0], elements = tokens * at->segments * at->width;
    *saved = (uint64_t)(tokens * at->segments) * sizeof(float) + (uint64_t)(elements * op_act_bytes(a->in[0].dtype));
    *workspace = (uint64_t)(cpu_blocks(tokens, parts_rows(tokens)) * at->width) * sizeof(float);
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
    int64_t bytes = c->row * op_act_bytes(c->in->dtype);
    if (c->in->data != c->out->data)
        memcpy((char *)c->out->data + t * bytes, (const char *)c->in->data + t * bytes, (size_t)bytes);
}

/* Keeps n elements of a segment; returns the sum of their squares. */
ACT_INLINE float keep_segment(const void *x, void *kept, int64_t n, int narrow) {
    vm_vector sum = {0};
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES) {
        vm_vector v = act_keep(kept, x, i, VM_LANES, narrow);
        sum += v * v;
    }
    if (i < n) {
        vm_vector v = act_keep(kept, x, i, n - i, narrow);
        sum += v * v;
    }
    return vm_lanes(sum);
}

/* y = w x rstd */
ACT_INLINE void scale_segment(const void *x, void *y, const float *w, float rstd, int64_t n, int narrow) {
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES)
        act_store(y, i, VM_LANES, vm_load(w + i) * (act_load(x, i, VM_LANES, narrow) * rstd), narrow);
    if (i < n) act_store(y, i, n - i, act_load(w, i, n - i, 0) * (act_load(x, i, n - i, narrow) * rstd), narrow);
}

/* All segments of token t: first their sums, then all 1/rms at once, so that none waits for a square root. */
ACT_INLINE void norm_row(const head_call *c, int64_t t, int narrow) {
    const int64_t n = c->width, bytes = n * (narrow ? 2 : 4);
    const int64_t ahead = t + AHEAD < c->tokens ? AHEAD * c->row * (narrow ? 2 : 4) : 0;
    const char *x = act_at(c->in, cpu_row_at(t, c->row) + c->first, narrow);
    char *y = act_at(c->out, cpu_row_at(t, c->row) + c->first, narrow);
    char *kept = act_at(&c->kept, cpu_row_at(t, c->segments) * n, narrow);
    float *restrict rstd = c->rstd + cpu_row_at(t, c->segments); /* [segments] */
    for (int64_t i = 0; i < c->segments; i++) {
        if (ahead) act_fetch(x + i * bytes + ahead, bytes);
        rstd[i] = keep_segment(x + i * bytes, kept + i * bytes, n, narrow);
    }
    for (int64_t i = 0; i < c->segments; i++) rstd[i] = 1.0f / sqrtf(rstd[i] / (float)n + c->eps);
    for (int64_t i = 0; i < c->segments; i++) scale_segment(kept + i * bytes, y + i * bytes, c->w, rstd[i], n, narrow);
}

static void norm_rows(void *arg, int64_t piece, cpu_worker *w) {
    const head_call *c = arg;
    (void)w;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        pass_row(c, t);
        if (c->in->dtype == MOE_F32)
            norm_row(c, t, 0);
        else
            norm_row(c, t, 1);
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    head_call c = read_call(a);
    c.block = cpu_piece_rows(c.segments * c.width);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), norm_rows, &c);
    return MOE_OK;
}

/* Sum of g x over a segment. */
ACT_INLINE float sum_segment(const float *w, int64_t n, const void *dy, const void *x, float rstd, float *part,
                             int narrow) {
    vm_vector sum = {0};
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES) sum += norm_differentiate(dy, x, w, rstd, part, i, VM_LANES, narrow);
    if (i < n) sum += norm_differentiate(dy, x, w, rstd, part, i, n - i, narrow);
    return vm_lanes(sum);
}

/* dx of elements [i, i + n), which may lie over dy: share is rstd times the mean of g xhat. */
ACT_INLINE void write_part(const void *dy, const void *x, const float *w, float rstd, float share, void *dx, int64_t i,
                           int64_t n, int narrow) {
    vm_vector g = act_load(dy, i, n, narrow) * act_load(w, i, n, 0);
    act_store(dx, i, n, rstd * (g - act_load(x, i, n, narrow) * share), narrow);
}

/* Segments [from, from + count) of token t: dx = rstd (g - xhat mean(g xhat)) with g = dy w, xhat = x rstd; part +=
 * dy xhat. First all their sums, so that none waits for the one before. */
ACT_INLINE void norm_segments_backward(const head_call *c, int64_t t, int64_t from, int64_t count, float *part,
                                       int narrow) {
    const int64_t n = c->width, act = narrow ? 2 : 4, bytes = n * act;
    const int64_t at = cpu_row_at(t, c->row) + c->first + from * n, segment = cpu_row_at(t, c->segments) + from;
    const int64_t ahead = t + AHEAD < c->tokens ? AHEAD * c->row * act : 0;
    const char *dy = act_at(c->in, at, narrow), *x = act_at(&c->kept, segment * n, narrow);
    char *dx = act_at(c->out, at, narrow);
    const float *rstd = c->rstd + segment, *w = c->w; /* [count], [n] */
    float share[GROUP];
    for (int64_t i = 0; i < count; i++) {
        if (ahead) {
            act_fetch(dy + i * bytes + ahead, bytes);
            act_fetch(x + (i + AHEAD * c->segments) * bytes, bytes);
        }
        share[i] = sum_segment(w, n, dy + i * bytes, x + i * bytes, rstd[i], part, narrow);
    }
    for (int64_t i = 0; i < count; i++) share[i] = share[i] * rstd[i] / (float)n * rstd[i];
    for (int64_t i = 0; i < count; i++) {
        const int64_t b = i * bytes;
        int64_t j = 0;
        for (; j + VM_LANES <= n; j += VM_LANES)
            write_part(dy + b, x + b, w, rstd[i], share[i], dx + b, j, VM_LANES, narrow);
        if (j < n) write_part(dy + b, x + b, w, rstd[i], share[i], dx + b, j, n - j, narrow);
    }
}

ACT_INLINE void norm_row_backward(const head_call *c, int64_t t, float *part, int narrow) {
    for (int64_t from = 0; from < c->segments; from += GROUP)
        norm_segments_backward(c, t, from, cpu_min(c->segments - from, GROUP), part, narrow);
}

static void norm_rows_backward(void *arg, int64_t piece, cpu_worker *w) {
    const head_call *c = arg;
    (void)w;
    float *part = c->parts + cpu_row_at(piece, c->width); /* [n] */
    memset(part, 0, (size_t)c->width * sizeof(float));
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        pass_row(c, t);
        if (c->in->dtype == MOE_F32)
            norm_row_backward(c, t, part, 0);
        else
            norm_row_backward(c, t, part, 1);
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_head_norm_backward(a, NORM_MOST, err);
    if (s != MOE_OK) return s;
    head_call c = read_call(a);
    c.dw = a->out[1].data;
    c.parts = a->workspace;
    c.block = parts_rows(c.tokens);
    c.n_parts = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, c.n_parts, norm_rows_backward, &c);
    parts_add(dev, (parts_sum){c.parts, c.dw, c.n_parts, c.width});
    return MOE_OK;
}

const moe_op CPU_OP(head_norm) = {sizeof(moe_op), 0, op, sizes, forward, backward};
