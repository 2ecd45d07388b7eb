/* SIGINT and SIGTERM as a request: the first is noted and the run ends after its step and checkpoint; a second of the
 * same kind ends the process at once. */
#ifndef HOST_STOP_H
#define HOST_STOP_H

/* [main] installs the handlers, before threads start. */
void stop_install(void);
/* The signal that asked to stop, or 0. Any thread. */
int stop_requested(void);

/* [main] on SIGSEGV, SIGBUS, SIGFPE, SIGILL: one line that names the plugin call (layer, microbatch) that this thread
 * was inside of, then the default action. current: returns that name or NULL; async-signal-safe. */
void crash_install(const char *(*current)(void));

#endif
