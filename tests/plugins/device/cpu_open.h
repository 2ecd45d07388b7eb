/* Opens device/cpu for a unit test and runs its operations one at a time: sizes, then forward or backward by call_host
 * on a stream, then stream_sync. Header-only; all functions fail the Check test on anything unexpected. */
#ifndef TESTS_CPU_OPEN_H
#define TESTS_CPU_OPEN_H
#include <stdlib.h>

#include "plugin_open.h"

typedef struct cpu_open {
    test_host host;
    const moe_device_v0 *table;
    void *self, *stream;
} cpu_open;

/* Creates an instance with these options and one stream. Returns the status of create; on failure err says why and
 * nothing is left open. */
static inline moe_status cpu_open_with(cpu_open *c, const moe_kv *kv, uint32_t n_kv, moe_err *err) {
    const moe_desc *desc = plugin_open("device", "cpu");
    moe_device_cfg cfg = {.size = sizeof cfg, .world = 1, .kv = kv, .n_kv = n_kv};
    memset(c, 0, sizeof *c);
    c->table = desc->vtable;
    moe_status s = c->table->create(&cfg, test_host_init(&c->host, NULL), &c->self, err);
    if (s != MOE_OK) return s;
    s = c->table->stream_create(c->self, "compute", &c->stream, err);
    ck_assert_msg(s == MOE_OK, "stream_create: %s", err->msg);
    return MOE_OK;
}
/* The same with `threads` compute threads and the instruction set `isa` ("auto", "base", "v3", "v4"). */
static inline moe_status cpu_open_try(cpu_open *c, const char *threads, const char *isa, const char *spin_us,
                                      moe_err *err) {
    const moe_kv kv[] = {{"threads", threads}, {"isa", isa}, {"spin_us", spin_us}};
    return cpu_open_with(c, kv, 3, err);
}
static inline void cpu_open_start(cpu_open *c, int threads) {
    char text[16];
    moe_err err = {.size = sizeof err};
    snprintf(text, sizeof text, "%d", threads);
    ck_assert_msg(cpu_open_try(c, text, "auto", "20", &err) == MOE_OK, "create: %s", err.msg);
}
static inline void cpu_open_stop(cpu_open *c) {
    c->table->stream_destroy(c->self, c->stream);
    c->table->destroy(c->self);
}

/* The record of an operation by name, or NULL. */
static inline const moe_op *cpu_open_find(const cpu_open *c, const char *name) {
    for (uint32_t i = 0; i < c->table->n_ops; i++)
        if (strcmp(c->table->ops[i]->name, name) == 0) return c->table->ops[i];
    return NULL;
}

/* Zeroed device memory, at least one byte; free with cpu_open_free and the same size. */
static inline void *cpu_open_alloc(cpu_open *c, uint64_t bytes) {
    void *p = NULL;
    moe_err err = {.size = sizeof err};
    moe_status s = c->table->alloc(c->self, MOE_SPACE_DEVICE, bytes ? bytes : 1, &p, &err);
    ck_assert_msg(s == MOE_OK, "alloc %llu: %s", (unsigned long long)bytes, err.msg);
    return p;
}
static inline void cpu_open_free(cpu_open *c, void *p, uint64_t bytes) {
    c->table->free(c->self, MOE_SPACE_DEVICE, p, bytes ? bytes : 1);
}

/* A tensor over data: cpu_open_tensor(p, MOE_F32, 2, 8, 16). Sizes are int64_t or int. */
#define cpu_open_tensor(data_, dtype_, ...) cpu_open_tensor_n((data_), (dtype_), (const int64_t[]){__VA_ARGS__, -1})
static inline moe_tensor cpu_open_tensor_n(void *data, int32_t dtype, const int64_t *ndim_shape) {
    moe_tensor t = {.data = data, .dtype = dtype, .ndim = (int32_t)ndim_shape[0], .shape = {1, 1, 1, 1}};
    for (int32_t i = 0; i < t.ndim; i++) t.shape[i] = ndim_shape[1 + i];
    return t;
}
/* An optional tensor that is absent. */
static inline moe_tensor cpu_open_absent(void) {
    return (moe_tensor){.shape = {1, 1, 1, 1}};
}

typedef moe_status (*cpu_open_step)(void *dev, const moe_op_args *args, moe_err *err);
typedef struct cpu_open_call {
    cpu_open_step step;
    void *dev;
    const moe_op_args *args;
    moe_err *err;
    moe_status status;
} cpu_open_call;
static inline void cpu_open_enter(void *arg) {
    cpu_open_call *call = arg;
    call->status = call->step(call->dev, call->args, call->err);
}

/* Runs one step function (op->forward or op->backward) on the stream and waits for it. */
static inline moe_status cpu_open_run_step(cpu_open *c, cpu_open_step step, const moe_op_args *args, moe_err *err) {
    moe_op_args a = *args;
    a.size = sizeof a;
    a.stream = c->stream;
    cpu_open_call call = {step, c->self, &a, err, MOE_OK};
    ck_assert_ptr_nonnull(step);
    ck_assert_int_eq(c->table->call_host(c->self, c->stream, cpu_open_enter, &call, err), MOE_OK);
    ck_assert_int_eq(c->table->stream_sync(c->self, c->stream, err), MOE_OK);
    return call.status;
}

/* sizes + forward of an operation without saved memory: the workspace is made and freed here. Returns the first status
 * that is not MOE_OK. */
static inline moe_status cpu_open_forward(cpu_open *c, const char *name, const moe_op_args *args, moe_err *err) {
    const moe_op *op = cpu_open_find(c, name);
    ck_assert_msg(op != NULL, "device/cpu has no %s", name);
    uint64_t saved = 0, workspace = 0;
    moe_op_args a = *args;
    a.size = sizeof a;
    moe_status s = op->sizes(c->self, &a, &saved, &workspace, err);
    if (s != MOE_OK) return s;
    void *own = NULL;
    if (workspace && !a.workspace) a.workspace = own = cpu_open_alloc(c, workspace);
    void *own_saved = NULL;
    if (saved && !a.saved) a.saved = own_saved = cpu_open_alloc(c, saved);
    s = cpu_open_run_step(c, op->forward, &a, err);
    if (own) cpu_open_free(c, own, workspace);
    if (own_saved) cpu_open_free(c, own_saved, saved);
    return s;
}
#endif
