/* moe.router_linear/0: logits of a router, always in FP32: three products of FP32 with x and dx as they are. The work
 * is in products/. */
#include "../products/products.h"

namespace {

/* logits = x w^T */
cuda_product product_of(const moe_op_args *a, const op_router_linear_sizes *z, int32_t role) {
    cuda_product p = {};
    p.role = role;
    p.accumulate = role != MOE_FPROP;
    p.m = z->t;
    p.n = z->e;
    p.k = z->h;
    p.a_dtype = p.b_dtype = p.out_dtype = MOE_F32;
    p.workspace = a->workspace;
    p.stream = cuda_stream(a);
    return p;
}
cuda_product logits_of(const moe_op_args *a, const op_router_linear_sizes *z) {
    cuda_product p = product_of(a, z, MOE_FPROP);
    p.a = a->in[0].data;
    p.a_dtype = a->in[0].dtype;
    p.b = a->in[1].data;
    p.out = a->out[0].data;
    return p;
}
/* dx += dlogits w;  backward's lists, or NULL data where only the dtype is known */
cuda_product dx_of(const moe_op_args *a, const op_router_linear_sizes *z, int32_t dtype) {
    cuda_product p = product_of(a, z, MOE_DGRAD);
    p.out_dtype = dtype;
    if (a->n_in < 3) return p;
    p.a = a->in[0].data;
    p.b = a->in[2].data;
    p.out = a->out[0].data;
    return p;
}
/* dw += dlogits^T x */
cuda_product dw_of(const moe_op_args *a, const op_router_linear_sizes *z, int32_t dtype) {
    cuda_product p = product_of(a, z, MOE_WGRAD);
    p.b_dtype = dtype;
    if (a->n_in < 3) return p;
    p.a = a->in[0].data;
    p.b = a->in[1].data;
    p.out = a->out[1].data;
    return p;
}

moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    op_router_linear_sizes z;
    moe_status s = op_check_router_linear(a, &z, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_ROUTER_LINEAR, z.h, "columns", err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_ROUTER_LINEAR, z.e, "experts", err);
    if (s != MOE_OK) return s;
    const int32_t dtype = a->in[0].dtype;
    const cuda_product all[] = {logits_of(a, &z), dx_of(a, &z, dtype), dw_of(a, &z, dtype)};
    uint64_t most = 0;
    for (int i = 0; i < 3 && s == MOE_OK; i++) {
        uint64_t bytes = 0;
        s = cuda_product_sizes(static_cast<cuda_device *>(dev), &all[i], MOE_OP_ROUTER_LINEAR, &bytes, err);
        if (bytes > most) most = bytes;
    }
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = most;
    return MOE_OK;
}

moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    op_router_linear_sizes z;
    const moe_status s = op_check_router_linear(a, &z, err);
    if (s != MOE_OK) return s;
    const cuda_product p = logits_of(a, &z);
    return cuda_product_run(static_cast<cuda_device *>(dev), &p, MOE_OP_ROUTER_LINEAR, err);
}

moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    op_router_linear_sizes z;
    moe_status s = op_check_router_linear_backward(a, &z, err);
    if (s != MOE_OK) return s;
    const cuda_product dx = dx_of(a, &z, a->in[1].dtype), dw = dw_of(a, &z, a->in[1].dtype);
    s = cuda_product_run(static_cast<cuda_device *>(dev), &dx, MOE_OP_ROUTER_LINEAR, err);
    return s == MOE_OK ? cuda_product_run(static_cast<cuda_device *>(dev), &dw, MOE_OP_ROUTER_LINEAR, err) : s;
}

}  // namespace

extern const moe_op cuda_op_router_linear = {sizeof(moe_op), 0, MOE_OP_ROUTER_LINEAR, sizes, forward, backward};
