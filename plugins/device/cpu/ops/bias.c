/* moe.bias/0: a bias on every row, one vector for all or one a group of rows in expert order, times the row's
 * probability. Backward sums columns in blocks of rows that depend on N alone; where a block holds rows of several
 * groups, each group has its own partial sum. */
#include "parts.h"
#include "vmath.h"

static const char op[] = MOE_OP_BIAS;
enum { COLUMNS = 1024 };

typedef struct bias_call {
    const moe_tensor *in, *out; /* [N,W] act: y of both sides; in alone is dy in backward */
    const float *b, *p;         /* [W] or [G,W]; [N], or NULL: 1 */
    float *db, *dp, *parts;     /* as b; [N], or NULL; [n_blocks+G-1,W] */
    const moe_rows *rows;       /* or NULL: one group of all rows */
    int64_t n_rows, width, block, groups;
} bias_call;

/* A run of rows of one group. */
typedef struct row_run {
    int64_t group, begin, valid, end; /* rows [begin, valid) are the group's, [valid, end) are padding */
} row_run;

static int64_t group_begin(const bias_call *c, int64_t g) {
    return c->rows ? c->rows->dev_offsets[g] : 0;
}
static int64_t group_count(const bias_call *c, int64_t g) {
    return c->rows ? c->rows->dev_counts[g] : c->n_rows;
}

/* The run that begins at `row`, cut at `end`; row < end <= n_rows. */
static row_run run_at(const bias_call *c, int64_t row, int64_t end) {
    if (!c->rows) return (row_run){0, row, end, end};
    int64_t lo = 0, hi = c->groups; /* the last group that begins at or before row */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (c->rows->dev_offsets[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    int64_t stop = cpu_min(end, c->rows->dev_offsets[lo + 1]);
    int64_t valid = cpu_min(stop, c->rows->dev_offsets[lo] + c->rows->dev_counts[lo]);
    return (row_run){lo, row, valid < row ? row : valid, stop};
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_bias(a, err);
    if (s != MOE_OK) return s;
    int64_t rows = a->in[0].shape[0], parts = cpu_blocks(rows, parts_rows(rows)) + (a->rows ? a->rows->groups : 1) - 1;
    *saved = 0;
    *workspace = (uint64_t)(parts * a->in[0].shape[1]) * sizeof(float);
    return MOE_OK;
}

static moe_status read_call(const moe_op_args *a, bias_call *c, moe_err *err) {
    const moe_tensor *p = op_optional(a->in, a->n_in, 2);
    *c = (bias_call){.in = &a->in[0], .out = &a->out[0], .b = a->in[1].data, .p = p ? p->data : NULL, .rows = a->rows};
    c->n_rows = c->in->shape[0];
    c->width = c->in->shape[1];
    c->groups = a->rows ? a->rows->groups : 1;
    return a->rows ? cpu_rows_read(a->rows, op, &c->n_rows, err) : MOE_OK;
}

/* ---- forward ---- */
static void add_row(const bias_call *c, int64_t row, const float *b, float *room) {
    float p = c->p ? c->p[row] : 1.0f;
    for (int64_t from = 0; from < c->width; from += COLUMNS) {
        int64_t n = cpu_min(c->width - from, COLUMNS), at = cpu_row_at(row, c->width) + from;
        const float *x = cpu_load(c->in, at, n, room);          /* [n] */
        float *y = cpu_store_begin(c->out, at, room + COLUMNS); /* [n] */
        const float *bias = b + from;                           /* [n] */
        CPU_IN_PLACE
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + p * bias[i];
        cpu_store_end(c->out, at, n, y);
    }
}

static void add_rows(void *arg, int64_t piece, cpu_worker *w) {
    const bias_call *c = arg;
    int64_t row = piece * c->block, end = cpu_min(c->n_rows, row + c->block);
    const int64_t bytes = c->width * op_act_bytes(c->in->dtype);
    while (row < end) {
        row_run run = run_at(c, row, end);
        for (; row < run.valid; row++) add_row(c, row, c->b + run.group * c->width, w->scratch);
        if (run.valid < run.end && c->in->data != c->out->data) /* padding passes */
            memcpy((char *)c->out->data + run.valid * bytes, (const char *)c->in->data + run.valid * bytes,
                   (size_t)((run.end - run.valid) * bytes));
        row = run.end;
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    bias_call c;
    moe_status s = read_call(a, &c, err);
    if (s != MOE_OK) return s;
    c.block = cpu_piece_rows(c.width);
    cpu_run(dev, cpu_blocks(c.n_rows, c.block), add_rows, &c);
    return MOE_OK;
}

/* ---- backward ---- */
/* part [W] += p dy, dp += sum(dy b) */
static void sum_row(const bias_call *c, int64_t row, const float *b, float *part, float *room) {
    float p = c->p ? c->p[row] : 1.0f, dp = 0.0f;
    for (int64_t from = 0; from < c->width; from += COLUMNS) {
        int64_t n = cpu_min(c->width - from, COLUMNS);
        const float *restrict dy = cpu_load(c->in, cpu_row_at(row, c->width) + from, n, room); /* [n] */
        float *restrict sum = part + from;                                                     /* [n] */
        for (int64_t i = 0; i < n; i++) sum[i] += p * dy[i];
        if (c->dp) dp += vm_dot(dy, b + from, n);
    }
    if (c->dp) c->dp[row] += dp;
}

/* Block i's part of group g is number i + g: both only grow from row to row, so no two runs have the same. */
static void sum_block(void *arg, int64_t piece, cpu_worker *w) {
    const bias_call *c = arg;
    int64_t row = piece * c->block, end = cpu_min(c->n_rows, row + c->block);
    while (row < end) {
        row_run run = run_at(c, row, end);
        float *part = c->parts + (piece + run.group) * c->width; /* [W] */
        if (row < run.valid) memset(part, 0, (size_t)c->width * sizeof(float));
        for (; row < run.valid; row++) sum_row(c, row, c->b + run.group * c->width, part, w->scratch);
        row = run.end;
    }
}

/* A strip of db of one group: the parts of the blocks with its rows, in order. */
static void add_parts(void *arg, int64_t piece, cpu_worker *w) {
    const bias_call *c = arg;
    (void)w;
    const int64_t strips = cpu_blocks(c->width, COLUMNS), g = piece / strips, from = piece % strips * COLUMNS;
    const int64_t n = cpu_min(c->width - from, COLUMNS), begin = group_begin(c, g), count = group_count(c, g);
    float *restrict db = c->db + g * c->width + from; /* [n] */
    for (int64_t i = begin / c->block; count > 0 && i <= (begin + count - 1) / c->block; i++) {
        const float *restrict part = c->parts + (i + g) * c->width + from; /* [n] */
        for (int64_t j = 0; j < n; j++) db[j] += part[j];
    }
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_tensor *dp = op_optional(a->out, a->n_out, 1);
    moe_status s = op_check_bias_backward(a, err);
    bias_call c;
    if (s == MOE_OK) s = read_call(a, &c, err);
    if (s != MOE_OK) return s;
    c.db = a->out[0].data;
    c.dp = dp ? dp->data : NULL;
    c.parts = a->workspace;
    c.block = parts_rows(c.in->shape[0]);
    cpu_run(dev, cpu_blocks(c.n_rows, c.block), sum_block, &c);
    cpu_run(dev, c.groups * cpu_blocks(c.width, COLUMNS), add_parts, &c);
    return MOE_OK;
}

const moe_op CPU_OP(bias) = {sizeof(moe_op), 0, op, sizes, forward, backward};
