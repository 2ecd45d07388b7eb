/* Files and directories with errors that name them; see fs.h. */
#include "io/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <moe/options.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { PATH_SHOWN = 200 }; /* an error has 504 bytes and the reason must fit */

moe_status fs_fail(moe_err *err, moe_status code, const char *path, const char *format, ...) {
    char text[sizeof err->msg];
    va_list ap;
    va_start(ap, format); /* first, while errno is what the caller saw */
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    size_t length = strlen(path);
    const char *end = length > PATH_SHOWN ? path + length - PATH_SHOWN : path;
    moe_fail(err, code, "%s%s: %s", end == path ? "" : "...", end, text);
    for (char *c = err->msg; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return code;
}

char *fs_join(const char *dir, const char *name) {
    char *out = NULL;
    return asprintf(&out, "%s/%s", dir, name) < 0 ? NULL : out;
}

moe_status fs_open_read(const char *path, int *fd, uint64_t *bytes, moe_err *err) {
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up before it is refused */
    if (f < 0) return fs_fail(err, MOE_E_IO, path, "cannot open: %m");
    if (fstat(f, &st) != 0) {
        fs_fail(err, MOE_E_IO, path, "cannot stat: %m");
        close(f);
        return err->code;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return fs_fail(err, MOE_E_IO, path, "is not a regular file");
    }
    *fd = f;
    *bytes = (uint64_t)st.st_size;
    return MOE_OK;
}

moe_status fs_read_at(int fd, const char *path, uint64_t offset, void *out, uint64_t n, moe_err *err) {
    char *to = out;
    for (uint64_t done = 0; done < n;) {
        uint64_t want = n - done < (1u << 30) ? n - done : 1u << 30;
        ssize_t got = pread(fd, to + done, (size_t)want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fs_fail(err, MOE_E_IO, path, "cannot read at offset %llu: %m", offset + done + 0ull);
        if (got == 0)
            return fs_fail(err, MOE_E_DATA, path, "ends at offset %llu, %llu bytes short: it was cut while in use",
                           offset + done + 0ull, n - done + 0ull);
        done += (uint64_t)got;
    }
    return MOE_OK;
}

moe_status fs_load(const char *path, uint64_t limit, char **out, uint64_t *n, moe_err *err) {
    int fd = -1;
    uint64_t bytes = 0;
    char *text = NULL;
    moe_status s = fs_open_read(path, &fd, &bytes, err);
    if (s != MOE_OK) return s;
    if (bytes > limit)
        s = fs_fail(err, MOE_E_DATA, path, "has %llu bytes, more than the limit of %llu", bytes + 0ull, limit + 0ull);
    else if ((text = malloc((size_t)bytes + 1)) == NULL)
        s = fs_fail(err, MOE_E_NOMEM, path, "no memory for %llu bytes", bytes + 0ull);
    else
        s = fs_read_at(fd, path, 0, text, bytes, err);
    close(fd);
    if (s != MOE_OK) {
        free(text);
        return s;
    }
    text[bytes] = 0;
    *out = text;
    *n = bytes;
    return MOE_OK;
}

moe_status fs_checksum(const char *path, int sync, uint64_t *bytes, uint64_t *xxh3, moe_err *err) {
    enum { CHUNK = 1 << 20 };
    int fd = -1;
    uint64_t size = 0;
    moe_status s = fs_open_read(path, &fd, &size, err);
    if (s != MOE_OK) return s;
    XXH3_state_t *state = XXH3_createState();
    char *chunk = malloc(CHUNK);
    if (!state || !chunk || XXH3_64bits_reset(state) != XXH_OK)
        s = fs_fail(err, MOE_E_NOMEM, path, "no memory for a checksum");
    else if (sync && fsync(fd) != 0)
        s = fs_fail(err, MOE_E_IO, path, "cannot sync: %m");
    for (uint64_t at = 0; s == MOE_OK && at < size;) {
        uint64_t n = size - at < CHUNK ? size - at : CHUNK;
        s = fs_read_at(fd, path, at, chunk, n, err);
        if (s == MOE_OK) XXH3_64bits_update(state, chunk, (size_t)n);
        at += n;
    }
    if (s == MOE_OK) {
        *bytes = size;
        *xxh3 = XXH3_64bits_digest(state);
    }
    free(chunk);
    XXH3_freeState(state);
    close(fd);
    return s;
}

moe_status fs_write(int fd, const char *path, const void *bytes, uint64_t n, moe_err *err) {
    const char *from = bytes;
    for (uint64_t done = 0; done < n;) {
        uint64_t want = n - done < (1u << 30) ? n - done : 1u << 30;
        ssize_t put = write(fd, from + done, (size_t)want);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fs_fail(err, MOE_E_IO, path, "cannot write %llu bytes: %m", n - done + 0ull);
        done += (uint64_t)put;
    }
    return MOE_OK;
}

moe_status fs_save(const char *path, const void *bytes, uint64_t n, moe_err *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0) return fs_fail(err, MOE_E_IO, path, "cannot create: %m");
    moe_status s = fs_write(fd, path, bytes, n, err);
    if (s == MOE_OK && fsync(fd) != 0) s = fs_fail(err, MOE_E_IO, path, "cannot sync: %m");
    if (close(fd) != 0 && s == MOE_OK) s = fs_fail(err, MOE_E_IO, path, "cannot close: %m");
    return s;
}

moe_status fs_sync_dir(const char *path, moe_err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fs_fail(err, MOE_E_IO, path, "cannot open directory: %m");
    moe_status s = MOE_OK;
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: the file system has no such notion */
        s = fs_fail(err, MOE_E_IO, path, "cannot sync directory: %m");
    close(fd);
    return s;
}

static moe_status make_dir(const char *path, moe_err *err) {
    struct stat st;
    if (mkdir(path, 0777) == 0) return MOE_OK;
    if (errno != EEXIST) return fs_fail(err, MOE_E_IO, path, "cannot make directory: %m");
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return fs_fail(err, MOE_E_IO, path, "exists and is not a directory");
    return MOE_OK;
}

moe_status fs_make_dirs(const char *path, moe_err *err) {
    char *part = strdup(path);
    moe_status s = part ? MOE_OK : fs_fail(err, MOE_E_NOMEM, path, "no memory for a path");
    for (char *c = part; s == MOE_OK && *c; c++) {
        if (*c != '/' || c == part) continue;
        *c = 0;
        s = make_dir(part, err);
        *c = '/';
    }
    if (s == MOE_OK) s = make_dir(path, err);
    free(part);
    return s;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path) != 0 && errno != ENOENT ? -1 : 0;
}

moe_status fs_remove_tree(const char *path, moe_err *err) {
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return MOE_OK;
    return fs_fail(err, MOE_E_IO, path, "cannot remove: %m");
}

int fs_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
