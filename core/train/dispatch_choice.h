/* Which dispatcher a recipe's `auto` stands for: the bytes that each moves for a balanced routing (the formulas of
 * abi/moe/dispatcher.h's stock plugins), over what the ranks' communication and copies give when measured. */
#ifndef CORE_TRAIN_DISPATCH_CHOICE_H
#define CORE_TRAIN_DISPATCH_CHOICE_H
#include "mesh/groups.h"
#include "parts/parts.h"

/* Of one rank while all ranks do the same. */
typedef struct dispatch_rates {
    double copy;     /* bytes/s of a memcpy, each byte counted once */
    double exchange; /* bytes/s that a rank sends to others in all_to_all_v of large parts */
    double call;     /* seconds of an all_to_all_v of nothing */
    int windows;     /* 1: every member's memory can be written by all */
} dispatch_rates;

typedef struct dispatch_load {
    uint32_t ep, etp;
    uint32_t node_size;     /* members of one node; 0 = all */
    int64_t tokens, hidden; /* of a rank and microbatch */
    int64_t top_k;
    int64_t element; /* bytes of an element of a row */
} dispatch_load;

enum { DISPATCH_ALLGATHER, DISPATCH_ALLTOALL, DISPATCH_DEEPEP, DISPATCH_HIER, DISPATCH_KINDS };
extern const char *const dispatch_ids[DISPATCH_KINDS]; /* ids of the plugins */

/* [main, collective] A moment's measurement on the dispatchers' group (g->of[MESH_ETP_EP], not NULL); the same on all
 * ranks of the world: rank 0's, by the bootstrap. */
moe_status dispatch_measure(const parts *p, const mesh_groups *g, dispatch_rates *out, moe_err *err);
/* Seconds of one dispatch and one combine of a rank, as modelled; infinite where the plugin cannot run. */
double dispatch_seconds(int kind, const dispatch_load *load, const dispatch_rates *rates);
/* The kind with the least. */
int dispatch_best(const dispatch_load *load, const dispatch_rates *rates);

#endif
