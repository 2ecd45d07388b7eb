/* Which part of the model a node of the step belongs to: by its name, as core/model names it. */
#ifndef HOST_BENCH_PARTS_H
#define HOST_BENCH_PARTS_H
#include <train/trainer.h>

enum {
    BENCH_PROJECTIONS,
    BENCH_ATTENTION,
    BENCH_ROUTING, /* router, layout, moving rows */
    BENCH_EXPERTS,
    BENCH_DENSE, /* shared experts and dense layers */
    BENCH_HEAD,
    BENCH_NORMS,  /* norms, rotary embedding, token embedding */
    BENCH_UPDATE, /* reduction, optimiser, balance state */
    BENCH_OTHER,
    BENCH_PARTS
};
extern const char *const bench_part_names[BENCH_PARTS];
int bench_part_of(const trainer_span *s);

#endif
