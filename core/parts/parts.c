/* Life of the instances. An instance counts as made when its create has succeeded, whatever a failing one left behind.
 */
#include "parts/parts.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "exec/watchdog.h"
#include "parts/needs.h"
#include "util/tidy.h"

/* What one instance gets as its host: an own context, so that services and log lines know who asks. */
struct part_host {
    moe_host host;
    parts *owner;
    part_host *next;
    char name[96]; /* "router/topk layer 3" */
};

static void log_line(void *ctx, int32_t level, const char *msg) {
    const part_host *h = ctx;
    const parts_cfg *cfg = &h->owner->cfg;
    if (cfg->log) cfg->log(cfg->log_arg, level, h->name, msg);
}

static const void *find_service(void *ctx, const char *id) {
    const part_host *h = ctx;
    const parts *p = h->owner;
    if (strcmp(id, "moe.device/0") == 0) return p->device_self ? &p->device_service : NULL;
    if (strcmp(id, "moe.comm/0") == 0) return p->comm_self ? &p->comm_service : NULL;
    if (strcmp(id, "moe.bootstrap/0") == 0) return p->cfg.bootstrap;
    return NULL;
}

static part_host *add_host(parts *p, const part_ref *ref, int64_t layer, moe_err *err) {
    part_host *h = calloc(1, sizeof *h);
    if (!h) {
        moe_fail(err, MOE_E_NOMEM, "out of memory for plugin %s/%s", ref->desc->kind, ref->desc->id);
        return NULL;
    }
    h->host =
        (moe_host){.size = sizeof(moe_host), .minor = MOE_MINOR, .ctx = h, .log = log_line, .service = find_service};
    h->owner = p;
    h->next = p->hosts;
    p->hosts = h;
    err->msg[0] = 0; /* what comes next is a call of the plugin */
    if (layer < 0)
        snprintf(h->name, sizeof h->name, "%.24s/%.24s", ref->desc->kind, ref->desc->id);
    else
        snprintf(h->name, sizeof h->name, "%.20s/%.20s layer %lld", ref->desc->kind, ref->desc->id, (long long)layer);
    return h;
}

/* Puts the plugin's name before its words, unless they begin with it; they become one line. After a success err is
 * clean for the next call. */
static moe_status named_as(const char *name, moe_status status, moe_err *err) {
    char msg[sizeof err->msg];
    const size_t n = strlen(name);
    if (status) memcpy(msg, err->msg, sizeof msg);
    err->msg[0] = 0;
    if (!status) return MOE_OK;
    const char *text = tidy_line(msg, sizeof msg) ? msg : "failed without a reason";
    if (strncmp(text, name, n) == 0 && text[n] == ':') return moe_fail(err, status, "%s", text);
    return moe_fail(err, status, "%s: %s", name, text);
}

static moe_status named(const part_host *h, moe_status status, moe_err *err) {
    return named_as(h->name, status, err);
}

static moe_status create_device(parts *p, moe_err *err) {
    part_host *h = add_host(p, &p->cfg.device, -1, err);
    if (!h) return MOE_E_NOMEM;
    const moe_device_cfg cfg = {.size = sizeof cfg,
                                .index = p->cfg.bootstrap ? p->cfg.bootstrap->local : p->cfg.rank,
                                .rank = p->cfg.rank,
                                .world = p->cfg.world,
                                .kv = p->cfg.device.kv,
                                .n_kv = p->cfg.device.n_kv};
    void *self = NULL;
    moe_status status = named(h, p->device->create(&cfg, &h->host, &self, err), err);
    if (status) return status;
    p->device_self = self;
    p->device_service =
        (moe_device_service){sizeof(moe_device_service), p->cfg.device.desc->flags, p->device, p->device_self};
    p->device_info.size = sizeof p->device_info;
    status = named(h, p->device->info(p->device_self, &p->device_info, err), err);
    uint64_t align = p->device_info.alignment;
    if (!status && (align == 0 || (align & (align - 1))))
        status = moe_fail(err, MOE_E_INTERNAL, "%s: alignment of %llu bytes is not a power of two", h->name,
                          (unsigned long long)align);
    return status;
}

