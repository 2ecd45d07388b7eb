/* The probe: a plugin's file is loaded in a child process first, so that a crashing constructor, an endless loop or a
 * table that points nowhere ends the child and not the host. The child is this program: `moehost __probe FILE`. */
#ifndef HOST_PROBE_H
#define HOST_PROBE_H
#include <stdbool.h>
#include <stddef.h>

enum { PROBE_DEFAULT_MS = 10000 };
#define PROBE_COMMAND "__probe"

/* [main] Runs the child on path and waits, limit_ms at most; then it is killed with all that it started. exe: the
 * program to run. False with the cause in why. Keeps nothing: the loader remembers results by path, time and size. */
bool probe_file(const char *exe, const char *path, unsigned limit_ms, char *why, size_t bytes);

/* The child's side: loads path, checks its table, reports on descriptor 3 and exits. For main.c alone. */
int probe_child(const char *path);

#endif
