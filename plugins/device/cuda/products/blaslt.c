/* cuBLASLt: a plan holds the descriptors of one product's shape, and an algorithm for each class of row numbers: the
 * number itself where the product is dense, the next power of two where groups have as many as come. Algorithms are
 * chosen once, by the library's heuristic, in the calls of `sizes`; a step that asks for one that was not chosen there
 * chooses one without workspace. Row-major matrices are column-major ones transposed: cuBLASLt's A is our b, its B our
 * a, its m the columns of out, its n the rows. */
#include <cublasLt.h>

#include "products.h"

enum { LEAST_CLASS = 7, CLASSES = 63 }; /* 128 rows: row_align of the precisions */
#define MOST_WORKSPACE (UINT64_C(32) << 20)

typedef enum chosen { NOT_ASKED, USABLE, NONE } chosen;
typedef struct choice {
    chosen state;
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace; /* bytes */
} choice;

/* What makes two products the same here. */
typedef struct plan_key {
    int32_t role, in, out, grouped;
    int64_t m, n, k; /* m: 0 where grouped */
    uint64_t alignment;
} plan_key;

struct cuda_plan {
    plan_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, out; /* of cuBLASLt's A, B and D = C; their columns may change from call to call */
    choice choices[];                 /* [CLASSES] where grouped, else [1] */
};

static moe_status blaslt_status(cublasStatus_t status, const char *op, const char *what, moe_err *err) {
    if (status == CUBLAS_STATUS_SUCCESS) return MOE_OK;
    return moe_fail(err, status == CUBLAS_STATUS_ALLOC_FAILED ? MOE_E_NOMEM : MOE_E_DEVICE, "%s: %s: %s", op, what,
                    cublasLtGetStatusName(status));
}

moe_status cuda_blaslt_open(cuda_products *all, moe_err *err) {
    cublasLtHandle_t handle = NULL;
    moe_status s = blaslt_status(cublasLtCreate(&handle), "device/cuda", "cublasLtCreate", err);
    if (s == MOE_OK) all->handle = handle;
    return s;
}

static void drop_plan(cuda_plan *plan) {
    if (plan->out) cublasLtMatrixLayoutDestroy(plan->out);
    if (plan->b) cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->a) cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->desc) cublasLtMatmulDescDestroy(plan->desc);
    free(plan);
}

void cuda_blaslt_close(cuda_products *all) {
    for (int64_t i = 0; i < all->n_plans; i++) drop_plan(all->plans[i]);
    free(all->plans);
    if (all->handle) cublasLtDestroy(all->handle);
}

/* ---- which operands ---- */
/* BF16 kernels want 16 bytes; FP32 ones do with 4, and are quicker with 16. */
uint64_t cuda_blaslt_alignment(const cuda_product *p) {
    const int64_t widths = p->role == MOE_FPROP ? p->k : p->n | p->k;
    const int64_t out = p->role == MOE_FPROP ? p->n : p->k;
    if (p->a_dtype != p->b_dtype || (p->a_dtype == MOE_F32 && p->out_dtype != MOE_F32)) return 0;
    const uint64_t all = (uint64_t)(widths * cuda_dtype_bytes(p->a_dtype)) |
                         (uint64_t)(out * cuda_dtype_bytes(p->out_dtype)) | (uintptr_t)p->a | (uintptr_t)p->b |
                         (uintptr_t)p->out;
    if (all % 16 == 0) return 16;
    return p->a_dtype == MOE_F32 && all % 4 == 0 ? 4 : 0;
}

static cudaDataType_t type_of(int32_t dtype) {
    return dtype == MOE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* ---- plans ---- */
static plan_key key_of(const cuda_product *p, uint64_t alignment) {
    plan_key key;
    memset(&key, 0, sizeof key);
    key.role = p->role;
    key.in = p->a_dtype;
    key.out = p->out_dtype;
    key.grouped = p->rows != NULL;
    key.m = p->rows ? 0 : p->m;
    key.n = p->n;
    key.k = p->k;
    key.alignment = alignment;
    return key;
}

static cublasStatus_t set_transpose(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, int yes) {
    const cublasOperation_t op = yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t value = (int32_t)op;
    return cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value);
}

