/* Handshake: may this host use that plugin's table? Checks everything that the ABI promises about static data, runs no
 * plugin code, and names the first field that differs with both values. Run in the probe's child first: a table that
 * points nowhere kills the child. */
#ifndef HOST_HANDSHAKE_H
#define HOST_HANDSHAKE_H
#include <moe/plugin.h>
#include <stdbool.h>

enum { HANDSHAKE_MAX_DESCS = 256, HANDSHAKE_MAX_OPTIONS = 512, HANDSHAKE_MAX_OPS = 4096 };

/* [any] True when every descriptor is usable; else false with the cause in why. */
bool handshake_check(const moe_entry *entry, char *why, size_t bytes);

/* Names of the kinds, in the order of the recipe; NULL past the last. */
const char *handshake_kind(size_t i);
/* Bytes of the host's own table struct of that kind; 0 for an unknown kind. */
size_t handshake_vtable_size(const char *kind);

#endif
