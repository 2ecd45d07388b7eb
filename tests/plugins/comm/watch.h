/* A watch over ranks that may hang: each says what it enters; when nobody has entered anything for a while, the watch
 * notes where every lane of every rank stands, and aborts the communicator, so that the test fails with a reason. */
#ifndef TESTS_WATCH_H
#define TESTS_WATCH_H
#include "threads_case.h"

enum { WATCH_LANES = 2, WATCH_SLOTS = 16 };

typedef struct watch {
    const moe_comm_v0 *c;
    uint32_t limit_ms;
    pthread_mutex_t lock; /* self, running */
    void *self[RANKS_MAX];
    int running, fired;
    const char *_Atomic what[WATCH_SLOTS]; /* slot rank * WATCH_LANES + lane; NULL = not in use */
    _Atomic uint32_t round[WATCH_SLOTS];
    _Atomic uint64_t beats;
    pthread_t thread;
    char text[400];
} watch;

/* `lane` of `rank` is about to do `what` in this round; any thread. */
static inline void watch_enter(watch *w, uint32_t rank, uint32_t lane, uint32_t round, const char *what) {
    w->round[rank * WATCH_LANES + lane] = round;
    w->what[rank * WATCH_LANES + lane] = what;
    w->beats++;
}

/* The rank's instance is there (the abort goes through one of them), or about to be destroyed: NULL. */
static inline void watch_instance(watch *w, uint32_t rank, void *self) {
    pthread_mutex_lock(&w->lock);
    w->self[rank] = self;
    pthread_mutex_unlock(&w->lock);
}

/* Under the lock. */
static inline void watch_fire(watch *w) {
    int at = snprintf(w->text, sizeof w->text, "nothing for %u ms:", w->limit_ms);
    for (int i = 0; i < WATCH_SLOTS && at > 0 && (size_t)at < sizeof w->text; i++)
        if (w->what[i])
            at += snprintf(w->text + at, sizeof w->text - (size_t)at, " rank %d in %s of round %u;", i / WATCH_LANES,
                           w->what[i], w->round[i]);
    w->fired = 1;
    for (int r = 0; r < RANKS_MAX; r++)
        if (w->self[r]) {
            w->c->abort(w->self[r], w->text);
            break;
        }
}

static inline void *watch_main(void *arg) {
    watch *w = arg;
    uint64_t seen = 0;
    uint32_t quiet_ms = 0;
    pthread_mutex_lock(&w->lock);
    while (w->running && !w->fired) {
        pthread_mutex_unlock(&w->lock);
        usleep(5000);
        quiet_ms = w->beats == seen ? quiet_ms + 5 : 0;
        seen = w->beats;
        pthread_mutex_lock(&w->lock);
        if (quiet_ms >= w->limit_ms) watch_fire(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* c and limit_ms are set, the rest is zero. */
static inline void watch_start(watch *w) {
    pthread_mutex_init(&w->lock, NULL);
    w->running = 1;
    ck_assert_int_eq(pthread_create(&w->thread, NULL, watch_main, w), 0);
}
/* Returns whether it had to end a hang; text says where. */
static inline int watch_stop(watch *w) {
    pthread_mutex_lock(&w->lock);
    w->running = 0;
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    return w->fired;
}
#endif
