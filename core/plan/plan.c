/* Life of each buffer from the uses, then placement largest first. */
#include "plan/plan.h"

#include <moe/options.h>
#include <stdlib.h>

typedef struct life {
    buf_id buf;
    uint32_t first;           /* node that uses it first: every other use comes after it */
    uint32_t last[MOE_LANES]; /* latest place of a use in each lane, 0 = none */
    uint64_t bytes, off;      /* bytes rounded up to the alignment */
    int used;
} life;

/* Are all uses of a over before b begins? */
static int over_before(const life *a, const life *b, const lanes *l) {
    const uint32_t *before = lanes_before(l, b->first);
    for (int i = 0; i < MOE_LANES; i++)
        if (a->last[i] > before[i]) return 0;
    return 1;
}

static int larger_first(const void *x, const void *y) {
    const life *a = x, *b = y;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return a->buf < b->buf ? -1 : a->buf > b->buf;
}

static int by_offset(const void *x, const void *y) {
    const life *a = *(const life *const *)x, *b = *(const life *const *)y;
    return a->off < b->off ? -1 : a->off > b->off;
}

/* Lowest offset at which b fits beside the placed ones that live at the same time. near: room for `placed` pointers. */
static uint64_t place(life *lives, uint32_t placed, life *b, const lanes *l, life **near) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < placed; i++)
        if (!over_before(&lives[i], b, l) && !over_before(b, &lives[i], l)) near[n++] = &lives[i];
    qsort(near, n, sizeof *near, by_offset);
    uint64_t off = 0;
    for (uint32_t i = 0; i < n && off + b->bytes > near[i]->off; i++)
        if (near[i]->off + near[i]->bytes > off) off = near[i]->off + near[i]->bytes;
    return off;
}

static uint32_t collect_lives(const graph *g, const lanes *l, const uint32_t *order, uint64_t align, life *lives) {
    for (uint32_t i = 0; i < g->n_buffers; i++)
        lives[i] = (life){.buf = i, .bytes = (g->buffers[i].bytes + align - 1) / align * align};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = order[i];
        int32_t lane = g->nodes[n].info.lane;
        for (uint32_t u = g->use_start[n]; u < g->use_start[n + 1]; u++) {
            life *b = &lives[g->use[u]];
            if (!b->used) b->first = n;
            b->used = 1;
            if (l->pos[n] > b->last[lane]) b->last[lane] = l->pos[n];
        }
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_buffers; i++)
        if (!g->buffers[i].fixed && lives[i].used) lives[n++] = lives[i];
    return n;
}

moe_status plan_memory(graph *g, const lanes *l, const uint32_t *order, uint64_t align, uint64_t *bytes, moe_err *err) {
    life *lives = malloc((g->n_buffers + 1) * sizeof *lives);
    life **near = malloc((g->n_buffers + 1) * sizeof *near);
    moe_status status = MOE_OK;
    if (!lives || !near) {
        status = moe_fail(err, MOE_E_NOMEM, "out of memory for the plan of %u buffers", g->n_buffers);
        goto done;
    }
    uint32_t n = collect_lives(g, l, order, align, lives);
    qsort(lives, n, sizeof *lives, larger_first);
    *bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        lives[i].off = place(lives, i, &lives[i], l, near);
        g->buffers[lives[i].buf].off = lives[i].off;
        if (lives[i].off + lives[i].bytes > *bytes) *bytes = lives[i].off + lives[i].bytes;
    }
done:
    free(lives);
    free(near);
    return status;
}
