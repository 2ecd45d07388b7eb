/* Opens a built plugin for a unit test: its table, and a host that offers what the test gives it. */
#ifndef TESTS_PLUGIN_OPEN_H
#define TESTS_PLUGIN_OPEN_H
#include <check.h>
#include <dlfcn.h>
#include <moe/plugin.h>
#include <stdio.h>
#include <string.h>

/* The descriptor (kind, id) of build/plugins/<kind>/<id>.so; fails the test when it is not there. */
static inline const moe_desc *plugin_open(const char *kind, const char *id) {
    char path[1024];
    snprintf(path, sizeof path, "%s/plugins/%s/%s.so", MOE_BUILD_DIR, kind, id);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(so != NULL, "%s", so ? "" : dlerror());
    const moe_entry *(*entry)(void) = NULL;
    *(void **)&entry = dlsym(so, MOE_ENTRY_SYMBOL);
    ck_assert_msg(entry != NULL, "%s has no " MOE_ENTRY_SYMBOL, path);
    const moe_entry *e = entry();
    for (uint32_t i = 0; i < e->n_descs; i++)
        if (strcmp(e->descs[i]->kind, kind) == 0 && strcmp(e->descs[i]->id, id) == 0) return e->descs[i];
    ck_abort_msg("%s holds no %s/%s", path, kind, id);
    return NULL;
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
