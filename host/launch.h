/* Launch: this process as one rank of several that a launcher (mpirun) has started. The host keeps a comm instance of
 * its own for as long as the session lives: through it the ranks meet outside of training, agree on errors, and end
 * together. A session whose ranks are threads has none (ranks.h). */
#ifndef HOST_LAUNCH_H
#define HOST_LAUNCH_H
#include <parts/parts.h>

#include "errors.h"
#include "ranks.h"

typedef struct launch launch;

/* [main, collective] Asks a comm with MOE_LAUNCH_PROCESSES who this is, and makes the host's instance. */
moe_status launch_open(const part_ref *comm, launch **out, moe_err *err);
void launch_close(launch *l); /* [main] NULL is nothing */
/* How many processes a launcher says that it has started, by its environment, whatever comm is chosen; 1 without one.
 * *variable: where that is written, static; NULL without one. A number that cannot be read is no launcher's. */
uint32_t launch_started(const char **variable);
uint32_t launch_rank(const launch *l);
uint32_t launch_world(const launch *l);
/* For set-up outside of launch_run; lives as long as l. */
const moe_bootstrap *launch_bootstrap(const launch *l);
/* 1: this process says what went wrong. Where all have agreed that is rank 0; where some do not answer, whoever was
 * first to give up. l NULL: 1. */
int launch_speaks(const launch *l);

/* [main, collective] Runs fn as this rank, then meets the others: every rank gets the status and cause that one of them
 * ended with, as ranks_run chooses it, and the cause names that rank. A rank whose peers do not come to this within
 * some seconds of a failure goes on alone, with its own status. */
moe_status launch_run(launch *l, ranks_fn fn, void *arg, moe_err *err);

/* [main, collective] The largest exit code of all ranks; the others' where a rank has failed to answer. */
int launch_agree(launch *l, int code);
/* [main, collective] The same, with the lines that explain it: rank 0 gets those of all ranks, each once. */
int launch_gather_errors(launch *l, int code, err_list *errs);

#endif
