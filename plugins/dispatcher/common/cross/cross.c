/* Crossing: sizes, and windows with their users. See cross.h. */
#include "cross.h"

#include <inttypes.h>
#include <stdlib.h>

enum { HEADS = 2, LINE = 64, SPARE = LINE * (DISP_PLANES + 1) };

static uint64_t words(int64_t n) {
    return 8 * (uint64_t)n;
}

static void size_window(cross *c) {
    if (!c->expands || c->n < 2) return;
    const int64_t others = c->n - 1;
    c->window_rows = disp_max(disp_min(c->rows_in, others * c->tokens), disp_min(c->crossings, others * c->tokens));
    c->window_entries = disp_max(c->entries_in, c->out_entries);
    c->half =
        (uint64_t)c->window_rows * 4 * (uint64_t)disp_row_elements(c->d) + (uint64_t)c->window_entries * 4 + SPARE;
    c->half = (c->half + LINE - 1) / LINE * LINE;
}

moe_status cross_size(cross *c, moe_err *err) {
    const int64_t n = c->n, most = disp_min((int64_t)c->d->top_k * c->d->etp_size, n) + c->d->top_k;
    if (most > CROSS_LIST)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "%s: layer %u: top_k %u over %u members may sum %" PRId64
                        " rows a token; at most %d are possible",
                        c->d->name, c->d->layer, c->d->top_k, c->n, most, CROSS_LIST);
    const uint64_t lists = words(c->rows_in + 1) + words(c->entries_in) + words((c->entries_in + 1) / 2);
    c->kernel = rows_pick();
    c->lasting = words(HEADS + 4 * (n + 1) + 4 * n + 2 * c->crossings + c->out_entries + c->tokens + 1) +
                 words((c->crossings + 1) / 2);
    if (c->expands) c->lasting += lists;
    /* cross_plan.c: sizes, cursors, arguments; what is sent and what comes */
    c->passing = words(2 * n * n + 2 * n + 4 * n + 4 * n) + words(c->crossings + c->out_entries + n) +
                 words((c->out_entries + n) / 2 + n) + words(c->rows_in + c->entries_in + n) +
                 words((c->entries_in + n) / 2 + n);
    if (!c->expands) c->passing += lists;
    size_window(c);
    return MOE_OK;
}

cross_memory *cross_borrow(const cross *c) {
    cross_memory *m = c->d->shared ? *c->d->shared : NULL;
    return c->half && m && m->half >= c->half ? m : NULL;
}

static moe_status make_window(const cross *c, const char *instead, moe_window *w, moe_err *err) {
    const disp *d = c->d;
    *w = (moe_window){.size = sizeof *w};
    if (!MOE_REACH(d->comm, moe_comm_v0, window_destroy) || !d->comm->window_create)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s needs windows, and this comm has none; %s need none", d->name,
                        instead);
    moe_status s = d->comm->window_create(d->comm_self, c->group, 2 * c->half, w, err);
    for (uint32_t i = 0; s == MOE_OK && i < w->n; i++)
        if (!w->peers[i])
            s = moe_fail(err, MOE_E_UNSUPPORTED,
                         "%s: layer %u: member %u of %u cannot address the memory of member %u, which it writes to; %s "
                         "need no windows",
                         d->name, d->layer, c->me, c->n, i, instead);
    return s;
}

moe_status cross_open(cross *c, const char *instead, moe_err *err) {
    cross_memory *m = cross_borrow(c);
    if (!c->half) return MOE_OK;
    if (!m) {
        m = calloc(1, sizeof *m);
        if (!m) return moe_fail(err, MOE_E_NOMEM, "%s: layer %u: out of memory", c->d->name, c->d->layer);
        c->made = 1;
    }
    m->users++;
    c->memory = m;
    if (!c->made) return MOE_OK;
    const moe_status s = make_window(c, instead, &m->window, err);
    if (s != MOE_OK) return s;
    m->half = c->half;
    if (c->d->shared && !*c->d->shared) *c->d->shared = m;
    return MOE_OK;
}

void cross_close(cross *c) {
    cross_memory *m = c->memory;
    const disp *d = c->d;
    c->memory = NULL;
    if (!m || --m->users) return;
    if (m->window.n) d->comm->window_destroy(d->comm_self, &m->window);
    for (int i = 3; i >= 0; i--)
        if (m->groups[i]) d->comm->group_destroy(d->comm_self, m->groups[i]);
    if (d->shared && *d->shared == m) *d->shared = NULL;
    free(m);
}

void cross_run(const cross *c, int64_t n, void (*fn)(void *arg, int64_t i, uint32_t worker), void *arg) {
    if (c->d->pool && n > 1) {
        c->d->pool->run(c->d->pool->self, n, fn, arg);
        return;
    }
    for (int64_t i = 0; i < n; i++) fn(arg, i, 0);
}
