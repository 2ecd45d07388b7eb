/* Communicators and windows: how they come to be, and end. Whatever takes other members to come is a state that
 * ncclCommGetAsyncError moves on, so that no call here waits for anybody. See nccl_double.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nccl_double.h"
#include "nccl_memory.h"
#include "nccl_record.h"
#include "runtime.h"

/* ---- errors ---- */
static _Thread_local char last_text[256];

const char *ncclGetErrorString(ncclResult_t r) {
    static const char *const texts[] = {[ncclSuccess] = "no error",
                                        [ncclUnhandledCudaError] = "unhandled cuda error",
                                        [ncclSystemError] = "unhandled system error",
                                        [ncclInternalError] = "internal error",
                                        [ncclInvalidArgument] = "invalid argument",
                                        [ncclInvalidUsage] = "invalid usage",
                                        [ncclRemoteError] = "remote process exited or there was a network error",
                                        [ncclInProgress] = "NCCL operation in progress"};
    return r >= 0 && r < ncclNumResults ? texts[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t c) {
    if (!c) return last_text;
    pthread_mutex_lock(&c->lock);
    memcpy(last_text, c->text, sizeof last_text);
    pthread_mutex_unlock(&c->lock);
    return last_text;
}

void comm_fail(struct ncclComm *c, ncclResult_t error, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->error)) {
        vsnprintf(c->text, sizeof c->text, format, ap);
        atomic_store(&c->error, (int)error);
    }
    pthread_mutex_unlock(&c->lock);
    va_end(ap);
}

