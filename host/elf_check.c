/* Checks of a plugin's file from the outside: permissions, and the ELF headers against the file's size. */
#include "elf_check.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef ElfW(Ehdr) file_header;
typedef ElfW(Phdr) segment;

static bool read_at(int fd, void *to, size_t n, uint64_t offset) {
    if (offset > INT64_MAX) return false;
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static bool fits(uint64_t offset, uint64_t length, uint64_t size) {
    return offset <= size && length <= size - offset;
}

/* ---- permissions ---- */
static bool check_dir(const char *path, char *why, size_t bytes) {
    struct stat st;
    char *copy = strdup(path);
    const char *dir = copy ? dirname(copy) : NULL;
    bool ok = false;
    if (!dir || stat(dir, &st) != 0)
        snprintf(why, bytes, "its directory: %s", strerror(dir ? errno : ENOMEM));
    else if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
        snprintf(why, bytes, "its directory %.200s is writable by others (mode %04o)", dir, st.st_mode & 07777);
    else
        ok = true;
    free(copy);
    return ok;
}

static bool check_place(const char *path, const struct stat *st, char *why, size_t bytes) {
    char real[PATH_MAX];
    if (!S_ISREG(st->st_mode)) {
        snprintf(why, bytes, S_ISDIR(st->st_mode) ? "a directory, not a file" : "not a regular file");
        return false;
    }
    if (st->st_mode & S_IWOTH) {
        snprintf(why, bytes, "the file is writable by others (mode %04o)", st->st_mode & 07777);
        return false;
    }
    if (!check_dir(path, why, bytes)) return false;
    return !realpath(path, real) || check_dir(real, why, bytes); /* where a link points to */
}

/* ---- ELF ---- */
static bool check_header(const file_header *h, const file_header *own, char *why, size_t bytes) {
    if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
        snprintf(why, bytes, "not an ELF file");
    else if (h->e_ident[EI_CLASS] != own->e_ident[EI_CLASS])
        snprintf(why, bytes, "ELF class is %d, the host's is %d (1 = 32 bits, 2 = 64 bits)", h->e_ident[EI_CLASS],
                 own->e_ident[EI_CLASS]);
    else if (h->e_ident[EI_DATA] != own->e_ident[EI_DATA])
        snprintf(why, bytes, "ELF byte order is %d, the host's is %d", h->e_ident[EI_DATA], own->e_ident[EI_DATA]);
    else if (h->e_machine != own->e_machine)
        snprintf(why, bytes, "ELF machine is %d, the host's is %d", h->e_machine, own->e_machine);
    else if (h->e_type != ET_DYN)
        snprintf(why, bytes, "ELF type is %d, a shared object's is %d", h->e_type, ET_DYN);
    else if (h->e_phentsize != sizeof(segment) || h->e_phnum == 0 || h->e_phnum == PN_XNUM)
        snprintf(why, bytes, "the ELF program headers are malformed");
    else
        return true;
    return false;
}

static bool check_extent(int fd, const file_header *h, uint64_t size, char *why, size_t bytes) {
    bool whole = fits(h->e_phoff, (uint64_t)h->e_phnum * sizeof(segment), size) &&
                 (h->e_shoff == 0 || fits(h->e_shoff, (uint64_t)h->e_shnum * h->e_shentsize, size));
    for (uint16_t i = 0; whole && i < h->e_phnum; i++) {
        segment s;
        whole = read_at(fd, &s, sizeof s, h->e_phoff + i * sizeof s) &&
                (s.p_type == PT_GNU_STACK || fits(s.p_offset, s.p_filesz, size));
    }
    if (!whole) snprintf(why, bytes, "truncated: its ELF headers reach past its %llu bytes", (unsigned long long)size);
    return whole;
}

bool elf_check(const char *path, struct stat *st, char *why, size_t bytes) {
    file_header header, own;
    bool ok = false;
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, st) != 0)
        snprintf(why, bytes, "%s", strerror(errno));
    else if (!check_place(path, st, why, bytes))
        ok = false;
    else if (st->st_size == 0)
        snprintf(why, bytes, "the file is empty");
    else if (self < 0 || !read_at(self, &own, sizeof own, 0))
        snprintf(why, bytes, "the host cannot read its own /proc/self/exe");
    else if (!read_at(fd, &header, sizeof header, 0))
        snprintf(why, bytes, "not an ELF file: only %lld bytes", (long long)st->st_size);
    else
        ok = check_header(&header, &own, why, bytes) && check_extent(fd, &header, (uint64_t)st->st_size, why, bytes);
    if (fd >= 0) close(fd);
    if (self >= 0) close(self);
    return ok;
}
