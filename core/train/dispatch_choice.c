/* Volumes: a row that travels k times is k copies (alltoall); a token goes once to each distinct rank (deepep) or node
 * (hier) of its k experts, of which n equally likely ones give n (1 - (1 - 1/n)^k) on average; allgather moves every
 * token to every other rank. Everybody writes k rows a token in expert order, and reads them again to combine. */
#include "train/dispatch_choice.h"

#include <math.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"

const char *const dispatch_ids[DISPATCH_KINDS] = {"allgather", "alltoall", "deepep", "hier"};

enum { PART_BYTES = 1 << 20, TRIES = 3 };

/* ---- measurement ---- */
typedef struct buffers {
    void *stream;   /* of the calls, which may return at once */
    char *in, *out; /* [n * PART_BYTES] device memory */
    uint64_t *at, *bytes, *none;
} buffers;

/* All ranks, and all that has been issued before. */
static moe_status meet(const parts *p, void *group, const buffers *b, moe_err *err) {
    moe_status status = p->comm->barrier(p->comm_self, group, b->stream, err);
    return status ? status : p->device->stream_sync(p->device_self, b->stream, err);
}

static moe_status exchange(const parts *p, void *group, const buffers *b, const uint64_t *bytes, double *seconds,
                           moe_err *err) {
    const moe_a2a_args args = {.size = sizeof args,
                               .in = b->in,
                               .out = b->out,
                               .in_at = b->at,
                               .in_bytes = bytes,
                               .out_at = b->at,
                               .out_bytes = bytes};
    moe_status status = meet(p, group, b, err);
    double begin = clock_seconds();
    if (!status) status = p->comm->all_to_all_v(p->comm_self, group, b->stream, &args, err);
    if (!status) status = p->device->stream_sync(p->device_self, b->stream, err);
    double took = clock_seconds() - begin;
    if (took < *seconds) *seconds = took;
    return status;
}

static moe_status copy_time(const parts *p, void *group, const buffers *b, uint64_t bytes, double *seconds,
                            moe_err *err) {
    moe_status status = meet(p, group, b, err);
    double begin = clock_seconds();
    if (!status) status = p->device->copy(p->device_self, b->stream, b->out, b->in, bytes, err);
    if (!status) status = p->device->stream_sync(p->device_self, b->stream, err);
    double took = clock_seconds() - begin;
    if (took < *seconds) *seconds = took;
    return status;
}

static moe_status look_for_windows(const parts *p, void *group, int *windows, moe_err *err) {
    moe_window w = {.size = sizeof w};
    moe_status status = p->comm->window_create(p->comm_self, group, 64, &w, err);
    if (status == MOE_E_UNSUPPORTED) return MOE_OK;
    *windows = !status;
    for (uint32_t i = 0; !status && i < w.n; i++) *windows &= w.peers[i] != NULL;
    if (!status) p->comm->window_destroy(p->comm_self, &w);
    return status;
}

static moe_status measure_group(const parts *p, void *group, const buffers *b, uint32_t n, dispatch_rates *out,
                                moe_err *err) {
    double large = (double)INFINITY, empty = (double)INFINITY, copied = (double)INFINITY;
    moe_status status = look_for_windows(p, group, &out->windows, err);
    for (int i = 0; i < TRIES && !status; i++) {
        status = exchange(p, group, b, b->bytes, &large, err);
        if (!status) status = exchange(p, group, b, b->none, &empty, err);
        if (!status) status = copy_time(p, group, b, (uint64_t)n * PART_BYTES, &copied, err);
    }
    out->exchange = (double)(n - 1) * PART_BYTES / large;
    out->copy = (double)n * PART_BYTES / copied;
    out->call = empty;
    return status;
}

/* Everybody goes by rank 0's figures. */
static moe_status agree(const parts *p, dispatch_rates *rates, moe_err *err) {
    const moe_bootstrap *b = p->cfg.bootstrap;
    if (!b || p->cfg.world == 1) return MOE_OK;
    dispatch_rates *all = calloc(p->cfg.world, sizeof *all);
    moe_status status = all ? b->all_gather(b->ctx, rates, sizeof *rates, all, err)
                            : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", p->cfg.world);
    if (!status) *rates = all[0];
    free(all);
    return status;
}

moe_status dispatch_measure(const parts *p, const mesh_groups *g, dispatch_rates *out, moe_err *err) {
    void *group = g->of[MESH_ETP_EP], *memory = NULL;
    uint32_t n = 0, index = 0;
    *out = (dispatch_rates){0};
    moe_status status = p->comm->group_info(p->comm_self, group, &n, &index, err);
    if (status) return status;
    uint64_t whole = (uint64_t)n * PART_BYTES;
    uint64_t *numbers = calloc((size_t)n * 3, sizeof *numbers);
    buffers b = {.at = numbers, .bytes = numbers + n, .none = numbers + 2 * (size_t)n};
    status = numbers ? p->device->alloc(p->device_self, MOE_SPACE_DEVICE, 2 * whole, &memory, err)
                     : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", n);
    if (!status) status = p->device->stream_create(p->device_self, "measure", &b.stream, err);
    b.in = memory;
    b.out = b.in + (memory ? whole : 0);
    for (uint32_t i = 0; !status && i < n; i++) {
        b.at[i] = (uint64_t)i * PART_BYTES;
        b.bytes[i] = PART_BYTES;
    }
    if (!status) status = measure_group(p, group, &b, n, out, err);
    if (!status) status = agree(p, out, err);
    if (b.stream) p->device->stream_destroy(p->device_self, b.stream);
    p->device->free(p->device_self, MOE_SPACE_DEVICE, memory, 2 * whole);
    free(numbers);
    return status;
}

/* ---- model ---- */
/* How many of n equally likely places k choices reach. */
static double distinct(double n, double k) {
    return n * (1 - pow(1 - 1 / n, k));
}

double dispatch_seconds(int kind, const dispatch_load *l, const dispatch_rates *r) {
    double n = (double)l->ep * l->etp, k = (double)l->top_k, away = (n - 1) / n;
    double row = (double)l->hidden * (double)l->element + 4,
           tokens = (double)l->tokens * row;        /* bytes; a scalar a row */
    double landing = tokens * k * l->etp / r->copy; /* rows in expert order, of balanced experts */
    double members = l->node_size && l->node_size < n ? l->node_size : n, nodes = n / members;
    double there = distinct(l->ep, k) * l->etp; /* ranks that a token goes to */
    double one;
    switch (kind) {
        case DISPATCH_ALLGATHER:
            one = tokens * (n - 1) / r->exchange + landing + 2 * r->call;
            break;
        case DISPATCH_ALLTOALL: /* packed, sent, sorted */
            one = tokens * k * l->etp * away / r->exchange + 2 * landing + r->call;
            break;
        case DISPATCH_DEEPEP: /* written once into the peer's memory, read from there */
            if (!r->windows) return (double)INFINITY;
            one = tokens * there / r->copy + landing + 2 * r->call;
            break;
        default: /* between nodes, then inside of one */
            if (nodes <= 1) return (double)INFINITY;
            one = tokens * distinct(nodes, k) * (nodes - 1) / nodes / r->exchange + tokens * there / r->copy + landing +
                  3 * r->call;
    }
    return 2 * one;
}

int dispatch_best(const dispatch_load *load, const dispatch_rates *rates) {
    int best = DISPATCH_ALLTOALL;
    for (int i = 0; i < DISPATCH_KINDS; i++)
        if (dispatch_seconds(i, load, rates) < dispatch_seconds(best, load, rates)) best = i;
    return best;
}
