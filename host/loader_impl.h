/* Inside of the loader: loader.c finds files, loader_file.c makes a file usable. */
#ifndef HOST_LOADER_IMPL_H
#define HOST_LOADER_IMPL_H
#include <sys/stat.h>

#include "loader.h"
#include "registry.h"

enum { LOADER_FOLDERS = 64, LOADER_WHY = 1600 };

typedef struct loaded_file {
    char *path; /* real path */
    struct stat st;
    bool ok;
    char why[LOADER_WHY]; /* of a refusal */
    uint64_t hash;
    struct loaded_file *next;
} loaded_file;

struct loader {
    char *exe;
    unsigned probe_ms;
    char *folders[LOADER_FOLDERS];
    size_t n_folders;
    loaded_file *files;
    registry registry;
};

/* The file at path, checked, probed, loaded and registered, or refused with the reason; remembered by real path, time
 * and size. NULL: there is no such file. */
const loaded_file *loader_open(loader *l, const char *path);

#endif
