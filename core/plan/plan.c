/* Life of each buffer from the uses, then placement largest first. What a buffer may collide with is found by time: the
 * step's order is cut into stretches, each with a shelf of the buffers that are placed and live in it. */
#include "plan/plan.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

enum { STRETCH_NODES = 16, MAX_STRETCHES = 256, MANY_STRETCHES = 12 };

typedef struct life {
    buf_id buf;
    uint32_t first;           /* node that uses it first: every other use comes after it */
    uint32_t last[MOE_LANES]; /* latest place of a use in each lane, 0 = none */
    uint64_t bytes, off;      /* bytes rounded up to the alignment */
    /* Places in the order: of the first use; and from where on every node begins after all uses. Buffers whose
     * stretches of time are apart never collide; of others over_before knows. */
    uint32_t start, stop;
    int used;
} life;

/* ---- life ---- */
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

/* least [n_nodes + 1][MOE_LANES]: up to where each lane is complete before every node from this place on. */
static void least_before(const lanes *l, const uint32_t *order, uint32_t *least) {
    uint32_t n = l->n_nodes;
    for (int i = 0; i < MOE_LANES; i++) least[(size_t)n * MOE_LANES + (size_t)i] = UINT32_MAX;
    for (uint32_t at = n; at-- > 0;) {
        const uint32_t *before = lanes_before(l, order[at]);
        uint32_t *here = least + (size_t)at * MOE_LANES, *next = here + MOE_LANES;
        for (int i = 0; i < MOE_LANES; i++) here[i] = before[i] < next[i] ? before[i] : next[i];
    }
}

/* The first place from `from` on where lane is complete up to `last` for good. */
static uint32_t find_over(const uint32_t *least, uint32_t n, uint32_t from, int lane, uint32_t last) {
    uint32_t lo = from, hi = n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (least[(size_t)mid * MOE_LANES + (size_t)lane] >= last)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static uint32_t collect_lives(const graph *g, const lanes *l, const uint32_t *order, uint64_t align, int lazy,
                              const uint32_t *least, life *lives) {
    for (uint32_t i = 0; i < g->n_buffers; i++)
        lives[i] = (life){.buf = i, .bytes = (g->buffers[i].bytes + align - 1) / align * align};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = order[i];
        int32_t lane = g->nodes[n].info.lane;
        for (uint32_t u = g->use_start[n]; u < g->use_start[n + 1]; u++) {
            life *b = &lives[g->use[u]];
            if (!b->used) b->first = n, b->start = i;
            b->used = 1;
            if (l->pos[n] > b->last[lane]) b->last[lane] = l->pos[n];
        }
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_buffers; i++) {
        if (g->buffers[i].fixed || g->buffers[i].lazy != lazy || !lives[i].used) continue;
        life *b = &lives[n++];
        *b = lives[i];
        b->stop = b->start;
        for (int lane = 0; lane < MOE_LANES; lane++)
            if (b->last[lane]) b->stop = find_over(least, g->n_nodes, b->stop, lane, b->last[lane]);
    }
    return n;
}

/* ---- placement ---- */
/* Of a placed buffer, what is looked at most. */
typedef struct slot {
    uint64_t off, end;
    uint32_t start, stop;
} slot;

/* Placed buffers by number, ascending offsets. */
typedef struct shelf {
    uint32_t *at;
    uint32_t n, cap;
} shelf;

typedef struct placement {
    const lanes *l;
    const life *lives;           /* in the order of placement: their numbers */
    slot *slots;                 /* by number */
    shelf all, *stretches;       /* [n_stretches] */
    uint32_t n_stretches, nodes; /* nodes of a stretch */
} placement;

/* Lowest offset from `off` on at which b fits beside those on the shelf that live at the same time. */
static uint64_t fit(const placement *p, const shelf *on, const life *b, uint64_t off) {
    for (uint32_t i = 0; i < on->n && p->slots[on->at[i]].off < off + b->bytes; i++) {
        const slot *s = &p->slots[on->at[i]];
        const life *other = &p->lives[on->at[i]];
        if (s->end <= off || s->stop <= b->start || b->stop <= s->start) continue;
        if (!over_before(other, b, p->l) && !over_before(b, other, p->l)) off = s->end;
    }
    return off;
}

static int put_on(const placement *p, shelf *s, uint32_t number) {
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 64;
        uint32_t *at = realloc(s->at, cap * sizeof *at);
        if (!at) return 0;
        s->at = at;
        s->cap = cap;
    }
    uint32_t lo = 0, hi = s->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (p->slots[s->at[mid]].off <= p->slots[number].off)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(s->at + lo + 1, s->at + lo, (s->n - lo) * sizeof *s->at);
    s->at[lo] = number;
    s->n++;
    return 1;
}

/* Its place, and itself on the shelves. On several shelves the offset rises until it fits on all. 0: out of memory. */
static int place(placement *p, life *b) {
    uint32_t first = b->start / p->nodes, end = (b->stop + p->nodes - 1) / p->nodes;
    uint64_t before;
    do {
        before = b->off;
        if (end - first > MANY_STRETCHES)
            b->off = fit(p, &p->all, b, b->off);
        else
            for (uint32_t i = first; i < end; i++) b->off = fit(p, &p->stretches[i], b, b->off);
    } while (b->off != before && end - first > 1 && end - first <= MANY_STRETCHES);
    uint32_t number = (uint32_t)(b - p->lives);
    p->slots[number] = (slot){b->off, b->off + b->bytes, b->start, b->stop};
    int good = put_on(p, &p->all, number);
    for (uint32_t i = first; i < end && good; i++) good = put_on(p, &p->stretches[i], number);
    return good;
}

static int open_placement(placement *p, const lanes *l, const life *lives, uint32_t n) {
    p->l = l;
    p->lives = lives;
    p->slots = malloc((n + 1) * sizeof *p->slots);
    p->nodes = l->n_nodes / MAX_STRETCHES + 1;
    if (p->nodes < STRETCH_NODES) p->nodes = STRETCH_NODES;
    p->n_stretches = l->n_nodes / p->nodes + 1;
    p->stretches = calloc(p->n_stretches, sizeof *p->stretches);
    return p->slots && p->stretches;
}

static void close_placement(placement *p) {
    for (uint32_t i = 0; p->stretches && i < p->n_stretches; i++) free(p->stretches[i].at);
    free(p->stretches);
    free(p->all.at);
    free(p->slots);
}

moe_status plan_memory(graph *g, const lanes *l, const uint32_t *order, uint64_t align, int lazy, uint64_t *bytes,
                       moe_err *err) {
    life *lives = malloc((g->n_buffers + 1) * sizeof *lives);
    uint32_t *least = malloc((size_t)(g->n_nodes + 1) * MOE_LANES * sizeof *least), n = 0;
    placement p = {0};
    int good = open_placement(&p, l, lives, g->n_buffers) && lives && least;
    if (good) {
        least_before(l, order, least);
        n = collect_lives(g, l, order, align, lazy, least, lives);
        qsort(lives, n, sizeof *lives, larger_first);
        *bytes = 0;
    }
    for (uint32_t i = 0; i < n && good; i++) {
        good = place(&p, &lives[i]);
        g->buffers[lives[i].buf].off = lives[i].off;
        if (lives[i].off + lives[i].bytes > *bytes) *bytes = lives[i].off + lives[i].bytes;
    }
    close_placement(&p);
    free(least);
    free(lives);
    return good ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for the plan of %u buffers", g->n_buffers);
}
