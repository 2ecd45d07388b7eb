/* Windows of comm/threads: every member's memory is there for all under its own address. All of it lives until the last
 * member has let go, so that nobody writes into memory that is gone, not even after an abort. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "threads.h"

enum { PAGE = 4096, LARGE_PAGE = 2 << 20 };

typedef struct segment {
    _Atomic uint32_t refs;
    uint32_t n;
    void *base[]; /* [n] each member's, allocated by it */
} segment;

static void segment_release(segment *s) {
    if (atomic_fetch_sub(&s->refs, 1) != 1) return;
    for (uint32_t i = 0; i < s->n; i++) free(s->base[i]);
    free(s);
}

/* Zeros, touched by the thread that asks: the pages are its neighbours. */
static void *alloc_memory(uint64_t bytes) {
    const uint64_t whole = bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
    void *p = NULL;
    if (posix_memalign(&p, whole >= LARGE_PAGE ? LARGE_PAGE : PAGE, whole) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (whole >= LARGE_PAGE) madvise(p, whole, MADV_HUGEPAGE); /* fewer misses of the address cache; a wish only */
#endif
    memset(p, 0, whole);
    return p;
}

/* What every member has offered, with one reference for each; NULL when out of memory. */
static segment *segment_make(const post *all, uint32_t n) {
    segment *s = malloc(sizeof *s + n * sizeof s->base[0]);
    if (!s) return NULL;
    atomic_init(&s->refs, n);
    s->n = n;
    for (uint32_t i = 0; i < n; i++) s->base[i] = all[i].o.out;
    return s;
}

/* Two meetings: all show their memory, then member 0 shows the list. */
static moe_status share(member *m, uint64_t bytes, void *memory, segment **shared, moe_err *err) {
    const group *g = m->g;
    const comm_call call = {.what = COMM_WINDOW_CREATE, .op = -1, .count = bytes},
                    again = {.what = COMM_BARRIER, .op = -1};
    moe_status s = member_join(m, &(offer){.call = call, .out = memory}, err);
    if (s != MOE_OK) return s;
    const post *all = member_posts(m);
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++)
        if (!all[i].o.out)
            s = moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory for a window of %llu bytes", g->name,
                         g->ranks[i], (unsigned long long)bytes);
    segment *made = s == MOE_OK && m->index == 0 ? segment_make(all, g->n) : NULL;
    member_done(m);
    if (s != MOE_OK) return s; /* all alike */
    s = member_join(m, &(offer){.call = again, .out = made}, err);
    if (s == MOE_OK) {
        *shared = member_posts(m)[0].o.out;
        member_done(m);
        if (!*shared) s = moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", g->name, g->ranks[0]);
    }
    if (s != MOE_OK) free(made);
    return s;
}

moe_status threads_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err) {
    instance *me = self;
    member *m = handle;
    const comm_call call = {.what = COMM_WINDOW_CREATE, .op = -1, .count = bytes};
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    if (!m || !comm_check(&call, m->g->n, m->index, NULL, NULL, why))
        return member_refuse(me, m, "window_create", why, err);
    if (!out || !MOE_REACH(out, moe_window, self))
        return member_refuse(me, m, "window_create", out ? "out.size is too small" : "out is NULL", err);
    window *w = calloc(1, sizeof *w);
    void *memory = w ? alloc_memory(bytes) : NULL;
    segment *shared = NULL;
    moe_status s = share(m, bytes, memory, &shared, err);
    if (s != MOE_OK) {
        free(memory);
        free(w);
        return s;
    }
    w->s = shared;
    w->next = me->windows;
    me->windows = w;
    out->n = shared->n;
    out->bytes = bytes;
    out->peers = shared->base;
    out->self = w;
    return MOE_OK;
}

void threads_window_destroy(void *self, moe_window *out) {
    instance *me = self;
    if (!out || !out->self) return;
    window **at = &me->windows, *w = out->self;
    while (*at && *at != w) at = &(*at)->next;
    out->n = 0;
    out->bytes = 0;
    out->peers = NULL;
    out->self = NULL;
    if (!*at) return; /* not of this instance */
    *at = w->next;
    segment_release(w->s);
    free(w);
}

void windows_close(instance *me) {
    while (me->windows) {
        window *w = me->windows;
        me->windows = w->next;
        segment_release(w->s);
        free(w);
    }
}
