/* The writer of metrics.jsonl; see metrics.h. */
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <moe/options.h>
#include <unistd.h>

#include "io/fs.h"

#define METRICS_LIMIT (1ull << 40) /* bytes of a file to resume from */

struct metrics {
    int fd;
    char *path;
};

/* ---- one line ---- */

/* "name":value at *line, which moves on. A row cannot overrun: 16 fields of at most 14 + 4 + 24 bytes. */
static void put_double(char **line, const char *name, double value) {
    char text[32] = "null";
    for (int digits = 6; isfinite(value) && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    *line += sprintf(*line, ",\"%s\":%s", name, text);
}

static void put_int64_t(char **line, const char *name, int64_t value) {
    *line += sprintf(*line, ",\"%s\":%" PRId64, name, value);
}

int metrics_format(const metrics_row *row, char line[METRICS_LINE]) {
    char *at = line + sprintf(line, "{\"step\":%" PRId64, row->step);
#define PUT_FIELD(name, type) \
    if (METRICS_HAS(row, name)) put_##type(&at, #name, row->name);
    METRICS_FIELDS(PUT_FIELD)
#undef PUT_FIELD
    return (int)(at - line) + sprintf(at, "}\n");
}

/* ---- resume ---- */

/* The step of one line, or -1. */
static int64_t step_of(const char *line, size_t n) {
    json_t *object = json_loadb(line, n, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    int64_t value = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(object);
    return value;
}

/* Moves the lines of steps before first_step to the front of text[*n]; *n becomes what they need. text has room for a
 * newline at its end. */
static moe_status keep_lines(const char *path, char *text, uint64_t *n, int64_t first_step, moe_err *err) {
    uint64_t kept = 0, number = 1;
    for (uint64_t at = 0, next; at < *n; at = next, number++) {
        char *end = memchr(text + at, '\n', *n - at);
        uint64_t length = end ? (uint64_t)(end - text) - at : *n - at;
        int64_t step = step_of(text + at, length);
        next = at + length + 1;
        if (step < 0 && end && next < *n)
            return fs_fail(err, MOE_E_DATA, path, "line %" PRIu64 " is not an object with a step", number);
        if (step < 0 || step >= first_step) continue;
        memmove(text + kept, text + at, length);
        kept += length;
        text[kept++] = '\n';
    }
    *n = kept;
    return MOE_OK;
}

/* Rewrites the file without what a resumed run computes again; through a rename, so a kill loses nothing. */
static moe_status drop_lines(const char *path, int64_t first_step, moe_err *err) {
    char *text = NULL, *part = NULL;
    uint64_t before = 0, n;
    if (access(path, F_OK) != 0 && errno == ENOENT) return MOE_OK;
    moe_status s = fs_load(path, METRICS_LIMIT, &text, &before, err);
    if (s != MOE_OK) return s;
    n = before;
    int torn = n && text[n - 1] != '\n';
    s = keep_lines(path, text, &n, first_step, err);
    if (s == MOE_OK && (n != before || torn)) {
        if (asprintf(&part, "%s.part", path) < 0) {
            part = NULL;
            s = fs_fail(err, MOE_E_NOMEM, path, "no memory for a path");
        }
        if (s == MOE_OK) s = fs_save(part, text, n, err);
        if (s == MOE_OK && rename(part, path) != 0) s = fs_fail(err, MOE_E_IO, part, "cannot rename: %m");
        if (s != MOE_OK && part) unlink(part);
    }
    free(part);
    free(text);
    return s;
}

moe_status metrics_open(const char *path, int64_t first_step, metrics **out, moe_err *err) {
    moe_status s = drop_lines(path, first_step, err);
    if (s != MOE_OK) return s;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return fs_fail(err, MOE_E_IO, path, "cannot open for writing: %m");
    metrics *m = calloc(1, sizeof *m);
    char *copy = strdup(path);
    if (!m || !copy) {
        close(fd);
        free(m);
        free(copy);
        return fs_fail(err, MOE_E_NOMEM, path, "no memory");
    }
    *m = (metrics){fd, copy};
    *out = m;
    return MOE_OK;
}

moe_status metrics_write(metrics *m, const metrics_row *row, moe_err *err) {
    char line[METRICS_LINE];
    int n = metrics_format(row, line);
    off_t size = lseek(m->fd, 0, SEEK_END);
    ssize_t put;
    do put = write(m->fd, line, (size_t)n);
    while (put < 0 && errno == EINTR);
    if (put == n) return MOE_OK;
    if (put < 0)
        fs_fail(err, MOE_E_IO, m->path, "cannot write the line of step %" PRId64 ": %m", row->step);
    else
        fs_fail(err, MOE_E_IO, m->path, "only %zd of %d bytes of step %" PRId64 " fit: disk full?", put, n, row->step);
    if (put > 0 && size >= 0 && ftruncate(m->fd, size) != 0)
        fs_fail(err, MOE_E_IO, m->path, "the line of step %" PRId64 " is torn, and cannot be removed: %m", row->step);
    return err->code;
}

moe_status metrics_sync(metrics *m, moe_err *err) {
    return fsync(m->fd) == 0 ? MOE_OK : fs_fail(err, MOE_E_IO, m->path, "cannot sync: %m");
}

void metrics_close(metrics *m) {
    if (!m) return;
    close(m->fd);
    free(m->path);
    free(m);
}
