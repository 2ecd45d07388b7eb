/* moe.dispatch_slots/0: the rows that a plan gives to slots, member by member. */
#include <stdatomic.h>

#include "args.h"

static const char op[] = MOE_OP_DISPATCH_SLOTS;
enum { MOST_EXPERTS = CPU_SCRATCH_BYTES / sizeof(int64_t), CLEAR_ROWS = 1 << 16 };

typedef struct slots_call {
    const int32_t *ids;                         /* [M,T,k] */
    const int64_t *tokens, *kept, *first;       /* [M], [M,E], [M,E] */
    int64_t *slot_row, *row_slot;               /* [M,T,k], [N] or NULL */
    int64_t most, k, experts, rows, begin, end; /* most: T; experts [begin, end) */
    _Atomic int64_t beyond;                     /* a row at or past N, or -1 */
} slots_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_dispatch_slots(a, err);
    if (s != MOE_OK) return s;
    if (((const moe_dispatch_slots_attr *)a->attr)->groups > MOST_EXPERTS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %u experts, want 1..%u", op,
                        ((const moe_dispatch_slots_attr *)a->attr)->groups, (uint32_t)MOST_EXPERTS);
    *saved = *workspace = 0;
    return MOE_OK;
}

static void clear_rows(void *arg, int64_t piece, cpu_worker *w) {
    const slots_call *c = arg;
    (void)w;
    const int64_t from = piece * CLEAR_ROWS, end = cpu_min(c->rows, from + CLEAR_ROWS);
    memset(c->row_slot + from, 0xff, (size_t)(end - from) * sizeof *c->row_slot);
}

static void place_member(void *arg, int64_t m, cpu_worker *w) {
    slots_call *c = arg;
    const int64_t *kept = c->kept + m * c->experts, *first = c->first + m * c->experts; /* [E] */
    const int64_t from = m * c->most * c->k, there = from + cpu_min(c->tokens[m], c->most) * c->k;
    int64_t *next = (int64_t *)(void *)w->scratch; /* [groups] */
    memset(next, 0, (size_t)(c->end - c->begin) * sizeof *next);
    for (int64_t i = from; i < there; i++) {
        const int64_t e = c->ids[i];
        c->slot_row[i] = -1;
        if (e < c->begin || e >= c->end || next[e - c->begin] >= kept[e]) continue;
        const int64_t row = first[e] + next[e - c->begin]++;
        if (c->row_slot && (row < 0 || row >= c->rows)) {
            atomic_store_explicit(&c->beyond, row, memory_order_relaxed);
            continue;
        }
        c->slot_row[i] = row;
        if (c->row_slot) c->row_slot[row] = i;
    }
    for (int64_t i = there; i < from + c->most * c->k; i++) c->slot_row[i] = -1;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_dispatch_slots_attr *at = a->attr;
    const moe_tensor *row_slot = op_optional(a->out, a->n_out, 1);
    slots_call c = {.ids = a->in[0].data,
                    .tokens = a->in[1].data,
                    .kept = a->in[2].data,
                    .first = a->in[3].data,
                    .slot_row = a->out[0].data,
                    .row_slot = row_slot ? row_slot->data : NULL,
                    .most = a->in[0].shape[1],
                    .k = a->in[0].shape[2],
                    .experts = a->in[2].shape[1],
                    .rows = row_slot ? row_slot->shape[0] : 0,
                    .begin = at->first,
                    .end = (int64_t)at->first + at->groups,
                    .beyond = -1};
    const int64_t bad = cpu_find_i64(c.tokens, a->in[0].shape[0], 0, c.most + 1);
    if (bad >= 0 && cpu_reports(a, MOE_E_DATA, -1, c.tokens[bad]))
        memset(c.slot_row, 0xff, (size_t)op_elements(&a->in[0]) * sizeof *c.slot_row);
    else if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: member %lld has %lld tokens, ids has room for %lld", op, (long long)bad,
                        (long long)c.tokens[bad], (long long)c.most);
    cpu_run(dev, cpu_blocks(c.rows, CLEAR_ROWS), clear_rows, &c);
    if (bad < 0) cpu_run(dev, a->in[0].shape[0], place_member, &c);
    const int64_t beyond = atomic_load(&c.beyond);
    if (beyond == -1 || cpu_reports(a, MOE_E_DATA, -1, beyond)) return MOE_OK;
    return moe_fail(err, MOE_E_DATA, "%s: row %lld, row_slot has %lld", op, (long long)beyond, (long long)c.rows);
}

const moe_op CPU_OP(dispatch_slots) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
