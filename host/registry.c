/* The list of loaded descriptors and the copies of their tables. */
#include "registry.h"

#include <stdlib.h>
#include <string.h>

#include "handshake.h"

const registry_entry *registry_add(registry *r, const moe_desc *desc, const char *path) {
    size_t room = handshake_vtable_size(desc->kind);
    registry_entry *e = calloc(1, sizeof *e);
    char *table = calloc(1, room);
    if (!e || !table) {
        free(e);
        free(table);
        return NULL;
    }
    uint32_t size;
    memcpy(&size, desc->vtable, sizeof size);
    if (size > room) size = (uint32_t)room; /* members of a later minor, which this host does not know */
    memcpy(table, desc->vtable, size);
    memcpy(table, &size, sizeof size);
    *e = (registry_entry){.desc = desc, .vtable = table, .path = path};
    if (r->last)
        r->last->next = e;
    else
        r->first = e;
    r->last = e;
    return e;
}

void registry_clear(registry *r) {
    for (registry_entry *e = r->first; e;) {
        registry_entry *next = e->next;
        free((void *)(uintptr_t)e->vtable);
        free(e);
        e = next;
    }
    *r = (registry){.first = NULL};
}

int registry_match(const moe_desc *desc, const char *device) {
    if (!device || strcmp(device, "any") == 0 || strcmp(desc->device, device) == 0) return 2;
    return strcmp(desc->device, "any") == 0;
}
