/* Watchdog: one small thread a rank that sees to it that nothing waits for ever. It looks at which node each lane is
 * inside of (exec_inside) and at the set-up call that the rank's own thread is inside of. A call that communicates and
 * does not return within the timeout ends the run: the error names rank, node, group, how long, and who is missing, and
 * goes to all ranks by comm->abort. Of an asynchronous comm no lane is inside of a call: there the text of
 * comm->waiting, which is another one whenever anything has moved, stands in the place of the node. A node that
 * computes may take as long as it likes. Once the run is aborted, by this rank or another, no further node starts, and
 * a rank that has not ended after the grace time is given up (on_stuck).
 *
 * Time is the sum of the watchdog's own short sleeps: hours in which the process was stopped do not count. */
#ifndef CORE_EXEC_WATCHDOG_H
#define CORE_EXEC_WATCHDOG_H
#include <moe/comm.h>

#include "exec/groups.h"

typedef struct watchdog watchdog;
typedef struct exec_lanes exec_lanes; /* exec/exec.h */

typedef struct watchdog_cfg {
    uint32_t rank;
    /* 1: the comm has MOE_ASYNC: its calls return at once, and what it says of itself is looked at */
    int32_t comm_async;
    double timeout; /* seconds that a call which communicates may take; 0 = for ever */
    double grace;   /* seconds from an abort to on_stuck; 0 = WATCHDOG_GRACE */
    /* Called once, from the watchdog's thread, while the rank is still inside of something: what, and why it should
     * have ended, in one line. It may end the process; if it returns the rank stays as it is. NULL = nobody. */
    void (*on_stuck)(void *arg, const char *msg);
    void *arg;
} watchdog_cfg;
#define WATCHDOG_GRACE 5.0

/* [main] Starts the thread. */
moe_status watchdog_create(watchdog **out, const watchdog_cfg *cfg, moe_err *err);
/* [main] From now on it asks comm whether the run was aborted, and looks at the lanes; what it is given lives until
 * watchdog_detach. groups may grow until the first node runs. */
void watchdog_attach(watchdog *w, const moe_comm_v0 *comm, void *comm_self, exec_lanes *streams,
                     const exec_groups *groups);
/* [main] It looks at nothing any more, but an abort that it has seen still ends in on_stuck when the rank does not end.
 */
void watchdog_detach(watchdog *w);
void watchdog_destroy(watchdog *w); /* [main] joins the thread. As all calls: NULL is nothing */
/* [main] The rank's own thread goes into a collective call outside of steps ("making group dp"); not nested. what lives
 * until watchdog_leave. */
void watchdog_enter(watchdog *w, const char *what);
void watchdog_leave(watchdog *w);

#endif
