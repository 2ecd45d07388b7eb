/* Plain POSIX, with the name of the file in every complaint. */
#include "files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void file_path(char path[PATH_BYTES], const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(path, PATH_BYTES, format, ap);
    va_end(ap);
    ck_assert_msg(n > 0 && n < PATH_BYTES, "a path is too long");
}

void file_write(const char *path, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    for (size_t done = 0; done < n;) {
        ssize_t more = write(fd, (const char *)bytes + done, n - done);
        ck_assert_msg(more > 0, "%s: %s", path, strerror(errno));
        done += (size_t)more;
    }
    ck_assert_msg(close(fd) == 0, "%s: %s", path, strerror(errno));
}

static char *read_bytes(const char *path, size_t *n, mode_t *mode) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0 && fstat(fd, &st) == 0, "%s: %s", path, strerror(errno));
    char *bytes = malloc((size_t)st.st_size + 1);
    ck_assert(bytes != NULL);
    *n = 0;
    *mode = st.st_mode;
    for (ssize_t more = 1; more > 0 && *n < (size_t)st.st_size; *n += (size_t)more) {
        more = read(fd, bytes + *n, (size_t)st.st_size - *n);
        ck_assert_msg(more >= 0, "%s: %s", path, strerror(errno));
    }
    bytes[*n] = '\0';
    close(fd);
    return bytes;
}

char *file_read(const char *path) {
    size_t n;
    mode_t mode;
    return read_bytes(path, &n, &mode);
}

void file_copy(const char *from, const char *to, size_t most) {
    size_t n;
    mode_t mode;
    char *bytes = read_bytes(from, &n, &mode);
    file_write(to, bytes, n < most ? n : most);
    ck_assert_msg(chmod(to, mode & 0777) == 0, "%s: %s", to, strerror(errno));
    free(bytes);
}

void file_make_dir(const char *path, mode_t mode) {
    char part[PATH_BYTES];
    file_path(part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        ck_assert_msg(mkdir(part, 0755) == 0 || errno == EEXIST, "%s: %s", part, strerror(errno));
        *slash = '/';
    }
    ck_assert_msg(mkdir(path, 0755) == 0 || errno == EEXIST, "%s: %s", path, strerror(errno));
    ck_assert_msg(chmod(path, mode) == 0, "%s: %s", path, strerror(errno));
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *walk) {
    (void)st, (void)flag, (void)walk;
    return remove(path);
}

void file_remove_tree(const char *path) {
    if (access(path, F_OK) != 0) return;
    ck_assert_msg(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, "%s: %s", path, strerror(errno));
}
