/* The segment that the members of a communicator share, and how they wait for each other: futexes, which are shared by
 * processes, with a look around every few milliseconds. See nccl_double.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nccl_double.h"

enum { LOOK_NS = 20000000 };

/* All members do the same, so nobody is first: a new segment is zeros, which is how it begins. */
shared *shared_open(const char *name, uint32_t n, size_t *bytes) {
    *bytes = sizeof(shared) + n * sizeof(shared_rank) + (size_t)n * n * sizeof(shared_pair);
    const int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0) return NULL;
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)*bytes) == 0) at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int failed = errno;
    close(fd);
    errno = failed;
    return at == MAP_FAILED ? NULL : at;
}

shared_pair *shared_pair_of(const struct ncclComm *c, uint32_t from, uint32_t to) {
    shared_pair *pairs = (shared_pair *)(void *)&c->s->ranks[c->n];
    return &pairs[(size_t)from * c->n + to];
}

void bell_ring(_Atomic uint32_t *bell) {
    atomic_fetch_add(bell, 1);
    syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Is that process gone, or gone but for its parent? */
static int is_gone(uint32_t pid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return errno == ENOENT;
    const int got = fscanf(f, "%*d %*[^)]) %c", &state);
    fclose(f);
    return got == 1 && (state == 'Z' || state == 'X');
}

static void look_around(struct ncclComm *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        const uint32_t pid = atomic_load(&c->s->ranks[i].pid);
        if (pid && pid != (uint32_t)getpid() && is_gone(pid))
            comm_fail(c, ncclRemoteError, "rank %u, process %u, is gone", i, pid);
    }
}

int bell_wait(struct ncclComm *c, _Atomic uint32_t *bell, uint32_t seen) {
    const struct timespec most = {.tv_nsec = LOOK_NS};
    if (!atomic_load(&c->aborted) && !atomic_load(&c->error))
        if (syscall(SYS_futex, bell, FUTEX_WAIT, seen, &most, NULL, 0) != 0 && errno == ETIMEDOUT) look_around(c);
    return !atomic_load(&c->aborted) && !atomic_load(&c->error);
}

int shared_meet(struct ncclComm *c) {
    const uint64_t complete = ++c->round * c->n;
    if (atomic_fetch_add(&c->s->arrived[LANE_DATA], 1) + 1 == complete) {
        bell_ring(&c->s->bell);
        return 1;
    }
    for (;;) {
        const uint32_t seen = atomic_load(&c->s->bell);
        if (atomic_load(&c->s->arrived[LANE_DATA]) >= complete) return 1;
        if (!bell_wait(c, &c->s->bell, seen)) return 0;
    }
}
