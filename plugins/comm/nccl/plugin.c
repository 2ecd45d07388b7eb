/* comm/nccl and comm/nccl-threads: ranks with a GPU each, as processes that a launcher starts, or as threads of the
 * host. Two descriptors over one body; they differ in how ranks find each other, and how an abort reaches them. */
#include <moe/options.h>
#include <moe/plugin.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_comm.h"

enum { TIMEOUT_S = 60 };

/* ---- the end, and errors ---- */
void instance_end(instance *me, const char *reason) {
    pthread_mutex_lock(&me->lock);
    if (!atomic_load(&me->ended)) {
        snprintf(me->reason, sizeof me->reason, "%s", reason);
        atomic_store(&me->ended, 1);
        for (group *g = me->groups; g; g = g->next) {
            pthread_mutex_lock(&g->lock);
            ncclComm_t comm = g->comm;
            g->comm = NULL;
            pthread_mutex_unlock(&g->lock);
            if (comm) ncclCommAbort(comm);
        }
    }
    pthread_mutex_unlock(&me->lock);
}

void instance_abort(instance *me, const char *reason) {
    char text[REASON_BYTES]; /* the caller's may be this instance's own */
    snprintf(text, sizeof text, "%s", reason);
    if (me->net) net_abort(me->net, text);
    if (me->hub) hub_abort(me->hub, text);
    instance_end(me, text);
}

moe_status instance_poll(const instance *me, moe_err *err) {
    return atomic_load(&me->ended) ? moe_fail(err, MOE_E_COMM, "%s", me->reason) : MOE_OK;
}

moe_status instance_refuse(instance *me, const group *g, const char *what, const char *why, moe_err *err) {
    moe_status s = moe_fail(err, MOE_E_ARG, "group %s: rank %u: %s: %s", g ? g->name : "(null)", me->rank, what, why);
    instance_abort(me, err->msg);
    return s;
}

static moe_status failed(instance *me, const group *g, const char *what, const char *why, moe_status s, moe_err *err) {
    if (instance_poll(me, err) != MOE_OK) return MOE_E_COMM; /* that is why */
    moe_fail(err, s, "group %s: rank %u: %s: %.300s", g ? g->name : "(null)", me->rank, what, why);
    instance_abort(me, err->msg);
    return s;
}

moe_status nccl_failed(instance *me, const group *g, const char *what, ncclResult_t r, moe_err *err) {
    char why[300];
    const char *more = ncclGetLastError(NULL);
    snprintf(why, sizeof why, "NCCL: %s%s%.200s", ncclGetErrorString(r), more && more[0] ? ": " : "", more ? more : "");
    return failed(me, g, what, why, r == ncclUnhandledCudaError ? MOE_E_DEVICE : MOE_E_COMM, err);
}

moe_status cuda_failed(instance *me, const group *g, const char *what, cudaError_t r, moe_err *err) {
    char why[300];
    snprintf(why, sizeof why, "CUDA: %s", cudaGetErrorString(r));
    return failed(me, g, what, why, r == cudaErrorMemoryAllocation ? MOE_E_NOMEM : MOE_E_DEVICE, err);
}

static void nccl_abort(void *self, const char *reason) {
    instance *me = self;
    char text[REASON_BYTES];
    snprintf(text, sizeof text, "aborted by rank %u: %s", me->rank, reason ? reason : "no reason given");
    instance_abort(me, text);
}

static moe_status nccl_poll(void *self, moe_err *err) {
    instance *me = self;
    char why[REASON_BYTES];
    int fine = 1;
    if (instance_poll(me, err) != MOE_OK) return MOE_E_COMM;
    pthread_mutex_lock(&me->lock);
    for (group *g = me->groups; g && fine; g = g->next) fine = group_look(g, why);
    pthread_mutex_unlock(&me->lock);
    if (!fine) instance_abort(me, why);
    return instance_poll(me, err);
}

