/* moe.cross_entropy_max/0, _sum/0, _end/0: the cross-entropy of a rank's part of the vocabulary, in three calls between
 * which the ranks reduce what belongs to a row. The logits stay until the last call turns them into their gradient, so
 * exponentials are made twice: cheaper than writing and reading them once more. */
#include "loss.h"

typedef struct part_call {
    const char *op;
    const moe_tensor *logits, *dlogits; /* [T,V] act; dlogits NULL where absent */
    const int32_t *targets;             /* [T] */
    float *largest;                     /* [T] */
    double *sums, *losses;              /* [T,2]: sum of exponentials, the target's logit; [n_pieces] */
    int64_t tokens, width, block, first;
    float inverse; /* 1 / divisor */
} part_call;

/* ---- set-up ---- */
static moe_status sizes_max(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_cross_entropy_max(a, err), saved, workspace);
}

static moe_status sizes_sum(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_cross_entropy_sum(a, err), saved, workspace);
}

static moe_status sizes_end(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_cross_entropy_end(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = loss_workspace(a);
    return MOE_OK;
}

static moe_status begin(const moe_op_args *a, const char *op, part_call *c, moe_err *err) {
    moe_vocabulary_attr part;
    *c = (part_call){.op = op, .logits = &a->in[0], .targets = a->in[1].data};
    c->tokens = c->logits->shape[0];
    c->width = c->logits->shape[1];
    c->block = loss_piece_rows(c->width);
    moe_status s = op_vocabulary(a->attr, op, c->width, &part, err);
    if (s != MOE_OK) return s;
    c->first = part.first;
    return loss_check_targets(op, c->targets, c->tokens, part.whole, err);
}

/* ---- the largest logit ---- */
static void find_largest(void *arg, int64_t piece, cpu_worker *w) {
    const part_call *c = arg;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        float m = c->targets[t] < 0 ? 0.0f : -INFINITY;
        for (int64_t from = 0; c->targets[t] >= 0 && from < c->width; from += LOSS_COLUMNS) {
            int64_t n = cpu_min(c->width - from, LOSS_COLUMNS);
            m = vm_max(cpu_load(c->logits, cpu_row_at(t, c->width) + from, n, w->scratch), n, m);
        }
        c->largest[t] = m;
    }
}

static moe_status forward_max(void *dev, const moe_op_args *a, moe_err *err) {
    part_call c;
    moe_status s = begin(a, MOE_OP_CROSS_ENTROPY_MAX, &c, err);
    if (s != MOE_OK) return s;
    c.largest = a->out[0].data;
    cpu_run(dev, cpu_blocks(c.tokens, c.block), find_largest, &c);
    return MOE_OK;
}

/* ---- the sum of exponentials, and the target's logit ---- */
static void sum_rows(void *arg, int64_t piece, cpu_worker *w) {
    const part_call *c = arg;
    float *e = w->scratch + LOSS_COLUMNS, one;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        int64_t at = cpu_row_at(t, c->width), own = c->targets[t] - c->first;
        double sum = 0.0;
        for (int64_t from = 0; c->targets[t] >= 0 && from < c->width; from += LOSS_COLUMNS) {
            int64_t n = cpu_min(c->width - from, LOSS_COLUMNS);
            sum += (double)vm_exp_sum(e, cpu_load(c->logits, at + from, n, w->scratch), n, c->largest[t]);
        }
        int here = c->targets[t] >= 0 && own >= 0 && own < c->width;
        c->sums[2 * t] = sum;
        c->sums[2 * t + 1] = here ? (double)*cpu_load(c->logits, at + own, 1, &one) : 0.0;
    }
}

static moe_status forward_sum(void *dev, const moe_op_args *a, moe_err *err) {
    part_call c;
    moe_status s = begin(a, MOE_OP_CROSS_ENTROPY_SUM, &c, err);
    if (s != MOE_OK) return s;
    c.largest = a->in[2].data;
    c.sums = a->out[0].data;
    cpu_run(dev, cpu_blocks(c.tokens, c.block), sum_rows, &c);
    return MOE_OK;
}

/* ---- loss and gradient ---- */
/* (softmax - onehot) / divisor of the part of row t */
static void write_gradient(const part_call *c, int64_t t, float *room) {
    const float scale = (float)((double)c->inverse / c->sums[2 * t]);
    const int narrow = c->dlogits->dtype != MOE_F32;
    float *e = room + LOSS_COLUMNS;
    for (int64_t from = 0; from < c->width; from += LOSS_COLUMNS) {
        int64_t n = cpu_min(c->width - from, LOSS_COLUMNS), at = cpu_row_at(t, c->width) + from;
        int64_t target = c->targets[t] - c->first - from;
        vm_exp_sum(e, cpu_load(c->logits, at, n, room), n, c->largest[t]);
        if (narrow)
            loss_scale(act_at(c->dlogits, at, 1), e, scale, n, 1);
        else
            loss_scale(act_at(c->dlogits, at, 0), e, scale, n, 0);
        if (target < 0 || target >= n) continue;
        float own = e[target] * scale - c->inverse;
        cpu_store(c->dlogits, at + target, 1, &own);
    }
}

static void end_rows(void *arg, int64_t piece, cpu_worker *w) {
    const part_call *c = arg;
    double loss = 0.0;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        if (c->targets[t] < 0) {
            if (c->dlogits) cpu_zero(c->dlogits, cpu_row_at(t, c->width), c->width);
            continue;
        }
        loss += (double)c->largest[t] + log(c->sums[2 * t]) - c->sums[2 * t + 1];
        if (c->dlogits) write_gradient(c, t, w->scratch);
    }
    c->losses[piece] = loss;
}

static moe_status forward_end(void *dev, const moe_op_args *a, moe_err *err) {
    part_call c;
    moe_status s = begin(a, MOE_OP_CROSS_ENTROPY_END, &c, err);
    if (s == MOE_OK) s = loss_divisor(c.op, op_optional(a->in, a->n_in, 4), c.targets, c.tokens, &c.inverse, err);
    if (s != MOE_OK) return s;
    c.dlogits = op_optional(a->out, a->n_out, 1);
    c.largest = a->in[2].data;
    c.sums = a->in[3].data;
    c.losses = a->workspace;
    int64_t n = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, n, end_rows, &c);
    double *loss = a->out[0].data;
    for (int64_t i = 0; i < n; i++) *loss += c.losses[i];
    return MOE_OK;
}

const moe_op CPU_OP(cross_entropy_max) = {sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY_MAX, sizes_max, forward_max, NULL};
const moe_op CPU_OP(cross_entropy_sum) = {sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY_SUM, sizes_sum, forward_sum, NULL};
const moe_op CPU_OP(cross_entropy_end) = {sizeof(moe_op), 0, MOE_OP_CROSS_ENTROPY_END, sizes_end, forward_end, NULL};
