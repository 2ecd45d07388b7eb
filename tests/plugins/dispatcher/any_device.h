/* The devices on which plugins of kind dispatcher and precision are tested: the plain loops of plain_device.h and
 * device/cpu, behind one face. Test i of a loop runs on device i. Where the environment names another device, it stands
 * for both. */
#ifndef TESTS_ANY_DEVICE_H
#define TESTS_ANY_DEVICE_H
#include "plain_device.h"
#include "plugins/device/device_open.h"

enum { DEVICE_PLAIN, DEVICE_CPU, N_TEST_DEVICES };

typedef struct any_device {
    moe_device_v0 plain;
    const moe_op *ops[PLAIN_OPS];
    device_open cpu;
    const moe_device_v0 *table;
    void *self, *stream;
    uint64_t alignment; /* of its memory */
    moe_device_service service;
    test_service services[2];
    test_host host;
    int which;
} any_device;

/* Is the device under test asynchronous? */
static inline int test_on_async(void) {
    return (plugin_open("device", test_device())->flags & MOE_ASYNC) != 0;
}

/* Opens device `which` for the rank with this number on its machine; d stays where it is until device_stop. */
static inline void device_start_at(any_device *d, int which, uint32_t index) {
    moe_err err = {.size = sizeof err};
    memset(d, 0, sizeof *d);
    d->which = test_on_cpu() ? which : DEVICE_CPU;
    if (d->which == DEVICE_CPU) {
        if (test_on_cpu())
            device_open_start(&d->cpu, 2);
        else
            ck_assert_msg(device_open_at(&d->cpu, index, NULL, 0, &err) == MOE_OK, "%s", err.msg);
        d->table = d->cpu.table;
        d->self = d->cpu.self;
        d->stream = d->cpu.stream;
    } else {
        d->plain = plain_device_table(d->ops, NULL);
        d->table = &d->plain;
    }
    d->alignment = d->which == DEVICE_CPU ? d->cpu.alignment : 64; /* plain_info */
    d->service = (moe_device_service){sizeof d->service, d->cpu.flags, d->table, d->self};
    d->services[0] = (test_service){"moe.device/0", &d->service};
    test_host_init(&d->host, d->services);
}
static inline void device_start(any_device *d, int which) {
    device_start_at(d, which, 0);
}
static inline int device_is_async(const any_device *d) {
    return (d->service.flags & MOE_ASYNC) != 0;
}
static inline void device_stop(any_device *d) {
    if (d->which == DEVICE_CPU) device_open_stop(&d->cpu);
}

/* Zeroed memory, at least one byte; device_alloc: that device and host see. */
static inline void *device_alloc_in(any_device *d, int32_t space, uint64_t bytes) {
    void *p = NULL;
    moe_err err = {.size = sizeof err};
    ck_assert_msg(d->table->alloc(d->self, space, bytes + 1, &p, &err) == MOE_OK, "%s", err.msg);
    return p;
}
static inline void *device_alloc(any_device *d, uint64_t bytes) {
    return device_alloc_in(d, MOE_SPACE_HOST, bytes);
}
static inline void device_free_in(any_device *d, int32_t space, void *p, uint64_t bytes) {
    d->table->free(d->self, space, p, bytes + 1);
}
static inline void device_free(any_device *d, void *p, uint64_t bytes) {
    device_free_in(d, MOE_SPACE_HOST, p, bytes);
}

/* Memory that only the device sees, where it is asynchronous; all bytes 0xa5. Its first bytes are read by
 * device_peek. */
static inline int32_t device_private(const any_device *d) {
    return device_is_async(d) ? MOE_SPACE_DEVICE : MOE_SPACE_HOST;
}
static inline void device_poison(any_device *d, void *p, uint64_t bytes) {
    if (d->which == DEVICE_CPU && device_is_async(d))
        device_open_fill(&d->cpu, p, 0xa5, bytes);
    else
        memset(p, 0xa5, bytes);
}
static inline void device_peek(any_device *d, void *to, const void *p, uint64_t bytes) {
    if (device_is_async(d))
        device_open_copy(&d->cpu, to, p, bytes);
    else
        memcpy(to, p, bytes);
}

/* Runs a step call as core does: on the stream, in order, and waits. fault: NULL, or where the call is to report. */
typedef moe_status any_step(const void *self, const void *args, void *fault, moe_err *err);
typedef struct any_call {
    any_step *step;
    const void *self, *args;
    moe_err *err;
    moe_status status;
} any_call;
static inline moe_status device_step(void *arg, void *fault) {
    const any_call *c = arg;
    return c->step(c->self, c->args, fault, c->err);
}
static inline void device_enter(void *arg) {
    any_call *c = arg;
    c->status = device_step(c, NULL);
}
static inline moe_status device_run(any_device *d, any_step *step, const void *self, const void *args, moe_err *err) {
    any_call c = {step, self, args, err, MOE_E_INTERNAL};
    if (d->which == DEVICE_CPU) return device_open_do(&d->cpu, device_step, &c, err);
    ck_assert_int_eq(d->table->call_host(d->self, d->stream, device_enter, &c, err), MOE_OK);
    ck_assert_int_eq(d->table->stream_sync(d->self, d->stream, err), MOE_OK);
    return c.status;
}
#endif