static moe_status create_comm(parts *p, moe_err *err) {
    if (!p->cfg.comm.desc) return MOE_OK;
    part_host *h = add_host(p, &p->cfg.comm, -1, err);
    if (!h) return MOE_E_NOMEM;
    const moe_comm_cfg cfg = {
        .size = sizeof cfg, .rank = p->cfg.rank, .world = p->cfg.world, .kv = p->cfg.comm.kv, .n_kv = p->cfg.comm.n_kv};
    void *self = NULL;
    moe_status status = named(h, p->comm->create(&cfg, &h->host, &self, err), err);
    if (status) return status;
    p->comm_self = self;
    p->comm_service = (moe_comm_service){sizeof(moe_comm_service), 0, p->comm, p->comm_self};
    return MOE_OK;
}

static moe_status create_precision(parts *p, moe_err *err) {
    if (!p->cfg.precision.desc) return MOE_OK;
    part_host *h = add_host(p, &p->cfg.precision, -1, err);
    if (!h) return MOE_E_NOMEM;
    const moe_precision_cfg cfg = {.size = sizeof cfg, .kv = p->cfg.precision.kv, .n_kv = p->cfg.precision.n_kv};
    void *self = NULL;
    moe_status status = named(h, p->precision->create(&cfg, &h->host, &self, err), err);
    if (status) return status;
    p->precision_self = self;
    p->precision_needs.size = sizeof p->precision_needs;
    status = named(h, p->precision->needs(p->precision_self, &p->precision_needs, err), err);
    if (!status && p->precision_needs.row_align < 1)
        status = moe_fail(err, MOE_E_INTERNAL, "%s: row alignment %lld is not at least 1", h->name,
                          (long long)p->precision_needs.row_align);
    if (!status && p->precision_needs.takes_filled > 1)
        status = moe_fail(err, MOE_E_INTERNAL, "%s: takes_filled is %u, neither 0 nor 1", h->name,
                          p->precision_needs.takes_filled);
    return status;
}

static moe_status create_scheduler(parts *p, moe_err *err) {
    if (!p->cfg.scheduler.desc) return MOE_OK;
    part_host *h = add_host(p, &p->cfg.scheduler, -1, err);
    if (!h) return MOE_E_NOMEM;
    const moe_scheduler_cfg cfg = {.size = sizeof cfg, .kv = p->cfg.scheduler.kv, .n_kv = p->cfg.scheduler.n_kv};
    void *self = NULL;
    moe_status status = named(h, p->scheduler->create(&cfg, &h->host, &self, err), err);
    if (!status) p->scheduler_self = self;
    return status;
}

moe_status parts_create(parts **out, const parts_cfg *cfg, moe_err *err) {
    parts *p = calloc(1, sizeof *p);
    if (!p) return moe_fail(err, MOE_E_NOMEM, "out of memory for the plugins of rank %u", cfg->rank);
    p->cfg = *cfg;
    p->device = cfg->device.table;
    p->comm = cfg->comm.table;
    p->scheduler = cfg->scheduler.table;
    p->dispatcher = cfg->dispatcher.table;
    p->precision = cfg->precision.table;
    p->router_self = calloc(cfg->n_layers + 1, sizeof *p->router_self);
    p->dispatcher_self = calloc(cfg->n_layers + 1, sizeof *p->dispatcher_self);
    moe_status status = MOE_OK;
    if (!p->router_self || !p->dispatcher_self)
        status = moe_fail(err, MOE_E_NOMEM, "out of memory for the plugins of rank %u", cfg->rank);
    if (!status) status = create_device(p, err);
    if (!status) status = create_comm(p, err);
    if (!status) status = create_precision(p, err);
    if (!status) status = create_scheduler(p, err);
    if (status) {
        if (p->comm_self) p->comm->abort(p->comm_self, err->msg); /* the other ranks may be waiting already */
        parts_destroy(p);
    } else {
        *out = p;
    }
    return status;
}

