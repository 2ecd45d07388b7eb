/* A loop of short sleeps: what is everyone inside of, and since how many of them? */
#include "exec/watchdog.h"

#include <moe/options.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"
#include "util/clock.h"

#define LONGEST_SLEEP 0.25 /* seconds */

/* Something that may be taking too long: a lane, or the rank's own thread. */
typedef struct place {
    const void *what; /* the node, or the set-up call; NULL = idle */
    uint32_t number;  /* of the call: the same `what` again is another number */
    double seconds;   /* seen inside of it */
} place;

struct watchdog {
    watchdog_cfg cfg;
    pthread_t thread;
    pthread_mutex_t lock; /* all below; held through a look, so that detach waits for it */
    pthread_cond_t changed;
    int stop;
    double sleep; /* seconds between two looks */
    const moe_comm_v0 *comm;
    void *comm_self;
    exec_lanes *streams;
    const exec_groups *groups;
    const char *setup; /* the call that the rank's own thread is inside of */
    uint32_t n_setups;
    place lanes[MOE_LANES], own;
    char waiting[256]; /* what an asynchronous comm said when last asked; "" = it waits for nobody */
    double waited;     /* seconds of the same words */
    int aborted, announced, told;
    double since_abort;
    moe_err cause;
};

/* ---- messages ---- */
static const exec_group *group_of(const watchdog *w, const graph_node *node) {
    int32_t g = node->info.group;
    return g >= 0 && w->groups && (uint32_t)g < w->groups->n ? &w->groups->at[g] : NULL;
}

static void list_ranks(const exec_group *g, char *text, size_t bytes) {
    size_t at = (size_t)snprintf(text, bytes, "the group has ranks");
    for (uint32_t i = 0; i < g->n && at + 24 < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, i == 12 ? " ..." : " %u", g->ranks[i]), i += i == 12 ? g->n : 0;
}

/* Who is missing, as far as the comm can say. */
static void say_missing(const watchdog *w, const exec_group *g, char *text, size_t bytes) {
    text[0] = 0;
    if (w->comm && MOE_REACH(w->comm, moe_comm_v0, waiting) && w->comm->waiting) {
        w->comm->waiting(w->comm_self, g ? g->handle : NULL, text, bytes);
        text[bytes - 1] = 0;
        if (!text[0]) snprintf(text, bytes, "no rank is missing");
    } else if (g) {
        list_ranks(g, text, bytes);
    }
}

static void late_node(const watchdog *w, const place *p, moe_err *out) {
    const graph_node *node = p->what;
    const exec_group *g = group_of(w, node);
    char missing[256];
    say_missing(w, g, missing, sizeof missing);
    moe_fail(out, MOE_E_COMM, "rank %u: %.80s on group %.24s has not returned for %.3g s%s%s", w->cfg.rank,
             node->info.name, g ? g->name : "?", p->seconds, missing[0] ? ": " : "", missing);
}

static void late_setup(const watchdog *w, const place *p, moe_err *out) {
    char missing[256];
    say_missing(w, NULL, missing, sizeof missing);
    moe_fail(out, MOE_E_COMM, "rank %u: %.80s has not returned for %.3g s%s%s", w->cfg.rank, (const char *)p->what,
             p->seconds, missing[0] ? ": " : "", missing);
}

/* What the rank is inside of, now that it should have ended. */
static void say_where(const watchdog *w, char *text, size_t bytes) {
    size_t at = 0;
    text[0] = 0;
    if (w->setup) at = (size_t)snprintf(text, bytes, " %.80s", w->setup);
    for (int i = 0; w->streams && i < MOE_LANES && at + 96 < bytes; i++) {
        const graph_node *node = atomic_load_explicit(&w->streams->inside[i].node, memory_order_acquire);
        if (node) at += (size_t)snprintf(text + at, bytes - at, "%s %.80s", at ? "," : "", node->info.name);
    }
    if (!at) snprintf(text, bytes, w->streams ? " its own thread, outside of the step" : " its own release");
}

/* ---- looking ---- */
/* Notes what is there now. Returns 1 when it has been for longer than the timeout. */
static int note(const watchdog *w, place *p, const void *what, uint32_t number, double seconds) {
    if (what != p->what || number != p->number) {
        *p = (place){what, number, 0};
        return 0;
    }
    p->seconds += seconds;
    return what && w->cfg.timeout > 0 && p->seconds >= w->cfg.timeout;
}

/* A node between two equal numbers is the one that this number began. */
static int lane_is_late(watchdog *w, int lane, double seconds) {
    exec_inside *inside = &w->streams->inside[lane];
    uint32_t before = atomic_load_explicit(&inside->runs, memory_order_acquire);
    const graph_node *node = atomic_load_explicit(&inside->node, memory_order_acquire);
    int steady = atomic_load_explicit(&inside->runs, memory_order_acquire) == before;
    if (!steady || (node && node->info.group < 0)) node = NULL;
    return note(w, &w->lanes[lane], node, before, seconds);
}

