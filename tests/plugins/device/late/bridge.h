/* A synchronous plugin behind asynchronous calls, on any asynchronous device: what it reads is copied to host memory in
 * stream order, it is called there by call_host, and what it writes is copied back. For tests: a step call allocates.
 */
#ifndef TESTS_LATE_BRIDGE_H
#define TESTS_LATE_BRIDGE_H
#include <dlfcn.h>
#include <moe/plugin.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BRIDGE_PARTS = 160 };

typedef struct bridge_part {
    void *device, *host;
    uint64_t bytes;
    int out;
} bridge_part;

/* One call; the plugin's own struct begins with it. */
typedef struct bridge {
    const moe_device_service *dev;
    void *stream;
    void (*run)(struct bridge *b); /* on the stream's worker, with host memory in place */
    uint32_t n, full;
    bridge_part parts[BRIDGE_PARTS];
} bridge;

/* Host memory in the place of device memory; out: it is copied back. NULL stays NULL. */
static inline void *bridge_take(bridge *b, void *device, uint64_t bytes, int out) {
    if (!device || !bytes) return device;
    b->full |= b->n == BRIDGE_PARTS;
    void *host = b->full ? NULL : calloc(1, bytes);
    b->full |= !host;
    if (host) b->parts[b->n++] = (bridge_part){device, host, bytes, out};
    return host;
}

static inline uint64_t bridge_bytes(const moe_tensor *t) {
    static const uint8_t bytes[] = {4, 2, 8, 4, 8, 1, 1, 1, 1, 1};
    uint64_t n = t->ndim ? bytes[t->dtype] : 0;
    for (int32_t i = 0; i < t->ndim; i++) n *= (uint64_t)t->shape[i];
    return n;
}

/* The same of the tensor *from, whose view is *to from then on. */
static inline const moe_tensor *bridge_tensor(bridge *b, const moe_tensor *from, moe_tensor *to, int out) {
    if (!from) return NULL;
    *to = *from;
    to->data = bridge_take(b, from->data, bridge_bytes(from), out);
    return to;
}

static inline void bridge_free(void *arg) {
    bridge *b = arg;
    for (uint32_t i = 0; i < b->n; i++) free(b->parts[i].host);
    free(b);
}

static inline void bridge_run(void *arg) {
    bridge *b = arg;
    b->run(b);
}

/* Enqueues the whole; b is freed at its end, or here when it fails. */
static inline moe_status bridge_enqueue(bridge *b, moe_err *err) {
    const moe_device_v0 *d = b->dev->table;
    void *self = b->dev->self;
    moe_status s = b->full ? moe_fail(err, MOE_E_NOMEM, "bridge: out of memory") : MOE_OK;
    for (uint32_t i = 0; i < b->n && !s; i++)
        s = d->copy(self, b->stream, b->parts[i].host, b->parts[i].device, b->parts[i].bytes, err);
    if (!s) s = d->call_host(self, b->stream, bridge_run, b, err);
    for (uint32_t i = 0; i < b->n && !s; i++)
        if (b->parts[i].out) s = d->copy(self, b->stream, b->parts[i].device, b->parts[i].host, b->parts[i].bytes, err);
    if (!s) return d->call_host(self, b->stream, bridge_free, b, err);
    moe_err ignored = {.size = sizeof ignored};
    d->stream_sync(self, b->stream, &ignored);
    bridge_free(b);
    return s;
}

/* The descriptor of a built plugin, NULL where it is not there. It stays loaded. */
static inline const moe_desc *bridge_open(const char *path) {
    const moe_entry *(*entry)(void) = NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (so) *(void **)&entry = dlsym(so, MOE_ENTRY_SYMBOL);
    return entry ? entry()->descs[0] : NULL;
}

/* Defines the export: the plugin KIND/ID of the CPU under its own id and with its options, for device "late", with
 * these flags and, but where it is NULL, this table. bridge_inner: the CPU's descriptor. */
#define BRIDGE_PLUGIN(kind_id_, flags_, table_)                                                         \
    static const moe_desc *bridge_inner;                                                                \
    static moe_desc bridge_desc;                                                                        \
    static pthread_once_t bridge_once = PTHREAD_ONCE_INIT;                                              \
    static void bridge_load(void) {                                                                     \
        const void *own = (table_);                                                                     \
        bridge_inner = bridge_open(MOE_BUILD_DIR "/plugins/" kind_id_ ".so");                           \
        if (!bridge_inner) return;                                                                      \
        bridge_desc = *bridge_inner;                                                                    \
        bridge_desc.device = "late";                                                                    \
        bridge_desc.flags = (flags_);                                                                   \
        if (own) bridge_desc.vtable = own;                                                              \
    }                                                                                                   \
    MOE_EXPORT const moe_entry *moe_plugin_entry_v0(void) {                                             \
        static const moe_desc *const descs[] = {&bridge_desc};                                          \
        static const moe_entry entry = {MOE_MAGIC, sizeof(moe_entry), MOE_MINOR, 0, 8 * sizeof(void *), \
                                        1,         MOE_ABI_TAG,       descs};                           \
        pthread_once(&bridge_once, bridge_load);                                                        \
        return bridge_inner ? &entry : NULL;                                                            \
    }
#endif
