/* Arguments of one member's call, looked at before anything else happens. Each function gives 1 when they fit; 0, and
 * in why the reason ("in and out overlap"), when not: then the comm ends all ranks, for the others would wait for ever.
 */
#ifndef COMM_COMMON_CHECK_H
#define COMM_COMMON_CHECK_H
#include "call.h"

enum { COMM_WHY_BYTES = 200 };

/* Member index of n. All kinds of call but all_to_all_v; buf of a broadcast is in and out. Memory that overlaps is
 * refused but where moe/comm.h allows it. */
int comm_check(const comm_call *c, uint32_t n, uint32_t index, const void *in, const void *out, char *why);
/* Members of the group: n. Parts of out may not overlap, nor any with a part of in. */
int comm_check_a2a(const moe_a2a_args *args, uint32_t n, char *why);
/* n_ops messages of a group of n members. What is received may not overlap anything else of the call. */
int comm_check_p2p(const moe_p2p_op *ops, uint32_t n_ops, uint32_t n, char *why);

#endif
