/* Opens the device under test (plugin_open.h: MOE_TEST_DEVICE) and runs its operations one at a time: sizes, then
 * forward or backward on a stream, then stream_sync. On a device without MOE_ASYNC a step runs by call_host; on another
 * the test's thread issues it, and an error in the data comes back as a moe_fault. Arrays that both sides touch are
 * MOE_SPACE_HOST memory. Header-only; all functions fail the Check test on anything unexpected. */
#ifndef TESTS_DEVICE_OPEN_H
#define TESTS_DEVICE_OPEN_H
#include <stdlib.h>

#include "plugin_open.h"

typedef struct device_open {
    test_host host;
    const moe_device_v0 *table;
    void *self, *stream;
    uint32_t flags;     /* of its descriptor */
    uint64_t alignment; /* of its info */
    moe_fault *fault;   /* with MOE_ASYNC: device memory, zeroed before each step */
    moe_fault *seen;    /* with MOE_ASYNC: host memory, what the last step left there */
} device_open;

static inline int device_open_is_async(const device_open *c) {
    return (c->flags & MOE_ASYNC) != 0;
}

/* Zeroed memory, at least one byte. device_open_alloc: both sides read and write it. Free with the same size. */
static inline void *device_open_alloc_in(device_open *c, int32_t space, uint64_t bytes) {
    void *p = NULL;
    moe_err err = {.size = sizeof err};
    moe_status s = c->table->alloc(c->self, space, bytes ? bytes : 1, &p, &err);
    ck_assert_msg(s == MOE_OK, "alloc %llu: %s", (unsigned long long)bytes, err.msg);
    return p;
}
static inline void *device_open_alloc(device_open *c, uint64_t bytes) {
    return device_open_alloc_in(c, MOE_SPACE_HOST, bytes);
}
static inline void device_open_free_in(device_open *c, int32_t space, void *p, uint64_t bytes) {
    c->table->free(c->self, space, p, bytes ? bytes : 1);
}
static inline void device_open_free(device_open *c, void *p, uint64_t bytes) {
    device_open_free_in(c, MOE_SPACE_HOST, p, bytes);
}

/* Bytes between host and device memory, or to one value, done when it returns. */
static inline void device_open_copy(device_open *c, void *to, const void *from, uint64_t bytes) {
    moe_err err = {.size = sizeof err};
    ck_assert_msg(c->table->copy(c->self, c->stream, to, from, bytes, &err) == MOE_OK, "copy: %s", err.msg);
    ck_assert_msg(c->table->stream_sync(c->self, c->stream, &err) == MOE_OK, "copy: %s", err.msg);
}
static inline void device_open_fill(device_open *c, void *to, uint8_t byte, uint64_t bytes) {
    moe_err err = {.size = sizeof err};
    ck_assert_msg(c->table->fill(c->self, c->stream, to, byte, bytes, &err) == MOE_OK, "fill: %s", err.msg);
    ck_assert_msg(c->table->stream_sync(c->self, c->stream, &err) == MOE_OK, "fill: %s", err.msg);
}

/* Creates an instance with these options and one stream, on the machine's device `index`. Returns the status of create;
 * on failure err says why and nothing is left open. */
static inline moe_status device_open_at(device_open *c, uint32_t index, const moe_kv *kv, uint32_t n_kv, moe_err *err) {
    const moe_desc *desc = plugin_open("device", test_device());
    moe_device_cfg cfg = {.size = sizeof cfg, .index = index, .world = 1, .kv = kv, .n_kv = n_kv};
    moe_device_info info = {.size = sizeof info};
    memset(c, 0, sizeof *c);
    c->table = desc->vtable;
    c->flags = desc->flags;
    moe_status s = c->table->create(&cfg, test_host_init(&c->host, NULL), &c->self, err);
    if (s != MOE_OK) return s;
    s = c->table->stream_create(c->self, "compute", &c->stream, err);
    ck_assert_msg(s == MOE_OK, "stream_create: %s", err->msg);
    ck_assert_msg(c->table->info(c->self, &info, err) == MOE_OK, "info: %s", err->msg);
    c->alignment = info.alignment;
    if (!device_open_is_async(c)) return MOE_OK;
    c->fault = device_open_alloc_in(c, MOE_SPACE_DEVICE, sizeof *c->fault);
    c->seen = device_open_alloc(c, sizeof *c->seen);
    return MOE_OK;
}
static inline moe_status device_open_with(device_open *c, const moe_kv *kv, uint32_t n_kv, moe_err *err) {
    return device_open_at(c, 0, kv, n_kv, err);
}
/* device/cpu with `threads` compute threads and the instruction set `isa` ("auto", "base", "v3", "v4"). Other devices
 * have no such options: what they have is taken for "base" and "auto", the rest is MOE_E_UNSUPPORTED. */
