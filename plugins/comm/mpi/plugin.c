/* comm/mpi: one process a rank, started by mpirun. This file: descriptor, MPI's own life, instances. MPI is begun by
 * the first that asks (topology or create), once a process, and ended when the process does, if all ranks come to that;
 * instances between the two are as many as the host likes, each with communicators of its own. */
#include <moe/options.h>
#include <moe/plugin.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi_comm.h"

enum { NAP_NS = 200000, GOODBYE_NAPS = 15000 }; /* 3 s */

moe_status mpi_fail(const char *what, int code, moe_err *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    return moe_fail(err, MOE_E_COMM, "%s: %.300s", what, text);
}

/* ---- MPI's life ---- */
static void nap(void) {
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
}

/* At exit. MPI_Finalize waits for all ranks, so it is called only when all have come to here; a rank whose peers are
 * elsewhere goes without it, and the launcher ends them. */
static void end_mpi(void) {
    int over = 0, all_here = 0;
    MPI_Request here;
    MPI_Finalized(&over);
    if (over || MPI_Ibarrier(MPI_COMM_WORLD, &here) != MPI_SUCCESS) return;
    for (int i = 0; i < GOODBYE_NAPS && !all_here; i++) {
        if (MPI_Test(&here, &all_here, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        if (!all_here) nap();
    }
    if (all_here) MPI_Finalize();
}

static uint32_t local_rank; /* among the ranks of this machine; once MPI has begun */

/* [collective] */
static moe_status find_local(moe_err *err) {
    MPI_Comm machine = MPI_COMM_NULL;
    int local = 0;
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(machine, &local);
    if (code != MPI_SUCCESS) return mpi_fail("MPI_Comm_split_type", code, err);
    local_rank = (uint32_t)local;
    MPI_Comm_free(&machine);
    return MOE_OK;
}

static moe_status begin_mpi(moe_err *err) {
    static int found;
    int begun = 0, over = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    MPI_Finalized(&over);
    if (over) return moe_fail(err, MOE_E_UNSUPPORTED, "MPI has ended in this process, and begins only once");
    if (begun) {
        MPI_Query_thread(&level);
    } else {
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
        if (code != MPI_SUCCESS) return mpi_fail("MPI_Init_thread", code, err);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        atexit(end_mpi);
    }
    if (level < MPI_THREAD_MULTIPLE)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "this MPI gives thread level %d; calls from several lanes need MPI_THREAD_MULTIPLE, %d", level,
                        MPI_THREAD_MULTIPLE);
    if (found) return MOE_OK;
    const moe_status s = find_local(err);
    found = s == MOE_OK;
    return s;
}

static moe_status mpi_topology(uint32_t *rank, uint32_t *world, uint32_t *local, moe_err *err) {
    int r = 0, n = 1;
    moe_status s = begin_mpi(err);
    if (s != MOE_OK) return s;
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    *rank = (uint32_t)r;
    *world = (uint32_t)n;
    *local = local_rank;
    return MOE_OK;
}

/* ---- instances ---- */
static moe_status gather_blobs(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err) {
    instance *me = ctx;
    const comm_call call = {.what = COMM_ALL_GATHER, .dtype = MOE_U8, .op = -1, .count = bytes};
    moe_status s = group_join(me->whole, &call, err);
    if (s == MOE_OK) s = collect_blobs(me->whole, in, bytes, out, err);
    return group_leave(me->whole, s);
}

/* All ranks are here before MPI's own calls, which block. */
static moe_status meet_world(moe_err *err) {
    MPI_Request here;
    int all_here = 0, code = MPI_Ibarrier(MPI_COMM_WORLD, &here);
    while (code == MPI_SUCCESS && !all_here) {
        code = MPI_Test(&here, &all_here, MPI_STATUS_IGNORE);
        if (!all_here) nap();
    }
    return code == MPI_SUCCESS ? MOE_OK : mpi_fail("MPI_Ibarrier", code, err);
}

/* The group of all ranks. Every rank of the job has taken its first slot for it. */
static moe_status make_whole(instance *me, moe_err *err) {
    uint32_t *ranks = calloc((size_t)me->world * 2, sizeof *ranks);
    MPI_Comm comms[2] = {MPI_COMM_NULL, MPI_COMM_NULL};
    for (uint32_t i = 0; ranks && i < me->world; i++) ranks[i] = i;
    for (int i = 0; i < 2; i++) {
        int code = MPI_Comm_dup(me->all, &comms[i]);
        if (code != MPI_SUCCESS) {
            free(ranks);
            return mpi_fail("MPI_Comm_dup", code, err);
        }
        MPI_Comm_set_errhandler(comms[i], MPI_ERRORS_RETURN);
    }
    node_take_slot(me->node); /* 0 */
    if (ranks) me->whole = group_new(me, "world", comms[0], comms[1], ranks, ranks + me->world, me->world, me->rank);
    free(ranks);
    return me->whole ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", me->world);
}

static void mpi_destroy(void *self) {
    instance *me = self;
    if (!me) return;
    windows_close(me);
    while (me->groups) mpi_group_destroy(me, me->groups);
    node_free(me->node);
    if (me->all != MPI_COMM_NULL) MPI_Comm_free(&me->all);
    pthread_mutex_destroy(&me->lock);
    free(me);
}

static moe_status open_instance(instance *me, uint32_t virtual_node, moe_err *err) {
    int *most = NULL, there = 0;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &me->all);
    if (code != MPI_SUCCESS) return mpi_fail("MPI_Comm_dup", code, err);
    MPI_Comm_set_errhandler(me->all, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &there);
    me->tag_most = there ? *most : 32767; /* what MPI promises */
    moe_status s = node_create(me->all, virtual_node, &me->node, err);
    if (s != MOE_OK) return s;
    me->nodes = node_count(me->node);
    me->crowded = node_is_crowded(me->node);
    s = make_whole(me, err);
    if (s != MOE_OK) node_abort(me->node, err->msg);
    me->bootstrap = (moe_bootstrap){.size = sizeof(moe_bootstrap),
                                    .rank = me->rank,
                                    .world = me->world,
                                    .local = local_rank,
                                    .ctx = me,
                                    .all_gather = gather_blobs};
    return s;
}