static ncclResult_t fail(ncclResult_t r, const char *format, const char *what) {
    snprintf(last_text, sizeof last_text, format, what);
    return r;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

/* ---- fate ---- */
static double_fate *fate_new(int rank) {
    double_fate *f = calloc(1, sizeof *f);
    const char *text = getenv("MOE_DOUBLE_NCCL_FAIL");
    int who = -1, error = ncclRemoteError;
    unsigned long long at = 0;
    if (!f) return NULL;
    atomic_init(&f->refs, 1);
    if (!text || sscanf(text, "rank=%d call=%llu error=%d", &who, &at, &error) < 1 || who != rank) return f;
    f->fail_call = at;
    f->fail_error = error;
    f->never = strstr(text, " never") != NULL;
    return f;
}

/* ---- members ---- */
static void comm_free(struct ncclComm *c) {
    if (!c) return;
    if (c->s) munmap(c->s, c->bytes);
    if (c->fate && atomic_fetch_sub(&c->fate->refs, 1) == 1) free(c->fate);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Takes a reference of fate over. */
static struct ncclComm *comm_new(const char *name, uint32_t n, uint32_t rank, double_fate *fate) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->n = n;
    c->rank = rank;
    c->fate = fate;
    c->setup = SETUP_INIT;
    snprintf(c->name, sizeof c->name, "%s", name);
    c->s = shared_open(name, n, &c->bytes);
    if (!c->s) {
        comm_free(c);
        return NULL;
    }
    atomic_store(&c->s->ranks[rank].pid, (uint32_t)getpid());
    if (!fate->never && atomic_fetch_add(&c->s->attached, 1) + 1 == n) { /* all have it: no name is left behind */
        shm_unlink(name);
        c->unnamed = 1;
    }
    return c;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static _Atomic uint32_t count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, NAME_BYTES, "/moe-nccl-%d-%u-%llx", (int)getpid(), atomic_fetch_add(&count, 1),
             (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
    return ncclSuccess;
}

/* What depends on this process holds for threads: the default (blocking) kind is not there. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
    *out = NULL;
    if (!config || config->magic != 0xcafebeef || config->blocking != 0)
        return fail(ncclInvalidUsage, "%s", "the double has communicators with blocking = 0 only");
    if (n < 1 || n > MAX_RANKS || rank < 0 || rank >= n || strnlen(id.internal, NAME_BYTES) >= NAME_BYTES)
        return fail(ncclInvalidArgument, "%s", "ranks or id");
    double_fate *fate = fate_new(rank);
    struct ncclComm *c = fate ? comm_new(id.internal, (uint32_t)n, (uint32_t)rank, fate) : NULL;
    if (!c) return fail(ncclSystemError, "shared memory: %s", strerror(errno));
    *out = c;
    return ncclInProgress;
}

/* ---- set-up, step by step ---- */
static int all_offered(const struct ncclComm *c, uint64_t round) {
    return atomic_load(&c->s->arrived[LANE_SETUP]) >= round * c->n;
}

static void offer(struct ncclComm *c, const double_offer *o) {
    c->s->ranks[c->rank].offers[++c->setup_round & 1] = *o;
    atomic_fetch_add(&c->s->arrived[LANE_SETUP], 1);
}

static const double_offer *offer_of(const struct ncclComm *c, uint32_t rank) {
    return &c->s->ranks[rank].offers[c->setup_round & 1];
}

/* Place of member i among those of its color, by key, then rank. */
static void split_place(const struct ncclComm *c, uint32_t *n, uint32_t *place) {
    const double_offer *own = offer_of(c, c->rank);
    *n = *place = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const double_offer *o = offer_of(c, i);
        if (o->color != own->color) continue;
        ++*n;
        *place += o->key < own->key || (o->key == own->key && i < c->rank);
    }
}

static void finish_split(struct ncclComm *c) {
    char name[NAME_BYTES];
    uint32_t n, place;
    const int32_t color = offer_of(c, c->rank)->color;
    uint64_t hash = 14695981039346656037ull;
    c->setup = SETUP_NONE;
    if (color == NCCL_SPLIT_NOCOLOR) return;
    for (const char *p = c->name; *p; p++) hash = (hash ^ (uint8_t)*p) * 1099511628211ull;
    snprintf(name, sizeof name, "/moe-nccl-%016llx-%llu-%d", (unsigned long long)hash, (unsigned long long)c->splits,
             color);
    split_place(c, &n, &place);
    atomic_fetch_add(&c->fate->refs, 1);
    struct ncclComm *child = comm_new(name, n, place, c->fate);
    if (child)
        __atomic_store_n(c->split_out, child, __ATOMIC_RELEASE);
    else
        atomic_store(&c->error, ncclSystemError);
}

/* A window whose memory some member cannot give is NULL on all, as NCCL has it. */
static void map_window(struct ncclComm *c) {
    struct double_window *w = c->window;
    const size_t stride = (size_t)1 << 32;
    int ok = 1;
    for (uint32_t i = 0; i < c->n; i++) ok &= offer_of(c, i)->fd >= 0 && offer_of(c, i)->bytes <= stride;
    int size, place;
    record_team(c, &size, &place);
    const uint32_t first = c->rank - (uint32_t)place;
    w->bytes = stride * (size_t)size;
    void *flat = ok ? mmap(NULL, w->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (flat == MAP_FAILED) return;
    w->flat = flat;
    for (uint32_t i = 0; i < (uint32_t)size; i++)
        if (!memory_map(w->flat + i * stride, offer_of(c, first + i))) atomic_store(&c->error, ncclSystemError);
    w->record = record_new(w->flat, place, (int)c->rank);
    if (!w->record) atomic_store(&c->error, ncclUnhandledCudaError);
}

static void finish_window(struct ncclComm *c) {
    c->setup = SETUP_NONE;
    __atomic_store_n(c->window_out, (ncclWindow_t)c->window->record, __ATOMIC_RELEASE);
    c->window->next = c->windows;
    c->windows = c->window;
    c->window = NULL;
}

/* Under c->lock. */
static void move_on(struct ncclComm *c) {
    if (c->setup == SETUP_INIT && atomic_load(&c->s->attached) >= c->n) {
        c->setup = SETUP_NONE;
        c->unnamed = 1;
    }
    if (c->setup == SETUP_SPLIT && all_offered(c, c->setup_round)) finish_split(c);
    if (c->setup == SETUP_WINDOW && all_offered(c, c->setup_round)) {
        map_window(c);
        c->setup = SETUP_WINDOW_END; /* memory stays until all have it */
        offer(c, &(double_offer){0});
    }
    if (c->setup == SETUP_WINDOW_END && all_offered(c, c->setup_round)) finish_window(c);
    if (c->deferred && --c->deferrals == 0) {
        double_job *job = c->deferred;
        c->deferred = NULL;
        if (double_enqueue(job->stream, job_run, job) != cudaSuccess) atomic_store(&c->error, ncclUnhandledCudaError);
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->error)) move_on(c);
    const int e = atomic_load(&c->error);
    const int busy = c->setup || c->deferred || (c->finalizing && c->jobs);
    *error = e ? (ncclResult_t)e : busy ? ncclInProgress : ncclSuccess;
    pthread_mutex_unlock(&c->lock);
    return ncclSuccess;
}

ncclResult_t comm_ready(struct ncclComm *c) {
    if (!c) return ncclInvalidArgument;
    pthread_mutex_lock(&c->lock);
    const int e = atomic_load(&c->error);
    const ncclResult_t r = e ? (ncclResult_t)e : c->setup || c->deferred ? ncclInvalidArgument : ncclSuccess;
    pthread_mutex_unlock(&c->lock);
    return r;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    ncclResult_t r = comm_ready(c);
    *out = NULL;
    if (r != ncclSuccess) return r;
    if (config && config->blocking == 1) return fail(ncclInvalidUsage, "%s", "the double has blocking = 0 only");
    pthread_mutex_lock(&c->lock);
    c->splits++;
    c->split_out = out;
    c->setup = SETUP_SPLIT;
    offer(c, &(double_offer){.color = color, .key = key});
    pthread_mutex_unlock(&c->lock);
    return ncclInProgress;
}

/* ---- windows ---- */
void record_team(ncclComm_t c, int *size, int *place) {
    const char *text = getenv("MOE_DOUBLE_NCCL_LSA");
    const int wanted = text ? atoi(text) : 0;
    *size = wanted > 0 && c->n % (uint32_t)wanted == 0 ? wanted : (int)c->n;
    *place = (int)c->rank % *size;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *buf, size_t bytes, ncclWindow_t *out, int flags) {
    ncclResult_t r = comm_ready(c);
    double_offer own = {.fd = -1, .pid = (int32_t)getpid(), .bytes = bytes};
    *out = NULL;
    if (r != ncclSuccess) return r;
    if (flags != NCCL_WIN_COLL_SYMMETRIC) return ncclInvalidArgument;
    memory_find(buf, bytes, &own);
    struct double_window *w = calloc(1, sizeof *w);
    if (!w) return ncclSystemError;
    pthread_mutex_lock(&c->lock);
    c->window = w;
    c->window_out = out;
    c->setup = SETUP_WINDOW;
    offer(c, &own);
    pthread_mutex_unlock(&c->lock);
    return ncclInProgress;
}

static void window_free(struct double_window *w) {
    if (w->flat) munmap(w->flat, w->bytes);
    cudaFree(w->record);
    free(w);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t window) {
    if (!window) return ncclSuccess;
    pthread_mutex_lock(&c->lock);
    struct double_window **at = &c->windows;
    while (*at && (*at)->record != (void *)window) at = &(*at)->next;
    struct double_window *w = *at;
    if (w) *at = w->next;
    pthread_mutex_unlock(&c->lock);
    if (!w) return ncclInvalidArgument;
    window_free(w);
    return ncclSuccess;
}

/* ---- the end ---- */
/* Windows end with the communicator: whoever still writes into a peer's memory finds none. */
void comm_end(struct ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    if (c->deferred) { /* never began */
        job_free(c->deferred);
        c->deferred = NULL;
        c->jobs--;
    }
    while (c->jobs) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    while (c->windows) {
        struct double_window *w = c->windows;
        c->windows = w->next;
        window_free(w);
    }
    if (c->window) window_free(c->window);
    if (!c->unnamed) shm_unlink(c->name); /* someone never came */
    comm_free(c);
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
    const ncclResult_t r = comm_ready(c);
    if (r != ncclSuccess) return r;
    pthread_mutex_lock(&c->lock);
    c->finalizing = 1;
    pthread_mutex_unlock(&c->lock);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    if (!c) return ncclSuccess;
    if (atomic_load(&c->error)) return ncclInvalidUsage; /* that takes an abort */
    comm_end(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
    if (!c) return ncclSuccess;
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->aborted, 1);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    bell_ring(&c->s->bell);
    bell_ring(&c->s->ranks[c->rank].bell);
    if (!group_puts_off(c)) comm_end(c);
    return ncclSuccess;
}
