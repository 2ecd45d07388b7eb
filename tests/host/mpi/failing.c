/* The template router, but on rank 1 a layer's fifth forward pass fails: as a plugin does that works at first, in the
 * middle of a run, while the other ranks go on. */
#include <moe/plugin.h>
#include <stdatomic.h>

#define moe_plugin_entry_v0 template_entry
const moe_entry *template_entry(void);
#undef MOE_EXPORT
#define MOE_EXPORT
#include <template/router.c>
#undef moe_plugin_entry_v0

enum { FAILS_AT = 5 };

typedef struct failing {
    void *router; /* the template's */
    uint32_t rank, reserved;
    _Atomic uint32_t *calls;
} failing;

static moe_status failing_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    const moe_bootstrap *b = host->service(host->ctx, "moe.bootstrap/0");
    failing *f = calloc(1, sizeof *f);
    if (f) f->calls = calloc(1, sizeof *f->calls);
    if (!f || !f->calls || !b) return moe_fail(err, MOE_E_NOMEM, "no memory, or no bootstrap");
    f->rank = b->rank;
    moe_status s = create(cfg, host, &f->router, err);
    if (s == MOE_OK) *self = f;
    return s;
}

static void failing_destroy(void *self) {
    failing *f = self;
    destroy(f->router);
    free(f->calls);
    free(f);
}

static moe_status failing_needs(void *self, moe_router_needs *n, moe_err *err) {
    return needs(((failing *)self)->router, n, err);
}

static moe_status failing_route(const void *self, const moe_route_args *a, moe_err *err) {
    const failing *f = self;
    if (f->rank == 1 && atomic_fetch_add(f->calls, 1) + 1 == FAILS_AT)
        return moe_fail(err, MOE_E_INTERNAL, "the fifth call is one too many");
    return route(f->router, a, err);
}

static moe_status failing_route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    return route_bwd(((const failing *)self)->router, a, err);
}

static const moe_router_v0 failing_table = {sizeof(moe_router_v0),
                                            0,
                                            failing_create,
                                            failing_destroy,
                                            failing_needs,
                                            failing_route,
                                            failing_route_bwd,
                                            NULL,
                                            NULL};
static const moe_desc failing_desc = {.size = sizeof(moe_desc),
                                      .kind = "router",
                                      .id = "failing",
                                      .device = "cpu",
                                      .version = "0.1.0",
                                      .vendor = "moehost",
                                      .license = "MIT",
                                      .summary = "the template, until it fails",
                                      .flags = MOE_DETERMINISTIC,
                                      .vtable = &failing_table};
static const moe_desc *const failing_descs[] = {&failing_desc};
#undef MOE_EXPORT
#define MOE_EXPORT __attribute__((visibility("default")))
MOE_PLUGIN(failing_descs)
