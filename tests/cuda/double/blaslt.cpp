/* Products of cuBLASLt by plain loops over copies of the numbers in FP32. See blaslt.h. */
#include "blaslt.h"

#include <cublasLt.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "runtime.h"

namespace {

std::atomic<int64_t> creates, destroys, heuristics, products, refused;

enum kind : uint64_t { LAYOUT = 0x4c41594f5554, DESC, PREFERENCE, ALGO, GONE };

struct layout {
    kind is;
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};
struct desc {
    kind is;
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t transpose[2];
};
struct preference {
    kind is;
    uint64_t workspace;
    uint32_t schemes, alignment[4]; /* of A, B, C, D */
};
/* What an algorithm was chosen for, all but sizes. */
struct algorithm {
    kind is;
    uint64_t workspace;
    cudaDataType_t type[4];
    cublasOperation_t transpose[2];
    uint32_t alignment[4];
};
static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "layout");
static_assert(sizeof(desc) <= sizeof(cublasLtMatmulDescOpaque_t), "descriptor");
static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "preference");
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "algorithm");

/* Objects of ours behind the library's pointers. */
template <class T>
T *of(const void *p, kind is) {
    T *t = static_cast<T *>(const_cast<void *>(p));
    return t && t->is == is ? t : nullptr;
}
template <class T>
cublasStatus_t destroy(void *p, kind is) {
    T *t = of<T>(p, is);
    if (!t) return CUBLAS_STATUS_INVALID_VALUE;
    t->is = GONE;
    delete t;
    destroys++;
    return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t put(T *to, const void *from, size_t bytes) {
    if (!from || bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t refuse(cublasStatus_t status) {
    refused++;
    return status;
}

uint64_t bytes_of(cudaDataType_t type) {
    return type == CUDA_R_16BF ? 2 : 4;
}

/* A problem: D [m,n] = op(A) op(B) + C, column-major, inner size k. */
struct problem {
    const desc *d;
    const layout *of[4]; /* A, B, C, D */
    uint64_t m, n, k;
};

bool fits(const layout *l, uint64_t rows, uint64_t columns) {
    return l->rows == rows && l->columns == columns;
}

cublasStatus_t look(problem *p, const void *d, const void *a, const void *b, const void *c, const void *out) {
    const void *all[] = {a, b, c, out};
    p->d = ::of<desc>(d, DESC);
    if (!p->d) return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++) {
        const layout *l = p->of[i] = ::of<layout>(all[i], LAYOUT);
        if (!l || !l->rows || !l->columns || l->ld < (int64_t)l->rows) return CUBLAS_STATUS_INVALID_VALUE;
        if (l->type != CUDA_R_32F && l->type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (p->d->compute != CUBLAS_COMPUTE_32F || p->d->scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool ta = p->d->transpose[0] == CUBLAS_OP_T, tb = p->d->transpose[1] == CUBLAS_OP_T;
    p->m = p->of[3]->rows;
    p->n = p->of[3]->columns;
    p->k = ta ? p->of[0]->rows : p->of[0]->columns;
    if (!fits(p->of[0], ta ? p->k : p->m, ta ? p->m : p->k) || !fits(p->of[1], tb ? p->n : p->k, tb ? p->k : p->n) ||
        !fits(p->of[2], p->m, p->n))
        return CUBLAS_STATUS_INVALID_VALUE;
    const cudaDataType_t in = p->of[0]->type, result = p->of[3]->type;
    if (p->of[1]->type != in || p->of[2]->type != result) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (in == CUDA_R_32F && result != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* Tensor cores read 16 bytes at once. */
bool aligned(const problem &p, const uint32_t alignment[4]) {
    const bool bf16 = p.of[0]->type == CUDA_R_16BF;
    for (int i = 0; i < 4; i++) {
        if (bf16 && (alignment[i] < 16 || (uint64_t)p.of[i]->ld * bytes_of(p.of[i]->type) % 16)) return false;
        if (alignment[i] < bytes_of(p.of[i]->type)) return false;
        if (alignment[i] >= 16 && (uint64_t)p.of[i]->ld * bytes_of(p.of[i]->type) % 16) return false;
    }
    return true;
}

/* ---- one product, in stream order ---- */
struct call {
    bool ta, tb;
    uint64_t m, n, k;
    int64_t lda, ldb, ldd;
    cudaDataType_t in, out;
    const void *a, *b;
    void *d;
    float alpha, beta;
    unsigned char *workspace;
    uint64_t workspace_bytes;
};

/* [rows,columns] row-major in FP32 of a matrix whose element (r,c) lies at r * row + c * column. */
std::vector<float> numbers(const void *from, cudaDataType_t type, uint64_t rows, uint64_t columns, uint64_t row,
                           uint64_t column) {
    std::vector<float> to(rows * columns);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            const uint64_t at = r * row + c * column;
            to[r * columns + c] = type == CUDA_R_16BF ? __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[at])
                                                      : static_cast<const float *>(from)[at];
        }
    return to;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define AS_WIDE_AS_THE_MACHINE
#else
#define AS_WIDE_AS_THE_MACHINE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
/* to [m] = row [k] by a [k,m], each sum in order of k. */
AS_WIDE_AS_THE_MACHINE void add_rows(float *__restrict__ to, const float *__restrict__ row, const float *__restrict__ a,
                                     uint64_t k, uint64_t m) {
    constexpr uint64_t part = 64;
    uint64_t i = 0;
    for (; i + part <= m; i += part) {
        float sum[part] = {};
        for (uint64_t d = 0; d < k; d++)
            for (uint64_t e = 0; e < part; e++) sum[e] += row[d] * a[d * m + i + e];
        for (uint64_t e = 0; e < part; e++) to[i + e] = sum[e];
    }
    for (; i < m; i++) {
        to[i] = 0;
        for (uint64_t d = 0; d < k; d++) to[i] += row[d] * a[d * m + i];
    }
}

/* D's columns are rows here: d[n,m] = alpha b[n,k] a[k,m] + beta d. */
void multiply(const call &c) {
    const uint64_t lda = (uint64_t)c.lda, ldb = (uint64_t)c.ldb, ldd = (uint64_t)c.ldd;
    const std::vector<float> a = numbers(c.a, c.in, c.k, c.m, c.ta ? 1 : lda, c.ta ? lda : 1);
    const std::vector<float> b = numbers(c.b, c.in, c.n, c.k, c.tb ? 1 : ldb, c.tb ? ldb : 1);
    std::vector<float> sum(c.m);
    for (uint64_t j = 0; j < c.n; j++) {
        add_rows(sum.data(), &b[j * c.k], a.data(), c.k, c.m);
        for (uint64_t i = 0; i < c.m; i++) {
            const uint64_t at = j * ldd + i;
            auto *bf16 = static_cast<__nv_bfloat16 *>(c.d);
            auto *fp32 = static_cast<float *>(c.d);
            const bool narrow = c.out == CUDA_R_16BF;
            float v = c.alpha * sum[i];
            if (c.beta != 0) v += c.beta * (narrow ? __bfloat162float(bf16[at]) : fp32[at]);
            if (narrow)
                bf16[at] = __float2bfloat16_rn(v);
            else
                fp32[at] = v;
        }
    }
}

/* The workspace holds this product's mark from its begin to its end; where it does not, the result is spoilt. */
void run(void *arg) {
    static std::atomic<unsigned char> next{1};
    const call *c = static_cast<const call *>(arg);
    const unsigned char mark = next++;
    if (c->workspace_bytes) memset(c->workspace, mark, c->workspace_bytes);
    multiply(*c);
    for (uint64_t i = 0; i < c->workspace_bytes; i++)
        if (c->workspace[i] != mark) memset(c->d, 0xff, c->m * bytes_of(c->out));
    delete c;
}

}  // namespace

extern "C" {

double_blaslt_count double_blaslt_counts(void) {
    return {creates, destroys, heuristics, products, refused};
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_ALLOC_FAILED:
            return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_STATUS_EXECUTION_FAILED:
            return "CUBLAS_STATUS_EXECUTION_FAILED";
        default:
            return "CUBLAS_STATUS_UNKNOWN";
    }
}

/* ---- objects ---- */
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    if (double_fails("cublasLtCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
    *out = reinterpret_cast<cublasLtHandle_t>(new uint64_t(0));
    creates++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete reinterpret_cast<uint64_t *>(handle);
    destroys++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    *out = reinterpret_cast<cublasLtMatrixLayout_t>(new layout{LAYOUT, type, rows, cols, ld});
    creates++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t p) {
    return destroy<layout>(p, LAYOUT);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t p, cublasLtMatrixLayoutAttribute_t which,
                                                const void *from, size_t bytes) {
    layout *l = of<layout>(p, LAYOUT);
    return l && which == CUBLASLT_MATRIX_LAYOUT_COLS ? put(&l->columns, from, bytes) : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    *out = reinterpret_cast<cublasLtMatmulDesc_t>(new desc{DESC, compute, scale, {CUBLAS_OP_N, CUBLAS_OP_N}});
    creates++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p) {
    return destroy<desc>(p, DESC);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t which,
                                              const void *from, size_t bytes) {
    desc *d = of<desc>(p, DESC);
    const int i = which == CUBLASLT_MATMUL_DESC_TRANSB;
    int32_t op = -1;
    if (!d || (!i && which != CUBLASLT_MATMUL_DESC_TRANSA)) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t s = put(&op, from, bytes);
    if (s != CUBLAS_STATUS_SUCCESS || (op != CUBLAS_OP_N && op != CUBLAS_OP_T)) return CUBLAS_STATUS_INVALID_VALUE;
    d->transpose[i] = static_cast<cublasOperation_t>(op);
    return s;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    auto *p = new preference{PREFERENCE, 0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    *out = reinterpret_cast<cublasLtMatmulPreference_t>(p);
    creates++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    return destroy<preference>(p, PREFERENCE);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void *from,
                                                    size_t bytes) {
    preference *p = of<preference>(pref, PREFERENCE);
    if (!p) return CUBLAS_STATUS_INVALID_VALUE;
    switch (which) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return put(&p->workspace, from, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return put(&p->schemes, from, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return put(&p->alignment[0], from, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return put(&p->alignment[1], from, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return put(&p->alignment[2], from, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return put(&p->alignment[3], from, bytes);
        default:
            return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* ---- choice and product ---- */
/* The one algorithm that there is splits its sums and so wants a workspace, where it may have one. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t pref, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    const preference *wish = of<preference>(pref, PREFERENCE);
    problem p = {};
    heuristics++;
    *found = 0;
    if (!handle || !wish || wanted < 1 || !results) return refuse(CUBLAS_STATUS_INVALID_VALUE);
    const cublasStatus_t s = look(&p, d, a, b, c, out);
    if (s != CUBLAS_STATUS_SUCCESS) return refuse(s);
    if (double_fails("cublasLtMatmulAlgoGetHeuristic")) return refuse(CUBLAS_STATUS_NOT_SUPPORTED);
    if (!aligned(p, wish->alignment)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED);
    const bool split = wish->workspace >= 1000 && wish->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    algorithm made = {};
    made.is = ALGO;
    made.workspace = split ? 1000 : 0; /* no multiple of 256 */
    for (int i = 0; i < 4; i++) made.type[i] = p.of[i]->type, made.alignment[i] = wish->alignment[i];
    for (int i = 0; i < 2; i++) made.transpose[i] = p.d->transpose[i];
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &made, sizeof made);
    results[0].workspaceSize = made.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    const algorithm *way = of<algorithm>(algo, ALGO);
    problem p = {};
    if (!handle || !way || !alpha || !beta || !a || !b || c != out || !out) return refuse(CUBLAS_STATUS_INVALID_VALUE);
    const cublasStatus_t s = look(&p, d, la, lb, lc, lout);
    if (s != CUBLAS_STATUS_SUCCESS) return refuse(s);
    const void *data[] = {a, b, c, out};
    for (int i = 0; i < 4; i++)
        if (way->type[i] != p.of[i]->type || (uintptr_t)data[i] % way->alignment[i])
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED);
    for (int i = 0; i < 2; i++)
        if (way->transpose[i] != p.d->transpose[i]) return refuse(CUBLAS_STATUS_NOT_SUPPORTED);
    if (!aligned(p, way->alignment)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED);
    if (way->workspace > workspace_bytes || (way->workspace && (!workspace || (uintptr_t)workspace % 256)))
        return refuse(CUBLAS_STATUS_INVALID_VALUE);
    if (double_fails("cublasLtMatmul")) return refuse(CUBLAS_STATUS_EXECUTION_FAILED);
    auto *job = new call{p.d->transpose[0] == CUBLAS_OP_T,
                         p.d->transpose[1] == CUBLAS_OP_T,
                         p.m,
                         p.n,
                         p.k,
                         p.of[0]->ld,
                         p.of[1]->ld,
                         p.of[3]->ld,
                         p.of[0]->type,
                         p.of[3]->type,
                         a,
                         b,
                         out,
                         *static_cast<const float *>(alpha),
                         *static_cast<const float *>(beta),
                         static_cast<unsigned char *>(workspace),
                         way->workspace};
    if (double_enqueue(stream, run, job) != cudaSuccess) {
        delete job;
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    products++;
    return CUBLAS_STATUS_SUCCESS;
}
}
