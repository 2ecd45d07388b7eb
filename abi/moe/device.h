/* Kind "device": memory, copies, streams, events, and a static table of named operation records (ops.h).
 * Streams and events mean what they mean in CUDA: work on one stream runs in the order of issue; an event marks a
 * point of a stream, and another stream can wait for it without the host. One issuing thread per instance.
 * On device "cuda" a stream is a cudaStream_t, an event a cudaEvent_t, memory belongs to the primary context of
 * cfg.index; create makes it current, and every call of a rank comes from the thread of create. */
#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* HOST: pinned, readable by both sides. LAZY: device memory of which much is never used: a page comes, zero-filled,
 * when it is first written, and stays; a device that cannot do that gives DEVICE memory. */
enum { MOE_SPACE_DEVICE, MOE_SPACE_HOST, MOE_SPACE_LAZY };

typedef struct moe_device_cfg {
    uint32_t size, index; /* which device of this machine: the rank's number among those of it */
    uint32_t rank, world;
    const moe_kv *kv; /* [n_kv] */
    uint64_t n_kv;
} moe_device_cfg;

/* alignment: what alloc gives, and every buffer that core plans - activations, gradients of activations, workspace,
 * saved, handle - begins at a multiple of it. A tensor that is a part of a buffer (one parameter of the flat arenas,
 * one layer's counts or losses, the rows of one microbatch) begins at a multiple of its element's size at least. */
typedef struct moe_device_info {
    uint32_t size, compute_units; /* threads or multiprocessors that compute */
    uint64_t memory_total;        /* bytes; what alloc can give at most */
    uint64_t alignment;           /* bytes, a power of two: see below */
    uint64_t own_memory;          /* bytes that the instance itself holds (scratch of its workers, caches), and what has
                                   * come of LAZY memory */
    char name[96];                /* for people: "AVX-512, 2 threads" */
} moe_device_info;

typedef void (*moe_host_fn)(void *arg);

/* FROZEN. Where a call that has returned already reports an error in the data (not a number, an id outside the table).
 * In device memory, one for every call: the host zeroes it before the step and reads it after, and knows by its place
 * which call it was of. Whoever finds an error writes the first three where code is still 0; of several errors any one,
 * but token and value belong together. What the call computes then is of no account, but it must end, and write nothing
 * outside of its outputs. */
typedef struct moe_fault {
    int64_t code;  /* MOE_OK; MOE_E_DATA; MOE_E_OVERFLOW */
    int64_t token; /* row of the call, of the first dimension; -1 = none */
    int64_t value; /* the id or target; the column of a number that is none; MOE_E_OVERFLOW: the rows that are needed */
    int64_t layer; /* need not be written: the host knows it */
} moe_fault;

/* Device extension "moe.capture/0": all work issued on the streams between begin and end becomes a graph that launch
 * replays with the same addresses. Nothing in between may wait for the device, allocate, or call plugins without
 * MOE_GRAPH_SAFE. What changes between replays lies in memory that the captured copies read. Absent: steps are issued
 * call by call. */
typedef struct moe_capture {
    uint32_t size, reserved;
    moe_status (*begin)(void *self, void *stream, moe_err *err);               /* [main] */
    moe_status (*end)(void *self, void *stream, void **graph, moe_err *err);   /* [main] */
    moe_status (*launch)(void *self, void *graph, void *stream, moe_err *err); /* [step] enqueue only */
    void (*destroy)(void *self, void *graph);                                  /* [main] idle */
} moe_capture;

/* ---- operations ---- */
/* Every operation takes the same arguments. Which tensors, attributes and formula: under its name in ops.h.
 * forward and backward have their own in and out lists. */
typedef struct moe_op_args {
    uint32_t size, n_in, n_out, reserved;
    void *stream;
    const moe_tensor *in, *out; /* [n_in], [n_out]; borrowed for the call, as attr and rows: an asynchronous device
                                 * takes what it needs before it returns */
    const void *attr;           /* the operation's attribute struct, or NULL */
    const moe_rows *rows;       /* rows in expert order, or NULL: all rows of the tensors */
    void *saved, *workspace;    /* as large as `sizes` said, device memory at info.alignment; NULL where 0 */
    /* Device memory, the moe_fault of this call: a data error of an asynchronous device goes there, and the call itself
     * returns MOE_OK. NULL = it is returned as MOE_E_DATA. An asynchronous device is given it for every operation that
     * names data errors in ops.h. */
    void *fault;
} moe_op_args;

