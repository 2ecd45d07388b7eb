/* The list of error lines that recipe, options and loader fill. A full list, or one without memory, still counts. */
#include "errors.h"

#include <moe/base.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void err_list_add(err_list *errs, const char *format, ...) {
    char *line = NULL;
    va_list ap;
    va_start(ap, format);
    if (errs->n == ERR_LIST_MAX || vasprintf(&line, format, ap) < 0) line = NULL;
    va_end(ap);
    if (!line) {
        errs->more++;
        return;
    }
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    for (size_t i = 0; i < errs->n; i++)
        if (strcmp(errs->lines[i], line) == 0) {
            free(line);
            return;
        }
    errs->lines[errs->n++] = line;
}

size_t err_list_count(const err_list *errs) {
    return errs->n + errs->more;
}

void err_list_print(const err_list *errs, FILE *to) {
    for (size_t i = 0; i < errs->n; i++) fprintf(to, "%s\n", errs->lines[i]);
    if (errs->more) fprintf(to, "%s: %zu more errors\n", "moehost", errs->more);
}

void err_list_clear(err_list *errs) {
    for (size_t i = 0; i < errs->n; i++) free(errs->lines[i]);
    *errs = (err_list){.n = 0};
}

void plugin_log(void *arg, int32_t level, const char *part, const char *msg) {
    static const char *const words[] = {"error", "warning"};
    (void)arg;
    if (level >= MOE_LOG_ERROR && level <= MOE_LOG_WARN)
        fprintf(stderr, "moehost: %s: %s: %s\n", words[level], part, msg);
}
