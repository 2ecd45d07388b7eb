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
    for (uint64_t i = 0; i < list->n; i++) {
        free(list->names[i].path);
        free(list->names[i].index);
    }
    free(list->names);
}

/* The list owns the two paths from here on, on failure too. */
static moe_status append(file_list *list, char *path, char *index, uint64_t source, moe_err *err) {
    if (list->n == list->room) {
        uint64_t room = 2 * list->room + 16;
        file_name *moved = reallocarray(list->names, room, sizeof *moved);
        if (!moved) {
            free(path);
            free(index);
            return moe_fail(err, MOE_E_NOMEM, "no memory for a list of files");
        }
        list->names = moved;
        list->room = room;
    }
    list->names[list->n++] = (file_name){path, index, source};
    return MOE_OK;
}

/* The real path of a regular file, in new memory, and its size. */
static moe_status resolve(const char *path, char **real, uint64_t *bytes, moe_err *err) {
    struct stat st;
    moe_status s = MOE_OK;
    char *found = realpath(path, NULL);
    if (!found) return fs_fail(err, MOE_E_IO, path, "cannot open: %m");
    if (stat(found, &st) != 0)
        s = fs_fail(err, MOE_E_IO, path, "cannot stat: %m");
    else if (S_ISDIR(st.st_mode))
        s = fs_fail(err, MOE_E_ARG, path, "is a directory; name its files (directory/*)");
    else if (!S_ISREG(st.st_mode))
        s = fs_fail(err, MOE_E_ARG, path, "is not a regular file");
    if (s != MOE_OK) {
        free(found);
        return s;
    }
    *real = found;
    *bytes = (uint64_t)st.st_size;
    return MOE_OK;
}

static moe_status add_plain(const data_config *cfg, const char *path, uint64_t source, file_list *list, moe_err *err) {
    char *real = NULL;
    uint64_t bytes = 0;
    moe_status s = resolve(path, &real, &bytes, err);
    if (s == MOE_OK && bytes > 0) return append(list, real, NULL, source, err);
    if (s == MOE_OK) files_note(cfg, "%s has no bytes and is skipped", path);
    free(real);
    return s;
}

/* Length of name without ".bin" or ".idx"; its whole length when it has neither. */
static size_t stem_length(const char *name) {
    size_t n = strlen(name);
    return n > 4 && (strcmp(name + n - 4, ".bin") == 0 || strcmp(name + n - 4, ".idx") == 0) ? n - 4 : n;
}

static int exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

/* path: one of the two files. Links may rename either, so each is resolved on its own. */
static moe_status add_pair(const char *path, uint64_t source, file_list *list, moe_err *err) {
    size_t n = stem_length(path);
    char *bin = NULL, *idx = NULL, *real_bin = NULL, *real_idx = NULL;
    uint64_t bytes = 0;
    moe_status s = MOE_OK;
    if (path[n] == 0) return fs_fail(err, MOE_E_ARG, path, "is neither a .bin nor an .idx file");
    if (asprintf(&bin, "%.*s.bin", (int)n, path) < 0 || asprintf(&idx, "%.*s.idx", (int)n, path) < 0)
        s = fs_fail(err, MOE_E_NOMEM, path, "no memory for its name");
    else if (!exists(bin))
        s = fs_fail(err, MOE_E_IO, idx, "has no .bin file beside it");
    else if (!exists(idx))
        s = fs_fail(err, MOE_E_IO, bin, "has no .idx file beside it");
    if (s == MOE_OK) s = resolve(bin, &real_bin, &bytes, err);
    if (s == MOE_OK) s = resolve(idx, &real_idx, &bytes, err);
    if (s == MOE_OK)
        s = append(list, real_bin, real_idx, source, err);
    else
        free(real_bin);
    free(bin);
    free(idx);
    return s;
}

static moe_status add_file(const data_config *cfg, const char *path, uint64_t source, file_list *list, moe_err *err) {
    if (cfg->format == DATA_MEGATRON) return add_pair(path, source, list, err);
    return add_plain(cfg, path, source, list, err);
}

/* The pattern from the root or the working directory on, with room for four bytes more; with escape, base is protected
 * from being read as a glob. */
static char *from_base(const data_config *cfg, const char *pattern, int escape) {
    const char *base = pattern[0] == '/' || !cfg->base ? NULL : cfg->base;
    char *out = malloc(2 * (base ? strlen(base) : 0) + strlen(pattern) + 6), *to = out;
    if (!out) return NULL;
    for (const char *c = base; c && *c; *to++ = *c++)
        if (escape && strchr("*?[]\\", *c)) *to++ = '\\';
    if (base) *to++ = '/';
    memcpy(to, pattern, strlen(pattern) + 1);
    return out;
}

