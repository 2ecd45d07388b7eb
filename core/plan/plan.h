/* Memory plan: an offset in one arena for every buffer of a graph that is not fixed. Two buffers share bytes only if
 * all uses of one happen before the first use of the other under the given order and lanes. */
#ifndef CORE_PLAN_PLAN_H
#define CORE_PLAN_PLAN_H
#include "graph/lanes.h"

/* Writes off of each planned buffer of one arena - those that are lazy, or those that are not -, a multiple of `align`
 * (a power of two). *bytes = size of that arena. Greedy, largest buffer first, lowest free offset. */
moe_status plan_memory(graph *g, const lanes *l, const uint32_t *order, uint64_t align, int lazy, uint64_t *bytes,
                       moe_err *err);

#endif