moe_status parts_add_router(parts *p, moe_router_cfg *cfg, moe_err *err) {
    const part_ref *ref = &p->cfg.routers[cfg->layer];
    part_host *h = add_host(p, ref, cfg->layer, err);
    if (!h) return MOE_E_NOMEM;
    cfg->size = sizeof *cfg;
    cfg->kv = ref->kv;
    cfg->n_kv = ref->n_kv;
    void *self = NULL;
    moe_status status = named(h, parts_router(p, cfg->layer)->create(cfg, &h->host, &self, err), err);
    if (!status) p->router_self[cfg->layer] = self;
    return status;
}

moe_status parts_add_dispatcher(parts *p, moe_dispatcher_cfg *cfg, moe_err *err) {
    part_host *h = add_host(p, &p->cfg.dispatcher, cfg->layer, err);
    if (!h) return MOE_E_NOMEM;
    cfg->size = sizeof *cfg;
    cfg->kv = p->cfg.dispatcher.kv;
    cfg->n_kv = p->cfg.dispatcher.n_kv;
    void *self = NULL;
    watchdog_enter(p->cfg.dog, h->name);
    moe_status status = named(h, p->dispatcher->create(cfg, &h->host, &self, err), err);
    watchdog_leave(p->cfg.dog);
    if (!status) p->dispatcher_self[cfg->layer] = self;
    return status;
}

static moe_status named_layer(const part_ref *ref, uint32_t layer, moe_status status, moe_err *err) {
    char name[96];
    snprintf(name, sizeof name, "%.24s/%.24s layer %u", ref->desc->kind, ref->desc->id, layer);
    return named_as(name, status, err);
}

moe_status parts_router_needs(parts *p, uint32_t layer, moe_router_needs *needs, moe_err *err) {
    *needs = (moe_router_needs){.size = sizeof *needs};
    err->msg[0] = 0;
    moe_status status = parts_router(p, layer)->needs(p->router_self[layer], needs, err);
    if (!status) status = needs_check_router(needs, err);
    return named_layer(&p->cfg.routers[layer], layer, status, err);
}

moe_status parts_dispatcher_needs(parts *p, uint32_t layer, moe_dispatcher_needs *needs, moe_err *err) {
    *needs = (moe_dispatcher_needs){.size = sizeof *needs};
    err->msg[0] = 0;
    moe_status status = p->dispatcher->needs(p->dispatcher_self[layer], needs, err);
    return named_layer(&p->cfg.dispatcher, layer, status, err);
}

void parts_drop_layers(parts *p) {
    for (uint32_t i = p->cfg.n_layers; i-- > 0;) {
        if (p->dispatcher_self && p->dispatcher_self[i]) p->dispatcher->destroy(p->dispatcher_self[i]);
        if (p->router_self && p->router_self[i]) parts_router(p, i)->destroy(p->router_self[i]);
        if (p->dispatcher_self) p->dispatcher_self[i] = NULL;
        if (p->router_self) p->router_self[i] = NULL;
    }
}

void parts_destroy(parts *p) {
    if (!p) return;
    parts_drop_layers(p);
    if (p->scheduler_self) p->scheduler->destroy(p->scheduler_self);
    if (p->precision_self) p->precision->destroy(p->precision_self);
    if (p->comm_self) p->comm->destroy(p->comm_self);
    if (p->device_self) p->device->destroy(p->device_self);
    while (p->hosts) {
        part_host *h = p->hosts;
        p->hosts = h->next;
        free(h);
    }
    free(p->router_self);
    free(p->dispatcher_self);
    free(p);
}

const moe_router_v0 *parts_router(const parts *p, uint32_t layer) {
    return p->cfg.routers[layer].table;
}

const moe_op *parts_op(const parts *p, const char *name) {
    for (uint32_t i = 0; i < p->device->n_ops; i++)
        if (strcmp(p->device->ops[i]->name, name) == 0) return p->device->ops[i];
    return NULL;
}

int parts_async(const parts *p, const part_ref *r) {
    uint32_t flags = r->desc->flags;
    if (flags & MOE_FOLLOWS_DEVICE) flags |= p->cfg.device.desc->flags;
    return (flags & MOE_ASYNC) != 0;
}
