/* moe.linear/0: products of linear layers and of experts, in the roles fprop, dgrad and wgrad: the work is in
 * products/. */
#include "../products/products.h"

namespace {

moe_status check(const moe_op_args *a, cuda_product *p, moe_err *err) {
    op_linear_sizes z;
    moe_status s = op_check_linear(a, &z, err);
    if (s == MOE_OK) s = op_want_absent(z.filled, MOE_OP_LINEAR, "filled", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_LINEAR, z.n, "rows of w", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_LINEAR, z.k, "columns of w", err);
    if (s != MOE_OK) return s;
    *p = cuda_product{};
    p->role = z.role;
    p->accumulate = z.accumulate;
    p->m = z.m;
    p->n = z.n;
    p->k = z.k;
    p->a_dtype = a->in[0].dtype;
    p->b_dtype = a->in[1].dtype;
    p->out_dtype = a->out[0].dtype;
    p->a = a->in[0].data;
    p->b = a->in[1].data;
    p->out = a->out[0].data;
    p->rows = a->rows;
    p->workspace = a->workspace;
    p->fault = a->fault;
    p->stream = cuda_stream(a);
    return MOE_OK;
}

moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    cuda_product p;
    moe_status s = check(a, &p, err);
    if (s == MOE_OK) s = cuda_product_sizes(static_cast<cuda_device *>(dev), &p, MOE_OP_LINEAR, workspace, err);
    if (s == MOE_OK) *saved = 0;
    return s;
}

moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    cuda_product p;
    const moe_status s = check(a, &p, err);
    if (s != MOE_OK) return s;
    if (p.rows && !p.rows->dev_offsets) return moe_fail(err, MOE_E_ARG, MOE_OP_LINEAR ": rows.dev_offsets is NULL");
    return cuda_product_run(static_cast<cuda_device *>(dev), &p, MOE_OP_LINEAR, err);
}

}  // namespace

extern const moe_op cuda_op_linear = {sizeof(moe_op), 0, MOE_OP_LINEAR, sizes, forward, nullptr};