static inline moe_status device_open_try(device_open *c, const char *threads, const char *isa, const char *spin_us,
                                         moe_err *err) {
    const moe_kv kv[] = {{"threads", threads}, {"isa", isa}, {"spin_us", spin_us}};
    if (test_on_cpu()) return device_open_with(c, kv, 3, err);
    if (strcmp(isa, "auto") != 0 && strcmp(isa, "base") != 0)
        return moe_fail(err, MOE_E_UNSUPPORTED, "device/%s has no instruction set %s", test_device(), isa);
    return device_open_with(c, NULL, 0, err);
}
static inline void device_open_start(device_open *c, int threads) {
    char text[16];
    moe_err err = {.size = sizeof err};
    snprintf(text, sizeof text, "%d", threads);
    ck_assert_msg(device_open_try(c, text, "auto", "20", &err) == MOE_OK, "create: %s", err.msg);
}
static inline void device_open_stop(device_open *c) {
    if (c->fault) device_open_free_in(c, MOE_SPACE_DEVICE, c->fault, sizeof *c->fault);
    if (c->seen) device_open_free(c, c->seen, sizeof *c->seen);
    c->table->stream_destroy(c->self, c->stream);
    c->table->destroy(c->self);
}

/* The record of an operation by name, or NULL. */
static inline const moe_op *device_open_find(const device_open *c, const char *name) {
    for (uint32_t i = 0; i < c->table->n_ops; i++)
        if (strcmp(c->table->ops[i]->name, name) == 0) return c->table->ops[i];
    return NULL;
}

/* A tensor over data: device_open_tensor(p, MOE_F32, 2, 8, 16). Sizes are int64_t or int. */
#define device_open_tensor(data_, dtype_, ...) \
    device_open_tensor_n((data_), (dtype_), (const int64_t[]){__VA_ARGS__, -1})
static inline moe_tensor device_open_tensor_n(void *data, int32_t dtype, const int64_t *ndim_shape) {
    moe_tensor t = {.data = data, .dtype = dtype, .ndim = (int32_t)ndim_shape[0], .shape = {1, 1, 1, 1}};
    for (int32_t i = 0; i < t.ndim; i++) t.shape[i] = ndim_shape[1 + i];
    return t;
}
/* An optional tensor that is absent. */
static inline moe_tensor device_open_absent(void) {
    return (moe_tensor){.shape = {1, 1, 1, 1}};
}

/* ---- steps: any step call of a plugin, in stream order ---- */
/* fn(arg, fault) makes the call with c->stream and this fault (NULL on a device without MOE_ASYNC), and returns its
 * status. */
typedef moe_status (*device_open_fn)(void *arg, void *fault);
typedef struct device_open_job {
    device_open_fn fn;
    void *arg;
    moe_status status;
} device_open_job;
static inline void device_open_enter(void *arg) {
    device_open_job *job = arg;
    job->status = job->fn(job->arg, NULL);
}

/* Runs one step and waits for it. On an asynchronous device a fault becomes the status that it names; c->seen has
 * the rest. err is the one that fn fills. */
