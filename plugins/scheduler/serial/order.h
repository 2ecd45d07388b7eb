/* Stable topological order of a step graph: among the nodes that may run, the lowest index goes first. */
#ifndef SCHEDULER_SERIAL_ORDER_H
#define SCHEDULER_SERIAL_ORDER_H
#include <moe/scheduler.h>

/* order [view->n_nodes], written only as far as the graph allows. MOE_E_ARG: an edge to a node that is not there, or a
 * cycle, of which two neighbours are named. MOE_E_NOMEM. Time n log n + edges. */
moe_status order_by_index(const moe_sched_view *view, uint32_t *order, moe_err *err);

#endif
