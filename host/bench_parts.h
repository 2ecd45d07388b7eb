/* Which part of the model a node of the step belongs to, and which role of the experts' products: by its name, as
 * core/model names it. */
#ifndef HOST_BENCH_PARTS_H
#define HOST_BENCH_PARTS_H
#include <train/trainer.h>

enum {
    BENCH_PROJECTIONS, /* of queries, keys, values and the attention's output */
    BENCH_ATTENTION,
    BENCH_ROUTING,    /* router projection, router, layout, moving rows to the experts and back */
    BENCH_EXPERTS,    /* their products */
    BENCH_ACTIVATION, /* between these */
    BENCH_DENSE,      /* shared experts and dense layers, with their activation */
    BENCH_HEAD,
    BENCH_CROSS_ENTROPY,
    BENCH_NORMS,
    BENCH_ROPE,
    BENCH_EMBEDDING,
    BENCH_UPDATE, /* reduction, optimiser, balance state */
    BENCH_OTHER,
    BENCH_PARTS
};
extern const char *const bench_part_names[BENCH_PARTS];
int bench_part_of(const trainer_span *s);

enum { BENCH_ROLES = 3 }; /* MOE_FPROP, MOE_DGRAD, MOE_WGRAD */
extern const char *const bench_role_names[BENCH_ROLES];
/* The role of a node that is one of the experts' products; -1 of any other node. */
int bench_expert_role_of(const trainer_span *s);

#endif
