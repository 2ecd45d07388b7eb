/* Agreement before step 1: the members of every group make the same communication calls in the same order, or they
 * would wait for each other for ever. Members of one group agree with each other; groups of other ranks are their own
 * matter, so that pipeline stages may run different programs. Those that run the same program (exec_groups.alike) agree
 * on all calls of each lane, whatever the group: two groups in another order on one lane would wait crosswise. */
#ifndef CORE_TRAIN_AGREE_H
#define CORE_TRAIN_AGREE_H
#include "exec/groups.h"
#include "train/program.h"

enum { AGREE_GROUPS = 16 }; /* at most */

/* [main, collective over the world] programs [n]: ordered ones; those without a graph have no calls. MOE_E_ARG on every
 * rank where two ranks differ, with the group, the two ranks, and the first call that differs. Hashes are exchanged;
 * names only on a difference. */
moe_status agree_on_calls(const moe_bootstrap *b, const exec_groups *groups, const program *programs, uint32_t n,
                          moe_err *err);

#endif
