/* The devices on which plugins of kind dispatcher and precision are tested: the plain loops of plain_device.h and
 * device/cpu, behind one face. Test i of a loop runs on device i. */
#ifndef TESTS_ANY_DEVICE_H
#define TESTS_ANY_DEVICE_H
#include "plain_device.h"
#include "plugins/device/device_open.h"

enum { DEVICE_PLAIN, DEVICE_CPU, N_TEST_DEVICES };

typedef struct any_device {
    moe_device_v0 plain;
    const moe_op *ops[8];
    device_open cpu;
    const moe_device_v0 *table;
    void *self, *stream;
    moe_device_service service;
    test_service services[2];
    test_host host;
    int which;
} any_device;

/* Opens device `which`; d stays where it is until device_stop. */
static inline void device_start(any_device *d, int which) {
    memset(d, 0, sizeof *d);
    d->which = which;
    if (which == DEVICE_CPU) {
        device_open_start(&d->cpu, 2);
        d->table = d->cpu.table;
        d->self = d->cpu.self;
        d->stream = d->cpu.stream;
    } else {
        d->plain = plain_device_table(d->ops, NULL);
        d->table = &d->plain;
    }
    d->service = (moe_device_service){.size = sizeof d->service, .table = d->table, .self = d->self};
    d->services[0] = (test_service){"moe.device/0", &d->service};
    test_host_init(&d->host, d->services);
}
static inline void device_stop(any_device *d) {
    if (d->which == DEVICE_CPU) device_open_stop(&d->cpu);
}

/* Zeroed memory of the device, at least one byte. */
static inline void *device_alloc(any_device *d, uint64_t bytes) {
    void *p = NULL;
    moe_err err = {.size = sizeof err};
    ck_assert_msg(d->table->alloc(d->self, MOE_SPACE_DEVICE, bytes + 1, &p, &err) == MOE_OK, "%s", err.msg);
    return p;
}
static inline void device_free(any_device *d, void *p, uint64_t bytes) {
    d->table->free(d->self, MOE_SPACE_DEVICE, p, bytes + 1);
}

/* Runs a step call as core does: on the stream, in order, and waits. */
typedef moe_status any_step(const void *self, const void *args, moe_err *err);
typedef struct any_call {
    any_step *step;
    const void *self, *args;
    moe_err *err;
    moe_status status;
} any_call;
static inline void device_enter(void *arg) {
    any_call *c = arg;
    c->status = c->step(c->self, c->args, c->err);
}
static inline moe_status device_run(any_device *d, any_step *step, const void *self, const void *args, moe_err *err) {
    any_call c = {step, self, args, err, MOE_E_INTERNAL};
    ck_assert_int_eq(d->table->call_host(d->self, d->stream, device_enter, &c, err), MOE_OK);
    ck_assert_int_eq(d->table->stream_sync(d->self, d->stream, err), MOE_OK);
    return c.status;
}
#endif
