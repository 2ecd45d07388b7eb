/* moe.first_fault/0: the least place of a fault; one block. Memory: 8 of 32 bytes a call of the step. */
#include "../cuda.h"
#include "reduce.cuh"

namespace {

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) find(const moe_fault *__restrict__ faults, int n, int64_t *first) {
    KERNEL_SHARED(int, least);
    if (threadIdx.x == 0) least = n;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS)
        if (faults[i].code) {
            atomicMin(&least, i);
            break;
        }
    __syncthreads();
    if (threadIdx.x) return;
    const bool found = least < n;
    first[0] = found ? faults[least].code : 0;
    first[1] = found ? faults[least].token : 0;
    first[2] = found ? faults[least].value : 0;
    first[3] = found ? least : 0;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_first_fault(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    KERNEL_LAUNCH(find, 1, THREADS, 0, cuda_stream(a), static_cast<const moe_fault *>(a->in[0].data),
                  (int)a->in[0].shape[0], static_cast<int64_t *>(a->out[0].data));
    return cuda_launched(MOE_OP_FIRST_FAULT, err);
}

}  // namespace

extern const moe_op cuda_op_first_fault = {sizeof(moe_op), 0, MOE_OP_FIRST_FAULT, sizes, forward, nullptr};
