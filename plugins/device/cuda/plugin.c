/* device/cuda: the entry, the descriptor and the life of an instance. memory.c, stream.c: the runtime's memory, streams
 * and events; ops/: the operations; products/: the products, by cuBLASLt. */
#include <moe/plugin.h>

#include "device.h"
#include "products/products.h"

/* Which device, and what it is. */
static moe_status find_device(cuda_device *dev, const moe_device_cfg *cfg, moe_err *err) {
    struct cudaDeviceProp about;
    int n = 0;
    moe_status s = cuda_status(cudaGetDeviceCount(&n), "device/cuda: devices of this machine", err);
    if (s != MOE_OK) return s;
    if (cfg->index >= (uint32_t)n)
        return moe_fail(err, MOE_E_DEVICE, "device/cuda: rank %u is number %u of its machine, which has %d device%s",
                        cfg->rank, cfg->index, n, n == 1 ? "" : "s");
    dev->index = (int)cfg->index;
    s = cuda_status(cudaSetDevice(dev->index), "device/cuda: the device", err);
    if (s == MOE_OK) s = cuda_status(cudaGetDeviceProperties(&about, dev->index), "device/cuda: the device", err);
    if (s != MOE_OK) return s;
    if (about.major < 9)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "device/cuda: device %d, %s, has compute capability %d.%d; want 9.0 or later", dev->index,
                        about.name, about.major, about.minor);
    dev->units = about.multiProcessorCount;
    dev->memory_total = about.totalGlobalMem;
    snprintf(dev->name, sizeof dev->name, "%.80s", about.name);
    return MOE_OK;
}

static void device_destroy(void *self) {
    cuda_device *dev = self;
    if (!dev) return;
    cuda_products_destroy(dev->products);
    if (dev->own) {
        cudaStreamSynchronize(dev->own);
        cudaStreamDestroy(dev->own);
    }
    free(dev);
}

static moe_status device_create(const moe_device_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)host;
    cuda_device *dev = calloc(1, sizeof *dev);
    if (!dev) return moe_fail(err, MOE_E_NOMEM, "device/cuda: %zu bytes for the instance", sizeof *dev);
    moe_status s = find_device(dev, cfg, err);
    if (s == MOE_OK)
        s = cuda_status(cudaStreamCreateWithFlags(&dev->own, cudaStreamNonBlocking), "device/cuda: stream", err);
    if (s == MOE_OK) s = cuda_products_create(&dev->products, err);
    if (s == MOE_OK)
        *self = dev;
    else
        device_destroy(dev);
    return s;
}

static moe_status device_info(void *self, moe_device_info *info, moe_err *err) {
    const cuda_device *dev = self;
    if (!MOE_REACH(info, moe_device_info, name))
        return moe_fail(err, MOE_E_ARG, "device/cuda: info has size %u, want at least %zu", info->size, sizeof *info);
    info->compute_units = (uint32_t)dev->units;
    info->memory_total = dev->memory_total;
    info->alignment = CUDA_ALIGNMENT;
    info->own_memory = 0;
    snprintf(info->name, sizeof info->name, "%s", dev->name);
    return MOE_OK;
}

static const void *device_extension(void *self, const char *id) {
    (void)self;
    (void)id;
    return NULL;
}

#define CUDA_OP_POINTER(name) &cuda_op_##name,
static const moe_op *const operations[] = {CUDA_OPS(CUDA_OP_POINTER)};

static const moe_device_v0 table = {.size = sizeof table,
                                    .n_ops = sizeof operations / sizeof operations[0],
                                    .ops = operations,
                                    .create = device_create,
                                    .destroy = device_destroy,
                                    .info = device_info,
                                    .alloc = cuda_alloc,
                                    .free = cuda_free,
                                    .copy = cuda_copy,
                                    .fill = cuda_fill,
                                    .stream_create = cuda_stream_create,
                                    .stream_destroy = cuda_stream_destroy,
                                    .event_create = cuda_event_create,
                                    .event_destroy = cuda_event_destroy,
                                    .event_record = cuda_event_record,
                                    .event_wait = cuda_event_wait,
                                    .event_sync = cuda_event_sync,
                                    .stream_sync = cuda_stream_sync,
                                    .call_host = cuda_call_host,
                                    .extension = device_extension};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "device",
                              .id = "cuda",
                              .device = "cuda",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "NVIDIA GPUs of compute capability 9.0 and later: one a rank",
                              .flags = MOE_ASYNC | MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
