/* See nccl_memory.h. */
#include "nccl_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRAIN = 1 << 21 }; /* allocations are multiples of it */

typedef struct block {
    char *at;
    size_t bytes;
    int fd;
    struct block *next;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks; /* of this process; under the lock */

ncclResult_t ncclMemAlloc(void **out, size_t bytes) {
    block *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return ncclSystemError;
    b->bytes = bytes > SIZE_MAX / 4 ? bytes : (bytes / GRAIN + 1) * GRAIN;
    b->fd = memfd_create("moe-nccl", MFD_CLOEXEC);
    void *at = MAP_FAILED;
    if (b->fd >= 0 && ftruncate(b->fd, (off_t)b->bytes) == 0)
        at = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (at == MAP_FAILED) {
        if (b->fd >= 0) close(b->fd);
        free(b);
        return ncclSystemError;
    }
    *out = b->at = at;
    pthread_mutex_lock(&lock);
    b->next = blocks;
    blocks = b;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *at) {
    if (!at) return ncclSuccess;
    pthread_mutex_lock(&lock);
    block **p = &blocks;
    while (*p && (*p)->at != at) p = &(*p)->next;
    block *b = *p;
    if (b) *p = b->next;
    pthread_mutex_unlock(&lock);
    if (!b) return ncclInvalidArgument;
    munmap(b->at, b->bytes);
    close(b->fd);
    free(b);
    return ncclSuccess;
}

void memory_find(const void *at, size_t bytes, double_offer *o) {
    pthread_mutex_lock(&lock);
    for (const block *b = blocks; b; b = b->next)
        if ((const char *)at >= b->at && (const char *)at + bytes <= b->at + b->bytes) {
            o->fd = b->fd;
            o->offset = (uint64_t)((const char *)at - b->at);
        }
    pthread_mutex_unlock(&lock);
}

int memory_map(char *place, const double_offer *o) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", o->pid, o->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 0;
    void *at =
        o->bytes ? mmap(place, o->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)o->offset) : place;
    close(fd);
    return at != MAP_FAILED;
}
