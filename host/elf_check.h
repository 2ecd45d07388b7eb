/* Is a file a whole shared object for this machine, in a place that nobody else can write? Asked before the dynamic
 * loader sees it: mapping a truncated file and touching it is a SIGBUS. Nothing of the file is run. */
#ifndef HOST_ELF_CHECK_H
#define HOST_ELF_CHECK_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* path: any; st gets the file's status (of what a link points to). False with the cause in why: absent, not a regular
 * file, it or its directory writable by others (sticky directories excepted), no ELF, another class, byte order or
 * machine than the running program, no shared object, truncated. */
bool elf_check(const char *path, struct stat *st, char *why, size_t bytes);

#endif
