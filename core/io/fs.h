/* Files and directories, with errors that name the path and the cause: what the readers and writers of core and host
 * share. Every failure is MOE_E_IO (the system refuses: absent, no permission, disk full, not a file) unless it says
 * otherwise; MOE_E_DATA is left for bytes that are not what they should be.
 * All functions: any thread; paths are borrowed for the call. */
#ifndef CORE_IO_FS_H
#define CORE_IO_FS_H
#include <moe/base.h>
#include <stddef.h>
#include <stdint.h>

/* Fills err with "path: text" on one line (control bytes become '?', a long path keeps its end) and returns code.
 * "%m" in format is the text of errno. */
__attribute__((format(printf, 4, 5))) moe_status fs_fail(moe_err *err, moe_status code, const char *path,
                                                         const char *format, ...);

/* "dir/name" in new memory, which the caller frees; NULL when out of memory. */
char *fs_join(const char *dir, const char *name);

/* Opens a regular file for reading: *fd (the caller closes it) and *bytes, its size now. */
moe_status fs_open_read(const char *path, int *fd, uint64_t *bytes, moe_err *err);

/* Reads exactly n bytes at offset; a file that has become shorter is MOE_E_DATA with the offset at which it
 * ended. */
moe_status fs_read_at(int fd, const char *path, uint64_t offset, void *out, uint64_t n, moe_err *err);

/* The whole file, a NUL after it, in new memory that the caller frees. Larger than limit bytes is MOE_E_DATA. */
moe_status fs_load(const char *path, uint64_t limit, char **out, uint64_t *n, moe_err *err);

/* Size and XXH3-64 of the file, read once from the start; with sync the file is made durable first (fsync). */
moe_status fs_checksum(const char *path, int sync, uint64_t *bytes, uint64_t *xxh3, moe_err *err);

/* Writes n bytes to fd; restarts after short writes and signals. */
moe_status fs_write(int fd, const char *path, const void *bytes, uint64_t n, moe_err *err);

/* Makes the file at path hold these n bytes, durably (fsync). Not atomic: for files that nobody relies on yet. */
moe_status fs_save(const char *path, const void *bytes, uint64_t n, moe_err *err);

/* Makes names in a directory durable (fsync of the directory). */
moe_status fs_sync_dir(const char *path, moe_err *err);

/* mkdir -p. */
moe_status fs_make_dirs(const char *path, moe_err *err);

/* 1: both names are there and lead to one file. */
int fs_same_file(const char *a, const char *b);

/* Removes a file or a directory with all that is in it (links are removed, not followed). Absent: nothing to do. */
moe_status fs_remove_tree(const char *path, moe_err *err);
#endif