/* ---- instances ---- */
static void nccl_destroy(void *self) {
    instance *me = self;
    if (!me) return;
    windows_close(me);
    while (me->groups) group_free(me->groups);
    if (me->hub) hub_leave(me->hub, me->rank);
    net_close(me->net); /* its thread knows me */
    pthread_mutex_destroy(&me->lock);
    free(me);
}

static instance *instance_new(const moe_comm_cfg *cfg, moe_err *err) {
    instance *me = calloc(1, sizeof *me);
    if (!me) {
        moe_fail(err, MOE_E_NOMEM, "comm/nccl: rank %u is out of memory", cfg->rank);
        return NULL;
    }
    me->rank = cfg->rank;
    me->world = cfg->world;
    pthread_mutex_init(&me->lock, NULL);
    return me;
}

/* ---- threads ---- */
/* What a rank says at the start; rank 0 for all. */
typedef struct introduction {
    hub *hub;
    uint64_t pid;
    ncclUniqueId id;
} introduction;

static moe_status introduce(instance *me, const moe_bootstrap *b, introduction *all, moe_err *err) {
    introduction own = {.pid = (uint64_t)getpid()};
    if (me->rank == 0 && ncclGetUniqueId(&own.id) == ncclSuccess) own.hub = hub_new(me->world);
    moe_status s = b->all_gather(b->ctx, &own, sizeof own, all, err);
    for (uint32_t r = 1; r < me->world && s == MOE_OK; r++)
        if (all[r].pid != all[0].pid)
            s = moe_fail(err, MOE_E_UNSUPPORTED,
                         "comm/nccl-threads: rank %u is another process than rank 0; comm/nccl is for processes", r);
    if (s == MOE_OK && !all[0].hub)
        s = moe_fail(err, MOE_E_COMM, "comm/nccl-threads: rank 0 got no id from NCCL: %s", ncclGetLastError(NULL));
    if (s != MOE_OK) {
        for (uint32_t r = 0; own.hub && r < me->world; r++) hub_leave(own.hub, r); /* nobody else has it */
        return s;
    }
    me->hub = all[0].hub;
    me->id = all[0].id;
    me->has_id = 1;
    hub_attach(me->hub, me->rank, me);
    return MOE_OK;
}

static moe_status threads_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    const moe_bootstrap *b = host->service ? host->service(host->ctx, "moe.bootstrap/0") : NULL;
    if (!b)
        return moe_fail(err, MOE_E_UNSUPPORTED, "comm/nccl-threads needs service moe.bootstrap/0; this host has none");
    instance *me = instance_new(cfg, err);
    introduction *all = calloc(cfg->world, sizeof *all);
    if (!me || !all) {
        free(all);
        free(me);
        return moe_fail(err, MOE_E_NOMEM, "comm/nccl-threads: rank %u is out of memory", cfg->rank);
    }
    moe_status s = introduce(me, b, all, err);
    free(all);
    if (s == MOE_OK)
        *self = me;
    else
        nccl_destroy(me);
    return s;
}

/* ---- processes ---- */
static moe_status processes_topology(uint32_t *rank, uint32_t *world, uint32_t *local, moe_err *err) {
    environment e;
    moe_status s = environment_read(&e, err);
    if (s != MOE_OK) return s;
    *rank = e.rank;
    *world = e.world;
    *local = e.local;
    return MOE_OK;
}

static moe_status gather_blobs(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err) {
    instance *me = ctx;
    const moe_status s = instance_poll(me, err);
    return s == MOE_OK ? net_all_gather(me->net, in, bytes, out, err) : s;
}

static void on_end(void *arg, const char *reason) {
    instance_end(arg, reason);
}
static void on_left(void *arg, uint64_t id, uint32_t rank, uint64_t calls) {
    char why[REASON_BYTES];
    if (group_left(arg, id, rank, calls, why)) instance_abort(arg, why);
}