/* A stored [columns, rows] row-major, which is [rows, columns] column-major. */
static cublasStatus_t make_layout(cublasLtMatrixLayout_t *out, int32_t dtype, int64_t rows, int64_t columns) {
    return cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)columns, rows);
}

static cublasStatus_t describe(cuda_plan *plan, const cuda_product *p) {
    const int64_t m = p->m > 0 ? p->m : 1, n = p->n, k = p->k; /* of rows in groups: set with each call */
    cublasStatus_t s = cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS) s = set_transpose(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, p->role == MOE_FPROP);
    if (s == CUBLAS_STATUS_SUCCESS) s = set_transpose(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, p->role == MOE_WGRAD);
    if (s == CUBLAS_STATUS_SUCCESS) s = make_layout(&plan->a, p->b_dtype, k, p->role == MOE_WGRAD ? m : n);
    if (s == CUBLAS_STATUS_SUCCESS) s = make_layout(&plan->b, p->a_dtype, p->role == MOE_FPROP ? k : n, m);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = make_layout(&plan->out, p->out_dtype, p->role == MOE_FPROP ? n : k, p->role == MOE_WGRAD ? n : m);
    return s;
}

static moe_status add_plan(cuda_products *all, cuda_plan *plan, const char *op, moe_err *err) {
    if (all->n_plans == all->room) {
        const int64_t room = all->room ? 2 * all->room : 32;
        cuda_plan **more = realloc(all->plans, (size_t)room * sizeof *more);
        if (!more) return moe_fail(err, MOE_E_NOMEM, "%s: %lld plans of products", op, (long long)room);
        all->plans = more;
        all->room = room;
    }
    all->plans[all->n_plans++] = plan;
    return MOE_OK;
}

moe_status cuda_plan_find(cuda_products *all, const cuda_product *p, uint64_t alignment, const char *op,
                          cuda_plan **out, moe_err *err) {
    const plan_key key = key_of(p, alignment);
    for (int64_t i = 0; i < all->n_plans; i++)
        if (memcmp(&all->plans[i]->key, &key, sizeof key) == 0) {
            *out = all->plans[i];
            return MOE_OK;
        }
    cuda_plan *plan = calloc(1, sizeof *plan + (key.grouped ? CLASSES : 1) * sizeof plan->choices[0]);
    if (!plan) return moe_fail(err, MOE_E_NOMEM, "%s: plan of a product", op);
    plan->key = key;
    moe_status s = blaslt_status(describe(plan, p), op, "descriptors of a product", err);
    if (s == MOE_OK) s = add_plan(all, plan, op, err);
    if (s == MOE_OK)
        *out = plan;
    else
        drop_plan(plan);
    return s;
}

/* ---- algorithms ---- */
/* Numbers of rows in a class: 2^(i-1) < rows <= 2^i; all up to 2^LEAST_CLASS are one. */
static int class_of(const cuda_plan *plan, int64_t rows) {
    int i = LEAST_CLASS;
    if (!plan->key.grouped) return 0;
    while (i < CLASSES - 1 && INT64_C(1) << i < rows) i++;
    return i;
}

static int first_class(const cuda_plan *plan) {
    return plan->key.grouped ? LEAST_CLASS : 0;
}
/* The most rows of class i, for which its algorithm is chosen. */
static int64_t most_rows(const cuda_plan *plan, int i) {
    return plan->key.grouped ? INT64_C(1) << i : plan->key.m;
}

