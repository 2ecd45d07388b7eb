/* A plugin of several descriptors: routers "two" for cpu and for any device, "three", and a dispatcher "two". Its
 * tables are larger than the host's, and its router wipes its own table when it is created. */
#include <moe/plugin.h>

static moe_status router_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err);
static void destroy(void *self) {
    (void)self;
}
static moe_status router_needs(void *self, moe_router_needs *needs, moe_err *err) {
    (void)self, (void)needs;
    return moe_fail(err, MOE_E_UNSUPPORTED, "a test's plugin");
}
static moe_status route(const void *self, const moe_route_args *args, moe_err *err) {
    (void)self, (void)args;
    return moe_fail(err, MOE_E_UNSUPPORTED, "a test's plugin");
}
static moe_status dispatcher_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg, (void)host, (void)self;
    return moe_fail(err, MOE_E_UNSUPPORTED, "a test's plugin");
}
static moe_status dispatcher_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    (void)self, (void)needs;
    return moe_fail(err, MOE_E_UNSUPPORTED, "a test's plugin");
}
static moe_status layout(const void *self, const moe_layout_args *args, moe_err *err) {
    (void)self, (void)args;
    return moe_fail(err, MOE_E_UNSUPPORTED, "a test's plugin");
}
static moe_status move(const void *self, const moe_move_args *args, moe_err *err) {
    (void)self, (void)args;
    return moe_fail(err, MOE_E_UNSUPPORTED, "a test's plugin");
}

/* members that a later minor may have */
typedef struct later_router {
    moe_router_v0 base;
    void (*later[4])(void);
} later_router;

static later_router router = {.base = {.size = sizeof router,
                                       .create = router_create,
                                       .destroy = destroy,
                                       .needs = router_needs,
                                       .route = route,
                                       .route_bwd = route}};
static moe_status router_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg, (void)host, (void)err;
    router = (later_router){.base = {.size = 0}};
    *self = &router;
    return MOE_OK;
}
/* without the optional end: what an older header ends with */
static const moe_dispatcher_v0 dispatcher = {.size = offsetof(moe_dispatcher_v0, extension),
                                             .create = dispatcher_create,
                                             .destroy = destroy,
                                             .needs = dispatcher_needs,
                                             .layout = layout,
                                             .pack = move,
                                             .exchange = move,
                                             .unpack = move};
static const moe_option options[] = {{"count", "int 1..8", NULL, "required"},
                                     {"rate", "float 0..1", "0.5", "a number"},
                                     {"fast", "bool", "no", "a switch"},
                                     {"mode", "enum plain|fancy", "plain", "a word"},
                                     {"note", "string", "", "any text"}};

#define DESC(kind_, id_, device_, table_)                                                                  \
    {                                                                                                      \
        sizeof(moe_desc), 0, kind_, id_, device_, "1.0", "moehost", "MIT", "several in one file", options, \
            sizeof options / sizeof options[0], 0, table_                                                  \
    }
static const moe_desc descs[] = {DESC("router", "two", "cpu", &router), DESC("router", "two", "any", &router),
                                 DESC("router", "three", "cuda", &router),
                                 DESC("dispatcher", "two", "any", &dispatcher)};
static const moe_desc *const list[] = {&descs[0], &descs[1], &descs[2], &descs[3]};
#ifndef NO_ENTRY
/* built with a later minor that needs nothing of it */
MOE_EXPORT const moe_entry *moe_plugin_entry_v0(void) {
    static const moe_entry entry = {MOE_MAGIC, sizeof(moe_entry), MOE_MINOR + 5, 0, 8 * sizeof(void *),
                                    4,         MOE_ABI_TAG,       list};
    return &entry;
}
#else
MOE_EXPORT const void *moe_plugin_entry_v1(void);
MOE_EXPORT const void *moe_plugin_entry_v1(void) {
    return list;
}
#endif
