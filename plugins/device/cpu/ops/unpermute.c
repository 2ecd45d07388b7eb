/* moe.unpermute/0: sums the rows of a token's slots, in slot order and in FP32, and brings a scalar of each row back to
 * its slot. */
#include "act.h"

static const char op[] = MOE_OP_UNPERMUTE;
enum { AHEAD = 1 }; /* tokens whose rows are fetched before their turn */

typedef struct unpermute_call {
    const moe_tensor *y, *x; /* [N,h] act, [T,h] act */
    const int64_t *slot_row; /* [T,k] */
    const float *row_scalar; /* [N], or NULL */
    float *slot_scalar;      /* [T,k], or NULL */
    int64_t tokens, width, k, block;
} unpermute_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_unpermute(a, err), saved, workspace);
}

/* Elements [i, i + n) of x[t]: one sum in slot order, from zero. */
ACT_INLINE void sum_part(const unpermute_call *c, int64_t t, const int64_t *row, int64_t i, int64_t n, int narrow) {
    vm_vector sum = {0};
    for (int64_t j = 0; j < c->k; j++)
        if (row[j] >= 0) sum += act_load(act_at(c->y, cpu_row_at(row[j], c->width), narrow), i, n, narrow);
    act_store(act_at(c->x, cpu_row_at(t, c->width), narrow), i, n, sum, narrow);
}

/* All of x[t], and asks for the rows of token t + AHEAD meanwhile. */
ACT_INLINE void sum_slots(const unpermute_call *c, int64_t t, int narrow) {
    const int64_t *row = c->slot_row + t * c->k; /* [k] */
    const int64_t ahead = t + AHEAD < c->tokens ? AHEAD * c->k : 0, h = c->width, line = ACT_LINE / (narrow ? 2 : 4);
    for (int64_t from = 0; from < h; from += line) {
        int64_t i = from, end = cpu_min(h, from + line);
        for (int64_t j = 0; ahead && j < c->k; j++)
            if (row[ahead + j] >= 0)
                __builtin_prefetch(act_at(c->y, cpu_row_at(row[ahead + j], h) + from, narrow), 0, 2);
        for (; i + VM_LANES <= end; i += VM_LANES) sum_part(c, t, row, i, VM_LANES, narrow);
        if (i < end) sum_part(c, t, row, i, end - i, narrow);
    }
}

static void sum_tokens(void *arg, int64_t piece, cpu_worker *w) {
    const unpermute_call *c = arg;
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    (void)w;
    for (int64_t t = piece * c->block; t < end; t++) {
        if (c->x->dtype == MOE_F32)
            sum_slots(c, t, 0);
        else
            sum_slots(c, t, 1);
        for (int64_t j = t * c->k; c->slot_scalar && j < (t + 1) * c->k; j++)
            c->slot_scalar[j] = c->slot_row[j] < 0 ? 0.0f : c->row_scalar[c->slot_row[j]];
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_tensor *from = op_optional(a->in, a->n_in, 2), *to = op_optional(a->out, a->n_out, 1);
    unpermute_call c = {.y = &a->in[0], .x = &a->out[0], .slot_row = a->in[1].data};
    c.row_scalar = from ? from->data : NULL;
    c.slot_scalar = to ? to->data : NULL;
    c.tokens = a->in[1].shape[0];
    c.k = a->in[1].shape[1];
    c.width = a->in[0].shape[1];
    c.block = cpu_piece_rows(c.width);
    int64_t rows = a->in[0].shape[0];
    moe_status s = a->rows ? cpu_rows_read(a->rows, op, &rows, err) : MOE_OK;
    if (s != MOE_OK) return s;
    int64_t bad = cpu_find_i64(c.slot_row, c.tokens * c.k, -1, rows);
    if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: token %lld slot %lld has row %lld, want -1..%lld", op,
                        (long long)(bad / c.k), (long long)(bad % c.k), (long long)c.slot_row[bad],
                        (long long)rows - 1);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), sum_tokens, &c);
    return MOE_OK;
}

const moe_op CPU_OP(unpermute) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
