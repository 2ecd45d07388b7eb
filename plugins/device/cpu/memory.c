/* Memory of the CPU device: anonymous pages, all touched when they are made, so that no step pays for a page fault;
 * what is reserved comes with its first use. Large blocks begin on huge-page borders and ask for huge pages. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

#define HUGE_PAGE (UINT64_C(2) << 20)
#define PLAUSIBLE (UINT64_C(64) << 20) /* smaller requests are not held against the memory of the machine */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static uint64_t page_bytes(void) {
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* What cpu_map takes from the system for `bytes`; 0 where that is no size. Whole small pages also where a block is
 * large: its end is not worth a huge page, which would cost every block 1 MiB on average. */
static uint64_t mapped_bytes(uint64_t bytes) {
    uint64_t unit = page_bytes();
    if (bytes > UINT64_MAX / 2) return 0;
    return bytes ? (bytes + unit - 1) / unit * unit : unit;
}

/* Pages from `at` on, begun on a huge-page border where they are large. NULL: none. */
static char *map_aligned(uint64_t size, int flags) {
    uint64_t extra = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!extra) return p;
    uint64_t lead = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (lead) munmap(p, lead);
    if (extra - lead) munmap(p + lead + size, extra - lead);
    return p + lead;
}

moe_status cpu_map(uint64_t bytes, const char *what, void **out, moe_err *err) {
    uint64_t size = mapped_bytes(bytes), total = size && size <= PLAUSIBLE ? UINT64_MAX : cpu_memory_total();
    if (size == 0 || size > total)
        return moe_fail(err, MOE_E_NOMEM, "device/cpu: %s: %llu bytes, the machine has %llu", what,
                        (unsigned long long)bytes, (unsigned long long)total);
    char *p = map_aligned(size, 0);
    if (!p)
        return moe_fail(err, MOE_E_NOMEM, "device/cpu: %s: %llu bytes: %s", what, (unsigned long long)bytes,
                        strerror(errno));
    if (size >= HUGE_PAGE) madvise(p, size, MADV_HUGEPAGE); /* a hint: nothing depends on it */
    if (madvise(p, size, MADV_POPULATE_WRITE) != 0) {
        if (errno == ENOMEM) {
            munmap(p, size);
            return moe_fail(err, MOE_E_NOMEM, "device/cpu: %s: %llu bytes cannot be backed by memory", what,
                            (unsigned long long)bytes);
        }
        for (uint64_t i = 0; i < size; i += page_bytes()) *(volatile char *)(p + i) = 0; /* kernels before 5.14 */
    }
    *out = p;
    return MOE_OK;
}

moe_status cpu_reserve(uint64_t bytes, int in_huge_pages, void **out, moe_err *err) {
    uint64_t size = mapped_bytes(bytes);
    void *p = size ? map_aligned(size, MAP_NORESERVE) : NULL;
    if (!p)
        return moe_fail(err, MOE_E_NOMEM, "device/cpu: %llu bytes of addresses: %s", (unsigned long long)bytes,
                        size ? strerror(errno) : "no such size");
    if (in_huge_pages) madvise(p, size, MADV_HUGEPAGE); /* a hint: nothing depends on it */
    *out = p;
    return MOE_OK;
}

uint64_t cpu_resident(const void *ptr, uint64_t bytes) {
    enum { PAGES = 1 << 14 };
    unsigned char there[PAGES];
    uint64_t page = page_bytes(), size = mapped_bytes(bytes), sum = 0;
    for (uint64_t at = 0; at < size; at += PAGES * page) {
        uint64_t n = size - at < PAGES * page ? size - at : PAGES * page;
        if (mincore((char *)ptr + at, n, there) != 0) return sum;
        for (uint64_t i = 0; i < n / page; i++) sum += (there[i] & 1) * page;
    }
    return sum;
}

void cpu_unmap(void *ptr, uint64_t bytes) {
    if (ptr) munmap(ptr, mapped_bytes(bytes));
}

uint64_t cpu_memory_total(void) {
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_bytes();
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "re");
    if (!f) return total;
    unsigned long long limit = 0;
    if (fscanf(f, "%llu", &limit) == 1 && limit && limit < total) total = limit; /* "max" does not parse */
    fclose(f);
    return total;
}
