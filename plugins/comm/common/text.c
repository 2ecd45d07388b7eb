/* See text.h. */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>

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

void comm_list_add(comm_list *l, uint32_t number) {
    if (l->n < COMM_LISTED) l->first[l->n] = number;
    l->last = number;
    l->n++;
}

void comm_text_add_list(comm_text *t, const comm_list *l, const char *between) {
    const uint32_t shown = l->n > COMM_LISTED ? COMM_LISTED - 1 : l->n;
    for (uint32_t i = 0; i < shown; i++) comm_text_add(t, "%s%u", i ? between : "", l->first[i]);
    if (l->n > shown) comm_text_add(t, "%s... %u (%u in all)", between, l->last, l->n);
}
