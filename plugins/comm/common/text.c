/* See text.h. */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>

enum { LISTED = 16 };

comm_text comm_text_begin(char *text, size_t bytes) {
    if (bytes) text[0] = '\0';
    return (comm_text){.text = text, .bytes = bytes};
}

void comm_text_add(comm_text *t, const char *format, ...) {
    if (t->at + 1 >= t->bytes) return;
    va_list ap;
    va_start(ap, format);
    const int n = vsnprintf(t->text + t->at, t->bytes - t->at, format, ap);
    va_end(ap);
    if (n < 0) return;
    t->at += (size_t)n;
    if (t->at >= t->bytes) t->at = t->bytes - 1;
}

void comm_text_add_list(comm_text *t, const uint32_t *numbers, uint32_t n, const char *between) {
    const uint32_t shown = n > LISTED ? LISTED - 1 : n;
    for (uint32_t i = 0; i < shown; i++) comm_text_add(t, "%s%u", i ? between : "", numbers[i]);
    if (n > shown) comm_text_add(t, "%s... %u (%u in all)", between, numbers[n - 1], n);
}
