/* See call.h. */
#include "call.h"

#include <inttypes.h>
#include <moe/options.h>
#include <string.h>

#include "reduce.h"

const char *comm_call_name(int32_t what) {
    static const char *const names[] = {[COMM_ALL_REDUCE] = "all_reduce",
                                        [COMM_ALL_GATHER] = "all_gather",
                                        [COMM_REDUCE_SCATTER] = "reduce_scatter",
                                        [COMM_BROADCAST] = "broadcast",
                                        [COMM_ALL_TO_ALL_V] = "all_to_all_v",
                                        [COMM_BARRIER] = "barrier",
                                        [COMM_GROUP_SPLIT] = "group_split",
                                        [COMM_WINDOW_CREATE] = "window_create",
                                        [COMM_P2P] = "p2p"};
    return names[what];
}

int comm_call_same(const comm_call *a, const comm_call *b) {
    if (a->what != b->what || a->dtype != b->dtype || a->op != b->op || a->root != b->root || a->count != b->count)
        return 0;
    return a->what != COMM_GROUP_SPLIT || strcmp(a->name, b->name) == 0;
}

void comm_call_describe(const comm_call *c, comm_text *t) {
    static const char *const ops[] = {[MOE_SUM] = "sum", [MOE_MAX] = "max", [MOE_MIN] = "min"};
    comm_text_add(t, "%s", comm_call_name(c->what));
    switch (c->what) {
        case COMM_GROUP_SPLIT:
            comm_text_add(t, " \"%.40s\"", c->name);
            break;
        case COMM_WINDOW_CREATE:
            comm_text_add(t, " of %" PRIu64 " bytes", c->count);
            break;
        case COMM_P2P:
            comm_text_add(t, " of %" PRIu64 " messages", c->count);
            break;
        case COMM_BARRIER:
        case COMM_ALL_TO_ALL_V:
            break;
        default:
            comm_text_add(t, " of %" PRIu64 " %s", c->count, dtype_name(c->dtype));
            if (c->what == COMM_BROADCAST) comm_text_add(t, " from %u", c->root);
            if (c->op >= 0) comm_text_add(t, " (%s)", ops[c->op]);
    }
}

moe_status comm_call_differ(const char *group, uint32_t rank_a, const comm_call *a, uint32_t rank_b, const comm_call *b,
                            moe_err *err) {
    char text_a[160], text_b[160];
    comm_text t = comm_text_begin(text_a, sizeof text_a);
    comm_call_describe(a, &t);
    t = comm_text_begin(text_b, sizeof text_b);
    comm_call_describe(b, &t);
    return moe_fail(err, MOE_E_COMM, "group %s: rank %u calls %s, rank %u calls %s", group, rank_a, text_a, rank_b,
                    text_b);
}
