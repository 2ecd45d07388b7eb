/* Opens a built plugin for a unit test: its table, and a host that offers what the test gives it. The same program
 * tests another device by its environment: MOE_TEST_DEVICE (default "cpu"), and MOE_TEST_PLUGINS, the folder of its
 * plugins (default: build/plugins). */
#ifndef TESTS_PLUGIN_OPEN_H
#define TESTS_PLUGIN_OPEN_H
#include <check.h>
#include <dlfcn.h>
#include <moe/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The device under test. */
static inline const char *test_device(void) {
    const char *device = getenv("MOE_TEST_DEVICE");
    return device && *device ? device : "cpu";
}
static inline int test_on_cpu(void) {
    return strcmp(test_device(), "cpu") == 0;
}
static inline const char *test_plugins(void) {
    const char *folder = getenv("MOE_TEST_PLUGINS");
    return folder && *folder ? folder : MOE_BUILD_DIR "/plugins";
}

/* The descriptor in `path` of (kind, id): the one made for `device` before one for "any". NULL: none. */
static inline const moe_desc *plugin_in(const char *path, const char *kind, const char *id, const char *device) {
    const moe_desc *any = NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(so != NULL, "%s", so ? "" : dlerror());
    const moe_entry *(*entry)(void) = NULL;
    *(void **)&entry = dlsym(so, MOE_ENTRY_SYMBOL);
    ck_assert_msg(entry != NULL, "%s has no " MOE_ENTRY_SYMBOL, path);
    const moe_entry *e = entry();
    for (uint32_t i = 0; i < e->n_descs; i++) {
        const moe_desc *d = e->descs[i];
        if (strcmp(d->kind, kind) != 0 || strcmp(d->id, id) != 0) continue;
        if (strcmp(d->device, device) == 0) return d;
        if (strcmp(d->device, "any") == 0) any = d;
    }
    return any;
}

/* The descriptor of (kind, id) for the device under test, of <plugins>/<kind>/<id>.so or <id>-<device>.so; a device is
 * its own. Fails the test when it is not there. */
static inline const moe_desc *plugin_open(const char *kind, const char *id) {
    const char *device = strcmp(kind, "device") == 0 ? id : test_device();
    const moe_desc *any = NULL;
    for (int own = 1; own >= 0; own--) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/%s%s%s.so", test_plugins(), kind, id, own ? "-" : "", own ? device : "");
        if (access(path, F_OK) != 0) continue;
        const moe_desc *found = plugin_in(path, kind, id, device);
        if (found && strcmp(found->device, device) == 0) return found;
        if (found) any = found;
    }
    ck_assert_msg(any != NULL, "%s has no %s/%s for device %s", test_plugins(), kind, id, device);
    return any;
}

/* A host for one instance: services by id. */
typedef struct test_service {
    const char *id;
    const void *value;
} test_service;
typedef struct test_host {
    moe_host host;
    const test_service *services; /* ends with id NULL */
} test_host;

static inline void test_host_log(void *ctx, int32_t level, const char *msg) {
    (void)ctx;
    if (level <= MOE_LOG_WARN) fprintf(stderr, "plugin: %s\n", msg);
}
static inline const void *test_host_service(void *ctx, const char *id) {
    const test_host *h = ctx;
    for (const test_service *s = h->services; s && s->id; s++)
        if (strcmp(s->id, id) == 0) return s->value;
    return NULL;
}
static inline const moe_host *test_host_init(test_host *h, const test_service *services) {
    h->services = services;
    h->host = (moe_host){.size = sizeof(moe_host), .ctx = h, .log = test_host_log, .service = test_host_service};
    return &h->host;
}
#endif
