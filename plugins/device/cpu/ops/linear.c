/* moe.linear/0: products of linear layers and of experts, in the roles fprop, dgrad and wgrad. Here: groups and padding
 * rows; the arithmetic is product.c. Valid rows only are multiplied; padding rows of an output are set to zero
 * and never read, so that a dispatcher's padding cannot spoil a weight gradient. */
#include "product.h"

#define OP MOE_OP_LINEAR

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    op_linear_sizes z;
    moe_status s = op_check_linear(a, &z, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = z.groups ? (uint64_t)(z.groups + PRODUCT_ROOM(z.groups)) * sizeof(int64_t) : 0; /* counts, room */
    return MOE_OK;
}

/* Offsets ascend within the buffer and counts fit: else the rows of one expert would be another's. */
static moe_status check_rows(const moe_rows *rows, moe_err *err) {
    const int64_t *offsets = rows->dev_offsets, *counts = rows->dev_counts;
    if (!offsets) return moe_fail(err, MOE_E_ARG, OP ": rows.dev_offsets is NULL");
    if (offsets[0] < 0) return moe_fail(err, MOE_E_ARG, OP ": rows.dev_offsets[0] is %lld", (long long)offsets[0]);
    for (uint32_t g = 0; g < rows->groups; g++) {
        int64_t room = offsets[g + 1] - offsets[g];
        if (room < 0 || offsets[g + 1] > rows->max)
            return moe_fail(err, MOE_E_OVERFLOW,
                            OP ": rows.dev_offsets[%u] is %lld after %lld, with room for %lld rows", g + 1,
                            (long long)offsets[g + 1], (long long)offsets[g], (long long)rows->max);
        if (counts && (counts[g] < 0 || counts[g] > room))
            return moe_fail(err, MOE_E_ARG, OP ": rows.dev_counts[%u] is %lld of %lld rows", g, (long long)counts[g],
                            (long long)room);
    }
    return MOE_OK;
}

/* ---- padding rows ---- */
typedef struct padding {
    const moe_rows *rows;
    const int64_t *counts;
    const moe_tensor *out;
} padding;
static void zero_padding(void *arg, int64_t g, cpu_worker *w) {
    const padding *p = arg;
    int64_t width = p->out->shape[1], first = p->rows->dev_offsets[g] + p->counts[g];
    (void)w;
    cpu_zero(p->out, first * width, (p->rows->dev_offsets[g + 1] - first) * width);
}

/* ---- blocks that hold values ---- */
/* After the product, whose tiles all see what was there before. */
static void note_filled(const product *p, int32_t *filled) {
    for (int64_t g = 0; g < p->groups; g++)
        if (p->count[g] > 0 || !p->accumulate) filled[g] = p->count[g] > 0;
}

static moe_status run_grouped(cpu_device *dev, const moe_op_args *a, product *p, const moe_tensor *filled,
                              moe_err *err) {
    const moe_rows *rows = a->rows;
    moe_status s = check_rows(rows, err);
    if (s != MOE_OK) return s;
    int64_t *room = a->workspace, valid = 0;
    if (!room) return moe_fail(err, MOE_E_ARG, OP ": workspace is NULL");
    int64_t *counts = room + PRODUCT_ROOM(p->groups);
    for (int64_t g = 0; g < p->groups; g++) {
        counts[g] = rows->dev_counts ? rows->dev_counts[g] : rows->dev_offsets[g + 1] - rows->dev_offsets[g];
        valid += counts[g];
    }
    p->room = room;
    p->filled = filled ? filled->data : NULL;
    p->begin = rows->dev_offsets;
    p->count = counts;
    s = product_run(dev, p, OP, err);
    if (s == MOE_OK && filled) note_filled(p, filled->data);
    int has_padding = valid < rows->dev_offsets[p->groups] - rows->dev_offsets[0];
    if (s == MOE_OK && has_padding && p->role != MOE_WGRAD && !p->accumulate) {
        padding pad = {rows, counts, &a->out[0]};
        cpu_run(dev, p->groups, zero_padding, &pad);
    }
    return s;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    op_linear_sizes z;
    moe_status s = op_check_linear(a, &z, err);
    if (s != MOE_OK) return s;
    product p = {.role = z.role, .accumulate = z.accumulate, .n = z.n, .k = z.k, .groups = z.groups};
    p.a = a->in[0];
    p.b = a->in[1];
    p.out = a->out[0];
    if (z.groups) return run_grouped(dev, a, &p, z.filled, err);
    int64_t begin = 0, count = z.m, room[PRODUCT_ROOM(1)];
    p.groups = 1;
    p.begin = &begin;
    p.count = &count;
    p.room = room;
    return product_run(dev, &p, OP, err);
}

const moe_op CPU_OP(linear) = {sizeof(moe_op), 0, OP, sizes, forward, NULL};
