/* moe.embed/0: rows of a table by token id, and the sum of gradients back into it. Backward shares the columns among
 * the threads, so that every element of the table adds its tokens in order. */
#include "act.h"

enum { COLUMNS = 128, AHEAD = 4 }; /* of one backward piece; tokens that are fetched before their turn */
static const char op[] = MOE_OP_EMBED;

typedef struct embed_call {
    const int32_t *ids;                   /* [T] */
    const moe_tensor *table, *x, *dtable; /* [V,h] act; x or dx [T,h] act; [V,h] F32 */
    int64_t tokens, width, block;
} embed_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = cpu_want_lists(a, op, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = cpu_want(&a->in[0], op, "ids", MOE_I32, 1, CPU_SHAPE(CPU_ANY), err);
    if (s == MOE_OK) s = cpu_want(&a->in[1], op, "table", CPU_ACT, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s == MOE_OK)
        s = cpu_want(&a->out[0], op, "x", a->in[1].dtype, 2, CPU_SHAPE(a->in[0].shape[0], a->in[1].shape[1]), err);
    if (s != MOE_OK) return s;
    *saved = *workspace = 0;
    return MOE_OK;
}

static moe_status check_ids(const moe_tensor *ids, int64_t vocabulary, moe_err *err) {
    const int32_t *id = ids->data;
    int64_t bad = cpu_find_i32(id, ids->shape[0], 0, vocabulary);
    if (bad < 0) return MOE_OK;
    return moe_fail(err, MOE_E_DATA, "%s: token %lld has id %d, the table has %lld rows", op, (long long)bad, id[bad],
                    (long long)vocabulary);
}

static void copy_rows(void *arg, int64_t piece, cpu_worker *w) {
    const embed_call *c = arg;
    (void)w;
    int64_t bytes = c->width * cpu_act_bytes(c->table->dtype);
    int64_t end = cpu_min(c->tokens, (piece + 1) * c->block);
    for (int64_t t = piece * c->block; t < end; t++) {
        if (t + AHEAD < c->tokens)
            act_fetch((const char *)c->table->data + cpu_row_at(c->ids[t + AHEAD], bytes), bytes);
        act_copy((char *)c->x->data + cpu_row_at(t, bytes), (const char *)c->table->data + cpu_row_at(c->ids[t], bytes),
                 bytes, 0);
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    moe_status s = check_ids(&a->in[0], a->in[1].shape[0], err);
    if (s != MOE_OK) return s;
    int64_t tokens = a->in[0].shape[0], width = a->in[1].shape[1];
    embed_call c = {.ids = a->in[0].data, .table = &a->in[1], .x = &a->out[0]};
    c.tokens = tokens;
    c.width = width;
    c.block = cpu_piece_rows(width);
    cpu_run(dev, cpu_blocks(tokens, c.block), copy_rows, &c);
    return MOE_OK;
}

/* Columns [from, from + n) of every token's gradient into its row of the table. */
ACT_INLINE void add_tokens(const embed_call *c, int64_t from, int64_t n, int narrow) {
    float *table = (float *)c->dtable->data + from;
    for (int64_t t = 0; t < c->tokens; t++) {
        const char *dx = act_at(c->x, cpu_row_at(t, c->width) + from, narrow);
        float *d = table + cpu_row_at(c->ids[t], c->width);
        int64_t i = 0;
        if (t + AHEAD < c->tokens) {
            act_fetch(dx + cpu_row_at(AHEAD, c->width) * (narrow ? 2 : 4), n * (narrow ? 2 : 4));
            act_fetch(table + cpu_row_at(c->ids[t + AHEAD], c->width), n * 4);
        }
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
    moe_status s = cpu_want_lists(a, op, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = cpu_want(&a->in[0], op, "ids", MOE_I32, 1, CPU_SHAPE(CPU_ANY), err);
    if (s == MOE_OK) s = cpu_want(&a->out[0], op, "dtable", MOE_F32, 2, CPU_SHAPE(CPU_ANY, CPU_ANY), err);
    if (s == MOE_OK)
        s = cpu_want(&a->in[1], op, "dx", CPU_ACT, 2, CPU_SHAPE(a->in[0].shape[0], a->out[0].shape[1]), err);
    if (s == MOE_OK) s = check_ids(&a->in[0], a->out[0].shape[0], err);
    if (s != MOE_OK) return s;
    embed_call c = {.ids = a->in[0].data, .x = &a->in[1], .dtable = &a->out[0]};
    c.tokens = a->in[0].shape[0];
    c.width = a->out[0].shape[1];
    cpu_run(dev, cpu_blocks(c.width, COLUMNS), add_columns, &c);
    return MOE_OK;
}

const moe_op CPU_OP(embed) = {sizeof(moe_op), 0, op, sizes, forward, backward};
