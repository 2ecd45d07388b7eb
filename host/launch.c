/* The ranks meet by records of one size: "goes on" with the bytes of a blob, or "done". A rank that is done lets those
 * that go on fail, and meets again until all are done; so ranks in different places never wait for each other. */
#include "launch.h"

#include <inttypes.h>
#include <moe/options.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATIENCE_SECONDS = 4 };                   /* for the others, after a failure */
static const char ABORTED[] = "aborted by rank"; /* how comm plugins begin what another rank has said */

struct launch {
    const moe_comm_v0 *comm;
    void *self;
    moe_host host;
    const moe_bootstrap *raw; /* the comm's */
    moe_bootstrap bootstrap;  /* what ranks get: fails when another rank is done */
    uint32_t rank, world, local;
    int speaks;
};

/* What a rank says when all meet. */
typedef struct record {
    int32_t done, status; /* done: it has ended, with this status */
    uint64_t bytes;       /* of the blob that it gives next */
} record;

/* ---- meeting ---- */
/* Records of all ranks, in new memory that the caller frees. */
static moe_status meet(const launch *l, const record *own, record **all, moe_err *err) {
    *all = calloc(l->world, sizeof **all);
    if (!*all) return moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", l->world);
    return l->raw->all_gather(l->raw->ctx, own, sizeof *own, *all, err);
}

static moe_status gather_blobs(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err) {
    const launch *l = ctx;
    record *all = NULL;
    moe_status status = meet(l, &(record){.bytes = bytes}, &all, err);
    for (uint32_t r = 0; r < l->world && !status; r++) {
        if (all[r].done)
            status = moe_fail(err, MOE_E_COMM, "bootstrap: rank %u has ended", r);
        else if (all[r].bytes != bytes)
            status = moe_fail(err, MOE_E_COMM, "bootstrap: rank %u gives %" PRIu64 " bytes, rank %u %" PRIu64, l->rank,
                              bytes, r, all[r].bytes);
    }
    free(all);
    return status ? status : l->raw->all_gather(l->raw->ctx, in, bytes, out, err);
}

/* ---- life ---- */
static void log_line(void *ctx, int32_t level, const char *msg) {
    (void)ctx;
    plugin_log(NULL, level, "comm", msg);
}

static const void *no_service(void *ctx, const char *id) {
    (void)ctx;
    (void)id;
    return NULL;
}

moe_status launch_open(const part_ref *comm, launch **out, moe_err *err) {
    launch *l = calloc(1, sizeof *l);
    if (!l) return moe_fail(err, MOE_E_NOMEM, "out of memory for the launch");
    l->comm = comm->table;
    l->speaks = 1;
    l->host = (moe_host){.size = sizeof l->host, .minor = MOE_MINOR, .ctx = l, .log = log_line, .service = no_service};
    moe_status status = l->comm->topology(&l->rank, &l->world, &l->local, err);
    const moe_comm_cfg cfg = {
        .size = sizeof cfg, .rank = l->rank, .world = l->world, .kv = comm->kv, .n_kv = comm->n_kv};
    if (!status) status = l->comm->create(&cfg, &l->host, &l->self, err);
    if (!status && l->comm->extension) l->raw = l->comm->extension(l->self, "moe.bootstrap/0");
    if (!status && !l->raw)
        status = moe_fail(err, MOE_E_UNSUPPORTED, "it starts processes, but has no extension moe.bootstrap/0");
    if (status) {
        launch_close(l);
        return status;
    }
    l->speaks = l->rank == 0;
    l->bootstrap = (moe_bootstrap){.size = sizeof l->bootstrap,
                                   .rank = l->rank,
                                   .world = l->world,
                                   .local = l->local,
                                   .ctx = l,
                                   .all_gather = gather_blobs};
    *out = l;
    return MOE_OK;
}

void launch_close(launch *l) {
    if (!l) return;
    if (l->self) l->comm->destroy(l->self);
    free(l);
}

