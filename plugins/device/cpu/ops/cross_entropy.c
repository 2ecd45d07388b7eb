/* moe.cross_entropy/0: loss and gradient of next-token prediction in one call. Each row is gone through three times,
 * the first time from memory: for its largest logit, for the exponentials and their sum, and for the gradient, which
 * scales the exponentials that the second pass has left where the gradient belongs (BF16: in the worker's scratch).
 * BF16 rows of moderate logits need no first pass: loss_narrow.h. */
#include "loss.h"
#include "loss_narrow.h"

static const char op[] = MOE_OP_CROSS_ENTROPY;
enum { MOST_KEPT = CPU_SCRATCH_FLOATS - LOSS_COLUMNS }; /* of a BF16 row; exponentials of a wider one are made twice */

typedef struct loss_call {
    const moe_tensor *logits, *dlogits; /* [T,V] act; dlogits NULL where absent */
    const int32_t *targets;             /* [T] */
    double *parts;                      /* [n_parts] loss of each piece */
    int64_t tokens, width, block;       /* width: V */
    float inverse;                      /* 1 / divisor */
} loss_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_cross_entropy(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = loss_workspace(a);
    return MOE_OK;
}

/* A row [V], and where its floats lie between the passes. */
typedef struct loss_row {
    int64_t at;  /* its first element in the tensors */
    float *kept; /* [V] of a BF16 row: logits, then exponentials; NULL: not kept, or in dlogits (F32) */
    float *room; /* [LOSS_COLUMNS] */
    int fetch;   /* the next row is this piece's, too: ask for it meanwhile */
} loss_row;

static float find_largest(const loss_call *c, const loss_row *r) {
    float m = -INFINITY;
    for (int64_t from = 0; from < c->width; from += LOSS_COLUMNS) {
        int64_t n = cpu_min(c->width - from, LOSS_COLUMNS);
        m = vm_max(cpu_load(c->logits, r->at + from, n, r->kept ? r->kept + from : r->room), n, m);
    }
    return m;
}

/* The sum of e^(l - largest) of a row; NaN where a logit is NaN or none is finite. */
static double sum_exponentials(const loss_call *c, const loss_row *r, float largest) {
    const int narrow = c->logits->dtype != MOE_F32;
    double sum = 0.0;
    for (int64_t from = 0; from < c->width; from += LOSS_COLUMNS) {
        int64_t n = cpu_min(c->width - from, LOSS_COLUMNS);
        if (r->fetch) act_fetch(act_at(c->logits, r->at + from + c->width, narrow), n * (narrow ? 2 : 4));
        const float *l = r->kept ? r->kept + from : cpu_load(c->logits, r->at + from, n, r->room); /* [n] */
        float *e = r->kept ? r->kept + from : r->room;                                             /* [n] */
        if (c->dlogits && !r->kept) e = cpu_store_begin(c->dlogits, r->at + from, r->room);
        sum += (double)vm_exp_sum(e, l, n, largest);
    }
    return sum;
}

/* (softmax - onehot) / divisor of row t */
static void write_gradient(const loss_call *c, const loss_row *r, int64_t t, float largest, double sum) {
    const float scale = (float)((double)c->inverse / sum);
    const int narrow = c->dlogits->dtype != MOE_F32, again = narrow && !r->kept;
    float own = 0.0f; /* of the target, before 1 is taken off */
    for (int64_t from = 0; from < c->width; from += LOSS_COLUMNS) {
        int64_t n = cpu_min(c->width - from, LOSS_COLUMNS), at = r->at + from, target = c->targets[t] - from;
        const float *l = again ? cpu_load(c->logits, at, n, r->room) : NULL;                    /* [n] */
        float *e = r->kept ? r->kept + from : again ? r->room : (float *)c->dlogits->data + at; /* [n] */
        if (again) vm_exp_sum(e, l, n, largest);
        if (target >= 0 && target < n) own = e[target] * scale;
        if (narrow)
            loss_scale(act_at(c->dlogits, at, 1), e, scale, n, 1);
        else
            loss_scale(e, e, scale, n, 0);
    }
    own -= c->inverse;
    cpu_store(c->dlogits, r->at + c->targets[t], 1, &own);
}

/* A BF16 row of which the worker's scratch can hold the exponentials. Returns 0, and has written none but those, where
 * a logit is not within NARROW_MOST of 0. */
static int lose_narrow_row(const loss_call *c, int64_t t, float *e, double *loss) {
    const int64_t n = c->width, at = cpu_row_at(t, n);
    const uint16_t *row = (const uint16_t *)c->logits->data + at; /* [n] */
    double sum;
    if (!narrow_exponentials(row, (c->tokens - t - 1) * n, e, n, &sum)) return 0;
    const double own = (double)VM_LOG2E * (double)cpu_from_bf16(row[c->targets[t]]);
    *loss += log(sum) - 0.69314718055994530942 * own;
    if (!c->dlogits) return 1;
    const float scale = (float)((double)c->inverse / sum);
    float gradient = narrow_find(e, c->targets[t]) * scale - c->inverse;
    narrow_scale((uint16_t *)c->dlogits->data + at, e, scale, n);
    cpu_store(c->dlogits, at + c->targets[t], 1, &gradient);
    return 1;
}

static void lose_rows(void *arg, int64_t piece, cpu_worker *w) {
    const loss_call *c = arg;
    double loss = 0.0;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    int keep = c->logits->dtype != MOE_F32 && c->width <= MOST_KEPT;
    for (int64_t t = piece * c->block; t < end; t++) {
        loss_row r = {.at = cpu_row_at(t, c->width), .room = w->scratch, .fetch = t + 1 < end};
        if (c->targets[t] < 0) {
            if (c->dlogits) cpu_zero(c->dlogits, r.at, c->width);
            continue;
        }
        if (VM_FUSES && keep && lose_narrow_row(c, t, w->scratch, &loss)) continue;
        if (keep) r.kept = w->scratch + LOSS_COLUMNS;
        float one, own = *cpu_load(c->logits, r.at + c->targets[t], 1, &one), largest = find_largest(c, &r);
        double sum = sum_exponentials(c, &r, largest);
        loss += (double)largest + log(sum) - (double)own;
        if (c->dlogits) write_gradient(c, &r, t, largest, sum);
    }
    c->parts[piece] = loss;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    loss_call c = {.logits = &a->in[0], .dlogits = op_optional(a->out, a->n_out, 1), .targets = a->in[1].data};
    c.tokens = c.logits->shape[0];
    c.width = c.logits->shape[1];
    c.parts = a->workspace;
    c.block = loss_piece_rows(c.width);
    moe_status s = loss_check_targets(op, c.targets, c.tokens, c.width, err);
    if (s == MOE_OK) s = loss_divisor(op, op_optional(a->in, a->n_in, 2), c.targets, c.tokens, &c.inverse, err);
    if (s != MOE_OK) return s;
    int64_t n_parts = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, n_parts, lose_rows, &c);
    double *loss = a->out[0].data;
    for (int64_t i = 0; i < n_parts; i++) *loss += c.parts[i];
    return MOE_OK;
}

const moe_op CPU_OP(cross_entropy) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
