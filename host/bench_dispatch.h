/* moehost bench dispatch: what dispatchers cost, beside a plain copy of the rows that land, made in the same run by as
 * many threads at once. Ranks are threads; each has one compute thread. bench_dispatch.c measures, cmd_bench_dispatch.c
 * reads the command line and prints. */
#ifndef HOST_BENCH_DISPATCH_H
#define HOST_BENCH_DISPATCH_H
#include <parts/parts.h>

/* One routing for all: experts are dealt to tokens from shuffled decks, so that all have nearly equally many rows. */
typedef struct bench_dispatch_cfg {
    uint32_t ranks, top_k, experts, node_size; /* node_size 0: one node */
    int64_t tokens, hidden, tries;             /* tokens of a rank; tries of a run */
    int32_t dtype;                             /* MOE_F32, MOE_BF16 */
    part_ref device, comm;
} bench_dispatch_cfg;

enum { DISPATCH_COPY, DISPATCH_STREAM, DISPATCH_LAYOUT, DISPATCH_OUT, DISPATCH_BACK, DISPATCH_TIMES };

/* DISPATCH_COPY: memcpy; DISPATCH_STREAM: the same bytes past the caches (moe.copy/0), what memory gives at most.
 * seconds: the best of all tries, from the first rank's start to the last one's end. */
typedef struct bench_dispatch_result {
    double seconds[DISPATCH_TIMES];      /* 0: not measured yet */
    int64_t rows;                        /* that land, of all ranks */
    uint64_t bytes;                      /* of one row */
    uint64_t sent[2], sent_far[2];       /* of all ranks: out, back */
    uint64_t formula[2], formula_far[2]; /* what the volume should be; UINT64_MAX: not known for this dispatcher */
} bench_dispatch_result;

/* One run of a dispatcher, whose figures become part of *r (zeroed before the first). [main] */
moe_status bench_dispatch_run(const bench_dispatch_cfg *cfg, const part_ref *dispatcher, bench_dispatch_result *r,
                              moe_err *err);

#endif
