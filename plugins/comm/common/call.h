/* A collective call as all members of a group must make it: the comm plugins compare it among the members, and tell it
 * in messages. check.h looks at the rest of the arguments, which may differ. */
#ifndef COMM_COMMON_CALL_H
#define COMM_COMMON_CALL_H
#include <moe/comm.h>

#include "text.h"

enum {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_BROADCAST,
    COMM_ALL_TO_ALL_V,
    COMM_BARRIER,
    COMM_GROUP_SPLIT,
    COMM_WINDOW_CREATE,
    COMM_P2P /* not collective; the count is messages */
};

typedef struct comm_call {
    int32_t what;     /* COMM_* */
    int32_t dtype;    /* MOE_F32 ..; 0 where there is none */
    int32_t op;       /* MOE_SUM ..; -1 where there is none */
    uint32_t root;    /* of broadcast; 0 elsewhere */
    uint64_t count;   /* elements; bytes of window_create; messages of p2p; 0 where there is none */
    const char *name; /* channel of group_split; NULL elsewhere */
} comm_call;

const char *comm_call_name(int32_t what); /* "all_reduce" */
/* 1 when two members make the same call. */
int comm_call_same(const comm_call *a, const comm_call *b);
/* "all_reduce of 10 F32 (sum)", "broadcast of 5 F32 from 1", "group_split \"ep\"", "barrier" */
void comm_call_describe(const comm_call *c, comm_text *t);
/* MOE_E_COMM with "group dp: rank 0 calls all_gather of 8 I32, rank 3 calls barrier". Ranks are the world's. */
moe_status comm_call_differ(const char *group, uint32_t rank_a, const comm_call *a, uint32_t rank_b, const comm_call *b,
                            moe_err *err);

#endif
