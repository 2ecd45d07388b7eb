/* Counts the allocations of this process between begin and end, of all threads, by who asked: the libraries that do the
 * products (oneDNN and what it runs on keep scratch of their own), the dynamic loader (storage of a thread that enters
 * a library for the first time), or anybody else. Linked into a test program, its malloc family takes the place of the
 * C library's. */
#ifndef TESTS_CORE_WATCH_MALLOC_H
#define TESTS_CORE_WATCH_MALLOC_H

typedef struct watch_counts {
    unsigned long long own_allocs, own_frees, library_allocs, library_frees, loader_allocs;
    char first[128]; /* file and offset of the first own call */
} watch_counts;

/* Notes where the libraries lie in memory; once they are loaded. */
void watch_malloc_init(void);
void watch_malloc_begin(void);
watch_counts watch_malloc_end(void);

#endif
