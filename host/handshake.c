/* The host's side of the plugin contract: entry, descriptors, schemas, and the table of slots that a kind requires.
 * A slot that moe/<kind>.h does not call optional is required. */
#include "handshake.h"

#include <stdio.h>
#include <string.h>

#include "options.h"

typedef struct required_slot {
    const char *name;
    size_t offset;
} required_slot;

#define SLOT(T, m) \
    { #m, offsetof(T, m) }
static const required_slot router_slots[] = {SLOT(moe_router_v0, create), SLOT(moe_router_v0, destroy),
                                             SLOT(moe_router_v0, needs), SLOT(moe_router_v0, route),
                                             SLOT(moe_router_v0, route_bwd)};
static const required_slot dispatcher_slots[] = {SLOT(moe_dispatcher_v0, create), SLOT(moe_dispatcher_v0, destroy),
                                                 SLOT(moe_dispatcher_v0, needs),  SLOT(moe_dispatcher_v0, layout),
                                                 SLOT(moe_dispatcher_v0, pack),   SLOT(moe_dispatcher_v0, exchange),
                                                 SLOT(moe_dispatcher_v0, unpack)};
static const required_slot precision_slots[] = {SLOT(moe_precision_v0, create), SLOT(moe_precision_v0, destroy),
                                                SLOT(moe_precision_v0, needs), SLOT(moe_precision_v0, sizes),
                                                SLOT(moe_precision_v0, linear)};
static const required_slot scheduler_slots[] = {SLOT(moe_scheduler_v0, create), SLOT(moe_scheduler_v0, destroy),
                                                SLOT(moe_scheduler_v0, shape), SLOT(moe_scheduler_v0, order)};
static const required_slot device_slots[] = {SLOT(moe_device_v0, ops),           SLOT(moe_device_v0, create),
                                             SLOT(moe_device_v0, destroy),       SLOT(moe_device_v0, info),
                                             SLOT(moe_device_v0, alloc),         SLOT(moe_device_v0, free),
                                             SLOT(moe_device_v0, copy),          SLOT(moe_device_v0, fill),
                                             SLOT(moe_device_v0, stream_create), SLOT(moe_device_v0, stream_destroy),
                                             SLOT(moe_device_v0, event_create),  SLOT(moe_device_v0, event_destroy),
                                             SLOT(moe_device_v0, event_record),  SLOT(moe_device_v0, event_wait),
                                             SLOT(moe_device_v0, event_sync),    SLOT(moe_device_v0, stream_sync),
                                             SLOT(moe_device_v0, call_host),     SLOT(moe_device_v0, extension)};
static const required_slot comm_slots[] = {
    SLOT(moe_comm_v0, create),        SLOT(moe_comm_v0, destroy),        SLOT(moe_comm_v0, group_split),
    SLOT(moe_comm_v0, group_destroy), SLOT(moe_comm_v0, group_info),     SLOT(moe_comm_v0, all_reduce),
    SLOT(moe_comm_v0, all_gather),    SLOT(moe_comm_v0, reduce_scatter), SLOT(moe_comm_v0, broadcast),
    SLOT(moe_comm_v0, all_to_all_v),  SLOT(moe_comm_v0, barrier),        SLOT(moe_comm_v0, p2p),
    SLOT(moe_comm_v0, window_create), SLOT(moe_comm_v0, window_destroy), SLOT(moe_comm_v0, abort),
    SLOT(moe_comm_v0, poll),          SLOT(moe_comm_v0, waiting)};

typedef struct kind_row {
    const char *kind, *table;
    size_t size; /* of the host's struct */
    const required_slot *slots;
    size_t n_slots;
} kind_row;
#define KIND(kind_)                                                           \
    {                                                                         \
#kind_, "moe_" #kind_ "_v0", sizeof(moe_##kind_##_v0), kind_##_slots, \
            sizeof kind_##_slots / sizeof kind_##_slots[0]                    \
    }
static const kind_row kinds[] = {KIND(router),    KIND(dispatcher), KIND(precision),
                                 KIND(scheduler), KIND(device),     KIND(comm)};

static const kind_row *find_kind(const char *kind) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].kind, kind) == 0) return &kinds[i];
    return NULL;
}
const char *handshake_kind(size_t i) {
    return i < sizeof kinds / sizeof kinds[0] ? kinds[i].kind : NULL;
}
size_t handshake_vtable_size(const char *kind) {
    const kind_row *row = find_kind(kind);
    return row ? row->size : 0;
}

