/* device/cpu: the entry, the descriptor and the life of an instance. The parts: options.c (threads, instruction set),
 * memory.c, thread.c, pool.c (cpu_run), bf16.c, stream.c and event.c, dispatch.c and ops/ (the operations). */
#include <moe/plugin.h>

#include "runtime.h"

/* ---- memory that comes when it is used ---- */
static moe_status reserve(cpu_device *dev, uint64_t bytes, int scratch, void **out, moe_err *err) {
    cpu_lazy *block = malloc(sizeof *block);
    moe_status s =
        block ? cpu_reserve(bytes, scratch, out, err) : moe_fail(err, MOE_E_NOMEM, "device/cpu: out of memory");
    if (s != MOE_OK) {
        free(block);
        return s;
    }
    *block = (cpu_lazy){*out, bytes, scratch, dev->lazy};
    dev->lazy = block;
    return MOE_OK;
}

static void release(cpu_device *dev, void *ptr, uint64_t bytes) {
    for (cpu_lazy **at = &dev->lazy; ptr && *at; at = &(*at)->next) {
        cpu_lazy *block = *at;
        if (block->ptr != ptr) continue;
        *at = block->next;
        free(block);
        break;
    }
    cpu_unmap(ptr, bytes);
}

/* What has come, and of scratch at least what the threads that compute are going to use. */
static uint64_t lazy_bytes(const cpu_device *dev) {
    uint64_t there[2] = {0}, scratch = dev->settings.threads * CPU_SCRATCH_BYTES; /* there: of rows, of scratch */
    for (const cpu_lazy *l = dev->lazy; l; l = l->next) there[l->scratch] += cpu_resident(l->ptr, l->bytes);
    return there[0] + (there[1] > scratch ? there[1] : scratch);
}

moe_status cpu_worker_start(cpu_device *dev, cpu_worker *w, uint32_t index, moe_err *err) {
    void *scratch = NULL;
    moe_status s = reserve(dev, CPU_SCRATCH_BYTES, 1, &scratch, err);
    if (s != MOE_OK) return s;
    *w = (cpu_worker){.scratch = scratch, .scratch_bytes = CPU_SCRATCH_BYTES, .index = index};
    return MOE_OK;
}

void cpu_worker_stop(cpu_device *dev, cpu_worker *w) {
    release(dev, w->scratch, w->scratch_bytes);
    w->scratch = NULL;
}

/* ---- moe.parallel/0 ---- */
typedef struct shared_loop {
    void (*fn)(void *arg, int64_t i, uint32_t worker);
    void *arg;
} shared_loop;

static void run_shared_piece(void *arg, int64_t i, cpu_worker *w) {
    const shared_loop *loop = arg;
    loop->fn(loop->arg, i, w->index);
}

static void run_shared(void *self, int64_t n, void (*fn)(void *arg, int64_t i, uint32_t worker), void *arg) {
    shared_loop loop = {fn, arg};
    cpu_run(self, n, run_shared_piece, &loop);
}

static const void *device_extension(void *self, const char *id) {
    const cpu_device *dev = self;
    return strcmp(id, "moe.parallel/0") == 0 ? &dev->parallel : NULL;
}

/* ---- life ---- */
static moe_status device_create(const moe_device_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)host;
    cpu_settings settings = {0};
    moe_status s = cpu_thread_check(err);
    if (s == MOE_OK) s = cpu_settings_read(cfg, &settings, err);
    if (s != MOE_OK) return s;
    cpu_device *dev = aligned_alloc(64, sizeof *dev);
    if (!dev) return moe_fail(err, MOE_E_NOMEM, "device/cpu: %zu bytes for the instance", sizeof *dev);
    memset(dev, 0, sizeof *dev);
    dev->settings = settings;
    dev->ops = cpu_dispatch_table(settings.isa);
    dev->parallel = (moe_parallel){sizeof(moe_parallel), settings.threads, run_shared, dev};
    int fault = pthread_key_create(&dev->key, NULL);
    if (fault) {
        s = moe_fail(err, MOE_E_DEVICE, "device/cpu: key of the threads: %s", strerror(fault));
        goto free_device;
    }
    s = cpu_worker_start(dev, &dev->outsider, 0, err);
    if (s != MOE_OK) goto free_key;
    s = cpu_bf16_start(dev, err);
    if (s == MOE_OK) s = cpu_pool_start(dev, err);
    if (s != MOE_OK) goto stop_pool;
    *self = dev;
    return MOE_OK;
