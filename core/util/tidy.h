/* One line out of what a plugin has left for people to read: terminals, logs and one-line reports get it whole. */
#ifndef CORE_UTIL_TIDY_H
#define CORE_UTIL_TIDY_H
#include <stddef.h>

/* text [n], n >= 1: ends inside of it, control bytes become blanks, blanks at the end go. 1 when something is left. */
int tidy_line(char *text, size_t n);

#endif
