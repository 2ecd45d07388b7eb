/* Matrix products in the three roles of moe.linear/0: what ops/linear.cu and ops/router_linear.cu have in common.
 * products.c decides who computes one: cuBLASLt (blaslt.c) where its kernels take the operands, and where the host
 * knows the rows of each group; else our own kernels (tiles.cu), which take everything. C and C++. */
#ifndef DEVICE_CUDA_PRODUCTS_H
#define DEVICE_CUDA_PRODUCTS_H
#include "../cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operands by role, row-major; rows: those of groups, or all m.
 *   MOE_FPROP  a = x [m,k],  b = w [G,n,k],  out = y  [m,n]
 *   MOE_DGRAD  a = dy [m,n], b = w [G,n,k],  out = dx [m,k]
 *   MOE_WGRAD  a = dy [m,n], b = x [m,k],    out = dw [G,n,k]
 * Each is F32 or BF16 on its own; sums are FP32, rounded once where out is BF16. */
typedef struct cuda_product {
    int32_t role;
    uint32_t accumulate; /* 0: out is overwritten */
    int64_t m, n, k;     /* m: rows of the buffers */
    int32_t a_dtype, b_dtype, out_dtype;
    const void *a, *b;
    void *out;
    const moe_rows *rows;    /* NULL: dense */
    void *workspace, *fault; /* of the call */
    cudaStream_t stream;
} cuda_product;

/* out [r,c] (+)= sum over d of a b, of one group or all: which of r and d counts rows is the role's. */
typedef struct cuda_product_shape {
    int64_t r, c, d;
} cuda_product_shape;

static inline cuda_product_shape cuda_product_shape_of(const cuda_product *p, int64_t rows) {
    cuda_product_shape s = {rows, p->n, p->k};
    if (p->role == MOE_DGRAD) {
        s.c = p->k;
        s.d = p->n;
    } else if (p->role == MOE_WGRAD) {
        s.r = p->n;
        s.c = p->k;
        s.d = rows;
    }
    return s;
}
static inline int64_t cuda_dtype_bytes(int32_t dtype) {
    return dtype == MOE_BF16 ? 2 : 4;
}

/* [main] One for a device instance, whose thread makes all calls. */
moe_status cuda_products_create(cuda_products **out, moe_err *err);
void cuda_products_destroy(cuda_products *all); /* idle; NULL is nothing */

/* [main] Chooses the algorithms of this product, data and row numbers unseen, for all that may come; *workspace: bytes
 * of a call. */
moe_status cuda_product_sizes(cuda_device *dev, const cuda_product *p, const char *op, uint64_t *workspace,
                              moe_err *err);
/* [step] Enqueues it. Rows that do not fit together (MOE_E_OVERFLOW: offsets descend or exceed m, value: the rows that
 * are needed; MOE_E_DATA: a first offset below 0, a count outside of its rows; token: the group) go to the fault. */
moe_status cuda_product_run(cuda_device *dev, const cuda_product *p, const char *op, moe_err *err);

/* ---- the instance's ---- */
typedef struct cuda_plan cuda_plan; /* the descriptors and algorithms of a product's shapes */
/* Streams over which the groups of a product are spread: lane 0 is the call's own. */
enum { CUDA_LANES = 4 };
typedef struct cuda_lanes {
    cudaStream_t stream[CUDA_LANES]; /* [0] NULL */
    cudaEvent_t fork, join[CUDA_LANES];
} cuda_lanes;
struct cuda_products {
    void *handle; /* cublasLtHandle_t */
    cuda_lanes lanes;
    cuda_plan **plans; /* [n_plans], room for some more */
    int64_t n_plans, room;
};

/* ---- tiles.cu: our own kernels ---- */
/* [step] Everything. rows' numbers are read on the device. */
moe_status cuda_tiles_run(const cuda_product *p, const char *op, moe_err *err);

/* ---- blaslt.c ---- */
moe_status cuda_blaslt_open(cuda_products *all, moe_err *err);
void cuda_blaslt_close(cuda_products *all);

/* Operands of these dtypes and widths at these addresses can be cuBLASLt's: its alignment in bytes, else 0. Data may be
 * NULL. */
uint64_t cuda_blaslt_alignment(const cuda_product *p);
/* The plan of the product at this alignment, made where it is new. */
moe_status cuda_plan_find(cuda_products *all, const cuda_product *p, uint64_t alignment, const char *op,
                          cuda_plan **out, moe_err *err);
/* [main] Chooses for every number of rows up to `rows` that a group can have (dense: for this number). */
moe_status cuda_plan_prepare(cuda_products *all, cuda_plan *plan, int64_t rows, const char *op, moe_err *err);
/* Bytes of workspace of a product of up to `rows` rows, once prepared: a multiple of CUDA_ALIGNMENT. */
uint64_t cuda_plan_workspace(const cuda_plan *plan, int64_t rows);
/* [step] One dense product of p->m rows, all sizes at least 1. *done 0: cuBLASLt has no kernel for it, and nothing was
 * enqueued. */
moe_status cuda_plan_run(cuda_products *all, cuda_plan *plan, const cuda_product *p, const char *op, int *done,
                         moe_err *err);

/* ---- lanes.c ---- */
moe_status cuda_lanes_open(cuda_lanes *l, moe_err *err);
void cuda_lanes_close(cuda_lanes *l);
/* Does the host know the rows of each group, and do they fit together? */
int cuda_lanes_take(const cuda_product *p);
/* [step] All groups of p. Its workspace has a part for each lane. */
moe_status cuda_lanes_run(cuda_device *dev, cuda_plan *plan, const cuda_product *p, const char *op, moe_err *err);
/* [step] A dense product, or one group's, by the plan (NULL: not cuBLASLt's). */
moe_status cuda_product_run_one(cuda_device *dev, cuda_plan *plan, const cuda_product *p, const char *op, moe_err *err);

#ifdef __cplusplus
}
#endif
#endif
