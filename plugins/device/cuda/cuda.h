/* The CUDA device as its operations see it. Everything under ops/ includes this and nothing else of the device; C and
 * C++. An operation is one file: kernels, launcher, and the record `cuda_op_NAME`. It reads device memory in kernels
 * only, enqueues on args->stream, allocates nothing, and reports errors in the data to args->fault (fault.cuh). */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H
#include <moe/device.h>
#include <moe/ops.h>
#include <moe/options.h>

#include "ops.h" /* plugins/device/common: checks of the arguments */
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_products cuda_products; /* handles and chosen algorithms of cuBLASLt: products/products.h */

/* The `dev` of moe_op calls. Constant after create, but for products, whose cache grows. */
typedef struct cuda_device {
    int index;             /* of this machine's devices */
    int units;             /* multiprocessors */
    uint64_t memory_total; /* bytes */
    cudaStream_t own;      /* allocations are made and cleared on it */
    cuda_products *products;
    char name[96];
} cuda_device;

#define CUDA_ALIGNMENT 256u /* bytes: moe_device_info.alignment */

static inline cudaStream_t cuda_stream(const moe_op_args *a) {
    return (cudaStream_t)a->stream;
}
/* Blocks for n things of which a block takes `each`; at least 1, since a launch of no blocks is an error, and more than
 * a grid can have where there are too many, which is one too. */
static inline unsigned cuda_blocks(int64_t n, int64_t each) {
    const int64_t blocks = (n + each - 1) / each;
    return blocks < 1 ? 1u : blocks > INT32_MAX ? UINT32_MAX : (unsigned)blocks;
}
/* Kernels count inside of a row with int: MOE_E_UNSUPPORTED "OP: 3000000000 columns, device/cuda takes 2147483647". */
static inline moe_status cuda_want_int(const char *op, int64_t n, const char *what, moe_err *err) {
    if (n <= INT32_MAX) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %lld %s, device/cuda takes %d", op, (long long)n, what, INT32_MAX);
}

#define CUDA_OP_DECLARE(name) extern const moe_op cuda_op_##name;
#include "list.h"
CUDA_OPS(CUDA_OP_DECLARE)

#ifdef __cplusplus
}
#endif
#endif
