/* The gradient that sumsq.c, adamw.c and sgd.c read: flat, and maybe in blocks of which some are not filled and stand
 * for zeros (moe.linear/0). */
#ifndef CPU_OPS_GRADIENT_H
#define CPU_OPS_GRADIENT_H
#include "args.h"

enum { GRADIENT_RUN = 1024 }; /* elements that gradient_run gives at most, where there are blocks */

typedef struct gradient {
    const float *data;     /* [n] */
    const int32_t *filled; /* [groups], NULL = all of it holds values */
    int64_t n, block;      /* elements; of a block */
} gradient;

/* filled: NULL where it is absent. Both are checked. */
static inline gradient gradient_of(const moe_tensor *grad, const moe_tensor *filled) {
    gradient g = {.data = grad->data, .n = grad->shape[0]};
    if (filled) g.filled = filled->data, g.block = g.n / filled->shape[0];
    return g;
}

/* The run of elements that begins at i, all filled or none, cut at `end` (i < end): returns where it ends. */
static inline int64_t gradient_alike(const gradient *g, int64_t i, int64_t end, int *filled) {
    *filled = 1;
    if (!g->filled) return end;
    int64_t at = i / g->block;
    *filled = g->filled[at] != 0;
    do at++;
    while (at * g->block < end && (g->filled[at] != 0) == *filled);
    return cpu_min(end, at * g->block);
}

/* Elements [from, from + n), n <= GRADIENT_RUN where there are blocks: the gradient's own memory, zeros, or, where it
 * is both, room. */
static inline const float *gradient_run(const gradient *g, int64_t from, int64_t n, float room[GRADIENT_RUN]) {
    static const float zeros[GRADIENT_RUN];
    int64_t end = from + n;
    int filled;
    int64_t to = gradient_alike(g, from, end, &filled);
    if (to == end) return filled ? g->data + from : zeros;
    for (int64_t i = from; i < end; i = to) {
        to = gradient_alike(g, i, end, &filled);
        if (filled)
            memcpy(room + (i - from), g->data + i, (size_t)(to - i) * sizeof *room);
        else
            memset(room + (i - from), 0, (size_t)(to - i) * sizeof *room);
    }
    return room;
}
#endif
