/* INI text -> events, over inih with its pitfalls closed. What is accepted, one per line:
 *     [section]          letters, digits, _ - : ,  at most 49 bytes; nothing but a comment after the bracket
 *     key = value        key: letters, digits, _ -, at most 49 bytes; blanks around key and value do not count
 *     ; or # comment     at the start of a line, or after a blank behind a section or value
 * Leading blanks mean nothing: there are no continuation lines. Values are not quoted, and may be empty. UTF-8, with
 * or without BOM, LF or CRLF; a line has at most 4096 bytes, a file at most 1 MiB.
 * Everything else is an error with file, line and column, and reading goes on: one pass reports all. */
#ifndef HOST_INI_H
#define HOST_INI_H
#include <stdbool.h>
#include <stddef.h>

#include "errors.h"

enum { INI_LINE_MAX = 4096, INI_NAME_MAX = 49, INI_FILE_MAX = 1 << 20 };

/* Strings are borrowed for the call. Lines and columns (bytes) count from 1. key NULL: the section begins here. */
typedef struct ini_event {
    const char *section, *key, *value; /* section "" before the first one */
    int line, key_column, value_column;
} ini_event;
typedef void (*ini_sink)(void *ctx, const ini_event *event);

/* Reads a file, or bytes in memory (need no NUL at the end). name: what errors call the file. Errors go to errs, one
 * line each; returns whether there were none. Blocks on the file system; keeps nothing. */
bool ini_read_file(const char *path, ini_sink sink, void *ctx, err_list *errs);
bool ini_read_text(const char *name, const char *text, size_t bytes, ini_sink sink, void *ctx, err_list *errs);

/* Could this value stand in a file and come back unchanged? NULL, or the reason why not, with the byte in *at. */
const char *ini_value_fault(const char *value, size_t *at);
/* Names as above. */
bool ini_is_key(const char *key);
bool ini_is_section(const char *section);

#endif
