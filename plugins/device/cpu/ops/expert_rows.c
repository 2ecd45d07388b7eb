/* moe.expert_rows/0: a stable counting sort of the chosen (token, slot) pairs by local expert. Blocks of pairs are
 * counted, the counts become each block's first row in each expert, and the blocks are written; the blocks depend on
 * T*k alone. */
#include <stdatomic.h>

#include "args.h"

static const char op[] = MOE_OP_EXPERT_ROWS;
enum { MOST_BLOCKS = 64, LEAST_PAIRS = 2048 };

typedef struct sort_call {
    const int32_t *ids;                              /* [pairs] */
    int64_t *slot_row, *row_slot, *offsets, *counts; /* [pairs], [N], [G+1], [G] */
    int64_t *next;                                   /* [n_blocks,G] count, then next row, of a block in an expert */
    int64_t pairs, k, rows, block, n_blocks, first, groups, align, least; /* least: min_rows */
    atomic_int twice;                                                     /* a token chose an expert twice */
} sort_call;

static int64_t block_pairs(int64_t pairs) {
    int64_t block = cpu_blocks(pairs, MOST_BLOCKS);
    return block < LEAST_PAIRS ? LEAST_PAIRS : block;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_expert_rows(a, err);
    if (s != MOE_OK) return s;
    int64_t pairs = op_elements(&a->in[0]), groups = ((const moe_expert_rows_attr *)a->attr)->groups;
    *saved = 0;
    *workspace = (uint64_t)(cpu_blocks(pairs, block_pairs(pairs)) * groups) * sizeof(int64_t);
    return MOE_OK;
}

/* The local expert of a pair, or -1. */
static int64_t local_expert(const sort_call *c, int64_t pair) {
    int64_t g = (int64_t)c->ids[pair] - c->first;
    return g >= 0 && g < c->groups ? g : -1;
}

static void count_pairs(void *arg, int64_t block, cpu_worker *w) {
    const sort_call *c = arg;
    (void)w;
    int64_t *count = c->next + block * c->groups; /* [G] */
    memset(count, 0, (size_t)c->groups * sizeof *count);
    int64_t end = cpu_min(c->pairs, (block + 1) * c->block);
    for (int64_t i = block * c->block; i < end; i++) {
        int64_t g = local_expert(c, i);
        if (g >= 0) count[g]++;
    }
}

/* Counts of the blocks -> counts and offsets of the experts and the blocks' first rows. Returns the rows needed. */
static int64_t place_blocks(const sort_call *c) {
    int64_t row = 0;
    for (int64_t g = 0; g < c->groups; g++) {
        int64_t begin = row;
        c->offsets[g] = begin;
        for (int64_t b = 0; b < c->n_blocks; b++) {
            int64_t n = c->next[b * c->groups + g];
            c->next[b * c->groups + g] = row;
            row += n;
        }
        c->counts[g] = row - begin;
        row = begin + cpu_blocks(c->counts[g] > c->least ? c->counts[g] : c->least, c->align) * c->align;
    }
    c->offsets[c->groups] = row;
    return row;
}

static void write_pairs(void *arg, int64_t block, cpu_worker *w) {
    const sort_call *c = arg;
    (void)w;
    int64_t *next = c->next + block * c->groups; /* [G] */
    int64_t end = cpu_min(c->pairs, (block + 1) * c->block);
    for (int64_t i = block * c->block; i < end; i++) {
        int64_t g = local_expert(c, i);
        c->slot_row[i] = g < 0 ? -1 : next[g]++;
        if (g >= 0) c->row_slot[c->slot_row[i]] = i;
    }
}

/* Rows of an expert are in order of pairs, so those of one token lie side by side. */
static int is_twice(const sort_call *c, int64_t row) {
    int64_t a = c->row_slot[row - 1], b = c->row_slot[row];
    return b - a < c->k && a / c->k == b / c->k;
}

static void find_twice(void *arg, int64_t group, cpu_worker *w) {
    sort_call *c = arg;
    (void)w;
    int bad = 0;
    int64_t begin = c->offsets[group], end = begin + c->counts[group];
    for (int64_t r = begin + 1; r < end; r++) bad |= is_twice(c, r);
    if (bad) atomic_store_explicit(&c->twice, 1, memory_order_relaxed);
}

/* The first token, in order of experts, that chose one of them twice. */
static moe_status refuse_twice(const sort_call *c, moe_err *err) {
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t r = c->offsets[g] + 1; r < c->offsets[g] + c->counts[g]; r++)
            if (is_twice(c, r))
                return moe_fail(err, MOE_E_DATA, "%s: token %lld chose expert %lld twice", op,
                                (long long)(c->row_slot[r] / c->k), (long long)(c->first + g));
    return MOE_OK;
}

/* -1 in padding rows and past the end */
static void clear_padding(const sort_call *c) {
    for (int64_t g = 0; g < c->groups; g++) {
        int64_t end = g + 1 < c->groups ? c->offsets[g + 1] : c->rows;
        for (int64_t r = c->offsets[g] + c->counts[g]; r < end; r++) c->row_slot[r] = -1;
    }
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_expert_rows_attr *at = a->attr;
    sort_call c = {.ids = a->in[0].data, .slot_row = a->out[0].data, .row_slot = a->out[1].data};
    c.offsets = a->out[2].data;
    c.counts = a->out[3].data;
    c.next = a->workspace;
    c.pairs = op_elements(&a->in[0]);
    c.k = a->in[0].shape[1];
    c.rows = a->out[1].shape[0];
    c.block = block_pairs(c.pairs);
    c.n_blocks = cpu_blocks(c.pairs, c.block);
    c.first = at->first;
    c.groups = at->groups;
    c.align = at->align;
    c.least = op_expert_rows_least(at);
    int64_t bad = cpu_find_i32(c.ids, c.pairs, -1, at->n_experts);
    if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: token %lld slot %lld has expert %d, want -1 or below %u", op,
                        (long long)(bad / c.k), (long long)(bad % c.k), c.ids[bad], at->n_experts);
    cpu_run(dev, c.n_blocks, count_pairs, &c);
    int64_t needed = place_blocks(&c);
    if (needed > c.rows)
        return moe_fail(err, MOE_E_OVERFLOW,
                        "%s: %lld rows needed (aligned to %lld), the buffer has %lld; min_rows is %lld", op,
                        (long long)needed, (long long)c.align, (long long)c.rows, (long long)c.least);
    cpu_run(dev, c.n_blocks, write_pairs, &c);
    if (c.k > 1) cpu_run(dev, c.groups, find_twice, &c);
    if (atomic_load(&c.twice)) return refuse_twice(&c, err);
    clear_padding(&c);
    return MOE_OK;
}

const moe_op CPU_OP(expert_rows) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
