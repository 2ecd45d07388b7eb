/* Files and folders that a row needs. Every function fails the test when the system refuses. */
#ifndef TESTS_REFUSALS_FILES_H
#define TESTS_REFUSALS_FILES_H
#include <stddef.h>
#include <sys/types.h>

enum { PATH_BYTES = 4096 };

/* dir/name, made by format */
__attribute__((format(printf, 2, 3))) void file_path(char path[PATH_BYTES], const char *format, ...);
void file_write(const char *path, const void *bytes, size_t n);
/* A copy with the same mode; at most `most` bytes of it. */
void file_copy(const char *from, const char *to, size_t most);
/* Whole file with a NUL behind it, malloc'ed. */
char *file_read(const char *path);
/* The folder and its parents; mode of the last one, whatever the umask. */
void file_make_dir(const char *path, mode_t mode);
void file_remove_tree(const char *path);

#endif
