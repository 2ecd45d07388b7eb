/* POSIX shared memory; see memory.h. */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map_memory(int fd, size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

void *memory_make(size_t bytes, char name[MEMORY_NAME]) {
    int fd = -1, failed = 0;
    void *at = NULL;
    name[0] = 0;
    if (bytes > INT64_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    for (int i = 0; fd < 0 && i < 1000; i++) {
        snprintf(name, MEMORY_NAME, "/moehost-%d-%d", (int)getpid(), i);
        fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) {
        name[0] = 0;
        return NULL;
    }
    do failed = posix_fallocate(fd, 0, (off_t)bytes);
    while (failed == EINTR);
    if (failed)
        errno = failed;
    else
        at = map_memory(fd, bytes);
    failed = errno;
    close(fd);
    if (!at) {
        memory_unname(name);
        name[0] = 0;
        errno = failed;
    }
    return at;
}

void *memory_open(size_t bytes, const char *name) {
    int fd = name[0] ? shm_open(name, O_RDWR, 0600) : -1;
    if (fd < 0) return NULL;
    void *at = map_memory(fd, bytes);
    int failed = errno;
    close(fd);
    errno = failed;
    return at;
}

void memory_unname(const char *name) {
    if (name[0]) shm_unlink(name);
}

void memory_close(void *at, size_t bytes) {
    if (at) munmap(at, bytes);
}
