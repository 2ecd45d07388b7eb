/* cuBLASLt on a CPU: the calls that device/cuda makes, for products of FP32 and of BF16. The functions are declared by
 * <cublasLt.h>. Stricter than the library, whose setters check nothing: an attribute that this does not know, a size
 * that does not fit, a pointer or a leading dimension that is not aligned as the algorithm was promised, a workspace
 * that is too small or not at 256 bytes, are refused. A workspace is written while the product runs, so that two that
 * share one are seen: by ThreadSanitizer, and by wrong results.
 *
 * MOE_DOUBLE_FAIL (runtime.h) knows cublasLtCreate, cublasLtMatmulAlgoGetHeuristic (no algorithm is found), and
 * cublasLtMatmul. */
#ifndef CUDA_DOUBLE_BLASLT_H
#define CUDA_DOUBLE_BLASLT_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls since the process began. */
typedef struct double_blaslt_count {
    int64_t creates;    /* of handles, descriptors, layouts and preferences */
    int64_t destroys;   /* of the same */
    int64_t heuristics; /* cublasLtMatmulAlgoGetHeuristic */
    int64_t products;   /* cublasLtMatmul that were enqueued */
    int64_t refused;    /* cublasLtMatmul and heuristics that were refused */
} double_blaslt_count;
double_blaslt_count double_blaslt_counts(void); /* [any] */

#ifdef __cplusplus
}
#endif
#endif
