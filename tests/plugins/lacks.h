/* What a plugin that computes through a device must refuse, with the name of what it lacks: a host without a device,
 * and a device without an operation. */
#ifndef TESTS_LACKS_H
#define TESTS_LACKS_H
#include <check.h>
#include <plain_device.h>
#include <plugin_open.h>

/* Creates an instance of plugin `which` of a test's list, and leaves none behind. */
typedef moe_status try_create_fn(int which, const moe_host *host, moe_err *err);

static inline void expect_lack(try_create_fn *create, int which, const moe_host *host, const char *want) {
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(create(which, host, &err), MOE_E_UNSUPPORTED);
    ck_assert_str_eq(err.msg, want);
}

/* plugin: "kind/id". */
static inline void expect_needs_operation(try_create_fn *create, int which, const char *plugin, const char *op) {
    const moe_op *ops[PLAIN_OPS];
    const moe_device_v0 table = plain_device_table(ops, op);
    const moe_device_service device = {.size = sizeof device, .table = &table};
    const test_service services[] = {{"moe.device/0", &device}, {NULL, NULL}};
    test_host h;
    char want[200];
    snprintf(want, sizeof want, "%s needs operation %s; device \"plain loops\" has none", plugin, op);
    expect_lack(create, which, test_host_init(&h, services), want);
}

/* A host whose services are others, and one that has no such function at all. */
static inline void expect_needs_device(try_create_fn *create, int which, const char *plugin) {
    const moe_host none = {.size = sizeof none};
    test_host h;
    char want[200];
    snprintf(want, sizeof want, "%s needs service moe.device/0; this host has none", plugin);
    expect_lack(create, which, test_host_init(&h, NULL), want);
    expect_lack(create, which, &none, want);
}
#endif
