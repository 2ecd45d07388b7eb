/* Crossing: sizes and windows. See cross.h. */
#include "cross.h"

#include <inttypes.h>
#include <stdlib.h>

enum { HEADS = 2, LINE = 64, SPARE = LINE * (DISP_PLANES + 1) };

static uint64_t words(int64_t n) {
    return 8 * (uint64_t)n;
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
    return MOE_OK;
}

moe_status cross_open(cross *c, const char *instead, moe_err *err) {
    const disp *d = c->d;
    c->turn = calloc(1, sizeof *c->turn);
    if (!c->turn) return moe_fail(err, MOE_E_NOMEM, "%s: layer %u: out of memory", d->name, d->layer);
    if (!c->expands || c->n < 2) return MOE_OK;
    const int64_t others = c->n - 1;
    c->window_rows = disp_max(disp_min(c->rows_in, others * c->tokens), disp_min(c->crossings, others * c->tokens));
    c->window_entries = disp_max(c->entries_in, c->out_entries);
    c->half = (uint64_t)c->window_rows * 4 * (uint64_t)disp_row_elements(d) + (uint64_t)c->window_entries * 4 + SPARE;
    c->half = (c->half + LINE - 1) / LINE * LINE;
    c->window = (moe_window){.size = sizeof c->window};
    if (!MOE_REACH(d->comm, moe_comm_v0, window_destroy) || !d->comm->window_create)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s needs windows, and this comm has none; %s need none", d->name,
                        instead);
    moe_status s = d->comm->window_create(d->comm_self, c->group, 2 * c->half, &c->window, err);
    if (s != MOE_OK) return s;
    for (uint32_t i = 0; i < c->window.n; i++)
        if (!c->window.peers[i])
            return moe_fail(err, MOE_E_UNSUPPORTED,
                            "%s: layer %u: member %u of %u cannot address the memory of member %u, which it writes to; "
                            "%s need no windows",
                            d->name, d->layer, c->me, c->n, i, instead);
    return MOE_OK;
}

void cross_close(cross *c) {
    if (c->window.n) c->d->comm->window_destroy(c->d->comm_self, &c->window);
    free(c->turn);
    c->turn = NULL;
}

void cross_run(const cross *c, int64_t n, void (*fn)(void *arg, int64_t i, uint32_t worker), void *arg) {
    if (c->d->pool && n > 1) {
        c->d->pool->run(c->d->pool->self, n, fn, arg);
        return;
    }
    for (int64_t i = 0; i < n; i++) fn(arg, i, 0);
}
