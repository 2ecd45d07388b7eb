/* moe.embed/0: rows of a table, or of a part of one, by token id, and the sum of gradients back into it. Backward
 * shares the columns among the threads, so that every element of the table adds its tokens in order. */
#include "act.h"

enum { COLUMNS = 128, AHEAD = 4 }; /* of one backward piece; tokens that are fetched before their turn */
static const char op[] = MOE_OP_EMBED;

typedef struct embed_call {
    const int32_t *ids;                   /* [T] */
    const moe_tensor *table, *x, *dtable; /* [V,h] act; x or dx [T,h] act; [V,h] F32 */
    int64_t tokens, width, block;
    int64_t first, rows; /* the table has the words [first, first + rows) */
} embed_call;

/* Row of the table of token t, or -1: another part has its word. */
ACT_INLINE int64_t row_of(const embed_call *c, int64_t t) {
    int64_t row = c->ids[t] - c->first;
    return row >= 0 && row < c->rows ? row : -1;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_embed(a, err), saved, workspace);
}

/* The call on a table of `rows` rows; every id is a word. */
static moe_status begin(const moe_op_args *a, const moe_tensor *table, embed_call *c, moe_err *err) {
    moe_vocabulary_attr part;
    moe_status s = op_vocabulary(a->attr, op, table->shape[0], &part, err);
    if (s != MOE_OK) return s;
    *c = (embed_call){.ids = a->in[0].data,
                      .tokens = a->in[0].shape[0],
                      .width = table->shape[1],
                      .first = part.first,
                      .rows = table->shape[0]};
    int64_t bad = cpu_find_i32(c->ids, c->tokens, 0, part.whole);
    if (bad < 0) return MOE_OK;
    return moe_fail(err, MOE_E_DATA, "%s: token %lld has id %d, the table has %lld rows", op, (long long)bad,
                    c->ids[bad], (long long)part.whole);
}

static void copy_rows(void *arg, int64_t piece, cpu_worker *w) {
    const embed_call *c = arg;
    (void)w;
    int64_t bytes = c->width * op_act_bytes(c->table->dtype);
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        int64_t row = row_of(c, t), next = t + AHEAD < c->tokens ? row_of(c, t + AHEAD) : -1;
        char *x = (char *)c->x->data + cpu_row_at(t, bytes);
        if (next >= 0) act_fetch((const char *)c->table->data + cpu_row_at(next, bytes), bytes);
        if (row >= 0)
            act_copy(x, (const char *)c->table->data + cpu_row_at(row, bytes), bytes, 0);
        else
            memset(x, 0, (size_t)bytes);
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    embed_call c;
    moe_status s = begin(a, &a->in[1], &c, err);
    if (s != MOE_OK) return s;
    c.table = &a->in[1];
    c.x = &a->out[0];
    c.block = cpu_piece_rows(c.width);
    cpu_run(dev, cpu_blocks(c.tokens, c.block), copy_rows, &c);
    return MOE_OK;
}

/* Columns [from, from + n) of every token's gradient into its row of the table. */
ACT_INLINE void add_tokens(const embed_call *c, int64_t from, int64_t n, int narrow) {
    float *table = (float *)c->dtable->data + from;
    for (int64_t t = 0; t < c->tokens; t++) {
        int64_t row = row_of(c, t), next = t + AHEAD < c->tokens ? row_of(c, t + AHEAD) : -1, i = 0;
        const char *dx = act_at(c->x, cpu_row_at(t, c->width) + from, narrow);
        if (next >= 0) {
            act_fetch(dx + cpu_row_at(AHEAD, c->width) * (narrow ? 2 : 4), n * (narrow ? 2 : 4));
            act_fetch(table + cpu_row_at(next, c->width), n * 4);
        }
        if (row < 0) continue;
        float *d = table + cpu_row_at(row, c->width);
        for (; i + VM_LANES <= n; i += VM_LANES) vm_store(d + i, vm_load(d + i) + act_load(dx, i, VM_LANES, narrow));
        if (i < n) act_store(d, i, n - i, act_load(d, i, n - i, 0) + act_load(dx, i, n - i, narrow), 0);
    }
}

static void add_columns(void *arg, int64_t piece, cpu_worker *w) {
    const embed_call *c = arg;
    int64_t from = piece * COLUMNS, n = cpu_min(c->width - from, COLUMNS);
    (void)w;
    if (c->x->dtype == MOE_F32)
        add_tokens(c, from, n, 0);
    else
        add_tokens(c, from, n, 1);
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = op_check_embed_backward(a, err);
    embed_call c;
    if (s == MOE_OK) s = begin(a, &a->out[0], &c, err);
    if (s != MOE_OK) return s;
    c.x = &a->in[1];
    c.dtable = &a->out[0];
    cpu_run(dev, cpu_blocks(c.width, COLUMNS), add_columns, &c);
    return MOE_OK;
}

const moe_op CPU_OP(embed) = {sizeof(moe_op), 0, op, sizes, forward, backward};
