/* How the process ends before its time. SIGINT and SIGTERM are a request: the first is noted and the run ends after its
 * step and checkpoint; a second of the same kind ends the process at once. A crash names the plugin call, and so does
 * an exit that a plugin calls. */
#ifndef HOST_STOP_H
#define HOST_STOP_H

/* [main] installs the handlers, before threads start. */
void stop_install(void);
/* The signal that asked to stop, or 0. Any thread. */
int stop_requested(void);

/* [main] on SIGSEGV, SIGBUS, SIGFPE, SIGILL: one line that names the plugin call (layer, microbatch) that this thread
 * was inside of, then the default action. current: returns that name or NULL; async-signal-safe. */
void crash_install(const char *(*current)(void));
/* Gives the handler a stack of its own on this thread, so that a stack that overflows has its line too; until the
 * thread ends. The thread of crash_install has one. */
void crash_cover_thread(void);

/* Until exit_allow, exit() is called by somebody else than main: one line that names the plugin call, and exit code 1,
 * so that nothing takes it for success. Handlers and destructors of libraries that came before exit_guard do not run,
 * since other threads are still in these libraries: call it at first, and again when all plugins are ready. Any thread.
 */
void exit_guard(void);
void exit_allow(void);

/* [any] For trainer_cfg.on_stuck: a rank cannot end while its peers have. The message as one line on stderr, of several
 * ranks' the first, and exit code 4 at once - but not between stop_hold and stop_release, which stand around the moment
 * in which a checkpoint takes its name. */
void stop_give_up(void *unused, const char *msg);
void stop_hold(void);
void stop_release(void);

#endif