/* ---- entry ---- */
#define REACH_OF(T, m) (offsetof(T, m) + sizeof(((T *)0)->m))

static bool check_entry(const moe_entry *e, char *why, size_t bytes) {
    uint32_t pointer_bits = (uint32_t)(8 * sizeof(void *));
    if (!e)
        snprintf(why, bytes, MOE_ENTRY_SYMBOL " returned NULL");
    else if (e->magic != MOE_MAGIC)
        snprintf(why, bytes, "magic is 0x%08x, the host's is 0x%08x", e->magic, MOE_MAGIC);
    else if (!MOE_REACH(e, moe_entry, descs))
        snprintf(why, bytes, "moe_entry.size is %u, the host needs at least %zu", e->size, REACH_OF(moe_entry, descs));
    else if (e->min_host_minor > MOE_MINOR)
        snprintf(why, bytes, "min_host_minor is %u, the host's minor is %u", e->min_host_minor, MOE_MINOR);
    else if (e->pointer_bits != pointer_bits)
        snprintf(why, bytes, "pointer_bits is %u, the host's is %u", e->pointer_bits, pointer_bits);
    else if (!e->abi_tag)
        snprintf(why, bytes, "abi_tag is NULL, the host's is \"%s\"", MOE_ABI_TAG);
    else if (strcmp(e->abi_tag, MOE_ABI_TAG) != 0)
        snprintf(why, bytes, "abi_tag is \"%.60s\", the host's is \"%s\"", e->abi_tag, MOE_ABI_TAG);
    else if (e->n_descs == 0 || e->n_descs > HANDSHAKE_MAX_DESCS)
        snprintf(why, bytes, "n_descs is %u, the host takes 1 to %d", e->n_descs, HANDSHAKE_MAX_DESCS);
    else if (!e->descs)
        snprintf(why, bytes, "descs is NULL");
    else
        return true;
    return false;
}

/* ---- descriptors ---- */
static bool is_name(const char *s) { /* of a file and a recipe */
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n < 64 && s[n] == '\0';
}

static bool check_strings(const moe_desc *d, char *why, size_t bytes) {
    const struct {
        const char *name, *text;
    } strings[] = {{"kind", d->kind},     {"id", d->id},           {"device", d->device},  {"version", d->version},
                   {"vendor", d->vendor}, {"license", d->license}, {"summary", d->summary}};
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        if (!strings[i].text || !strings[i].text[0]) {
            snprintf(why, bytes, "%s is %s", strings[i].name, strings[i].text ? "empty" : "NULL");
            return false;
        }
    if (!is_name(d->id)) {
        snprintf(why, bytes, "id \"%.60s\" is not 1 to 63 letters, digits, _ -", d->id);
        return false;
    }
    return true;
}

static bool check_ops(const moe_device_v0 *table, char *why, size_t bytes) {
    if (table->n_ops > HANDSHAKE_MAX_OPS) {
        snprintf(why, bytes, "n_ops is %u, the host takes at most %d", table->n_ops, HANDSHAKE_MAX_OPS);
        return false;
    }
    for (uint32_t i = 0; i < table->n_ops; i++) {
        const moe_op *op = table->ops[i];
        const char *fault = !op ? "is NULL" : !MOE_REACH(op, moe_op, backward) ? "has too small a size" : NULL;
        if (!fault && !op->name) fault = "has no name";
        if (!fault && !op->sizes) fault = "has no sizes";
        if (!fault && !op->forward) fault = "has no forward";
        if (!fault) continue;
        snprintf(why, bytes, "operation %u (%.60s) %s", i, op && op->size >= 16 && op->name ? op->name : "?", fault);
        return false;
    }
    return true;
}