typedef struct moe_op {
    uint32_t size, reserved;
    const char *name; /* "moe.swiglu_prob/0" */
    /* [main] pure. Reads shapes, dtypes and attr of the FORWARD lists (data pointers may be NULL; an absent optional
     * tensor has ndim 0). Refuses what it cannot do. saved: bytes from forward to backward; workspace: bytes a call,
     * enough for both. */
    moe_status (*sizes)(void *dev, const moe_op_args *args, uint64_t *saved, uint64_t *workspace, moe_err *err);
    moe_status (*forward)(void *dev, const moe_op_args *args, moe_err *err);  /* [step] */
    moe_status (*backward)(void *dev, const moe_op_args *args, moe_err *err); /* [step]; NULL = has none */
} moe_op;

/* ---- the table ---- */
typedef struct moe_device_v0 {
    uint32_t size, n_ops;
    const moe_op *const *ops; /* [n_ops], static */
    moe_status (*create)(const moe_device_cfg *cfg, const moe_host *host, void **self, moe_err *err); /* [main] */
    void (*destroy)(void *self);                                         /* [main] every stream idle and destroyed */
    moe_status (*info)(void *self, moe_device_info *info, moe_err *err); /* [main] caller sets size */

    /* [main] memory. alloc: zero-filled, touched once (LAZY: not), at info.alignment; free(NULL) is nothing. */
    moe_status (*alloc)(void *self, int32_t space, uint64_t bytes, void **out, moe_err *err);
    void (*free)(void *self, int32_t space, void *ptr, uint64_t bytes);
    /* [step] stream-ordered; either side may be host or device memory, ranges do not overlap. A device without
     * MOE_ASYNC still enqueues these two. */
    moe_status (*copy)(void *self, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err);
    moe_status (*fill)(void *self, void *stream, void *dst, uint8_t byte, uint64_t bytes, moe_err *err);

    /* [main] a named in-order queue, and a reusable mark in one */
    moe_status (*stream_create)(void *self, const char *name, void **out, moe_err *err);
    void (*stream_destroy)(void *self, void *stream); /* waits for it */
    moe_status (*event_create)(void *self, void **out, moe_err *err);
    void (*event_destroy)(void *self, void *event);
    /* [step] enqueue only. record: the event stands for all work issued on the stream before. wait: the stream holds
     * until the event's latest record (at the time of this call) has passed; an event never recorded has passed. */
    moe_status (*event_record)(void *self, void *event, void *stream, moe_err *err);
    moe_status (*event_wait)(void *self, void *stream, void *event, moe_err *err);
    /* [main] blocks the host until the latest record has passed, or all work of the stream has */
    moe_status (*event_sync)(void *self, void *event, moe_err *err);
    moe_status (*stream_sync)(void *self, void *stream, moe_err *err);
    /* [step] runs fn(arg) on the host in stream order: how step calls of plugins without MOE_ASYNC are issued. On a
     * device without MOE_ASYNC fn may call its operations. Never allocates; blocks only while the queue is full. */
    moe_status (*call_host)(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err);

    const void *(*extension)(void *self, const char *id); /* [any] NULL = absent */
} moe_device_v0;

/* Service "moe.device/0": the instance that the asking plugin's memory lives on. flags: of its moe_desc; without
 * MOE_ASYNC a step call is on the lane's worker and reads device memory where it lies. */
typedef struct moe_device_service {
    uint32_t size, flags;
    const moe_device_v0 *table;
    void *self;
} moe_device_service;

/* Device extension "moe.parallel/0" (host-side devices): share a loop among the compute threads. */
typedef struct moe_parallel {
    uint32_t size, threads; /* threads: at most this many run at once; `worker` below is smaller */
    /* [step] runs fn(arg, i, worker) once for each i in [0, n), returns when all are done. Which thread takes which i
     * is open: results must not depend on it. A call made while the pool is busy runs on the caller alone, as
     * worker 0 of its own scratch. */
    void (*run)(void *self, int64_t n, void (*fn)(void *arg, int64_t i, uint32_t worker), void *arg);
    void *self;
} moe_parallel;

#ifdef __cplusplus
}
#endif
#endif