static inline moe_status device_open_do(device_open *c, device_open_fn fn, void *arg, moe_err *err) {
    device_open_job job = {fn, arg, MOE_OK};
    if (!device_open_is_async(c)) {
        ck_assert_int_eq(c->table->call_host(c->self, c->stream, device_open_enter, &job, err), MOE_OK);
        ck_assert_int_eq(c->table->stream_sync(c->self, c->stream, err), MOE_OK);
        return job.status;
    }
    moe_err own = {.size = sizeof own};
    moe_status s = c->table->fill(c->self, c->stream, c->fault, 0, sizeof *c->fault, &own);
    ck_assert_msg(s == MOE_OK, "fill: %s", own.msg);
    moe_status issued = fn(arg, c->fault);
    s = c->table->copy(c->self, c->stream, c->seen, c->fault, sizeof *c->fault, &own);
    ck_assert_msg(s == MOE_OK, "copy: %s", own.msg);
    s = c->table->stream_sync(c->self, c->stream, issued == MOE_OK ? err : &own);
    if (issued != MOE_OK || s != MOE_OK) return issued != MOE_OK ? issued : s;
    if (c->seen->code == MOE_OK) return MOE_OK;
    return moe_fail(err, (moe_status)c->seen->code, "fault %lld at token %lld, value %lld", (long long)c->seen->code,
                    (long long)c->seen->token, (long long)c->seen->value);
}

#define DEVICE_OPEN_ANY INT64_MIN /* a token or a value that is not looked at */
/* A step reported an error in the data: status, err and c->seen are what device_open_do left. Its message contains
 * `text` where it was returned; its fault names token and value where it was not. */
static inline void device_open_expect(const device_open *c, moe_status status, moe_status code, const moe_err *err,
                                      int64_t token, int64_t value, const char *text) {
    if (status != code) ck_abort_msg("status %d (%s), want %d: %s", status, status ? err->msg : "", code, text);
    if (!device_open_is_async(c)) {
        if (!strstr(err->msg, text)) ck_abort_msg("message: %s", err->msg);
        return;
    }
    const moe_fault *f = c->seen;
    if (f->code != code) ck_abort_msg("returned (%s), but data must be judged on the device", err->msg);
    if ((token != DEVICE_OPEN_ANY && f->token != token) || (value != DEVICE_OPEN_ANY && f->value != value))
        ck_abort_msg("fault has token %lld and value %lld: %s", (long long)f->token, (long long)f->value, text);
}

/* ---- operations ---- */
typedef moe_status (*device_open_step)(void *dev, const moe_op_args *args, moe_err *err);
typedef struct device_open_call {
    device_open_step step;
    void *dev;
    moe_op_args args;
    moe_err *err;
} device_open_call;
static inline moe_status device_open_step_of(void *arg, void *fault) {
    device_open_call *call = arg;
    call->args.fault = fault;
    return call->step(call->dev, &call->args, call->err);
}

/* Runs one step function (op->forward or op->backward) on the stream and waits for it. */
static inline moe_status device_open_run_step(device_open *c, device_open_step step, const moe_op_args *args,
                                              moe_err *err) {
    device_open_call call = {step, c->self, *args, err};
    call.args.size = sizeof call.args;
    call.args.stream = c->stream;
    ck_assert_ptr_nonnull(step);
    return device_open_do(c, device_open_step_of, &call, err);
}

/* sizes + forward of an operation without saved memory: the workspace is made and freed here. Returns the first status
 * that is not MOE_OK. */
static inline moe_status device_open_forward(device_open *c, const char *name, const moe_op_args *args, moe_err *err) {
    const moe_op *op = device_open_find(c, name);
    ck_assert_msg(op != NULL, "device/%s has no %s", test_device(), name);
    uint64_t saved = 0, workspace = 0;
    moe_op_args a = *args;
    a.size = sizeof a;
    moe_status s = op->sizes(c->self, &a, &saved, &workspace, err);
    if (s != MOE_OK) return s;
    void *own = NULL;
    if (workspace && !a.workspace) a.workspace = own = device_open_alloc_in(c, MOE_SPACE_DEVICE, workspace);
    void *own_saved = NULL;
    if (saved && !a.saved) a.saved = own_saved = device_open_alloc_in(c, MOE_SPACE_DEVICE, saved);
    s = device_open_run_step(c, op->forward, &a, err);
    if (own) device_open_free_in(c, MOE_SPACE_DEVICE, own, workspace);
    if (own_saved) device_open_free_in(c, MOE_SPACE_DEVICE, own_saved, saved);
    return s;
}
#endif
