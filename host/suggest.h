/* "did you mean": the name nearest to a word, by edit distance (optimal string alignment: insert, delete, replace,
 * swap of neighbours; case counts nothing). Offer every valid name, then ask. */
#ifndef HOST_SUGGEST_H
#define HOST_SUGGEST_H
#include <stddef.h>

typedef struct suggest {
    const char *word, *best; /* borrowed */
    unsigned distance;
} suggest;

/* Edits between two words; words beyond 63 bytes count as UINT_MAX apart. */
unsigned suggest_distance(const char *a, const char *b);
suggest suggest_begin(const char *word);
/* A valid name; of equally near ones the first wins. */
void suggest_offer(suggest *s, const char *name);
/* The nearest name, or NULL when none is near enough (about a third of the word may differ). */
const char *suggest_name(const suggest *s);
/* "; did you mean 'x'?" into buf, or "". Returns buf. */
const char *suggest_text(const suggest *s, char *buf, size_t bytes);

#endif
