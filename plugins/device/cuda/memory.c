/* Device memory from the stream-ordered pool of the runtime, pinned host memory, copies and fills. */
#include "device.h"

/* LAZY is DEVICE here: a page of a GPU's memory does not come by being written. */
moe_status cuda_alloc(void *self, int32_t space, uint64_t bytes, void **out, moe_err *err) {
    cuda_device *dev = self;
    void *p = NULL;
    char what[64];
    snprintf(what, sizeof what, "device/cuda: %llu bytes of %s memory", (unsigned long long)bytes,
             space == MOE_SPACE_HOST ? "pinned" : "device");
    if (space == MOE_SPACE_HOST) {
        const moe_status s = cuda_status(cudaHostAlloc(&p, bytes, cudaHostAllocPortable), what, err);
        if (s != MOE_OK) return s;
        memset(p, 0, bytes);
        *out = p;
        return MOE_OK;
    }
    moe_status s = cuda_status(cudaMallocAsync(&p, bytes, dev->own), what, err);
    if (s != MOE_OK) return s;
    s = cuda_status(cudaMemsetAsync(p, 0, bytes, dev->own), what, err);
    if (s == MOE_OK) s = cuda_status(cudaStreamSynchronize(dev->own), what, err);
    if (s != MOE_OK) {
        cudaFreeAsync(p, dev->own);
        return s;
    }
    *out = p;
    return MOE_OK;
}

void cuda_free(void *self, int32_t space, void *ptr, uint64_t bytes) {
    cuda_device *dev = self;
    (void)bytes;
    if (!ptr) return;
    if (space == MOE_SPACE_HOST)
        cudaFreeHost(ptr);
    else
        cudaFreeAsync(ptr, dev->own);
}

moe_status cuda_copy(void *self, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err) {
    (void)self;
    return cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream), "device/cuda: copy", err);
}

moe_status cuda_fill(void *self, void *stream, void *dst, uint8_t byte, uint64_t bytes, moe_err *err) {
    (void)self;
    return cuda_status(cudaMemsetAsync(dst, byte, bytes, stream), "device/cuda: fill", err);
}
