/* Bump allocator in blocks of at least 64 KiB. */
#include "util/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, BLOCK = 64 * 1024 };

struct arena_block {
    arena_block *next;
    size_t used, size; /* bytes after the header */
};

static const size_t HEADER = ALIGN; /* keeps the payload aligned */

void *arena_alloc(arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    arena_block *b = a->blocks;
    if (!b || b->size - b->used < bytes) {
        size_t size = bytes > BLOCK ? bytes : BLOCK;
        void *memory = NULL;
        if (posix_memalign(&memory, ALIGN, HEADER + size)) return NULL;
        b = memory;
        *b = (arena_block){.next = a->blocks, .size = size};
        a->blocks = b;
    }
    char *out = (char *)b + HEADER + b->used;
    b->used += bytes;
    memset(out, 0, bytes);
    return out;
}

char *arena_printf(arena *a, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    char *out = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (!out) return NULL;
    va_start(ap, format);
    vsnprintf(out, (size_t)n + 1, format, ap);
    va_end(ap);
    return out;
}

void arena_free(arena *a) {
    while (a->blocks) {
        arena_block *b = a->blocks;
        a->blocks = b->next;
        free(b);
    }
}
