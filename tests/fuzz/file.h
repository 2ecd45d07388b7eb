/* Fuzz input as a file: parsers that take a path read it through /proc, and nothing touches a disk. */
#ifndef TESTS_FUZZ_FILE_H
#define TESTS_FUZZ_FILE_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A descriptor whose file holds these bytes, and its path. The caller closes it. */
static inline int file_of(const uint8_t *data, size_t size, char path[64]) {
    int fd = memfd_create("fuzz", 0);
    if (fd < 0) abort();
    for (size_t at = 0; at < size;) {
        ssize_t n = write(fd, data + at, size - at);
        if (n <= 0) abort();
        at += (size_t)n;
    }
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