/* Endings that a pattern may lack; the first that leads to a file counts. */
static const char *const endings[] = {"", ".idx", ".bin"};

static int count_endings(const data_config *cfg) {
    return cfg->format == DATA_MEGATRON ? 3 : 1;
}

/* Adds the file that the name is, or could be with an ending; *found tells. A directory x beside x.bin and x.idx is no
 * obstacle, so the bare name comes last. */
static moe_status add_literal(const data_config *cfg, char *name, uint64_t source, int *found, file_list *list,
                              moe_err *err) {
    size_t n = strlen(name);
    *found = 0;
    for (int i = count_endings(cfg) - 1; i >= 0; i--) {
        memcpy(name + n, endings[i], strlen(endings[i]) + 1);
        if (!exists(name)) continue;
        *found = 1;
        return add_file(cfg, name, source, list, err);
    }
    return MOE_OK;
}

static moe_status add_glob(const data_config *cfg, const char *what, const char *pattern, char *escaped,
                           uint64_t source, file_list *list, moe_err *err) {
    glob_t found = {0};
    size_t n = strlen(escaped);
    int rc = GLOB_NOMATCH;
    moe_status s = MOE_OK;
    for (int i = 0; pattern[0] && rc == GLOB_NOMATCH && i < count_endings(cfg); i++) {
        memcpy(escaped + n, endings[i], strlen(endings[i]) + 1);
        globfree(&found);
        rc = glob(escaped, GLOB_ERR, NULL, &found);
    }
    if (rc == GLOB_NOMATCH)
        s = moe_fail(err, MOE_E_ARG, "%s: no file matches '%.150s' (%s%.150s)", what, pattern,
                     cfg->base ? "in " : "in the working directory", cfg->base ? cfg->base : "");
    else if (rc != 0)
        s = moe_fail(err, MOE_E_IO, "%s: cannot search for '%.300s': %m", what, pattern);
    for (size_t i = 0; s == MOE_OK && i < found.gl_pathc; i++) s = add_file(cfg, found.gl_pathv[i], source, list, err);
    globfree(&found);
    return s;
}

static moe_status expand_pattern(const data_config *cfg, const char *what, const char *pattern, uint64_t source,
                                 file_list *list, moe_err *err) {
    char *literal = from_base(cfg, pattern, 0), *escaped = from_base(cfg, pattern, 1);
    moe_status s = MOE_OK;
    int found = 0;
    if (!literal || !escaped) s = moe_fail(err, MOE_E_NOMEM, "%s: no memory for a pattern", what);
    if (s == MOE_OK && pattern[0]) s = add_literal(cfg, literal, source, &found, list, err);
    if (s == MOE_OK && !found) s = add_glob(cfg, what, pattern, escaped, source, list, err);
    free(literal);
    free(escaped);
    return s;
}

static int compare(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int by_path(const void *a, const void *b) {
    const file_name *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    return order ? order : compare(x->source, y->source);
}

static int by_source(const void *a, const void *b) {
    const file_name *x = a, *y = b;
    int order = compare(x->source, y->source);
    return order ? order : strcmp(x->path, y->path);
}

moe_status files_expand(const data_config *cfg, const char *what, const char *const *patterns, uint64_t n, int weighted,
                        file_list *list, moe_err *err) {
    moe_status s = MOE_OK;
    uint64_t kept = 0;
    for (uint64_t i = 0; s == MOE_OK && i < n; i++)
        s = expand_pattern(cfg, what, patterns[i], weighted ? i : 0, list, err);
    if (s != MOE_OK || list->n == 0) return s;
    qsort(list->names, list->n, sizeof *list->names, by_path);
    for (uint64_t i = 0; i < list->n; i++) {
        file_name *name = &list->names[i], *last = kept ? &list->names[kept - 1] : NULL;
        if (!last || strcmp(last->path, name->path) != 0) {
            list->names[kept++] = *name;
            continue;
        }
        if (s == MOE_OK && last->source != name->source)
            s = fs_fail(err, MOE_E_ARG, name->path, "has two weights, as '%.80s' and as '%.80s'",
                        patterns[last->source], patterns[name->source]);
        free(name->path);
        free(name->index);
    }
    list->n = kept;
    qsort(list->names, list->n, sizeof *list->names, by_source);
    return s;
}
