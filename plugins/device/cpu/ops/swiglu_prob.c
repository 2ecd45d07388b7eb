/* moe.swiglu_prob/0: the gated activation of an expert with the token's probability in the same pass, plain or with
 * both halves clamped. Rows are worked on in runs of valid or padding rows; rows past the last offset are not touched.
 */
#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_SWIGLU_PROB;
enum { COLUMNS = 4096 }; /* of a row at a time: what scratch has to hold */

typedef struct swiglu_call {
    const moe_tensor *z, *a, *dz; /* [N,2f] act, a or da [N,f] act, [N,2f] act */
    const float *p;               /* [N], or NULL: 1 */
    float *dp;                    /* [N], or NULL */
    const moe_rows *rows;         /* or NULL */
    int64_t n_rows, width, block; /* width: f */
    float alpha, limit;           /* limit 0: not clamped */
} swiglu_call;

/* What the caller's struct does not reach is 0. */
static moe_swiglu_attr read_attr(const moe_op_args *a) {
    const moe_swiglu_attr *at = a->attr;
    moe_swiglu_attr got = {.size = sizeof got};
    if (at && MOE_REACH(at, moe_swiglu_attr, alpha)) got.alpha = at->alpha;
    if (at && MOE_REACH(at, moe_swiglu_attr, limit)) got.limit = at->limit;
    return got;
}

static moe_status check_attr(const moe_op_args *a, moe_err *err) {
    const moe_swiglu_attr at = read_attr(a);
    if (!(at.limit >= 0.0f)) return moe_fail(err, MOE_E_ARG, "%s: limit is %g, want at least 0", op, (double)at.limit);
    if (at.limit > 0.0f && !isfinite(at.alpha))
        return moe_fail(err, MOE_E_ARG, "%s: alpha is %g, want a number", op, (double)at.alpha);
    return MOE_OK;
}

/* z, a and p of either direction; rows where they are given. */
static moe_status check(const moe_tensor *z, const moe_tensor *a, const char *a_name, const moe_tensor *p,
                        const moe_op_args *args, moe_err *err) {
    moe_status s = cpu_want(z, op, "z", CPU_ACT, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s != MOE_OK) return s;
    if (z->shape[1] % 2)
        return moe_fail(err, MOE_E_ARG, "%s: z has %lld columns, want an even number", op, (long long)z->shape[1]);
    s = cpu_want(a, op, a_name, z->dtype, 2, CPU_SHAPE(z->shape[0], z->shape[1] / 2), err);
    if (s == MOE_OK && p) s = cpu_want(p, op, "p", MOE_F32, 1, CPU_SHAPE(z->shape[0]), err);
    if (s == MOE_OK && args->rows) s = cpu_want_rows(args, op, z->shape[0], err);
    return s == MOE_OK ? check_attr(args, err) : s;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = cpu_want_lists(a, op, 1, 2, 1, 1, err);
    if (s == MOE_OK) s = check(&a->in[0], &a->out[0], "a", cpu_optional(a->in, a->n_in, 1), a, err);
    if (s != MOE_OK) return s;
    *saved = *workspace = 0;
    return MOE_OK;
}

static moe_status share_rows(void *dev, const moe_op_args *a, swiglu_call *c, cpu_piece_fn fn, moe_err *err) {
    c->rows = a->rows;
    c->alpha = read_attr(a).alpha;
    c->limit = read_attr(a).limit;
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

/* ---- forward ---- */
static void activate(float *restrict a, const float *restrict gate, const float *restrict up, float p, int64_t n) {
    for (int64_t i = 0; i < n; i++) a[i] = p * (gate[i] * vm_sigmoid(gate[i]) * up[i]);
}

/* A NaN stays one. */
static float clamp_up(float u, float limit) {
    u = u > limit ? limit : u;
    return u < -limit ? -limit : u;
}

static void activate_clamped(float *restrict a, const float *restrict gate, const float *restrict up, float p,
                             int64_t n, float alpha, float limit) {
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i];
        a[i] = p * (g * vm_sigmoid(alpha * g) * (clamp_up(up[i], limit) + 1.0f));
    }
}

static void activate_row(const swiglu_call *c, int64_t row, float *room) {
    float p = c->p ? c->p[row] : 1.0f;
    for (int64_t from = 0; from < c->width; from += COLUMNS) {
        int64_t n = cpu_min(c->width - from, COLUMNS), at = cpu_row_at(row, c->width) + from;
        int64_t gate_at = cpu_row_at(row, 2 * c->width) + from;
        const float *restrict gate = cpu_load(c->z, gate_at, n, room);                    /* [n] */
        const float *restrict up = cpu_load(c->z, gate_at + c->width, n, room + COLUMNS); /* [n] */
        float *restrict a = cpu_store_begin(c->a, at, room + 2 * COLUMNS);                /* [n] */
        if (c->limit > 0.0f)
            activate_clamped(a, gate, up, p, n, c->alpha, c->limit);
        else
            activate(a, gate, up, p, n);
        cpu_store_end(c->a, at, n, a);
    }
}

