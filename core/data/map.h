/* A file mapped for reading, and the check that it has not been cut since (data.h says why). Windows are read at
 * random: the system's reading ahead, of megabytes for each page touched, would cost milliseconds a window. So it is
 * told what will be read. */
#ifndef CORE_DATA_MAP_H
#define CORE_DATA_MAP_H
#include <moe/base.h>
#include <stdint.h>

typedef struct file_map {
    const char *path;     /* borrowed */
    const uint8_t *bytes; /* [n], NULL when n is 0 */
    uint64_t n;
    uint64_t device, inode;
} file_map;

enum { MAP_AT_RANDOM, MAP_IN_ORDER };

/* Maps the whole regular file at path, which outlives the map, for reading at random. MOE_E_IO. */
moe_status map_open(file_map *m, const char *path, moe_err *err);
void map_close(file_map *m); /* a zeroed one is fine */
/* MOE_E_DATA when the mapped file has fewer bytes than when it was opened. One system call; any thread. */
moe_status map_check(const file_map *m, moe_err *err);
void map_expect(const file_map *m, int order); /* MAP_*: how it will be read from now on */
/* Bytes offset .. offset + n - 1 will be read at once: one request to the disk instead of one a page. Any thread. */
void map_want(const file_map *m, uint64_t offset, uint64_t n);
#endif