static moe_status open_net(instance *me, const environment *e, const moe_comm_cfg *cfg, const moe_host *host,
                           moe_err *err) {
    const net_events events = {.arg = me, .ended = on_end, .left = on_left};
    const int64_t timeout = moe_kv_int(cfg->kv, cfg->n_kv, "timeout_s", TIMEOUT_S);
    moe_status s = net_open(e, (uint32_t)timeout, host, &me->net, err);
    if (s == MOE_OK) s = net_listen(me->net, &events, err);
    me->bootstrap = (moe_bootstrap){.size = sizeof(moe_bootstrap),
                                    .rank = me->rank,
                                    .world = me->world,
                                    .local = e->local,
                                    .ctx = me,
                                    .all_gather = gather_blobs};
    return s;
}

static moe_status processes_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    environment e;
    moe_status s = environment_read(&e, err);
    if (s != MOE_OK) return s;
    if (cfg->rank != e.rank || cfg->world != e.world)
        return moe_fail(err, MOE_E_ARG, "comm/nccl: rank %u of %u, but the environment says rank %u of %u", cfg->rank,
                        cfg->world, e.rank, e.world);
    instance *me = instance_new(cfg, err);
    if (!me) return MOE_E_NOMEM;
    s = open_net(me, &e, cfg, host, err);
    if (s == MOE_OK)
        *self = me;
    else
        nccl_destroy(me);
    return s;
}

static const void *processes_extension(void *self, const char *id) {
    instance *me = self;
    return strcmp(id, "moe.bootstrap/0") == 0 ? &me->bootstrap : NULL;
}
static const void *threads_extension(void *self, const char *id) {
    (void)self;
    (void)id;
    return NULL;
}

/* ---- descriptors ---- */
#define BODY                                                                                                         \
    .size = sizeof(moe_comm_v0), .destroy = nccl_destroy, .group_split = nccl_group_split,                           \
    .group_destroy = nccl_group_destroy, .group_info = nccl_group_info, .all_reduce = nccl_all_reduce,               \
    .all_gather = nccl_all_gather, .reduce_scatter = nccl_reduce_scatter, .broadcast = nccl_broadcast,               \
    .all_to_all_v = nccl_all_to_all_v, .barrier = nccl_barrier, .p2p = nccl_p2p, .window_create = nccl_window_create, \
    .window_destroy = nccl_window_destroy, .abort = nccl_abort, .poll = nccl_poll, .waiting = nccl_waiting
static const moe_comm_v0 processes = {BODY,
                                      .launch = MOE_LAUNCH_PROCESSES,
                                      .topology = processes_topology,
                                      .create = processes_create,
                                      .extension = processes_extension};
static const moe_comm_v0 threads = {
    BODY, .launch = MOE_LAUNCH_THREADS, .create = threads_create, .extension = threads_extension};

static const moe_option options[] = {
    {"timeout_s", "int 1..86400", "60", "seconds for all ranks to meet at the start, at MASTER_ADDR and MASTER_PORT"}};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "comm",
                              .id = "nccl",
                              .device = "cuda",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "Ranks as processes with a GPU each, under torchrun, mpirun or srun; NCCL",
                              .options = options,
                              .n_options = sizeof options / sizeof options[0],
                              .flags = MOE_ASYNC | MOE_DETERMINISTIC,
                              .vtable = &processes};
static const moe_desc threads_desc = {.size = sizeof threads_desc,
                                      .kind = "comm",
                                      .id = "nccl-threads",
                                      .device = "cuda",
                                      .version = "0.1.0",
                                      .vendor = "moehost",
                                      .license = "MIT",
                                      .summary = "Ranks as threads of one process with a GPU each; NCCL",
                                      .flags = MOE_ASYNC | MOE_DETERMINISTIC,
                                      .vtable = &threads};
static const moe_desc *const descs[] = {&desc, &threads_desc};
MOE_PLUGIN(descs)
