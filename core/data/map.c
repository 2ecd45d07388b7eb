/* Mapped files; see map.h. No descriptor stays open, so a run may have thousands of files. */
#include "data/map.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/fs.h"

moe_status map_open(file_map *m, const char *path, moe_err *err) {
    struct stat st;
    int fd = -1;
    uint64_t n = 0;
    moe_status s = fs_open_read(path, &fd, &n, err);
    if (s != MOE_OK) return s;
    void *at = NULL;
    if (fstat(fd, &st) != 0)
        s = fs_fail(err, MOE_E_IO, path, "cannot stat: %m");
    else if (n > SIZE_MAX)
        s = fs_fail(err, MOE_E_IO, path, "has %llu bytes, more than this machine can address", n + 0ull);
    else if (n > 0 && (at = mmap(NULL, (size_t)n, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        s = fs_fail(err, MOE_E_IO, path, "cannot map its %llu bytes: %m", n + 0ull);
    if (s == MOE_OK)
        *m = (file_map){.path = path, .bytes = at, .n = n, .device = (uint64_t)st.st_dev, .inode = (uint64_t)st.st_ino};
    close(fd);
    if (s == MOE_OK) map_expect(m, MAP_AT_RANDOM);
    return s;
}

/* Advice: a system that takes none reads the same bytes. */
static void advise(const uint8_t *at, uint64_t n, int advice) {
    if (n > 0) (void)posix_madvise((void *)(uintptr_t)at, (size_t)n, advice);
}

void map_expect(const file_map *m, int order) {
    advise(m->bytes, m->n, order == MAP_IN_ORDER ? POSIX_MADV_SEQUENTIAL : POSIX_MADV_RANDOM);
}

void map_want(const file_map *m, uint64_t offset, uint64_t n) {
    uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE); /* advice begins at a page */
    advise(m->bytes + (offset - before), n + before, POSIX_MADV_WILLNEED);
}

void map_close(file_map *m) {
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, (size_t)m->n);
    *m = (file_map){0};
}

moe_status map_check(const file_map *m, moe_err *err) {
    struct stat st;
    if (stat(m->path, &st) != 0 || (uint64_t)st.st_dev != m->device || (uint64_t)st.st_ino != m->inode)
        return MOE_OK; /* another file has the name now, or none: ours is out of reach and lives on in the mapping */
    if ((uint64_t)st.st_size >= m->n) return MOE_OK;
    return fs_fail(err, MOE_E_DATA, m->path, "was cut from %llu to %llu bytes while in use", m->n + 0ull,
                   (unsigned long long)st.st_size);
}
