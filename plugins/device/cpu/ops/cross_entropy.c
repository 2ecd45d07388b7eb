/* moe.cross_entropy/0: loss and gradient of next-token prediction in one call. A row is read in chunks, so that the
 * vocabulary may be of any size: once for its largest logit and the sum of exponentials, once for the gradient. */
#include "args.h"
#include "vmath.h"

static const char op[] = MOE_OP_CROSS_ENTROPY;
enum { COLUMNS = 8192 };

typedef struct loss_call {
    const moe_tensor *logits, *dlogits; /* [T,V] act; dlogits NULL where absent */
    const int32_t *targets;             /* [T] */
    double *parts;                      /* [n_parts] loss of each piece */
    int64_t tokens, width, block;       /* width: V */
    float inverse;                      /* 1 / divisor */
} loss_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = cpu_want_lists(a, op, 2, 3, 1, 2, err);
    if (s == MOE_OK) s = cpu_want(&a->in[0], op, "logits", CPU_ACT, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s != MOE_OK) return s;
    const moe_tensor *divisor = cpu_optional(a->in, a->n_in, 2), *dlogits = cpu_optional(a->out, a->n_out, 1);
    const int64_t *shape = a->in[0].shape; /* T, V */
    s = cpu_want(&a->in[1], op, "targets", MOE_I32, 1, CPU_SHAPE(shape[0]), err);
    if (s == MOE_OK && divisor) s = cpu_want(divisor, op, "divisor", MOE_I64, 1, CPU_SHAPE(1), err);
    if (s == MOE_OK) s = cpu_want(&a->out[0], op, "loss", MOE_F64, 1, CPU_SHAPE(1), err);
    if (s == MOE_OK && dlogits) s = cpu_want(dlogits, op, "dlogits", a->in[0].dtype, 2, shape, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = (uint64_t)cpu_blocks(shape[0], cpu_piece_rows(shape[1])) * sizeof(double);
    return MOE_OK;
}

/* Largest logit of a row and the sum of e^(l - largest). */
static double sum_exponentials(const loss_call *c, int64_t t, float *largest, float *room) {
    float m = -INFINITY;
    double sum = 0.0;
    for (int64_t from = 0; from < c->width; from += COLUMNS) {
        int64_t n = cpu_min(c->width - from, COLUMNS);
        const float *l = cpu_load(c->logits, cpu_row_at(t, c->width) + from, n, room); /* [n] */
        float most = vm_max(l, n, m);
        if (most > m) sum *= (double)vm_exp(m - most);
        m = most;
        if (m > -INFINITY) sum += (double)vm_exp_sum(room + COLUMNS, l, n, m);
        /* a chunk of -inf adds nothing; NaNs pass vm_max and show up in the sum */
        else if (vm_sum(l, n) != -INFINITY)
            sum = (double)NAN;
    }
    *largest = m;
    return sum;
}

/* (softmax - onehot) / divisor of a row */
static void write_gradient(const loss_call *c, int64_t t, float largest, double sum, float *room) {
    float scale = (float)((double)c->inverse / sum);
    for (int64_t from = 0; from < c->width; from += COLUMNS) {
        int64_t n = cpu_min(c->width - from, COLUMNS), at = cpu_row_at(t, c->width) + from;
        const float *l = cpu_load(c->logits, at, n, room);          /* [n] */
        float *d = cpu_store_begin(c->dlogits, at, room + COLUMNS); /* [n] */
        CPU_IN_PLACE
        for (int64_t i = 0; i < n; i++) d[i] = vm_exp(l[i] - largest) * scale;
        int64_t target = c->targets[t] - from;
        if (target >= 0 && target < n) d[target] -= c->inverse;
        cpu_store_end(c->dlogits, at, n, d);
    }
}

static void lose_rows(void *arg, int64_t piece, cpu_worker *w) {
    const loss_call *c = arg;
    double loss = 0.0;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        if (c->targets[t] < 0) {
            if (c->dlogits) cpu_zero(c->dlogits, cpu_row_at(t, c->width), c->width);
            continue;
        }
        float largest, own, room;
        own = *cpu_load(c->logits, cpu_row_at(t, c->width) + c->targets[t], 1, &room);
        double sum = sum_exponentials(c, t, &largest, w->scratch);
        loss += (double)largest + log(sum) - (double)own;
        if (c->dlogits) write_gradient(c, t, largest, sum, w->scratch);
    }
    c->parts[piece] = loss;
}

/* 1 / divisor; a divisor that cannot be one although a token is valid is an error. */
static moe_status read_divisor(const moe_op_args *a, float *inverse, moe_err *err) {
    const moe_tensor *divisor = cpu_optional(a->in, a->n_in, 2);
    const int32_t *targets = a->in[1].data;
    int64_t d = divisor ? *(const int64_t *)divisor->data : 1;
    *inverse = d > 0 ? (float)(1.0 / (double)d) : 0.0f;
    if (d > 0) return MOE_OK;
    int64_t valid = cpu_find_i32(targets, a->in[1].shape[0], -1, 0);
    if (valid < 0) return MOE_OK;
    return moe_fail(err, MOE_E_DATA, "%s: divisor is %lld, but token %lld has target %d", op, (long long)d,
                    (long long)valid, targets[valid]);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    loss_call c = {.logits = &a->in[0], .dlogits = cpu_optional(a->out, a->n_out, 1), .targets = a->in[1].data};
    c.tokens = c.logits->shape[0];
    c.width = c.logits->shape[1];
    c.parts = a->workspace;
    c.block = cpu_piece_rows(c.width);
    int64_t bad = cpu_find_i32(c.targets, c.tokens, -1, c.width);
    if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: token %lld has target %d, want -1..%lld", op, (long long)bad,
                        c.targets[bad], (long long)c.width - 1);
    moe_status s = read_divisor(a, &c.inverse, err);
    if (s != MOE_OK) return s;
    int64_t n_parts = cpu_blocks(c.tokens, c.block);
    cpu_run(dev, n_parts, lose_rows, &c);
    double *loss = a->out[0].data;
    for (int64_t i = 0; i < n_parts; i++) *loss += c.parts[i];
    return MOE_OK;
}

const moe_op CPU_OP(cross_entropy) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
