/* comm/nccl: ranks as processes that a launcher starts, with a GPU each. Sockets bring them together and carry an abort
 * (net.h). See nccl_comm.h. */
#include <inttypes.h>
#include <moe/options.h>
#include <moe/plugin.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_comm.h"

enum { TIMEOUT_S = 60 };

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
    const int64_t port = moe_kv_int(cfg->kv, cfg->n_kv, "port", 0);
    environment at = *e;
    if (port) snprintf(at.port, sizeof at.port, "%" PRId64, port);
    moe_status s = net_open(&at, (uint32_t)timeout, host, &me->net, err);
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

static const moe_comm_v0 table = {NCCL_CALLS, .launch = MOE_LAUNCH_PROCESSES, .topology = processes_topology,
                                  .create = processes_create, .extension = processes_extension};
static const moe_option options[] = {
    {"timeout_s", "int 1..86400", "60", "seconds for all ranks to meet at the start, at MASTER_ADDR and MASTER_PORT"},
    {"port", "int 0..65535", "0", "port of rank 0, where MASTER_PORT is taken by the launcher; 0: MASTER_PORT"}};
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
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
