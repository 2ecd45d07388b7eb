/* moe.linear/0: products of linear layers and of experts, in the roles fprop, dgrad and wgrad. Here: shapes, groups and
 * padding rows; the arithmetic is product.c. Valid rows only are multiplied; padding rows of an output are set to zero
 * and never read, so that a dispatcher's padding cannot spoil a weight gradient. */
#include "product.h"

#define OP MOE_OP_LINEAR

/* What a call says, all roles alike. */
typedef struct linear_sizes {
    int32_t role;
    uint32_t accumulate;
    int64_t m, n, k, groups; /* groups: 0 = dense */
} linear_sizes;

static moe_status check_operands(const moe_op_args *a, const linear_sizes *z, moe_err *err) {
    static const char *const names[][3] = {{"x", "w", "y"}, {"dy", "w", "dx"}, {"dy", "x", "dw"}};
    const int64_t x[2] = {z->m, z->k}, y[2] = {z->m, z->n};
    int64_t w[3] = {z->groups, z->n, z->k};
    int32_t w_dims = z->groups ? 3 : 2;
    const int64_t *w_shape = z->groups ? w : w + 1;
    const char *const *name = names[z->role];
    const moe_tensor *in = a->in, *out = a->out;
    moe_status s = cpu_want(&in[0], OP, name[0], CPU_ACT, 2, z->role == MOE_FPROP ? x : y, err);
    if (s != MOE_OK) return s;
    if (z->role == MOE_WGRAD)
        s = cpu_want(&in[1], OP, name[1], in[0].dtype, 2, x, err);
    else
        s = cpu_want(&in[1], OP, name[1], in[0].dtype, w_dims, w_shape, err);
    if (s != MOE_OK) return s;
    if (z->role == MOE_WGRAD) return cpu_want(&out[0], OP, name[2], MOE_F32, w_dims, w_shape, err);
    int32_t dtype = out[0].dtype == MOE_F32 ? MOE_F32 : in[0].dtype;
    return cpu_want(&out[0], OP, name[2], dtype, 2, z->role == MOE_FPROP ? y : x, err);
}

/* Reads M, N, K from the operands that have them and checks everything else against that. */
static moe_status read_sizes(const moe_op_args *a, linear_sizes *z, moe_err *err) {
    moe_status s = cpu_want_attr(a, OP, sizeof(moe_linear_attr), err);
    if (s == MOE_OK) s = cpu_want_lists(a, OP, 2, 2, 1, 1, err);
    if (s != MOE_OK) return s;
    const moe_linear_attr *attr = a->attr;
    if (attr->role < MOE_FPROP || attr->role > MOE_WGRAD)
        return moe_fail(err, MOE_E_ARG, OP ": role is %d, want 0 (fprop), 1 (dgrad) or 2 (wgrad)", attr->role);
    if (attr->accumulate > 1) return moe_fail(err, MOE_E_ARG, OP ": accumulate is %u, want 0 or 1", attr->accumulate);
    const moe_tensor *first = &a->in[0], *second = &a->in[1];
    if (first->ndim != 2) return moe_fail(err, MOE_E_ARG, OP ": the first input has ndim %d, want 2", first->ndim);
    if (second->ndim < 2 || second->ndim > 3)
        return moe_fail(err, MOE_E_ARG, OP ": the second input has ndim %d, want 2 or 3", second->ndim);
    int64_t inner = second->shape[second->ndim - 1], outer = second->shape[second->ndim - 2];
    *z = (linear_sizes){.role = attr->role, .accumulate = attr->accumulate, .m = first->shape[0], .k = inner};
    z->n = attr->role == MOE_FPROP ? outer : first->shape[1];
    z->groups = a->rows ? (int64_t)a->rows->groups : 0;
    if (a->rows && z->groups == 0) return moe_fail(err, MOE_E_ARG, OP ": rows has 0 groups");
    if (a->rows) s = cpu_want_rows(a, OP, z->m, err);
    return s == MOE_OK ? check_operands(a, z, err) : s;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    linear_sizes z;
    moe_status s = read_sizes(a, &z, err);
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

static moe_status run_grouped(cpu_device *dev, const moe_op_args *a, product *p, moe_err *err) {
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
    p->begin = rows->dev_offsets;
    p->count = counts;
    s = product_run(dev, p, OP, err);
    int has_padding = valid < rows->dev_offsets[p->groups] - rows->dev_offsets[0];
    if (s == MOE_OK && has_padding && p->role != MOE_WGRAD && !p->accumulate) {
        padding pad = {rows, counts, &a->out[0]};
        cpu_run(dev, p->groups, zero_padding, &pad);
    }
    return s;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    linear_sizes z;
    moe_status s = read_sizes(a, &z, err);
    if (s != MOE_OK) return s;
    product p = {.role = z.role, .accumulate = z.accumulate, .n = z.n, .k = z.k, .groups = z.groups};
    p.a = a->in[0];
    p.b = a->in[1];
    p.out = a->out[0];
    if (z.groups) return run_grouped(dev, a, &p, err);
    int64_t begin = 0, count = z.m, room[PRODUCT_ROOM(1)];
    p.groups = 1;
    p.begin = &begin;
    p.count = &count;
    p.room = room;
    return product_run(dev, &p, OP, err);
}

const moe_op CPU_OP(linear) = {sizeof(moe_op), 0, OP, sizes, forward, NULL};
