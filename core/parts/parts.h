/* Parts: one rank's plugin instances - made from what the host loaded, given their services, destroyed in reverse
 * order. The rest of core sees tables and instances, never files. */
#ifndef CORE_PARTS_PARTS_H
#define CORE_PARTS_PARTS_H
#include <moe/comm.h>
#include <moe/device.h>
#include <moe/dispatcher.h>
#include <moe/precision.h>
#include <moe/router.h>
#include <moe/scheduler.h>

/* A loaded plugin and the options for its instances; borrowed, valid as long as the parts. */
typedef struct part_ref {
    const moe_desc *desc;
    const void *table; /* the host's copy of the vtable */
    const moe_kv *kv;  /* [n_kv] checked against the schema, defaults added */
    uint64_t n_kv;
} part_ref;

typedef struct parts_cfg {
    part_ref device, comm, scheduler, dispatcher, precision;
    const part_ref *routers; /* [n_layers] of the MoE layers' numbers; entries of dense layers are not read */
    uint32_t n_layers, rank, world;
    const moe_bootstrap *bootstrap;
    void (*log)(void *arg, int32_t level, const char *part, const char *msg); /* from any thread */
    void *log_arg;
    struct watchdog *dog; /* sees the collective set-up calls of plugins; NULL = nobody */
} parts_cfg;

typedef struct part_host part_host;

typedef struct parts {
    parts_cfg cfg;
    const moe_device_v0 *device;
    const moe_comm_v0 *comm;
    const moe_scheduler_v0 *scheduler;
    const moe_dispatcher_v0 *dispatcher;
    const moe_precision_v0 *precision;
    void *device_self, *comm_self, *scheduler_self, *precision_self;
    void **router_self, **dispatcher_self; /* [n_layers], NULL for dense layers */
    void *dispatcher_shared;               /* the place of moe_dispatcher_cfg.shared */
    moe_device_service device_service;
    moe_comm_service comm_service;
    part_host *hosts; /* list of service contexts */
    moe_device_info device_info;
    moe_precision_needs precision_needs;
} parts;

/* [main] device, comm, precision, scheduler; one of the last three whose desc is NULL is left out, and its service with
 * it. Collective over the ranks (comm). On error everything is undone. */
moe_status parts_create(parts **out, const parts_cfg *cfg, moe_err *err);
/* [main] the router and dispatcher of one MoE layer; cfg without kv. Errors name the plugin. */
moe_status parts_add_router(parts *p, moe_router_cfg *cfg, moe_err *err);
moe_status parts_add_dispatcher(parts *p, moe_dispatcher_cfg *cfg, moe_err *err);
/* [main] what they declared; errors name the plugin. A router's is checked (parts/needs.h: MOE_E_UNSUPPORTED): whoever
 * gets it may take its arrays, names, shapes and initial values as they are. */
moe_status parts_router_needs(parts *p, uint32_t layer, moe_router_needs *needs, moe_err *err);
moe_status parts_dispatcher_needs(parts *p, uint32_t layer, moe_dispatcher_needs *needs, moe_err *err);
void parts_destroy(parts *p); /* [main] idle */
/* [main] idle. The routers and dispatchers alone: whoever has made comm groups for them ends those after it. */
void parts_drop_layers(parts *p);

/* The table of a layer's router. */
const moe_router_v0 *parts_router(const parts *p, uint32_t layer);
/* The device's operation, or NULL. */
const moe_op *parts_op(const parts *p, const char *name);
/* Does this plugin enqueue by itself: MOE_ASYNC, or MOE_FOLLOWS_DEVICE on a device that does? */
int parts_async(const parts *p, const part_ref *r);

#endif
