/* What dispatchers that send a token once to a rank or node should send: counted from the routing. */
#ifndef TESTS_CROSS_VOLUME_H
#define TESTS_CROSS_VOLUME_H
#include "group_case.h"

uint64_t sent_deepep(const group_case *c, uint32_t rank, int32_t direction);
uint64_t sent_hier(const group_case *c, uint32_t rank, int32_t direction);
/* Of hier's, what goes to other nodes: one row a token and node. */
uint64_t sent_hier_far(const group_case *c, uint32_t rank, int32_t direction);

#endif
