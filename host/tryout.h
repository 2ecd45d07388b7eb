/* Tryout: one plugin alone on given tensors, as `moehost probe` runs it. tryout.c loads it and calls it on a stream of
 * the device; tryout_file.c reads and writes tensors; tryout_KIND.c knows what a kind takes and gives. The arithmetic
 * is the plugin's, in memory of the device, between poisoned outputs. */
#ifndef HOST_TRYOUT_H
#define HOST_TRYOUT_H
#include <io/safetensors.h>
#include <parts/parts.h>
#include <util/arena.h>

#include "command.h"
#include "options.h"

/* A tensor in host memory: of a file, or for one. */
typedef struct tryout_tensor {
    const char *name; /* NULL: absent */
    int32_t dtype, ndim;
    int64_t shape[4], elements; /* entries at and after ndim are 1 */
    void *data;
    struct tryout_tensor *next;
} tryout_tensor;

typedef struct tryout {
    const command_args *args;
    const char *kind, *in, *out; /* in NULL: a kind without tensors; out NULL: standard output */
    uint32_t layer, ranks;
    loader *loader;
    part_ref device, comm, plugin; /* comm only with several ranks */
    options options[3];
    st_file *file;
    uint8_t *seen; /* [st_count(file)] 1: asked for */
    arena memory;  /* of this struct and its tensors; one thread at a time */
    tryout_tensor *results, **last;
} tryout;

/* One rank: its instances, a stream, device memory that lives until tryout_rank_close, host memory until _free. */
typedef struct tryout_rank {
    tryout *t;
    parts *parts;
    part_ref *routers; /* [layer + 1] */
    void *stream;
    moe_fault *fault; /* device memory; NULL unless the plugin is asynchronous */
    struct tryout_block *blocks;
    arena memory; /* host memory of this rank */
} tryout_rank;

/* [main] Plugin, options and file of a command line. EXIT_CODE_OK, or the exit code with its line on stderr; close in
 * either case, after the results are written. */
int tryout_open(tryout *t, const command_args *args);
void tryout_close(tryout *t);
/* The plugin call that this thread is inside of ("router/topk route"), or NULL: for crash reports. */
const char *tryout_current(void);
/* A plugin that breaks its contract: MOE_E_INTERNAL, "router/x: " and the text. */
moe_status tryout_broken(const tryout *t, moe_err *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- a rank ([main] of the rank's thread) ---- */
/* Device, and comm, precision or scheduler; the router or dispatcher is then added through r->parts. free in either
 * case. bootstrap NULL: the only rank. */
moe_status tryout_rank_open(tryout_rank *r, tryout *t, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err);
void tryout_rank_close(tryout_rank *r); /* again is nothing */
void tryout_rank_free(tryout_rank *r);  /* close, and the host memory */
/* Zeroed device memory, one byte at least. */
moe_status tryout_alloc(tryout_rank *r, uint64_t bytes, void **out, moe_err *err);
/* A tensor in device memory: zeros, or with poison bytes that no plugin would write. ndim at most 2. */
moe_status tryout_make(tryout_rank *r, moe_tensor *out, int32_t dtype, int32_t ndim, int64_t a, int64_t b, int poison,
                       moe_err *err);
/* Host values into new device memory of the same shape; an absent tensor becomes an absent one. */
moe_status tryout_upload(tryout_rank *r, const tryout_tensor *from, moe_tensor *to, moe_err *err);
/* Copies between host and device, and waits. */
moe_status tryout_copy(tryout_rank *r, void *to, const void *from, uint64_t bytes, moe_err *err);
/* Device values in new host memory of the rank. */
moe_status tryout_download(tryout_rank *r, const moe_tensor *from, tryout_tensor *to, moe_err *err);
/* Runs fn(ctx) as a step call of the plugin is run, and waits; errors name the plugin and `what`. */
typedef moe_status (*tryout_fn)(void *ctx, moe_err *err);
moe_status tryout_call(tryout_rank *r, const char *what, tryout_fn fn, void *ctx, moe_err *err);

/* ---- tensors of files ---- */
enum { TRYOUT_OPTIONAL = 1 };
/* A tensor of real numbers, F32 or BF16, in host memory as F32 (exact). dims: what the shape is called in errors,
 * "[T,E]". Absent and optional: out->name NULL. MOE_E_DATA names file and tensor. */
moe_status tryout_read_real(tryout *t, const char *name, const char *dims, int32_t ndim, int flags, tryout_tensor *out,
                            moe_err *err);
/* A tensor of whole numbers (U8, BOOL, I32, I64) from lo to hi, as dtype (MOE_U8, MOE_I32, MOE_I64). */
moe_status tryout_read_whole(tryout *t, const char *name, const char *dims, int32_t ndim, int flags, int32_t dtype,
                             int64_t lo, int64_t hi, tryout_tensor *out, moe_err *err);
/* The shape must be [a] (ndim 1), [a,b] or [a,b,c]; an absent tensor always fits. */
moe_status tryout_check_shape(const tryout *t, const tryout_tensor *x, int64_t a, int64_t b, int64_t c, moe_err *err);
int32_t tryout_file_dtype(const tryout *t, const char *name); /* -1: not there */
/* MOE_E_DATA for a tensor that nothing has asked for. reads: "logits, hidden, ..." */
moe_status tryout_refuse_rest(const tryout *t, const char *reads, moe_err *err);
uint64_t tryout_bytes(int32_t dtype, int64_t elements);
/* count F32 values to dtype (MOE_F32, MOE_BF16 nearest even) and back. */
void tryout_narrow(const float *in, int32_t dtype, void *out, int64_t count);
void tryout_widen(const void *in, int32_t dtype, float *out, int64_t count);

/* Adds a result; its data live until tryout_write. name is copied. */
moe_status tryout_give(tryout *t, const char *name, const tryout_tensor *x, moe_err *err);
moe_status tryout_write(const tryout *t, moe_err *err);

/* ---- kinds: run, and give or print the results ---- */
moe_status tryout_router(tryout *t, moe_err *err);
moe_status tryout_precision(tryout *t, moe_err *err);
moe_status tryout_dispatcher(tryout *t, moe_err *err);
moe_status tryout_scheduler(tryout *t, moe_err *err);

#endif
