/* Ranks for tests: ranks_run starts fn in N threads, each with its own service "moe.bootstrap/0", and joins them.
 * Header-only; needs Check only for its own faults. A rank whose fn has returned counts as dead to the others'
 * bootstrap, which then fails instead of waiting for ever.
 *
 *     static void one_rank(rank_env *env) { ... env->rank, env->world, env->arg, rank_host(env, NULL) ... }
 *     ranks_run(4, one_rank, &shared);
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H
#include <check.h>
#include <moe/base.h>
#include <moe/comm.h>
#include <moe/options.h>
#include <plugin_open.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef COMM_UNDER_TEST
#define COMM_UNDER_TEST "threads"
#endif
enum { RANKS_MAX = 64, RANKS_SERVICES = 16 };

/* Where the ranks' bootstrap blobs meet. */
typedef struct rank_meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t world, arrived, dead;
    uint64_t round, bytes;
    char *blobs[2]; /* [world * bytes] of even and odd rounds: a rank is at most one round ahead */
} rank_meeting;

typedef struct rank_env rank_env;
typedef void rank_fn(rank_env *env);
struct rank_env {
    uint32_t rank, world;
    void *arg; /* what ranks_run got; shared by all ranks */
    moe_bootstrap bootstrap;
    test_service services[RANKS_SERVICES];
    test_host host;
    rank_meeting *meeting;
    rank_fn *fn;
    useconds_t delay; /* before fn starts */
};

static inline moe_status rank_all_gather(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err) {
    rank_env *env = ctx;
    rank_meeting *m = env->meeting;
    moe_status s = MOE_OK;
    pthread_mutex_lock(&m->lock);
    const uint64_t round = m->round;
    char **blobs = &m->blobs[round & 1];
    if (m->arrived == 0) {
        free(*blobs);
        *blobs = malloc(m->world * bytes + 1);
        m->bytes = bytes;
    }
    if (m->bytes != bytes)
        s = moe_fail(err, MOE_E_COMM, "bootstrap: rank %u gives another size", env->rank);
    else {
        memcpy(*blobs + env->rank * bytes, in, bytes);
        if (++m->arrived == m->world) {
            m->arrived = 0;
            m->round++;
            pthread_cond_broadcast(&m->changed);
        }
        while (m->round == round && m->dead == 0) pthread_cond_wait(&m->changed, &m->lock);
        if (m->round == round)
            s = moe_fail(err, MOE_E_COMM, "bootstrap: a rank has died");
        else
            memcpy(out, *blobs, m->world * bytes);
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

/* The host of this rank's next instance: its bootstrap and `more` (ends with id NULL; may be NULL). One set of services
 * a rank: a second call replaces those of the first. */
static inline const moe_host *rank_host(rank_env *env, const test_service *more) {
    uint32_t n = 0;
    env->services[n++] = (test_service){"moe.bootstrap/0", &env->bootstrap};
    for (; more && more->id && n + 1 < RANKS_SERVICES; more++) env->services[n++] = *more;
    env->services[n] = (test_service){NULL, NULL};
    return test_host_init(&env->host, env->services);
}

static inline void *rank_main(void *arg) {
    rank_env *env = arg;
    if (env->delay) usleep(env->delay);
    env->fn(env);
    pthread_mutex_lock(&env->meeting->lock);
    env->meeting->dead++;
    pthread_cond_broadcast(&env->meeting->changed);
    pthread_mutex_unlock(&env->meeting->lock);
    return NULL;
}

/* Do ranks see each other's memory? What a test lets one rank write for another is for threads only. */
#ifdef RANKS_ARE_PROCESSES
enum { RANKS_SHARE_MEMORY = 0 };
#else
enum { RANKS_SHARE_MEMORY = 1 };
#endif

#ifdef RANKS_ARE_PROCESSES
/* This process is one of the ranks, where there are as many as that; each counts its own faults. Other numbers of ranks
 * are left to other runs of the test. */
static inline void ranks_run_order(uint32_t world, rank_fn *fn, void *arg, const uint32_t *start,
                                   const useconds_t *delays) {
    const moe_comm_v0 *c = plugin_open("comm", COMM_UNDER_TEST)->vtable;
    uint32_t rank = 0, n = 0, local = 0;
    moe_err err = {.size = sizeof err};
    (void)start;
    ck_assert_msg(c->topology(&rank, &n, &local, &err) == MOE_OK, "%s", err.msg);
    if (n != world) return;
    rank_env env = {.rank = rank, .world = world, .arg = arg, .fn = fn};
    if (delays) usleep(delays[rank]);
    fn(&env);
}
#else
/* Starts the ranks in the order of start (NULL: 0, 1, ..), rank r after delays[r] microseconds (NULL: at once). */
static inline void ranks_run_order(uint32_t world, rank_fn *fn, void *arg, const uint32_t *start,
                                   const useconds_t *delays) {
    ck_assert_uint_le(world, RANKS_MAX);
    rank_meeting meeting = {.world = world};
    pthread_mutex_init(&meeting.lock, NULL);
    pthread_cond_init(&meeting.changed, NULL);
    rank_env *envs = calloc(world, sizeof *envs);
    pthread_t threads[RANKS_MAX];
    ck_assert_ptr_nonnull(envs);
    for (uint32_t i = 0; i < world; i++) {
        const uint32_t r = start ? start[i] : i;
        envs[r] = (rank_env){
            .rank = r, .world = world, .arg = arg, .meeting = &meeting, .fn = fn, .delay = delays ? delays[r] : 0};
        envs[r].bootstrap = (moe_bootstrap){
            .size = sizeof(moe_bootstrap), .rank = r, .world = world, .ctx = &envs[r], .all_gather = rank_all_gather};
        ck_assert_int_eq(pthread_create(&threads[r], NULL, rank_main, &envs[r]), 0);
    }
    for (uint32_t r = 0; r < world; r++) pthread_join(threads[r], NULL);
    free(envs);
    free(meeting.blobs[0]);
    free(meeting.blobs[1]);
    pthread_cond_destroy(&meeting.changed);
    pthread_mutex_destroy(&meeting.lock);
}

#endif

static inline void ranks_run(uint32_t world, rank_fn *fn, void *arg) {
    ranks_run_order(world, fn, arg, NULL, NULL);
}
#endif
