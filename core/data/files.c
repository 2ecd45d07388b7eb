/* Patterns to a sorted list of real files; see files.h. */
#include "data/files.h"

#include <errno.h>
#include <glob.h>
#include <moe/options.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/fs.h"

void files_note(const data_config *cfg, const char *format, ...) {
    char text[512];
    va_list ap;
    if (!cfg->note) return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    cfg->note(cfg->note_ctx, text);
}

void files_destroy(file_list *list) {
    for (uint64_t i = 0; i < list->n; i++) free((void *)(uintptr_t)list->files[i].path);
    free(list->files);
}

/* Adds the real file behind path; one without bytes is only noted. */
static moe_status add_file(const data_config *cfg, const char *path, file_list *list, moe_err *err) {
    struct stat st;
    char *real = realpath(path, NULL);
    if (!real) return fs_fail(err, MOE_E_DATA, path, "cannot open: %m");
    moe_status s = MOE_OK;
    if (stat(real, &st) != 0)
        s = fs_fail(err, MOE_E_DATA, path, "cannot stat: %m");
    else if (S_ISDIR(st.st_mode))
        s = fs_fail(err, MOE_E_ARG, path, "is a directory; name its files (directory/*)");
    else if (!S_ISREG(st.st_mode))
        s = fs_fail(err, MOE_E_ARG, path, "is not a regular file");
    if (s == MOE_OK && st.st_size == 0) files_note(cfg, "%s has no bytes and is skipped", path);
    if (s != MOE_OK || st.st_size == 0) {
        free(real);
        return s;
    }
    if (list->n == list->room) {
        uint64_t room = 2 * list->room + 16;
        data_file *moved = reallocarray(list->files, room, sizeof *moved);
        if (!moved) {
            free(real);
            return fs_fail(err, MOE_E_NOMEM, path, "no memory for a list of files");
        }
        list->files = moved;
        list->room = room;
    }
    list->files[list->n++] = (data_file){.path = real, .bytes = (uint64_t)st.st_size};
    return MOE_OK;
}

/* The pattern from the root or the working directory on; with escape, base is protected from being read as a glob. */
static char *from_base(const data_config *cfg, const char *pattern, int escape) {
    if (pattern[0] == '/' || !cfg->base) return strdup(pattern);
    char *out = malloc(2 * strlen(cfg->base) + strlen(pattern) + 2), *to = out;
    if (!out) return NULL;
    for (const char *c = cfg->base; *c; *to++ = *c++)
        if (escape && strchr("*?[]\\", *c)) *to++ = '\\';
    *to++ = '/';
    memcpy(to, pattern, strlen(pattern) + 1);
    return out;
}

static moe_status expand_pattern(const data_config *cfg, const char *what, const char *pattern, file_list *list,
                                 moe_err *err) {
    struct stat st;
    glob_t found = {0};
    char *literal = from_base(cfg, pattern, 0), *escaped = from_base(cfg, pattern, 1);
    moe_status s = MOE_OK;
    if (!literal || !escaped) {
        s = moe_fail(err, MOE_E_NOMEM, "%s: no memory for a pattern", what);
    } else if (pattern[0] && lstat(literal, &st) == 0) {
        s = add_file(cfg, literal, list, err);
    } else {
        int rc = pattern[0] ? glob(escaped, GLOB_ERR, NULL, &found) : GLOB_NOMATCH;
        if (rc == GLOB_NOMATCH)
            s = moe_fail(err, MOE_E_ARG, "%s: no file matches '%.150s' (%s%.150s)", what, pattern,
                         cfg->base ? "in " : "in the working directory", cfg->base ? cfg->base : "");
        else if (rc != 0)
            s = moe_fail(err, MOE_E_DATA, "%s: cannot search for '%.300s': %m", what, pattern);
        for (size_t i = 0; s == MOE_OK && i < found.gl_pathc; i++) s = add_file(cfg, found.gl_pathv[i], list, err);
        globfree(&found);
    }
    free(literal);
    free(escaped);
    return s;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const data_file *)a)->path, ((const data_file *)b)->path);
}

moe_status files_expand(const data_config *cfg, const char *what, const char *const *patterns, uint64_t n,
                        file_list *list, moe_err *err) {
    moe_status s = MOE_OK;
    uint64_t kept = 0;
    for (uint64_t i = 0; s == MOE_OK && i < n; i++) s = expand_pattern(cfg, what, patterns[i], list, err);
    if (s != MOE_OK || list->n == 0) return s;
    qsort(list->files, list->n, sizeof *list->files, by_path);
    for (uint64_t i = 0; i < list->n; i++) {
        if (kept > 0 && strcmp(list->files[kept - 1].path, list->files[i].path) == 0)
            free((void *)(uintptr_t)list->files[i].path);
        else
            list->files[kept++] = list->files[i];
    }
    list->n = kept;
    for (uint64_t i = 0; i < kept; i++) {
        if (list->files[i].bytes > DATA_LIMIT - list->bytes)
            return fs_fail(err, MOE_E_ARG, list->files[i].path,
                           "with its %llu bytes %s is over the limit of %llu bytes that are held in memory",
                           list->files[i].bytes + 0ull, what, DATA_LIMIT);
        list->bytes += list->files[i].bytes;
    }
    return MOE_OK;
}
