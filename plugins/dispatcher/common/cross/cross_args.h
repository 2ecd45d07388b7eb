/* From the arguments of a dispatcher's calls to those of a crossing. */
#ifndef DISPATCHER_CROSS_ARGS_H
#define DISPATCHER_CROSS_ARGS_H
#include "cross.h"

/* The entries of a routing: slots, whose place is the ep rank of their expert. Writes places [T,k], and rows [T,k]: 0,
 * or -1 where the id is; the rows themselves may be filled in later. */
cross_input cross_slots(const disp *d, const moe_tensor *ids, int64_t *rows, uint32_t *places);
/* The call with the movement's own planes and scalars on both sides. */
void cross_call_of(const moe_move_args *args, cross_call *call);
/* Bytes of a row of all planes. */
int64_t cross_width(const moe_move_args *args);

#endif
