/* Registry: the descriptors that have been loaded, by (kind, id, device). Entries keep their address until the end.
 * The host copies each table once, here: a plugin that writes to its own later changes nothing. */
#ifndef HOST_REGISTRY_H
#define HOST_REGISTRY_H
#include <moe/base.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct registry_entry {
    const moe_desc *desc;
    const void *vtable; /* the copy, as large as the host's struct; size says how much of it the plugin has */
    const char *path;   /* real path of the file, borrowed */
    struct registry_entry *next;
} registry_entry;

typedef struct registry {
    registry_entry *first, *last;
} registry; /* zero-initialised = empty */

/* desc has passed the handshake. NULL when memory is out. */
const registry_entry *registry_add(registry *r, const moe_desc *desc, const char *path);
void registry_clear(registry *r);

/* Does the descriptor serve this device? 2: made for it; 1: for "any"; 0: for another. device NULL or "any": every one
 * is 2. */
int registry_match(const moe_desc *desc, const char *device);

#endif
