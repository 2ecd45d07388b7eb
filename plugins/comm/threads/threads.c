/* comm/threads: ranks are threads of one process and see each other's memory. Rank 0 makes the hub that all share and
 * tells its address through "moe.bootstrap/0"; there are no globals. This file: descriptor, life of instances and
 * groups. hub.c: meeting and abort. collectives.c: the calls of a step. reduce.c: the arithmetic. */
#include "threads.h"

#include <moe/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void member_free(member *m) {
    if (!m) return;
    free(m->ins);
    free(m->outs);
    free(m);
}

/* A handle without a group yet, for up to n members. */
static member *member_alloc(uint32_t n) {
    member *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->ins = calloc(n, sizeof *m->ins);
    m->outs = calloc(n, sizeof *m->outs);
    if (m->ins && m->outs) return m;
    member_free(m);
    return NULL;
}

static void member_attach(instance *me, member *m, group *g, uint32_t index) {
    m->g = g;
    m->index = index;
    m->next = me->members;
    me->members = m;
}

static void threads_group_destroy(void *self, void *handle) {
    instance *me = self;
    member **at = &me->members, *m = handle;
    if (!m) return;
    while (*at && *at != m) at = &(*at)->next;
    if (!*at) return; /* not a handle of this instance */
    *at = m->next;
    group_leave(m->g, me->rank);
    member_free(m);
}

static void threads_destroy(void *self) {
    instance *me = self;
    if (!me) return;
    while (me->members) threads_group_destroy(me, me->members);
    hub_release(me->h);
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
    member *m = member_alloc(cfg->world);
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
        me->world = m;
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

/* ---- groups ---- */

/* The group of this rank's color, made by the first of its members; NULL when out of memory. */
static group *make_colored(const member *m, const call_desc *all, const char *name, uint32_t color) {
    const group *g = m->g;
    uint32_t *ranks = malloc(g->n * sizeof *ranks), n = 0;
    for (uint32_t i = 0; ranks && i < g->n; i++)
        if (all[i].root == color) ranks[n++] = g->ranks[i];
    group *made = ranks ? group_new(g->hub, name, ranks, n) : NULL;
    free(ranks);
    return made;
}

/* Members of `color` before `end`. */
static uint32_t count_color(const call_desc *all, uint32_t end, uint32_t color) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < end; i++) n += all[i].root == color;
    return n;
}

/* Two meetings: everyone shows its color, then the first of each color shows its group. */
static moe_status split(instance *me, member *p, member *m, const char *name, uint32_t color, moe_err *err) {
    /* in: anything but NULL says that this rank has its memory */
    moe_status s = member_join(
        p, &(call_desc){.what = CALL_GROUP_SPLIT, .op = -1, .root = color, .in = m ? me : NULL, .name = name}, err);
    if (s != MOE_OK) return s;
    const call_desc *all = member_calls(p);
    const uint32_t index = count_color(all, p->index, color), members = count_color(all, p->g->n, color);
    uint32_t first = 0;
    while (all[first].root != color) first++;
    for (uint32_t i = 0; i < p->g->n && s == MOE_OK; i++)
        if (!all[i].in) s = moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", name, p->g->ranks[i]);
    group *made = s == MOE_OK && color != MOE_NO_GROUP && index == 0 ? make_colored(p, all, name, color) : NULL;
    const int ok = s == MOE_OK && (made || index || color == MOE_NO_GROUP);
    s = member_join(p, &(call_desc){.what = CALL_BARRIER, .op = -1, .in = ok ? me : NULL, .out = made}, err);
    for (uint32_t i = 0; i < p->g->n && s == MOE_OK; i++)
        if (!p->ins[i]) s = moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", name, p->g->ranks[i]);
    if (s == MOE_OK && color != MOE_NO_GROUP) member_attach(me, m, p->outs[first], index);
    if (s != MOE_OK && made)
        for (uint32_t i = 0; i < members; i++) group_leave(made, made->ranks[0]);
    return s;
}

static moe_status threads_group_split(void *self, void *parent, const char *name, uint32_t color, void **handle,
                                      moe_err *err) {
    instance *me = self;
    member *p = parent ? parent : me->world, *m = member_alloc(p->g->n);
    moe_status s = split(me, p, m, name, color, err);
    if (s == MOE_OK) *handle = color == MOE_NO_GROUP ? NULL : m;
    if (s != MOE_OK || color == MOE_NO_GROUP) member_free(m);
    return s;
}

static moe_status threads_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err) {
    const instance *me = self;
    const member *m = handle;
    if (!m) return moe_fail(err, MOE_E_ARG, "rank %u: group_info: group is NULL", me->rank);
    *n = m->g->n;
    *index = m->index;
    return MOE_OK;
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

static moe_status threads_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err) {
    (void)self, (void)handle, (void)stream, (void)args;
    return moe_fail(err, MOE_E_UNSUPPORTED, "comm/threads has no all_to_all_v");
}
static moe_status threads_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err) {
    (void)self, (void)handle, (void)stream, (void)ops, (void)n;
    return moe_fail(err, MOE_E_UNSUPPORTED, "comm/threads has no p2p");
}
static moe_status threads_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err) {
    (void)self, (void)handle, (void)bytes, (void)out;
    return moe_fail(err, MOE_E_UNSUPPORTED, "comm/threads has no windows");
}
static void threads_window_destroy(void *self, moe_window *w) {
    (void)self, (void)w;
}
static void threads_waiting(void *self, void *handle, char *text, uint64_t bytes) {
    (void)self, (void)handle;
    if (bytes) text[0] = '\0';
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
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "comm",
                              .id = "threads",
                              .device = "any",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "Ranks as threads of one process; collectives in shared memory, in rank order",
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
