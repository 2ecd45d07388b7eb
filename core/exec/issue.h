/* The order of issue: each lane's nodes in the given order, but those beside the compute lane as soon as all that they
 * wait for has been issued. Streams hold a bounded number of commands: what is issued behind thousands of nodes of
 * another lane would begin only when these have nearly run. */
#ifndef CORE_EXEC_ISSUE_H
#define CORE_EXEC_ISSUE_H
#include "graph/graph.h"

/* out [n_nodes]: a valid order again, with the same order inside of every lane. */
moe_status issue_order(const graph *g, const uint32_t *order, uint32_t *out, moe_err *err);

#endif
