/* moehost plugin ABI, version 0: what every kind shares - status, errors, tensors, rows in expert order,
 * descriptors, the one export, and what the host offers. Compiles as C11..C17 and C++11..C++20.
 *
 * Rules that hold for every header here:
 *  - A struct that may grow begins with `size`, set by whoever fills it; a reader tests MOE_REACH per field. Where the
 *    callee fills (needs, info), the caller sets size, and the callee writes no field that it does not reach.
 *  - Structs are borrowed for the call. Data that a tensor points to lives until the stream has passed the call.
 *  - Whoever allocates frees. The host allocates everything but a plugin's own instance.
 *  - Thread tags: [main] set-up and tear-down, one thread at a time for an instance; [step] inside a training step,
 *    never allocates; [any] from every thread. "collective" = every rank of the group calls it in the same order.
 *  - Step calls of a plugin without MOE_ASYNC run on the lane's worker in stream order, and return means done.
 *    With MOE_ASYNC they only enqueue on the given stream. */
#ifndef MOE_BASE_H
#define MOE_BASE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_MAGIC 0x30454f4du /* "MOE0" in memory; the major is also in the export's name */
#define MOE_MAJOR 0u
#define MOE_MINOR 0u /* append-only within a major */
/* State of the contract while the major is 0: changes with every change that is not append-only, so that a plugin of
 * other layouts is refused. "" from version 1 on. */
#define MOE_ABI_TAG "v0-5"

/* Does the peer's struct reach member m? By offset: never '==', never sizeof of the whole. */
#define MOE_REACH(p, T, m) ((p)->size >= offsetof(T, m) + sizeof(((T *)0)->m))

/* ---- status and errors ---- */
typedef int32_t moe_status;
#define MOE_STATUS_LIST(X)                              \
    X(MOE_OK, 0, "done")                                \
    X(MOE_E_ARG, 1, "bad argument")                     \
    X(MOE_E_UNSUPPORTED, 2, "not supported")            \
    X(MOE_E_NOMEM, 3, "out of memory")                  \
    X(MOE_E_DEVICE, 4, "device failure")                \
    X(MOE_E_COMM, 5, "communication failure or abort")  \
    X(MOE_E_OVERFLOW, 6, "a buffer bound was exceeded") \
    X(MOE_E_DATA, 7, "not a number in the data")        \
    X(MOE_E_INTERNAL, 8, "internal fault")              \
    X(MOE_E_IO, 9, "file or system failure")
#define MOE_STATUS_CONST(name, value, text) name = value,
enum { MOE_STATUS_LIST(MOE_STATUS_CONST) };
#undef MOE_STATUS_CONST

/* Filled by the first detector with the exact cause (shape, index, value); owned by the caller, never NULL. */
typedef struct moe_err {
    uint32_t size;
    moe_status code;
    char msg[504]; /* NUL-terminated UTF-8, one line, no trailing newline */
} moe_err;

/* ---- tensors ---- */
enum { MOE_F32, MOE_BF16, MOE_F64, MOE_I32, MOE_I64, MOE_U8, MOE_F8E4M3, MOE_F8E5M2, MOE_F4E2M1X2, MOE_E8M0 };

/* FROZEN. Borrowed view of device memory: row-major and contiguous (there are no strides, so none can be wrong).
 * An optional tensor that is absent has data NULL and ndim 0. Sizes are elements: MOE_F4E2M1X2 holds two values to a
 * byte, and its shape counts values, so its last size is even. */
typedef struct moe_tensor {
    void *data;
    int32_t dtype, ndim;
    int64_t shape[4]; /* entries at and after ndim are 1 */
} moe_tensor;

/* Rows in expert order whose number only the device knows. Expert g owns rows offsets[g] .. offsets[g+1]-1, of which
 * the first counts[g] are valid; the rest, up to its aligned end, are zero, written by the dispatcher, and may be read.
 * Rows at or past offsets[groups] are never read nor written. */
typedef struct moe_rows {
    uint32_t size, groups;      /* local experts */
    int64_t max;                /* rows allocated in every buffer of this order */
    const int64_t *dev_offsets; /* [groups + 1], device memory, multiples of the precision's row alignment */
    const int64_t *dev_counts;  /* [groups], device memory */
    int64_t host_total;         /* = dev_offsets[groups], or -1 when the host does not know */
    /* The same numbers in host memory, [groups + 1] and [groups], both or neither: there when the calls that use these
     * rows are made. NULL = only the device knows them. */
    const int64_t *host_offsets, *host_counts;
} moe_rows;

