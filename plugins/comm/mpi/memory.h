/* Memory that the processes of a node share: made by one of them under a name, opened by the others, then nameless, so
 * that nothing is left behind however they end. It lives until the last has closed it. (MPI_Win_allocate_shared has the
 * same memory, but waits for ever where one rank cannot get it, and ends only with all ranks.) */
#ifndef COMM_MPI_MEMORY_H
#define COMM_MPI_MEMORY_H
#include <stddef.h>

enum { MEMORY_NAME = 64 };

/* Zeros, all of them there (an error now, not a signal at the first touch). NULL with errno; name is "" then. */
void *memory_make(size_t bytes, char name[MEMORY_NAME]);
void *memory_open(size_t bytes, const char *name); /* NULL with errno */
void memory_unname(const char *name);              /* when all have opened it, or given up; "" is nothing */
void memory_close(void *at, size_t bytes);         /* NULL is nothing */

#endif
