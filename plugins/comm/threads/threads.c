/* comm/threads: ranks are threads of one process and see each other's memory. Rank 0 makes the hub that all share and
 * tells its address through "moe.bootstrap/0"; there are no globals. This file: descriptor, life of instances. hub.c:
 * meeting and abort. groups.c, collectives.c, messages.c, windows.c: the calls. waiting.c: who is missing. ../common:
 * arithmetic, checks of arguments, texts. */
#include "threads.h"

#include <moe/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void threads_destroy(void *self) {
    instance *me = self;
    if (!me) return;
    windows_close(me);
    while (me->members) threads_group_destroy(me, me->members);
    hub_release(me->h);
    pthread_mutex_destroy(&me->lock);
    free(me);
}

/* ---- create ---- */

/* First exchange: can every rank go on? */
typedef struct hello {
    uint32_t rank, world, ok, reserved;
    int64_t pid;
} hello;

static moe_status check_hellos(const hello *all, uint32_t world, moe_err *err) {
    for (uint32_t i = 0; i < world; i++) {
        if (!all[i].ok) return moe_fail(err, MOE_E_NOMEM, "comm/threads: rank %u is out of memory", i);
        if (all[i].rank != i || all[i].world != world)
            return moe_fail(err, MOE_E_ARG, "comm/threads: rank %u of %u says that it is rank %u of %u", i, world,
                            all[i].rank, all[i].world);
        if (all[i].pid != all[0].pid)
            return moe_fail(err, MOE_E_UNSUPPORTED,
                            "comm/threads: ranks 0 and %u are in different processes (%lld and %lld)", i,
                            (long long)all[0].pid, (long long)all[i].pid);
    }
    return MOE_OK;
}

/* The world group on a hub of rank 0; NULL when out of memory. */
static group *world_create(uint32_t world) {
    hub *h = hub_create(world);
    uint32_t *ranks = malloc(world * sizeof *ranks);
    for (uint32_t i = 0; ranks && i < world; i++) ranks[i] = i;
    group *g = h && ranks ? group_new(h, "world", ranks, world) : NULL;
    free(ranks);
    if (g || !h) return g;
    for (uint32_t i = 0; i < world; i++) hub_release(h);
    return NULL;
}

/* All references at once: nobody else has heard of it. */
static void world_undo(group *g) {
    hub *h = g->hub;
    const uint32_t n = g->n;
    for (uint32_t i = 0; i < n; i++) group_leave(g, i);
    for (uint32_t i = 0; i < n; i++) hub_release(h);
}

static const moe_bootstrap *find_bootstrap(const moe_host *host) {
    return MOE_REACH(host, moe_host, service) && host->service ? host->service(host->ctx, "moe.bootstrap/0") : NULL;
}

static moe_status exchange(const moe_bootstrap *b, const moe_comm_cfg *cfg, int ok, group *mine, hello *hellos,
                           group **shared, moe_err *err) {
    hello hi = {.rank = cfg->rank, .world = cfg->world, .ok = (uint32_t)ok, .pid = (int64_t)getpid()};
    moe_status s = b->all_gather(b->ctx, &hi, sizeof hi, hellos, err);
    if (s == MOE_OK) s = check_hellos(hellos, cfg->world, err);
    if (s != MOE_OK) {
        if (mine) world_undo(mine);
        return s;
    }
    s = b->all_gather(b->ctx, &mine, sizeof mine, shared, err);
    /* From here on others may know the address: they own their references, this rank drops its own. What a rank that
     * died holds stays until the process ends. */
    if (s != MOE_OK && mine) {
        hub *h = mine->hub;
        group_leave(mine, 0);
        hub_release(h);
    }
    return s;
}

static moe_status threads_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    const moe_bootstrap *b = find_bootstrap(host);
    if (!b) return moe_fail(err, MOE_E_UNSUPPORTED, "comm/threads needs service moe.bootstrap/0; this host has none");
    if (cfg->world == 0 || cfg->world > MAX_RANKS || cfg->rank >= cfg->world)
        return moe_fail(err, MOE_E_ARG, "comm/threads: rank %u of %u; 1 to %d ranks are possible", cfg->rank,
                        cfg->world, MAX_RANKS);
    if (b->rank != cfg->rank || b->world != cfg->world)
        return moe_fail(err, MOE_E_ARG, "comm/threads: rank %u of %u, but moe.bootstrap/0 is rank %u of %u", cfg->rank,
                        cfg->world, b->rank, b->world);
    instance *me = calloc(1, sizeof *me);
    member *m = member_alloc();
    hello *hellos = calloc(cfg->world, sizeof *hellos);
    group **shared = calloc(cfg->world, sizeof(group *));
    group *mine = cfg->rank == 0 ? world_create(cfg->world) : NULL;
    moe_status s = MOE_E_NOMEM;
    if (hellos && shared)
        s = exchange(b, cfg, me && m && (mine || cfg->rank), mine, hellos, shared, err);
    else { /* cannot even take part: the host's bootstrap ends the others */
        moe_fail(err, s, "comm/threads: rank %u is out of memory", cfg->rank);
        if (mine) world_undo(mine);
    }
    if (s == MOE_OK) {
        me->h = shared[0]->hub;
        me->rank = cfg->rank;
        me->latency_us = (uint32_t)moe_kv_int(cfg->kv, cfg->n_kv, "latency_us", 0);
        me->world = m;
        pthread_mutex_init(&me->lock, NULL);
        member_attach(me, m, shared[0], cfg->rank);
        *self = me;
        me = NULL;
        m = NULL;
    }
    free(shared);
    free(hellos);
    member_free(m);
    free(me);
    return s;
}

/* ---- state ---- */

static void threads_abort(void *self, const char *reason) {
    const instance *me = self;
    char text[REASON_BYTES];
    snprintf(text, sizeof text, "aborted by rank %u: %s", me->rank, reason ? reason : "no reason given");
    hub_abort(me->h, text);
}

static moe_status threads_poll(void *self, moe_err *err) {
    const instance *me = self;
    return hub_poll(me->h, err);
}

static const void *threads_extension(void *self, const char *id) {
    (void)self;
    (void)id;
    return NULL;
}

static const moe_comm_v0 table = {.size = sizeof table,
                                  .launch = MOE_LAUNCH_THREADS,
                                  .create = threads_create,
                                  .destroy = threads_destroy,
                                  .group_split = threads_group_split,
                                  .group_destroy = threads_group_destroy,
                                  .group_info = threads_group_info,
                                  .all_reduce = threads_all_reduce,
                                  .all_gather = threads_all_gather,
                                  .reduce_scatter = threads_reduce_scatter,
                                  .broadcast = threads_broadcast,
                                  .all_to_all_v = threads_all_to_all_v,
                                  .barrier = threads_barrier,
                                  .p2p = threads_p2p,
                                  .window_create = threads_window_create,
                                  .window_destroy = threads_window_destroy,
                                  .abort = threads_abort,
                                  .poll = threads_poll,
                                  .waiting = threads_waiting,
                                  .extension = threads_extension};
static const moe_option options[] = {
    {"latency_us", "int 0..60000000", "0",
     "microseconds that every call of a group of more than one rank takes longer, once all have come; for studying how "
     "communication overlaps with computation"}};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "comm",
                              .id = "threads",
                              .device = "any",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "Ranks as threads of one process; collectives in shared memory, in rank order",
                              .options = options,
                              .n_options = sizeof options / sizeof options[0],
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