static moe_status mpi_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    uint32_t rank = 0, world = 0, local = 0;
    (void)host;
    moe_status s = mpi_topology(&rank, &world, &local, err);
    if (s != MOE_OK) return s;
    if (cfg->rank != rank || cfg->world != world)
        return moe_fail(err, MOE_E_ARG, "comm/mpi: rank %u of %u, but the launcher says rank %u of %u", cfg->rank,
                        cfg->world, rank, world);
    s = meet_world(err);
    if (s != MOE_OK) return s;
    instance *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "comm/mpi: rank %u is out of memory", rank);
    me->rank = rank;
    me->world = world;
    me->all = MPI_COMM_NULL;
    pthread_mutex_init(&me->lock, NULL);
    s = open_instance(me, (uint32_t)moe_kv_int(cfg->kv, cfg->n_kv, "virtual_node", 0), err);
    if (s == MOE_OK)
        *self = me;
    else
        mpi_destroy(me);
    return s;
}

static void mpi_abort(void *self, const char *reason) {
    const instance *me = self;
    char text[NODE_REASON];
    snprintf(text, sizeof text, "aborted by rank %u: %s", me->rank, reason ? reason : "no reason given");
    node_abort(me->node, text);
}

static moe_status mpi_poll(void *self, moe_err *err) {
    const instance *me = self;
    return node_poll(me->node, err);
}

static const void *mpi_extension(void *self, const char *id) {
    instance *me = self;
    return strcmp(id, "moe.bootstrap/0") == 0 ? &me->bootstrap : NULL;
}

static const moe_option options[] = {
    {"virtual_node", "int 0..65536", "0",
     "neighbouring ranks that count as one node; 0: those that share memory. For trying several nodes on one"}};
static const moe_comm_v0 table = {.size = sizeof table,
                                  .launch = MOE_LAUNCH_PROCESSES,
                                  .topology = mpi_topology,
                                  .create = mpi_create,
                                  .destroy = mpi_destroy,
                                  .group_split = mpi_group_split,
                                  .group_destroy = mpi_group_destroy,
                                  .group_info = mpi_group_info,
                                  .all_reduce = mpi_all_reduce,
                                  .all_gather = mpi_all_gather,
                                  .reduce_scatter = mpi_reduce_scatter,
                                  .broadcast = mpi_broadcast,
                                  .all_to_all_v = mpi_all_to_all_v,
                                  .barrier = mpi_barrier,
                                  .p2p = mpi_p2p,
                                  .window_create = mpi_window_create,
                                  .window_destroy = mpi_window_destroy,
                                  .abort = mpi_abort,
                                  .poll = mpi_poll,
                                  .waiting = mpi_waiting,
                                  .extension = mpi_extension};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "comm",
                              .id = "mpi",
                              .device = "cpu",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "Ranks as processes under mpirun; collectives by messages, in rank order",
                              .options = options,
                              .n_options = sizeof options / sizeof options[0],
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
