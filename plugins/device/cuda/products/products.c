/* Who computes a product, and groups of rows over several streams; see products.h. */
#include "products.h"

/* ---- life ---- */
static moe_status open_lanes(cuda_lanes *l, moe_err *err) {
    moe_status s = cuda_status(cudaEventCreateWithFlags(&l->fork, cudaEventDisableTiming), "device/cuda: event", err);
    for (int i = 0; i < CUDA_LANES && s == MOE_OK; i++) {
        s = cuda_status(cudaStreamCreateWithFlags(&l->stream[i], cudaStreamNonBlocking), "device/cuda: stream", err);
        if (s == MOE_OK)
            s = cuda_status(cudaEventCreateWithFlags(&l->join[i], cudaEventDisableTiming), "device/cuda: event", err);
    }
    return s;
}

moe_status cuda_products_create(cuda_products **out, moe_err *err) {
    cuda_products *all = calloc(1, sizeof *all);
    if (!all) return moe_fail(err, MOE_E_NOMEM, "device/cuda: %zu bytes for products", sizeof *all);
    moe_status s = cuda_blaslt_open(all, err);
    if (s == MOE_OK) s = open_lanes(&all->lanes, err);
    if (s == MOE_OK)
        *out = all;
    else
        cuda_products_destroy(all);
    return s;
}

void cuda_products_destroy(cuda_products *all) {
    if (!all) return;
    for (int i = 0; i < CUDA_LANES; i++) {
        if (all->lanes.join[i]) cudaEventDestroy(all->lanes.join[i]);
        if (all->lanes.stream[i]) cudaStreamDestroy(all->lanes.stream[i]);
    }
    if (all->lanes.fork) cudaEventDestroy(all->lanes.fork);
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
    const uint64_t lanes = p->rows ? CUDA_LANES : 1, best = is_empty(p) ? 0 : cuda_blaslt_alignment(p);
    uint64_t most = 0;
    for (uint64_t alignment = best; alignment; alignment = alignment == 16 && p->a_dtype == MOE_F32 ? 4 : 0) {
        uint64_t bytes = 0;
        cuda_plan *plan = cuda_plan_of(dev->products, p, alignment, op, err);
        if (!plan) return MOE_E_DEVICE;
        const moe_status s = cuda_plan_prepare(dev->products, plan, p, op, &bytes, err);
        if (s != MOE_OK) return s;
        if (bytes > most) most = bytes;
    }
    *workspace = lanes * most;
    return MOE_OK;
}

/* ---- in the step ---- */
static moe_status zero(const cuda_product *p, void *out, int64_t elements, const char *op, moe_err *err) {
    if (p->accumulate) return MOE_OK;
    return cuda_status(cudaMemsetAsync(out, 0, (size_t)(elements * cuda_dtype_bytes(p->out_dtype)), p->stream), op,
                       err);
}

/* A dense product of `rows` rows of p, or a group's of a grouped one. plan NULL: not cuBLASLt's. */
static moe_status run_one(cuda_device *dev, cuda_plan *plan, const cuda_product *p, const char *op, moe_err *err) {
    const cuda_product_shape shape = cuda_product_shape_of(p, p->m);
    int done = 0;
    if (shape.r == 0 || shape.c == 0) return MOE_OK;
    if (shape.d == 0) return zero(p, p->out, shape.r * shape.c, op, err);
    if (plan) {
        const moe_status s = cuda_plan_run(dev->products, plan, p, p->m, op, &done, err);
        if (s != MOE_OK || done) return s;
    }
    return cuda_tiles_run(p, op, err);
}

moe_status cuda_product_run(cuda_device *dev, const cuda_product *p, const char *op, moe_err *err) {
    const uint64_t alignment = is_empty(p) ? 0 : cuda_blaslt_alignment(p);
    if (p->rows && (!alignment || !p->rows->host_offsets)) {
        const cuda_product_shape shape = cuda_product_shape_of(p, p->m);
        return shape.c == 0 || (p->role == MOE_WGRAD && shape.r == 0) ? MOE_OK : cuda_tiles_run(p, op, err);
    }
    cuda_plan *plan = alignment ? cuda_plan_of(dev->products, p, alignment, op, err) : NULL;
    if (alignment && !plan) return MOE_E_DEVICE;
    return p->rows ? cuda_tiles_run(p, op, err) : run_one(dev, plan, p, op, err);
}