stop_pool:
    cpu_pool_stop(dev);
    cpu_bf16_stop(dev);
    cpu_worker_stop(dev, &dev->outsider);
free_key:
    pthread_key_delete(dev->key);
free_device:
    free(dev);
    return s;
}

static void device_destroy(void *self) {
    cpu_device *dev = self;
    if (!dev) return;
    cpu_pool_stop(dev);
    cpu_bf16_stop(dev);
    cpu_worker_stop(dev, &dev->outsider);
    while (dev->events) cpu_event_destroy(dev, dev->events);
    pthread_key_delete(dev->key);
    free(dev);
}

/* What oneDNN holds by itself once the first products have run, measured with version 2.6 on AVX-512 with 1 to 4
 * threads: 4.5 MiB of generated code and tables, and 2 MiB of packed operands for every thread that computes. */
enum { PRODUCT_BYTES = 4608 << 10, PRODUCT_BYTES_THREAD = 2 << 20 };

static moe_status device_info(void *self, moe_device_info *info, moe_err *err) {
    static const char *const names[] = {"baseline", "AVX2", "AVX-512"};
    cpu_device *dev = self;
    if (!MOE_REACH(info, moe_device_info, name))
        return moe_fail(err, MOE_E_ARG, "device/cpu: info has size %u, want at least %zu", info->size, sizeof *info);
    info->compute_units = dev->settings.threads;
    info->memory_total = cpu_memory_total();
    info->alignment = 64;
    info->own_memory = atomic_load(&dev->own_memory) + sizeof *dev + PRODUCT_BYTES +
                       (uint64_t)PRODUCT_BYTES_THREAD * dev->settings.threads + lazy_bytes(dev);
    snprintf(info->name, sizeof info->name, "%s%s, %u thread%s", names[dev->settings.isa],
             dev->bf16 ? " with BF16 products" : "", dev->settings.threads, dev->settings.threads == 1 ? "" : "s");
    return MOE_OK;
}

static moe_status device_alloc(void *self, int32_t space, uint64_t bytes, void **out, moe_err *err) {
    if (space == MOE_SPACE_LAZY) return reserve(self, bytes, 0, out, err);
    return cpu_map(bytes, "alloc", out, err); /* host and device read the same memory */
}

static void device_free(void *self, int32_t space, void *ptr, uint64_t bytes) {
    if (space == MOE_SPACE_LAZY)
        release(self, ptr, bytes);
    else
        cpu_unmap(ptr, bytes);
}

/* ---- the descriptor ---- */
static const moe_device_v0 table = {
    .size = sizeof(moe_device_v0),
    .n_ops = CPU_N_OPS,
    .ops = cpu_dispatch,
    .create = device_create,
    .destroy = device_destroy,
    .info = device_info,
    .alloc = device_alloc,
    .free = device_free,
    .copy = cpu_stream_copy,
    .fill = cpu_stream_fill,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .stream_sync = cpu_stream_sync,
    .call_host = cpu_stream_call,
    .extension = device_extension,
};
static const moe_desc desc = {
    .size = sizeof(moe_desc),
    .kind = "device",
    .id = "cpu",
    .device = "cpu",
    .version = "0.1.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary = "host processor: operations for AVX-512, AVX2 and older, large products of its own, others by oneDNN",
    .options = cpu_options,
    .n_options = CPU_N_OPTIONS,
    .flags = MOE_DETERMINISTIC,
    .vtable = &table,
};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
