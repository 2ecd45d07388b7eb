/* Makes one plugin file usable: permissions and ELF, the probe in a child, dlopen, handshake, registry. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "elf_check.h"
#include "handshake.h"
#include "loader_impl.h"
#include "probe.h"

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool hash_file(const char *path, uint64_t *hash) {
    char buf[16384];
    ssize_t n = -1;
    XXH3_state_t *state = XXH3_createState();
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && state) {
        XXH3_64bits_reset(state);
        while ((n = read(fd, buf, sizeof buf)) > 0 || (n < 0 && errno == EINTR))
            if (n > 0) XXH3_64bits_update(state, buf, (size_t)n);
        *hash = XXH3_64bits_digest(state);
    }
    if (fd >= 0) close(fd);
    XXH3_freeState(state);
    return n == 0;
}

/* The probe has passed: into this process. What it did there it does here. */
static bool load(loader *l, loaded_file *f) {
    const moe_entry *(*entry)(void) = NULL;
    struct stat now;
    if (!hash_file(f->path, &f->hash)) {
        snprintf(f->why, sizeof f->why, "it cannot be read whole");
        return false;
    }
    /* NODELETE: whoever closes it, its code and its tables stay, as long as the process */
    void *so = dlopen(f->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so) {
        snprintf(f->why, sizeof f->why, "%s", dlerror());
        return false;
    }
    *(void **)&entry = dlsym(so, MOE_ENTRY_SYMBOL);
    const moe_entry *table = entry ? entry() : NULL;
    if (!handshake_check(table, f->why, sizeof f->why)) return false;
    if (stat(f->path, &now) != 0 || !is_same(&now, &f->st)) {
        snprintf(f->why, sizeof f->why, "it was changed while it was loaded");
        return false;
    }
    for (uint32_t i = 0; i < table->n_descs; i++)
        if (!registry_add(&l->registry, table->descs[i], f->path)) {
            snprintf(f->why, sizeof f->why, "out of memory");
            return false;
        }
    return true;
}

const loaded_file *loader_open(loader *l, const char *path) {
    struct stat st;
    char real[PATH_MAX];
    if (stat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR)) return NULL;
    if (!realpath(path, real)) snprintf(real, sizeof real, "%s", path);
    for (loaded_file *f = l->files; f; f = f->next)
        if (strcmp(f->path, real) == 0 && is_same(&f->st, &st)) return f;
    loaded_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(real))) {
        free(f);
        return NULL;
    }
    f->ok = elf_check(path, &f->st, f->why, sizeof f->why) &&
            probe_file(l->exe, f->path, l->probe_ms, f->why, sizeof f->why) && load(l, f);
    f->next = l->files;
    l->files = f;
    return f;
}
