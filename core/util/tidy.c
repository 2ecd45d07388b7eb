/* Texts of plugins as one printable line. Bytes of 0x80 and more stay: the contract says UTF-8. */
#include "util/tidy.h"

#include <string.h>

int tidy_line(char *text, size_t n) {
    text[n - 1] = 0;
    size_t used = strlen(text);
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) text[i] = ' ';
    while (used > 0 && text[used - 1] == ' ') text[--used] = 0;
    return used > 0;
}
