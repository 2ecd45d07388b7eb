/* Set-up memory: a bump allocator whose blocks never move and are freed together. Not for use inside a step. */
#ifndef CORE_UTIL_ARENA_H
#define CORE_UTIL_ARENA_H
#include <stddef.h>

typedef struct arena_block arena_block;
typedef struct arena {
    arena_block *blocks; /* newest first */
} arena;

/* Zeroed memory at a 64-byte boundary, valid until arena_free; NULL when out of memory. bytes may be 0. */
void *arena_alloc(arena *a, size_t bytes);
/* printf into the arena; NULL when out of memory. */
char *arena_printf(arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_free(arena *a);

#endif