static void activate_rows(void *arg, int64_t piece, cpu_worker *w) {
    const swiglu_call *c = arg;
    int64_t row = piece * c->block, end = cpu_min(c->n_rows, row + c->block);
    while (row < end) {
        int valid;
        int64_t stop = cpu_rows_run(c->rows, row, end, &valid);
        if (!valid) cpu_zero(c->a, cpu_row_at(row, c->width), (stop - row) * c->width);
        for (; valid && row < stop; row++) activate_row(c, row, w->scratch);
        row = stop;
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_tensor *p = cpu_optional(a->in, a->n_in, 1);
    swiglu_call c = {.z = &a->in[0], .a = &a->out[0], .p = p ? p->data : NULL};
    return share_rows(dev, a, &c, activate_rows, err);
}

/* ---- backward: outputs may be the inputs, element for element; dot [n] = da act ---- */
/* s = sigmoid(gate), silu = gate s, silu' = s (1 + gate (1 - s)) */
static void differentiate(const float *da, const float *gate, const float *up, float p, int64_t n, float *dot,
                          float *dgate, float *dup) {
    CPU_IN_PLACE
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i], d = da[i], s = vm_sigmoid(g), silu = g * s;
        dot[i] = d * silu * u;
        dgate[i] = p * d * u * (s * (1.0f + g * (1.0f - s)));
        dup[i] = p * d * silu;
    }
}

/* s = sigmoid(alpha g), swish = g s, swish' = s (1 + alpha g (1 - s)); nothing through what was cut */
static void differentiate_clamped(const float *da, const float *gate, const float *up, float p, int64_t n, float alpha,
                                  float limit, float *dot, float *dgate, float *dup) {
    CPU_IN_PLACE
    for (int64_t i = 0; i < n; i++) {
        float x = gate[i], y = up[i], d = da[i], g = x > limit ? limit : x, u = clamp_up(y, limit);
        float s = vm_sigmoid(alpha * g), swish = g * s;
        int cut = (y > limit) | (y < -limit);
        dot[i] = d * swish * (u + 1.0f);
        dgate[i] = x > limit ? 0.0f : p * d * (u + 1.0f) * (s * (1.0f + alpha * g * (1.0f - s)));
        dup[i] = cut ? 0.0f : p * d * swish;
    }
}

static void activate_row_backward(const swiglu_call *c, int64_t row, float *room) {
    float p = c->p ? c->p[row] : 1.0f, dp = 0.0f;
    float *dot = room + 3 * COLUMNS; /* [n] */
    for (int64_t from = 0; from < c->width; from += COLUMNS) {
        int64_t n = cpu_min(c->width - from, COLUMNS), gate_at = cpu_row_at(row, 2 * c->width) + from;
        const float *gate = cpu_load(c->z, gate_at, n, room);                    /* [n] */
        const float *up = cpu_load(c->z, gate_at + c->width, n, room + COLUMNS); /* [n] */
        const float *da = cpu_load(c->a, cpu_row_at(row, c->width) + from, n, room + 2 * COLUMNS);
        float *dgate = cpu_store_begin(c->dz, gate_at, room + 4 * COLUMNS);          /* [n] */
        float *dup = cpu_store_begin(c->dz, gate_at + c->width, room + 5 * COLUMNS); /* [n] */
        if (c->limit > 0.0f)
            differentiate_clamped(da, gate, up, p, n, c->alpha, c->limit, dot, dgate, dup);
        else
            differentiate(da, gate, up, p, n, dot, dgate, dup);
        dp += vm_sum(dot, n);
        cpu_store_end(c->dz, gate_at, n, dgate);
        cpu_store_end(c->dz, gate_at + c->width, n, dup);
    }
    if (c->dp) c->dp[row] = dp;
}

static void activate_rows_backward(void *arg, int64_t piece, cpu_worker *w) {
    const swiglu_call *c = arg;
    int64_t row = piece * c->block, end = cpu_min(c->n_rows, row + c->block);
    while (row < end) {
        int valid;
        int64_t stop = cpu_rows_run(c->rows, row, end, &valid);
        if (!valid) cpu_zero(c->dz, cpu_row_at(row, 2 * c->width), (stop - row) * 2 * c->width);
        if (!valid && c->dp) memset(c->dp + row, 0, (size_t)(stop - row) * sizeof(float));
        for (; valid && row < stop; row++) activate_row_backward(c, row, w->scratch);
        row = stop;
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = cpu_want_lists(a, op, 2, 3, 1, 2, err);
    if (s != MOE_OK) return s;
    const moe_tensor *p = cpu_optional(a->in, a->n_in, 2), *dp = cpu_optional(a->out, a->n_out, 1);
    s = check(&a->in[1], &a->in[0], "da", p, a, err);
    if (s == MOE_OK) s = cpu_want(&a->out[0], op, "dz", a->in[1].dtype, 2, a->in[1].shape, err);
    if (s == MOE_OK && dp) s = cpu_want(dp, op, "dp", MOE_F32, 1, CPU_SHAPE(a->in[1].shape[0]), err);
    if (s != MOE_OK) return s;
    swiglu_call c = {.z = &a->in[1], .a = &a->in[0], .dz = &a->out[0]};
    c.p = p ? p->data : NULL;
    c.dp = dp ? dp->data : NULL;
    return share_rows(dev, a, &c, activate_rows_backward, err);
}

const moe_op CPU_OP(swiglu_prob) = {sizeof(moe_op), 0, op, sizes, forward, backward};