/* The layouts of this number of rows. */
static cublasStatus_t set_rows(const cuda_plan *plan, int64_t rows) {
    const uint64_t n = (uint64_t)rows;
    const cublasLtMatrixLayout_t other = plan->key.role == MOE_WGRAD ? plan->a : plan->out;
    const cublasStatus_t s = cublasLtMatrixLayoutSetAttribute(plan->b, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof n);
    return s != CUBLAS_STATUS_SUCCESS
               ? s
               : cublasLtMatrixLayoutSetAttribute(other, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof n);
}

/* Sums that are split among blocks are kept in FP32 and added in order: never rounded to out's dtype on the way. */
static cublasStatus_t prefer(cublasLtMatmulPreference_t wish, uint64_t alignment, uint64_t workspace) {
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, bytes = (uint32_t)alignment;
    cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                            sizeof workspace);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
                                                 sizeof scheme);
    for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(wish, operands[i], &bytes, sizeof bytes);
    return s;
}

static moe_status choose(cuda_products *all, cuda_plan *plan, int i, uint64_t most, const char *op, moe_err *err) {
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    choice *c = &plan->choices[i];
    int n = 0;
    memset(&found, 0, sizeof found);
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(&wish);
    if (s == CUBLAS_STATUS_SUCCESS) s = prefer(wish, plan->key.alignment, most);
    if (s == CUBLAS_STATUS_SUCCESS) s = set_rows(plan, most_rows(plan, i));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(all->handle, plan->desc, plan->a, plan->b, plan->out, plan->out, wish, 1,
                                           &found, &n);
    if (wish) cublasLtMatmulPreferenceDestroy(wish);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED) s = CUBLAS_STATUS_SUCCESS, n = 0;
    if (s != CUBLAS_STATUS_SUCCESS) return blaslt_status(s, op, "choice of an algorithm", err);
    const int usable = n > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    *c = (choice){.state = usable ? USABLE : NONE, .algo = found.algo, .workspace = usable ? found.workspaceSize : 0};
    return MOE_OK;
}

moe_status cuda_plan_prepare(cuda_products *all, cuda_plan *plan, int64_t rows, const char *op, moe_err *err) {
    moe_status s = MOE_OK;
    for (int i = first_class(plan); i <= class_of(plan, rows) && s == MOE_OK; i++)
        if (plan->choices[i].state == NOT_ASKED) s = choose(all, plan, i, MOST_WORKSPACE, op, err);
    return s;
}

uint64_t cuda_plan_workspace(const cuda_plan *plan, int64_t rows) {
    uint64_t most = 0;
    for (int i = first_class(plan); i <= class_of(plan, rows); i++)
        if (plan->choices[i].workspace > most) most = plan->choices[i].workspace;
    return (most + CUDA_ALIGNMENT - 1) / CUDA_ALIGNMENT * CUDA_ALIGNMENT;
}

moe_status cuda_plan_run(cuda_products *all, cuda_plan *plan, const cuda_product *p, const char *op, int *done,
                         moe_err *err) {
    static const float one = 1.0f, zero = 0.0f;
    const int i = class_of(plan, p->m);
    const choice *c = &plan->choices[i];
    *done = 0;
    if (c->state == NOT_ASKED) {
        const moe_status s = choose(all, plan, i, 0, op, err);
        if (s != MOE_OK) return s;
    }
    if (c->state == NONE) return MOE_OK;
    if (c->workspace && !p->workspace) return moe_fail(err, MOE_E_ARG, "%s: workspace is NULL", op);
    cublasStatus_t s = set_rows(plan, p->m);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmul(all->handle, plan->desc, &one, p->b, plan->a, p->a, plan->b, p->accumulate ? &one : &zero,
                           p->out, plan->out, p->out, plan->out, &c->algo, p->workspace, c->workspace, p->stream);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED) return MOE_OK;
    *done = s == CUBLAS_STATUS_SUCCESS;
    return blaslt_status(s, op, "cublasLtMatmul", err);
}