/* A world without a rank is left over from something else. */
uint32_t launch_started(const char **variable) {
    static const struct {
        const char *rank, *world;
    } launchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                     {"RANK", "WORLD_SIZE"},
                     {"PMI_RANK", "PMI_SIZE"},
                     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
    *variable = NULL;
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const char *rank = getenv(launchers[i].rank), *world = getenv(launchers[i].world);
        const unsigned long n = rank && rank[0] && world ? strtoul(world, NULL, 10) : 0;
        if (n < 2 || n > UINT32_MAX) continue;
        *variable = launchers[i].world;
        return (uint32_t)n;
    }
    return 1;
}

uint32_t launch_rank(const launch *l) {
    return l->rank;
}
uint32_t launch_world(const launch *l) {
    return l->world;
}
const moe_bootstrap *launch_bootstrap(const launch *l) {
    return &l->bootstrap;
}
int launch_speaks(const launch *l) {
    return !l || l->speaks;
}

/* ---- the end ---- */
/* Gives the others up when they do not come in time: a thread, since meeting blocks. */
typedef struct patience {
    launch *l;
    const char *reason;
    pthread_mutex_t lock;
    pthread_cond_t over;
    int done, running;
    pthread_t thread;
} patience;

static void *lose_patience(void *arg) {
    patience *p = arg;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_SECONDS;
    pthread_mutex_lock(&p->lock);
    int late = 0;
    while (!p->done && !late) late = pthread_cond_timedwait(&p->over, &p->lock, &end) != 0;
    if (!p->done) p->l->comm->abort(p->l->self, p->reason);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void start_patience(patience *p, launch *l, const char *reason) {
    p->l = l;
    p->reason = reason;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->over, NULL);
    p->running = pthread_create(&p->thread, NULL, lose_patience, p) == 0;
}

static void end_patience(patience *p) {
    if (!p->l) return;
    pthread_mutex_lock(&p->lock);
    p->done = 1;
    pthread_cond_signal(&p->over);
    pthread_mutex_unlock(&p->lock);
    if (p->running) pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->over);
    pthread_mutex_destroy(&p->lock);
}

/* Until every rank is done. *worst: the rank whose end is the cause, or the world's size when all went well. */
static moe_status meet_done(const launch *l, moe_status own, uint32_t *worst, moe_err *err) {
    moe_status status = MOE_OK;
    uint32_t left = l->world;
    *worst = l->world;
    while (left && !status) {
        record *all = NULL;
        status = meet(l, &(record){.done = 1, .status = own}, &all, err);
        left = 0;
        for (uint32_t r = 0; r < l->world && !status; r++) left += !all[r].done;
        for (uint32_t r = 0; r < l->world && !status && !left; r++) {
            const moe_status was = *worst < l->world ? all[*worst].status : MOE_OK, is = all[r].status;
            if (is && (!was || (was == MOE_E_COMM && is != MOE_E_COMM))) *worst = r;
        }
        free(all);
    }
    return status;
}

/* Of ranks that have lost each other all say the same: the one that saw it first has not heard it from another. */
static uint32_t first_hand(const launch *l, const moe_err *all, uint32_t worst) {
    for (uint32_t r = 0; r < l->world && all[worst].code == MOE_E_COMM; r++)
        if (all[r].code == MOE_E_COMM && strncmp(all[r].msg, ABORTED, strlen(ABORTED)) != 0) return r;
    return worst;
}

/* Puts the rank before its words, unless they begin with it, or it is the only one. */
static void name_rank(const launch *l, uint32_t rank, moe_err *err) {
    char prefix[32], msg[sizeof err->msg];
    snprintf(prefix, sizeof prefix, "rank %u: ", rank);
    memcpy(msg, err->msg, sizeof msg);
    msg[sizeof msg - 1] = 0;
    if (l->world > 1 && strncmp(msg, prefix, strlen(prefix)) != 0) moe_fail(err, err->code, "%s%.470s", prefix, msg);
}