/* The device is inside of a call of an asynchronous comm, and has been for too long. */
static int comm_is_late(watchdog *w, double seconds, moe_err *out) {
    char text[sizeof w->waiting] = "";
    if (!w->cfg.comm_async || !w->comm || !MOE_REACH(w->comm, moe_comm_v0, waiting) || !w->comm->waiting) return 0;
    w->comm->waiting(w->comm_self, NULL, text, sizeof text);
    text[sizeof text - 1] = 0;
    w->waited = text[0] && strcmp(text, w->waiting) == 0 ? w->waited + seconds : 0;
    memcpy(w->waiting, text, sizeof text);
    if (w->cfg.timeout <= 0 || w->waited < w->cfg.timeout) return 0;
    moe_fail(out, MOE_E_COMM, "rank %u: a communication call has not ended for %.3g s: %s", w->cfg.rank, w->waited,
             text);
    return 1;
}

static int find_late(watchdog *w, double seconds, moe_err *out) {
    int late = note(w, &w->own, w->setup, w->n_setups, seconds);
    if (late)
        late_setup(w, &w->own, out);
    else
        late = comm_is_late(w, seconds, out);
    for (int i = 0; w->streams && i < MOE_LANES; i++) {
        if (!lane_is_late(w, i, seconds) || late) continue;
        late = 1;
        late_node(w, &w->lanes[i], out);
    }
    return late;
}

/* The run is over: the step of now ends early, and who does not end at all is given up. */
static void wait_for_end(watchdog *w, double seconds) {
    if (w->streams) exec_cancel(w->streams, &w->cause);
    w->since_abort += seconds;
    if (w->told || w->since_abort < w->cfg.grace) return;
    w->told = 1;
    if (!w->cfg.on_stuck) return;
    char where[256], msg[sizeof w->cause.msg + 320];
    say_where(w, where, sizeof where);
    snprintf(msg, sizeof msg, "%s; rank %u has not ended %.3g s later and is given up, inside of%s", w->cause.msg,
             w->cfg.rank, w->since_abort, where);
    w->cfg.on_stuck(w->cfg.arg, msg);
}

static void look(watchdog *w, double seconds) {
    w->cause.size = sizeof w->cause;
    if (!w->aborted && w->comm && w->comm->poll(w->comm_self, &w->cause)) {
        w->aborted = 1;
        w->announced = !w->cfg.comm_async; /* it may know of an error, and its calls still be on the device */
    }
    if (!w->aborted) w->aborted = find_late(w, seconds, &w->cause);
    if (w->aborted && !w->announced && w->comm) { /* before there was a comm, nobody could be told */
        w->comm->abort(w->comm_self, w->cause.msg);
        w->announced = 1;
    }
    if (w->aborted) wait_for_end(w, seconds);
}

/* ---- the thread ---- */
static void sleep_a_little(watchdog *w) {
    int64_t until = clock_ns() + (int64_t)(w->sleep * 1e9);
    const struct timespec t = {until / 1000000000, until % 1000000000};
    while (!w->stop && clock_ns() < until) pthread_cond_timedwait(&w->changed, &w->lock, &t);
}

static void *watch(void *arg) {
    watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        double begin = clock_seconds();
        sleep_a_little(w);
        double slept = clock_seconds() - begin, most = 4 * w->sleep;
        if (!w->stop) look(w, slept < most ? slept : most); /* longer: nobody ran, this process was stopped */
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static double shorter(double a, double b) {
    return a < b ? a : b;
}

static int init_sync(watchdog *w) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr)) return 0;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int good = !pthread_cond_init(&w->changed, &attr) && !pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_destroy(&attr);
    return good;
}

moe_status watchdog_create(watchdog **out, const watchdog_cfg *cfg, moe_err *err) {
    watchdog *w = calloc(1, sizeof *w);
    if (!w || !init_sync(w)) {
        free(w);
        return moe_fail(err, MOE_E_NOMEM, "out of memory for the watchdog of rank %u", cfg->rank);
    }
    w->cfg = *cfg;
    if (w->cfg.grace <= 0) w->cfg.grace = WATCHDOG_GRACE;
    w->sleep = shorter(LONGEST_SLEEP, w->cfg.grace / 8);
    if (cfg->timeout > 0) w->sleep = shorter(w->sleep, cfg->timeout / 8);
    if (pthread_create(&w->thread, NULL, watch, w)) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return moe_fail(err, MOE_E_NOMEM, "the system refuses a thread for the watchdog of rank %u", cfg->rank);
    }
    *out = w;
    return MOE_OK;
}

void watchdog_attach(watchdog *w, const moe_comm_v0 *comm, void *comm_self, exec_lanes *streams,
                     const exec_groups *groups) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->comm = comm;
    w->comm_self = comm_self;
    w->streams = streams;
    w->groups = groups;
    pthread_mutex_unlock(&w->lock);
}

void watchdog_detach(watchdog *w) {
    watchdog_attach(w, NULL, NULL, NULL, NULL);
}

void watchdog_destroy(watchdog *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void watchdog_enter(watchdog *w, const char *what) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->setup = what;
    w->n_setups++;
    pthread_mutex_unlock(&w->lock);
}

void watchdog_leave(watchdog *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->setup = NULL;
    pthread_mutex_unlock(&w->lock);
}
