/* Life of each buffer from the uses, then placement largest first. */
#include "plan/plan.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

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

/* Lowest offset at which b fits beside the placed ones that live at the same time. placed [n]: ascending offsets. */
static uint64_t place(life *const *placed, uint32_t n, const life *b, const lanes *l) {
    uint64_t off = 0;
    for (uint32_t i = 0; i < n && placed[i]->off < off + b->bytes; i++) {
        uint64_t end = placed[i]->off + placed[i]->bytes;
        if (end > off && !over_before(placed[i], b, l) && !over_before(b, placed[i], l)) off = end;
    }
    return off;
}

/* Keeps placed in ascending order of offsets. */
static void insert(life **placed, uint32_t n, life *b) {
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (placed[mid]->off <= b->off)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(placed + lo + 1, placed + lo, (n - lo) * sizeof *placed);
    placed[lo] = b;
}

static uint32_t collect_lives(const graph *g, const lanes *l, const uint32_t *order, uint64_t align, int lazy,
                              life *lives) {
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
        if (!g->buffers[i].fixed && g->buffers[i].lazy == lazy && lives[i].used) lives[n++] = lives[i];
    return n;
}

moe_status plan_memory(graph *g, const lanes *l, const uint32_t *order, uint64_t align, int lazy, uint64_t *bytes,
                       moe_err *err) {
    life *lives = malloc((g->n_buffers + 1) * sizeof *lives);
    life **placed = malloc((g->n_buffers + 1) * sizeof *placed);
    moe_status status = MOE_OK;
    if (!lives || !placed) {
        status = moe_fail(err, MOE_E_NOMEM, "out of memory for the plan of %u buffers", g->n_buffers);
        goto done;
    }
    uint32_t n = collect_lives(g, l, order, align, lazy, lives);
    qsort(lives, n, sizeof *lives, larger_first);
    *bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        lives[i].off = place(placed, i, &lives[i], l);
        insert(placed, i, &lives[i]);
        g->buffers[lives[i].buf].off = lives[i].off;
        if (lives[i].off + lives[i].bytes > *bytes) *bytes = lives[i].off + lives[i].bytes;
    }
done:
    free(lives);
    free(placed);
    return status;
}
