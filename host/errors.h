/* A list of error lines: the recipe, the options and the loader add to it, the command prints all of it at once.
 * Each entry is one line of any length: "recipe.ini:12:5: [router] topkk: unknown key; did you mean 'topk'?". */
#ifndef HOST_ERRORS_H
#define HOST_ERRORS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { ERR_LIST_MAX = 64 }; /* lines kept; the rest is counted */

typedef struct err_list {
    char *lines[ERR_LIST_MAX];
    size_t n;    /* lines kept */
    size_t more; /* added after the list was full, or lost for want of memory */
} err_list;      /* zero-initialised = empty */

/* [any one thread] Adds one line, unless the very same is there already (a fault that several sections inherit);
 * control characters of the text become '?', so that one error stays one line. */
__attribute__((format(printf, 2, 3))) void err_list_add(err_list *errs, const char *format, ...);
/* Number of errors added so far. */
size_t err_list_count(const err_list *errs);
/* Writes every line; after the last, how many more there were. */
void err_list_print(const err_list *errs, FILE *to);
/* Frees the lines; the list is empty again. */
void err_list_clear(err_list *errs);

/* [any] The log of plugins (parts_cfg.log): errors and warnings as a line on stderr, the rest is dropped. */
void plugin_log(void *arg, int32_t level, const char *part, const char *msg);

#endif
