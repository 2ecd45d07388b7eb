/* comm/nccl-threads: ranks as threads of the host's process, with a GPU each. They find each other by the host's
 * bootstrap, and an abort reaches the others by the hub that they share. See nccl_comm.h. */
#include <moe/options.h>
#include <moe/plugin.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_comm.h"

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

static const void *threads_extension(void *self, const char *id) {
    (void)self;
    (void)id;
    return NULL;
}

static const moe_comm_v0 table = {NCCL_CALLS, .launch = MOE_LAUNCH_THREADS, .create = threads_create,
                                  .extension = threads_extension};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "comm",
                              .id = "nccl-threads",
                              .device = "cuda",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "Ranks as threads of one process with a GPU each; NCCL",
                              .flags = MOE_ASYNC | MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
