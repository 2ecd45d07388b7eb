/* Executor: runs an ordered graph on lanes. Every lane in use is a stream of the device; an event is recorded after a
 * node that another lane must wait for, and waits that the order already implies are left out. Running a step issues a
 * fixed list of commands: no allocation, no arithmetic, no wait of the host before exec_finish. */
#ifndef CORE_EXEC_EXEC_H
#define CORE_EXEC_EXEC_H
#include <moe/device.h>
#include <stdatomic.h>

#include "graph/lanes.h"

typedef struct exec exec;

/* Called by the first node that fails, from its lane's thread, so that peers can be told (comm abort). */
typedef void (*exec_fail_fn)(void *arg, const moe_err *err);

/* The node that a lane's worker is inside of, for whoever watches from another thread. Of nodes that only enqueue
 * nothing is noted. */
typedef struct exec_inside {
    _Atomic(const graph_node *) node; /* NULL = between nodes */
    atomic_uint runs;                 /* nodes begun: the same node again is another number */
    char apart[48];                   /* lanes' notes do not share a cache line */
} exec_inside;

/* Streams by lane, opened when a graph first uses the lane, shared by several executors. */
typedef struct exec_lanes {
    const moe_device_v0 *device;
    void *self;
    void *stream[MOE_LANES];
    uint32_t rank; /* for messages */
    exec_inside inside[MOE_LANES];
    _Atomic(exec *) running; /* from exec_issue to exec_finish */
} exec_lanes;

void exec_lanes_init(exec_lanes *e, const moe_device_v0 *device, void *self, uint32_t rank);
/* [main] Makes the streams of the lanes that g uses; exec_create does it too. */
moe_status exec_lanes_open(exec_lanes *e, const graph *g, moe_err *err);
void exec_lanes_free(exec_lanes *e); /* waits for the streams */

/* [main] g bound (graph_bind), order valid; both outlive the executor. */
moe_status exec_create(exec **out, graph *g, const uint32_t *order, const lanes *l, exec_lanes *streams,
                       exec_fail_fn on_fail, void *arg, moe_err *err);
void exec_destroy(exec *x);
/* [step] issues the whole graph. */
moe_status exec_issue(exec *x, moe_err *err);
/* [step] waits until all of it is done; the first failure of a node, with layer, microbatch and rank. */
moe_status exec_finish(exec *x, moe_err *err);
/* [any] Ends the run of now: its nodes that have not begun do nothing, and exec_finish returns *err, unless a node has
 * failed before. Nothing when none runs. */
void exec_cancel(exec_lanes *e, const moe_err *err);
/* When a node ran, nanoseconds of the monotonic clock. Of nodes that only enqueue (copies, fills, asynchronous plugins)
 * the time of the call. */
typedef struct exec_span {
    int64_t begin, end;
} exec_span;
/* [main] From now on every run of a node is noted in spans [nodes of the graph], by number; NULL = no longer. Between
 * steps only; spans live until then. */
void exec_watch(exec *x, exec_span *spans);
uint32_t exec_commands(const exec *x); /* issued a step: nodes, records and waits */

/* The node that this thread is inside of ("L2.mb0.route.fwd"), or NULL: for crash reports. */
const char *exec_current_node(void);

#endif
