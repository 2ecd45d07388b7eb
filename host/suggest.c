/* Edit distance over short names, and the nearest of the names offered. */
#include "suggest.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 63 };

static unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}
static int lower(char c) {
    return tolower((unsigned char)c);
}

unsigned suggest_distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST) return UINT_MAX;
    unsigned row[3][LONGEST + 1]; /* rows i-2, i-1, i of the table, by i % 3 */
    for (size_t j = 0; j <= nb; j++) row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned *now = row[i % 3], *up = row[(i - 1) % 3], *upper = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned replace = up[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            now[j] = least(replace, least(up[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
                now[j] = least(now[j], upper[j - 2] + 1);
        }
    }
    return row[na % 3][nb];
}

suggest suggest_begin(const char *word) {
    return (suggest){.word = word, .best = NULL, .distance = UINT_MAX};
}

void suggest_offer(suggest *s, const char *name) {
    unsigned d = suggest_distance(s->word, name);
    if (d < s->distance) {
        s->distance = d;
        s->best = name;
    }
}

const char *suggest_name(const suggest *s) {
    size_t length = strlen(s->word);
    unsigned allowed = length < 3 ? 1 : (unsigned)(length + 2) / 3;
    /* a name that shares nothing with the word is no suggestion, however short both are */
    return s->best && s->distance <= allowed && s->distance < strlen(s->best) ? s->best : NULL;
}

const char *suggest_text(const suggest *s, char *buf, size_t bytes) {
    const char *name = suggest_name(s);
    if (name)
        snprintf(buf, bytes, "; did you mean '%s'?", name);
    else
        buf[0] = '\0';
    return buf;
}
