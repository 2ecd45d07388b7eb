/* The malloc family over the C library's own (dlsym RTLD_NEXT), with counters. dlsym itself may allocate before the
 * real functions are known; a small static block serves that. */
#include "watch_malloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES = 32, EARLY = 8192 };

typedef struct range {
    uintptr_t begin, end;
    int loader;
} range;

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    void (*free)(void *);
} real;
static _Alignas(64) char early[EARLY]; /* zeroed, never given back */
static size_t early_used;

static range libraries[RANGES];
static int n_libraries;
static atomic_int watching;
static atomic_ullong own_allocs, own_frees, library_allocs, library_frees, loader_allocs;
static _Atomic(void *) first_caller;

/* ---- the real functions ---- */
static void find_real(void) {
    static int state; /* 0, 1 while dlsym runs, 2 after; the first call comes before any thread */
    if (state) return;
    state = 1;
    *(void **)&real.calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&real.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&real.free = dlsym(RTLD_NEXT, "free");
    *(void **)&real.malloc = dlsym(RTLD_NEXT, "malloc");
    state = 2;
}

static void *early_alloc(size_t bytes) {
    size_t at = (early_used + 63) / 64 * 64;
    if (at + bytes > EARLY) return NULL;
    early_used = at + bytes;
    return early + at;
}
static int is_early(const void *p) {
    return (const char *)p >= early && (const char *)p < early + EARLY;
}

/* ---- counting ---- */
static void note(void *caller, atomic_ullong *own, atomic_ullong *library) {
    if (!atomic_load_explicit(&watching, memory_order_relaxed)) return;
    uintptr_t at = (uintptr_t)caller;
    for (int i = 0; i < n_libraries; i++)
        if (at >= libraries[i].begin && at < libraries[i].end) {
            atomic_fetch_add(libraries[i].loader ? &loader_allocs : library, 1);
            return;
        }
    void *none = NULL;
    atomic_compare_exchange_strong(&first_caller, &none, caller);
    atomic_fetch_add(own, 1);
}

#define NOTE_ALLOC() note(__builtin_return_address(0), &own_allocs, &library_allocs)
#define NOTE_FREE() note(__builtin_return_address(0), &own_frees, &library_frees)

/* ---- the family ---- */
void *malloc(size_t bytes) {
    find_real();
    NOTE_ALLOC();
    return real.malloc ? real.malloc(bytes) : early_alloc(bytes);
}
void *calloc(size_t n, size_t bytes) {
    find_real();
    NOTE_ALLOC();
    return real.calloc ? real.calloc(n, bytes) : early_alloc(n * bytes);
}
/* Counts as an allocation where p is NULL; elsewhere as one and a free. */
void *realloc(void *p, size_t bytes) {
    find_real();
    NOTE_ALLOC();
    if (p) NOTE_FREE();
    return real.realloc(p, bytes);
}
int posix_memalign(void **out, size_t align, size_t bytes) {
    find_real();
    NOTE_ALLOC();
    return real.posix_memalign(out, align, bytes);
}
void *aligned_alloc(size_t align, size_t bytes) {
    find_real();
    NOTE_ALLOC();
    return real.aligned_alloc(align, bytes);
}
void free(void *p) {
    find_real();
    if (!p || is_early(p)) return;
    NOTE_FREE();
    real.free(p);
}

/* ---- the watch ---- */
static int add_library(struct dl_phdr_info *info, size_t size, void *arg) {
    static const char *const names[] = {"libdnnl", "libstdc++", "libgomp", "libtbb", "libomp", "ld-linux", "ld-musl"};
    (void)size;
    (void)arg;
    int known = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) known |= strstr(info->dlpi_name, names[i]) != NULL;
    for (int i = 0; known && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || n_libraries == RANGES) continue;
        uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        libraries[n_libraries++] = (range){begin, begin + p->p_memsz, strstr(info->dlpi_name, "/ld-") != NULL};
    }
    return 0;
}

void watch_malloc_init(void) {
    n_libraries = 0;
    dl_iterate_phdr(add_library, NULL);
}

void watch_malloc_begin(void) {
    own_allocs = own_frees = library_allocs = library_frees = loader_allocs = 0;
    first_caller = NULL;
    watching = 1;
}

watch_counts watch_malloc_end(void) {
    watching = 0;
    watch_counts n = {own_allocs, own_frees, library_allocs, library_frees, loader_allocs, ""};
    Dl_info where;
    void *caller = first_caller;
    if (caller && dladdr(caller, &where) && where.dli_fname)
        snprintf(n.first, sizeof n.first, "%.100s+0x%zx", where.dli_fname,
                 (size_t)((char *)caller - (char *)where.dli_fbase));
    return n;
}
