/* Who computes a product; see products.h. */
#include "products.h"

/* ---- life ---- */
moe_status cuda_products_create(cuda_products **out, moe_err *err) {
    cuda_products *all = calloc(1, sizeof *all);
    if (!all) return moe_fail(err, MOE_E_NOMEM, "device/cuda: %zu bytes for products", sizeof *all);
    moe_status s = cuda_blaslt_open(all, err);
    if (s == MOE_OK) s = cuda_lanes_open(&all->lanes, err);
    if (s == MOE_OK)
        *out = all;
    else
        cuda_products_destroy(all);
    return s;
}

void cuda_products_destroy(cuda_products *all) {
    if (!all) return;
    cuda_lanes_close(&all->lanes);
    cuda_blaslt_close(all);
    free(all);
}

/* ---- before the step ---- */
static int is_empty(const cuda_product *p) {
    return p->n == 0 || p->k == 0 || p->m == 0;
}

/* The workspace of a grouped product is one part a lane. Parameters may lie at any multiple of their elements, so both
 * alignments of FP32 are prepared. */
moe_status cuda_product_sizes(cuda_device *dev, const cuda_product *p, const char *op, uint64_t *workspace,
                              moe_err *err) {
    const uint64_t lanes = p->rows ? CUDA_LANES : 1;
    const uint64_t best = is_empty(p) ? 0 : cuda_blaslt_alignment(p);
    uint64_t most = 0;
    for (uint64_t alignment = best; alignment; alignment = alignment == 16 && p->a_dtype == MOE_F32 ? 4 : 0) {
        cuda_plan *plan = NULL;
        moe_status s = cuda_plan_find(dev->products, p, alignment, op, &plan, err);
        if (s == MOE_OK) s = cuda_plan_prepare(dev->products, plan, p->m, op, err);
        if (s != MOE_OK) return s;
        if (cuda_plan_workspace(plan, p->m) > most) most = cuda_plan_workspace(plan, p->m);
    }
    *workspace = lanes * most;
    return MOE_OK;
}

/* ---- in the step ---- */
/* A sum of nothing: the gradient of a group without rows. */
static moe_status zero(const cuda_product *p, int64_t elements, const char *op, moe_err *err) {
    if (p->accumulate) return MOE_OK;
    return cuda_status(cudaMemsetAsync(p->out, 0, (size_t)(elements * cuda_dtype_bytes(p->out_dtype)), p->stream), op,
                       err);
}

moe_status cuda_product_run_one(cuda_device *dev, cuda_plan *plan, const cuda_product *p, const char *op,
                                moe_err *err) {
    const cuda_product_shape shape = cuda_product_shape_of(p, p->m);
    int done = 0;
    if (shape.r == 0 || shape.c == 0) return MOE_OK;
    if (shape.d == 0) return zero(p, shape.r * shape.c, op, err);
    if (plan) {
        const moe_status s = cuda_plan_run(dev->products, plan, p, op, &done, err);
        if (s != MOE_OK || done) return s;
    }
    return cuda_tiles_run(p, op, err);
}

moe_status cuda_product_run(cuda_device *dev, const cuda_product *p, const char *op, moe_err *err) {
    const uint64_t alignment = is_empty(p) ? 0 : cuda_blaslt_alignment(p);
    if (p->rows && (!alignment || !cuda_lanes_take(p))) {
        const cuda_product_shape shape = cuda_product_shape_of(p, p->m);
        return shape.c == 0 || (p->role == MOE_WGRAD && shape.r == 0) ? MOE_OK : cuda_tiles_run(p, op, err);
    }
    cuda_plan *plan = NULL;
    const moe_status s = alignment ? cuda_plan_find(dev->products, p, alignment, op, &plan, err) : MOE_OK;
    if (s != MOE_OK) return s;
    return p->rows ? cuda_lanes_run(dev, plan, p, op, err) : cuda_product_run_one(dev, plan, p, op, err);
}
