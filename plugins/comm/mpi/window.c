/* Windows: memory that the group's members of one node share. One of them makes it for all; each has a part on pages of
 * its own. What a member maps lives until it lets go, whatever has become of the others. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "mpi_comm.h"

enum { PAGE = 4096 };

struct window {
    void *base;
    size_t bytes; /* of all parts */
    void **peers; /* [n] of the group */
    struct window *next;
};

/* What a member says after it has tried: a name for the others to open, and whether it has its memory. */
typedef struct offer {
    char name[MEMORY_NAME];
    uint64_t fits;
} offer;

static void window_free(struct window *w) {
    if (!w) return;
    memory_close(w->base, w->bytes);
    free(w->peers);
    free(w);
}

/* Room for the members of this node; part: bytes of each, whole pages. */
static struct window *window_alloc(const group *g, uint64_t part) {
    struct window *w = calloc(1, sizeof *w);
    uint64_t here = 0;
    if (!w) return NULL;
    for (uint32_t i = 0; i < g->n; i++) here += g->slot[i] != NULL;
    w->peers = calloc(g->n, sizeof *w->peers);
    w->bytes = part < UINT64_MAX / 2 / here ? part * here : UINT64_MAX;
    if (w->peers) return w;
    free(w);
    return NULL;
}

/* The first member on this node. */
static uint32_t maker_of(const group *g) {
    uint32_t i = 0;
    while (!g->slot[i]) i++;
    return i;
}

/* all [n] is scratch. The maker offers, the others open, everybody hears who has it. */
static moe_status share(group *g, struct window *w, offer *all, uint64_t bytes, moe_err *err) {
    const uint32_t maker = maker_of(g);
    offer own = {.fits = 0};
    if (g->index == maker && w) w->base = memory_make(w->bytes, own.name);
    moe_status s = collect_blobs(g, &own, sizeof own, all, err);
    if (s == MOE_OK && g->index != maker && w) w->base = memory_open(w->bytes, all[maker].name);
    own.fits = w && w->base;
    if (s == MOE_OK) s = collect_blobs(g, &own, sizeof own, all, err);
    memory_unname(own.name);
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++)
        if (!all[i].fits)
            s = moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory for a window of %llu bytes", g->name,
                         g->ranks[i], (unsigned long long)bytes);
    return s;
}

moe_status mpi_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err) {
    instance *me = self;
    group *g = handle;
    const comm_call call = {.what = COMM_WINDOW_CREATE, .op = -1, .count = bytes};
    const uint64_t part = bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
    if (g && (!out || !MOE_REACH(out, moe_window, self)))
        return group_refuse(me, g, "window_create", out ? "out.size is too small" : "out is NULL", err);
    moe_status s = group_begin(me, g, &call, NULL, NULL, err);
    if (s != MOE_OK) return s;
    struct window *w = window_alloc(g, part);
    offer *all = calloc(g->n, sizeof *all);
    s = all ? share(g, w, all, bytes, err) : group_refuse(me, g, "window_create", "out of memory", err);
    free(all);
    group_leave(g, s);
    if (s != MOE_OK) {
        window_free(w);
        return s;
    }
    char *at = w->base;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->slot[i]) w->peers[i] = at, at += part;
    w->next = me->windows;
    me->windows = w;
    out->n = g->n;
    out->bytes = bytes;
    out->peers = w->peers;
    out->self = w;
    return MOE_OK;
}

void mpi_window_destroy(void *self, moe_window *out) {
    instance *me = self;
    if (!out || !out->self) return;
    struct window **at = &me->windows, *w = out->self;
    while (*at && *at != w) at = &(*at)->next;
    out->n = 0;
    out->bytes = 0;
    out->peers = NULL;
    out->self = NULL;
    if (!*at) return; /* not of this instance */
    *at = w->next;
    window_free(w);
}

void windows_close(instance *me) {
    while (me->windows) {
        struct window *w = me->windows;
        me->windows = w->next;
        window_free(w);
    }
}
