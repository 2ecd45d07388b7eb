/* Loader: from the name in a recipe to a descriptor. Where it looks, and nowhere else:
 *   a name with '/' or '.so'   that file: absolute, or from the recipe's folder; FILE.so#ID where a file has several
 *   an id                      FOLDER/KIND/ID.so and FOLDER/KIND/ID-DEVICE.so under each FOLDER of MOEHOST_PLUGIN_PATH
 *                              (absolute, between colons), EXE/../lib/moehost/plugins, EXE/plugins (build tree)
 * A file must pass elf_check, then the probe, then the handshake; each file once, however it is reached, as long as its
 * time and size stay. Libraries are never unloaded. A refused candidate is an error even if another one would do, and
 * so are two files for one id: what runs is never a second choice. */
#ifndef HOST_LOADER_H
#define HOST_LOADER_H
#include <moe/base.h>
#include <stdbool.h>
#include <stdint.h>

#include "errors.h"

typedef struct loader loader;

typedef struct loader_cfg {
    const char *exe;         /* the program: runs the probe, and its folder is searched; NULL = /proc/self/exe */
    const char *plugin_path; /* value of MOEHOST_PLUGIN_PATH, NULL = unset */
    unsigned probe_ms;       /* 0 = PROBE_DEFAULT_MS */
} loader_cfg;

typedef struct loader_request {
    const char *kind, *name; /* "router"; id or path */
    const char *device;      /* "cpu"; NULL or "any" = whatever there is */
    const char *dir;         /* the recipe's folder, absolute; NULL = only absolute paths */
    const char *where;       /* begins the error: "a.ini:12:10: [router] plugin" */
} loader_request;

typedef struct loader_found {
    const moe_desc *desc;
    const void *vtable; /* moe_<kind>_v0: the host's copy */
    const char *path;   /* real path */
    uint64_t hash;      /* XXH3-64 of the file */
} loader_found;         /* all valid until loader_destroy */

/* [main] *out on success only; MOE_E_ARG for a relative path in plugin_path, MOE_E_NOMEM. */
moe_status loader_create(loader **out, const loader_cfg *cfg, moe_err *err);
/* Frees the copies of the tables: every instance is destroyed before. NULL is nothing. */
void loader_destroy(loader *l);

/* [main] True and *found, or false and one line in errs that names what was looked for, every place, and why each
 * candidate was refused. One made for the device comes before one for "any". */
bool loader_find(loader *l, const loader_request *request, loader_found *found, err_list *errs);

/* [main] Loads every file of a kind (NULL: of all kinds), with that id (NULL: every one) under the folders; refused
 * ones are errors, one line each. Then loader_each gives what is loaded. */
void loader_scan(loader *l, const char *kind, const char *id, err_list *errs);
/* [main] The same of the one file at path, absolute or from the working directory; not there: an error too. */
void loader_scan_file(loader *l, const char *path, err_list *errs);
void loader_each(const loader *l, void (*visit)(void *ctx, const loader_found *found), void *ctx);
/* The i-th folder that is searched, NULL past the last. */
const char *loader_folder(const loader *l, size_t i);

#endif
