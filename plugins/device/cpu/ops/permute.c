/* moe.permute/0: token rows into expert order, with a scalar of each slot. Padding rows become zero; rows past the last
 * offset are not touched. */
#include "act.h"

static const char op[] = MOE_OP_PERMUTE;
enum { AHEAD = 2 }; /* rows that are fetched before their turn */

typedef struct permute_call {
    const char *x;                 /* [T,h] act */
    char *y;                       /* [N,h] act */
    const int64_t *row_slot;       /* [N] */
    const float *slot_scalar;      /* [T,k], or NULL */
    float *row_scalar;             /* [N], or NULL */
    int64_t rows, bytes, k, block; /* bytes of a row */
    int past;                      /* y is larger than the caches */
} permute_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_permute(a, err), saved, workspace);
}

/* Where the row of a slot is read. */
static const char *slot_row(const permute_call *c, int64_t slot) {
    return c->x + cpu_row_at(slot / c->k, c->bytes);
}

static void copy_rows(void *arg, int64_t piece, cpu_worker *w) {
    const permute_call *c = arg;
    (void)w;
    int64_t end = cpu_min(c->rows, (piece + 1) * c->block);
    for (int64_t r = piece * c->block; r < end; r++) {
        int64_t slot = c->row_slot[r], next = r + AHEAD < c->rows ? c->row_slot[r + AHEAD] : -1;
        char *y = c->y + cpu_row_at(r, c->bytes);
        if (next >= 0) act_fetch(slot_row(c, next), c->bytes);
        if (slot < 0)
            memset(y, 0, (size_t)c->bytes);
        else
            act_copy(y, slot_row(c, slot), c->bytes, c->past);
        if (c->row_scalar) c->row_scalar[r] = slot < 0 ? 0.0f : c->slot_scalar[slot];
    }
    act_copied();
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_tensor *from = op_optional(a->in, a->n_in, 2), *to = op_optional(a->out, a->n_out, 1);
    permute_call c = {.x = a->in[0].data, .y = a->out[0].data, .row_slot = a->in[1].data};
    c.slot_scalar = from ? from->data : NULL;
    c.row_scalar = to ? to->data : NULL;
    c.k = ((const moe_permute_attr *)a->attr)->k;
    c.bytes = a->in[0].shape[1] * op_act_bytes(a->in[0].dtype);
    c.block = cpu_piece_rows(a->in[0].shape[1]);
    moe_status s = cpu_rows_read(a->rows, op, &c.rows, err);
    if (s != MOE_OK) return s;
    int64_t slots = a->in[0].shape[0] * c.k, bad = cpu_find_i64(c.row_slot, c.rows, -1, slots);
    if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: row %lld has slot %lld, want -1..%lld", op, (long long)bad,
                        (long long)c.row_slot[bad], (long long)slots - 1);
    c.past = cpu_row_at(c.rows, c.bytes) >= ACT_LARGE_BYTES;
    cpu_run(dev, cpu_blocks(c.rows, c.block), copy_rows, &c);
    return MOE_OK;
}

const moe_op CPU_OP(permute) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