/* The cause in that rank's words. */
static moe_status tell_cause(const launch *l, uint32_t worst, const moe_err *own, moe_err *out, moe_err *err) {
    moe_err *all = calloc(l->world, sizeof *all);
    moe_status status = all ? l->raw->all_gather(l->raw->ctx, own, sizeof *own, all, err)
                            : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", l->world);
    if (!status) {
        worst = first_hand(l, all, worst);
        *out = all[worst];
        name_rank(l, worst, out);
    }
    free(all);
    return status;
}

/* Those who answer have agreed to nothing: the first to give up has the word. What the comm itself has found, all say.
 */
static void choose_speaker(launch *l, const moe_err *own) {
    moe_err first = {.size = sizeof first};
    char start[64];
    snprintf(start, sizeof start, "%.60s", own->msg);
    l->speaks = l->comm->poll(l->self, &first) == MOE_OK || strncmp(first.msg, ABORTED, strlen(ABORTED)) != 0 ||
                (own->code && strstr(first.msg, start));
}

moe_status launch_run(launch *l, ranks_fn fn, void *arg, moe_err *err) {
    moe_err own = {.size = sizeof own}, failed = {.size = sizeof failed};
    patience others = {0};
    uint32_t worst = l->world;
    own.code = fn(arg, l->rank, &l->bootstrap, &own);
    if (own.code) name_rank(l, l->rank, &own);
    if (own.code) start_patience(&others, l, own.msg);
    moe_status status = meet_done(l, own.code, &worst, &failed);
    if (!status && worst < l->world) status = tell_cause(l, worst, &own, err, &failed);
    end_patience(&others);
    if (!status) return worst < l->world ? err->code : MOE_OK;
    choose_speaker(l, &own);
    *err = own.code ? own : failed;
    return own.code ? own.code : status;
}

/* ---- before the run ---- */
int launch_agree(launch *l, int code) {
    moe_err err = {.size = sizeof err};
    int32_t own = code, *all = calloc(l->world, sizeof *all);
    moe_status status = all ? l->bootstrap.all_gather(l->bootstrap.ctx, &own, sizeof own, all, &err) : MOE_E_NOMEM;
    for (uint32_t r = 0; r < l->world && !status; r++)
        if (all[r] > code) code = all[r];
    free(all);
    return status && !code ? 4 : code;
}

enum { TOLD = 16384 }; /* bytes of lines that a rank tells of */

static void join_lines(const err_list *errs, char *text) {
    size_t at = 0;
    for (size_t i = 0; i < errs->n; i++) {
        const size_t n = strlen(errs->lines[i]);
        if (at + n + 2 > TOLD) break;
        memcpy(text + at, errs->lines[i], n);
        text[at + n] = '\n';
        at += n + 1;
    }
    text[at] = 0;
}

static int has_line(const err_list *errs, const char *line) {
    for (size_t i = 0; i < errs->n; i++)
        if (strcmp(errs->lines[i], line) == 0) return 1;
    return 0;
}

int launch_gather_errors(launch *l, int code, err_list *errs) {
    moe_err err = {.size = sizeof err};
    const int worst = launch_agree(l, code);
    if (!worst) return 0;
    char *own = calloc(1, TOLD), *all = calloc(l->world, TOLD);
    if (own && all) join_lines(errs, own);
    moe_status status = own && all ? l->bootstrap.all_gather(l->bootstrap.ctx, own, TOLD, all, &err) : MOE_E_NOMEM;
    for (uint32_t r = 1; r < l->world && !status && !l->rank; r++) {
        char *rest = NULL;
        for (char *line = strtok_r(all + (size_t)r * TOLD, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            if (!has_line(errs, line)) err_list_add(errs, "rank %u: %s", r, line);
    }
    free(own);
    free(all);
    return worst;
}