/* ---- options ---- */
/* One row of a plugin's published schema. type: "int LO..HI", "float LO..HI", "bool", "enum a|b|c", "string".
 * dflt NULL = required. */
typedef struct moe_option {
    const char *key, *type, *dflt, *help;
} moe_option;
/* The host checks a recipe's values against the schema, adds the defaults, and gives every declared option to create,
 * in declared order: bool as "true" or "false", numbers and words as the user wrote them, already in range. */
typedef struct moe_kv {
    const char *key, *value;
} moe_kv;

/* ---- what the host offers an instance; valid until every instance is destroyed ---- */
enum { MOE_LOG_ERROR, MOE_LOG_WARN, MOE_LOG_INFO, MOE_LOG_DEBUG };
typedef struct moe_host {
    uint32_t size, minor;
    void *ctx; /* this instance's own: two instances never share one; give it back to every call below */
    void (*log)(void *ctx, int32_t level, const char *msg); /* [any] one line */
    const void *(*service)(void *ctx, const char *id);      /* [any] "moe.device/0", "moe.comm/0", ...; NULL = absent */
} moe_host;

/* Service "moe.bootstrap/0": exchange of small blobs between ranks at start, before any communicator works. */
typedef struct moe_bootstrap {
    uint32_t size, rank, world;
    uint32_t local; /* this rank's number among those of its machine */
    void *ctx;
    /* [main, collective, blocks] every rank gives `bytes` bytes at in and gets world * bytes at out, in rank order.
     * MOE_E_COMM when a rank has died. */
    moe_status (*all_gather)(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err);
} moe_bootstrap;

/* ---- description: static data only, readable without running plugin code ---- */
enum {                         /* moe_desc.flags */
       MOE_ASYNC = 1,          /* step calls only enqueue on the given stream; without it, return means done */
       MOE_HOST_COUNTS = 2,    /* needs routing counts on the host (a sync): only with recv = exact */
       MOE_DETERMINISTIC = 4,  /* same inputs, same bytes */
       MOE_GRAPH_SAFE = 8,     /* step calls may be captured and replayed */
       MOE_FOLLOWS_DEVICE = 16 /* step calls only call operations of the device on the given stream: asynchronous
                                * exactly where the device is */
};
typedef struct moe_desc {
    uint32_t size, kind_major;      /* kind_major: 0 */
    const char *kind, *id, *device; /* registry key; device "any", "cpu", "cuda", "vendor.x" */
    const char *version, *vendor, *license, *summary;
    const moe_option *options; /* [n_options] */
    uint32_t n_options, flags;
    const void *vtable; /* moe_<kind>_v0, static and constant: the host copies it once */
} moe_desc;

typedef struct moe_entry {
    uint32_t magic, size, minor, min_host_minor, pointer_bits, n_descs;
    const char *abi_tag; /* MOE_ABI_TAG; a fork has one of its own */
    const moe_desc *const *descs;
} moe_entry;

/* The ONE export of a plugin: returns a static table and does nothing else. [main] */
#define MOE_ENTRY_SYMBOL "moe_plugin_entry_v0"
#define MOE_EXPORT __attribute__((visibility("default")))
MOE_EXPORT const moe_entry *moe_plugin_entry_v0(void);

/* Defines the export for a static array of descriptor pointers. */
#define MOE_PLUGIN(descs_)                                                                 \
    MOE_EXPORT const moe_entry *moe_plugin_entry_v0(void) {                                \
        static const moe_entry entry_ = {MOE_MAGIC,                                        \
                                         (uint32_t)sizeof(moe_entry),                      \
                                         MOE_MINOR,                                        \
                                         0,                                                \
                                         (uint32_t)(8 * sizeof(void *)),                   \
                                         (uint32_t)(sizeof(descs_) / sizeof((descs_)[0])), \
                                         MOE_ABI_TAG,                                      \
                                         descs_};                                          \
        return &entry_;                                                                    \
    }

#ifdef __cplusplus
}
#endif
#endif
