/* Checks of moe.linear/0 and moe.router_linear/0; see ../ops.h. */
#include "../ops.h"

static const char linear[] = MOE_OP_LINEAR, router[] = MOE_OP_ROUTER_LINEAR;

/* ---- moe.linear/0 ---- */
static moe_status check_operands(const moe_op_args *a, const op_linear_sizes *z, moe_err *err) {
    static const char *const names[][3] = {{"x", "w", "y"}, {"dy", "w", "dx"}, {"dy", "x", "dw"}};
    const int64_t x[2] = {z->m, z->k}, y[2] = {z->m, z->n};
    int64_t w[3] = {z->groups, z->n, z->k};
    int32_t w_dims = z->groups ? 3 : 2;
    const int64_t *w_shape = z->groups ? w : w + 1;
    const char *const *name = names[z->role];
    const moe_tensor *in = a->in, *out = a->out;
    moe_status s = op_want(&in[0], linear, name[0], OP_ACT, 2, z->role == MOE_FPROP ? x : y, err);
    if (s != MOE_OK) return s;
    if (z->role == MOE_WGRAD)
        s = op_want(&in[1], linear, name[1], in[0].dtype, 2, x, err);
    else
        s = op_want(&in[1], linear, name[1], in[0].dtype, w_dims, w_shape, err);
    if (s != MOE_OK) return s;
    if (z->role == MOE_WGRAD) return op_want(&out[0], linear, name[2], MOE_F32, w_dims, w_shape, err);
    int32_t dtype = out[0].dtype == MOE_F32 ? MOE_F32 : in[0].dtype;
    return op_want(&out[0], linear, name[2], dtype, 2, z->role == MOE_FPROP ? y : x, err);
}

/* The blocks of dw that hold values. */
static moe_status check_filled(const op_linear_sizes *z, moe_err *err) {
    if (!z->filled) return MOE_OK;
    if (z->role != MOE_WGRAD || !z->groups)
        return moe_fail(err, MOE_E_ARG, "%s: filled is given, and the call is no grouped wgrad", linear);
    return op_want(z->filled, linear, "filled", MOE_I32, 1, &z->groups, err);
}

static moe_status check_attr(const moe_linear_attr *attr, moe_err *err) {
    if (attr->role < MOE_FPROP || attr->role > MOE_WGRAD)
        return moe_fail(err, MOE_E_ARG, "%s: role is %d, want 0 (fprop), 1 (dgrad) or 2 (wgrad)", linear, attr->role);
    if (attr->accumulate > 1)
        return moe_fail(err, MOE_E_ARG, "%s: accumulate is %u, want 0 or 1", linear, attr->accumulate);
    return MOE_OK;
}

/* Reads M, N, K from the operands that have them and checks everything else against that. */
moe_status op_check_linear(const moe_op_args *a, op_linear_sizes *out, moe_err *err) {
    moe_status s = op_want_attr(a, linear, sizeof(moe_linear_attr), err);
    if (s == MOE_OK) s = op_want_lists(a, linear, 2, 2, 1, 2, err);
    if (s == MOE_OK) s = check_attr(a->attr, err);
    if (s != MOE_OK) return s;
    const moe_linear_attr *attr = a->attr;
    const moe_tensor *first = &a->in[0], *second = &a->in[1];
    if (first->ndim != 2)
        return moe_fail(err, MOE_E_ARG, "%s: the first input has ndim %d, want 2", linear, first->ndim);
    if (second->ndim < 2 || second->ndim > 3)
        return moe_fail(err, MOE_E_ARG, "%s: the second input has ndim %d, want 2 or 3", linear, second->ndim);
    int64_t inner = second->shape[second->ndim - 1], outer = second->shape[second->ndim - 2];
    op_linear_sizes z = {.role = attr->role, .accumulate = attr->accumulate, .m = first->shape[0], .k = inner};
    z.n = attr->role == MOE_FPROP ? outer : first->shape[1];
    z.groups = a->rows ? (int64_t)a->rows->groups : 0;
    z.filled = op_optional(a->out, a->n_out, 1);
    if (a->rows && z.groups == 0) return moe_fail(err, MOE_E_ARG, "%s: rows has 0 groups", linear);
    if (a->rows) s = op_want_rows(a, linear, z.m, err);
    if (s == MOE_OK) s = check_operands(a, &z, err);
    if (s == MOE_OK) s = check_filled(&z, err);
    if (s == MOE_OK) *out = z;
    return s;
}

/* ---- moe.router_linear/0 ---- */
/* x, w and logits (forward: out; backward: dlogits) agree. */
static moe_status check_router(const moe_tensor *x, const moe_tensor *w, const moe_tensor *logits, const char *name,
                               op_router_linear_sizes *out, moe_err *err) {
    moe_status s = op_want(x, router, "x", OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = op_want(w, router, "w", MOE_F32, 2, OP_SHAPE(OP_ANY, x->shape[1]), err);
    if (s == MOE_OK) s = op_want(logits, router, name, MOE_F32, 2, OP_SHAPE(x->shape[0], w->shape[0]), err);
    if (s != MOE_OK) return s;
    out->t = x->shape[0];
    out->h = x->shape[1];
    out->e = w->shape[0];
    return MOE_OK;
}

moe_status op_check_router_linear(const moe_op_args *a, op_router_linear_sizes *out, moe_err *err) {
    moe_status s = op_want_lists(a, router, 2, 2, 1, 1, err);
    return s == MOE_OK ? check_router(&a->in[0], &a->in[1], &a->out[0], "logits", out, err) : s;
}

moe_status op_check_router_linear_backward(const moe_op_args *a, op_router_linear_sizes *out, moe_err *err) {
    op_router_linear_sizes z;
    moe_status s = op_want_lists(a, router, 3, 3, 2, 2, err);
    if (s == MOE_OK) s = check_router(&a->in[1], &a->in[2], &a->in[0], "dlogits", &z, err);
    if (s == MOE_OK) s = op_want(&a->out[0], router, "dx", a->in[1].dtype, 2, a->in[1].shape, err);
    if (s == MOE_OK) s = op_want(&a->out[1], router, "dw", MOE_F32, 2, a->in[2].shape, err);
    if (s == MOE_OK) *out = z;
    return s;
}
