/* What the test files of comm/threads, some of which comm/mpi runs too, share: opening an instance on a rank, and
 * checks that threads may make cheaply (Check writes a message at every ck_assert, so loops count faults and assert
 * once). */
#ifndef TESTS_THREADS_CASE_H
#define TESTS_THREADS_CASE_H
#include <moe/plugin.h>

#include "ranks.h"
#include "waited.h"

static inline const moe_comm_v0 *threads_table(void) {
    return waited_table();
}

/* This rank's instance; fails the test when there is none. */
static inline void *threads_open(rank_env *env, const moe_comm_v0 *c) {
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = env->rank, .world = env->world};
    moe_err err = {.size = sizeof err};
    void *self = NULL;
    moe_status s = c->create(&cfg, rank_host(env, NULL), &self, &err);
    ck_assert_msg(s == MOE_OK, "rank %u: %s", env->rank, err.msg);
    return self;
}

/* A group of all ranks. */
static inline void *threads_group(const moe_comm_v0 *c, void *self, const char *name) {
    moe_err err = {.size = sizeof err};
    void *group = NULL;
    moe_status s = c->group_split(self, NULL, name, 0, &group, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    return group;
}

/* A sequence of its own for each key: xorshift of a mixed start. */
typedef struct dice {
    uint64_t x;
} dice;
static inline uint64_t dice_next(dice *d) {
    d->x ^= d->x << 13;
    d->x ^= d->x >> 7;
    d->x ^= d->x << 17;
    return d->x * 0x2545f4914f6cdd1dull;
}
static inline dice dice_new(uint64_t key) {
    return (dice){(key + 1) * 0x9e3779b97f4a7c15ull | 1};
}

/* Counts in faults, and tells the first ones; for threads. */
#define COUNT_UNLESS(faults, right)                                                         \
    do {                                                                                    \
        if (!(right) && (faults)++ < 5)                                                     \
            fprintf(stderr, "%s:%d, rank %u: %s\n", __FILE__, __LINE__, env->rank, #right); \
    } while (0)

Suite *suite_collectives(void);
Suite *suite_exchange(void);
Suite *suite_messages(void);
Suite *suite_windows(void);
Suite *suite_waiting(void);
Suite *suite_ends(void);
Suite *suite_groups(void);
Suite *suite_faults(void);
Suite *suite_delays(void);
#endif