static bool check_vtable(const moe_desc *d, const kind_row *kind, char *why, size_t bytes) {
    if (!d->vtable) {
        snprintf(why, bytes, "vtable is NULL");
        return false;
    }
    uint32_t size;
    memcpy(&size, d->vtable, sizeof size);
    for (size_t i = 0; i < kind->n_slots; i++) {
        void *slot;
        if (size < kind->slots[i].offset + sizeof slot) {
            snprintf(why, bytes, "%s.size is %u, the host needs at least %zu to reach %s", kind->table, size,
                     kind->slots[i].offset + sizeof slot, kind->slots[i].name);
            return false;
        }
        memcpy(&slot, (const char *)d->vtable + kind->slots[i].offset, sizeof slot);
        if (!slot) {
            snprintf(why, bytes, "required slot %s.%s is NULL", kind->table, kind->slots[i].name);
            return false;
        }
    }
    if (strcmp(d->kind, "device") == 0) return check_ops(d->vtable, why, bytes);
    const moe_comm_v0 *comm = d->vtable;
    if (strcmp(d->kind, "comm") != 0) return true;
    if (comm->launch != MOE_LAUNCH_THREADS && comm->launch != MOE_LAUNCH_PROCESSES) {
        snprintf(why, bytes, "launch is %d, the host knows 0 (threads) and 1 (processes)", comm->launch);
        return false;
    }
    if (comm->launch == MOE_LAUNCH_PROCESSES && !comm->topology) {
        snprintf(why, bytes, "required slot %s.topology is NULL", kind->table);
        return false;
    }
    return true;
}

static bool check_desc(const moe_desc *d, char *why, size_t bytes) {
    if (!MOE_REACH(d, moe_desc, vtable)) {
        snprintf(why, bytes, "moe_desc.size is %u, the host needs at least %zu", d->size, REACH_OF(moe_desc, vtable));
        return false;
    }
    if (!check_strings(d, why, bytes)) return false;
    const kind_row *kind = find_kind(d->kind);
    if (!kind) {
        snprintf(why, bytes, "kind is \"%.60s\", the host knows router, dispatcher, precision, scheduler, device, comm",
                 d->kind);
        return false;
    }
    if (d->kind_major != 0) {
        snprintf(why, bytes, "kind_major of %s is %u, the host's is 0", d->kind, d->kind_major);
        return false;
    }
    if (d->n_options > HANDSHAKE_MAX_OPTIONS) {
        snprintf(why, bytes, "n_options is %u, the host takes at most %d", d->n_options, HANDSHAKE_MAX_OPTIONS);
        return false;
    }
    return options_check_schema(d, why, bytes) && check_vtable(d, kind, why, bytes);
}

bool handshake_check(const moe_entry *entry, char *why, size_t bytes) {
    char cause[1024];
    if (!check_entry(entry, why, bytes)) return false;
    for (uint32_t i = 0; i < entry->n_descs; i++) {
        const moe_desc *d = entry->descs[i];
        if (!d) {
            snprintf(why, bytes, "descriptor %u is NULL", i);
            return false;
        }
        if (!check_desc(d, cause, sizeof cause)) {
            bool named = MOE_REACH(d, moe_desc, id) && d->kind && d->id;
            snprintf(why, bytes, "descriptor %u (%.40s/%.64s): %s", i, named ? d->kind : "?", named ? d->id : "?",
                     cause);
            return false;
        }
        for (uint32_t k = 0; k < i; k++) {
            const moe_desc *o = entry->descs[k];
            if (strcmp(o->kind, d->kind) || strcmp(o->id, d->id) || strcmp(o->device, d->device)) continue;
            snprintf(why, bytes, "descriptors %u and %u are both %s/%s for device %s", k, i, d->kind, d->id, d->device);
            return false;
        }
    }
    return true;
}
