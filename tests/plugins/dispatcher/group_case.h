/* One routing through any dispatcher over a group of ranks that are threads: every rank lays out, dispatches, lets its
 * experts multiply their rows by small numbers, and combines. group_check compares all of it with plain loops over the
 * shared inputs (group_oracle.c). Values are small integers unless `real` is set, so that every sum is exact and
 * results are compared bit for bit, whatever order a dispatcher adds in.
 *
 * A new dispatcher joins by one line in group_kinds (group_oracle.c). */
#ifndef TESTS_GROUP_CASE_H
#define TESTS_GROUP_CASE_H
#include "any_device.h"
#include "plugins/comm/ranks.h"

enum { GROUP_RANKS = 8, GROUP_BYTES = 0xa5 };

typedef struct group_shape {
    uint32_t ep, etp, copies; /* world: copies groups of ep * etp members; 0 is 1 */
    uint32_t k, experts, node_size;
    int64_t hidden, align, min_rows, recv_rows, max_tokens; /* max_tokens 0: the largest of tokens */
    int64_t tokens[GROUP_RANKS];
    int32_t dtype, overflow;
    int real;         /* values that round */
    int bare;         /* hidden rows alone: no second plane, no scalars */
    int64_t short_by; /* rows.max is so much less than needs says */
    int untold;       /* layout has nowhere to tell the host the counts */
} group_shape;

/* What one rank has got. */
typedef struct group_rank {
    moe_status status; /* the first that failed, with where and its text */
    const char *where;
    char text[504];
    int64_t tokens, total, max_rows, host_total;
    int64_t *offsets, *counts;      /* [G + 1], [G] */
    float *rows, *second, *scalars; /* [total, h], [total], [total]: dispatched */
    float *combined, *combined2;    /* [T, h], [T] */
    float *slots;                   /* [T, k] */
    uint64_t sent[2], sent_far[2];  /* of a movement in either direction */
    int64_t stray;                  /* bytes written where none may be */
    int64_t waits;                  /* of the dispatcher for the device */
} group_rank;

typedef struct group_case group_case;
struct group_case {
    group_shape s;
    const char *id;
    uint32_t world, members, groups;
    moe_kv option;             /* of the dispatcher; key NULL: none */
    int device, repeats;       /* DEVICE_*; movements, each compared with the first */
    int32_t *ids[GROUP_RANKS]; /* [T, k] of each rank */
    group_rank out[GROUP_RANKS];
    int64_t differ[GROUP_RANKS]; /* repeats that gave other bits */
    /* Before each call of a rank (may be NULL): where is "layout", "dispatch pack", .. Not MOE_OK: the rank stops. */
    moe_status (*before)(group_case *c, uint32_t rank, const char *where, const moe_comm_v0 *comm, void *self);
    const uint32_t *start;    /* order in which the ranks start; NULL: by number */
    const useconds_t *delays; /* of each rank's start */
    pthread_barrier_t end;    /* a rank that failed stays, so that others do not end just because it left */
};

/* Which dispatchers there are, and what is special about each. */
typedef struct group_kind {
    const char *id, *plugin;
    int cpu;       /* not for every device, but for cpu; these are the last */
    int cuda;      /* .. and for cuda */
    int fixed;     /* the host knows no counts */
    int one_rank;  /* has no group */
    int by_member; /* adds within members first, then over members */
    int rounds;    /* .. and rounds each sum to the rows' type: 1 within a member, 2 within a node too */
    /* Bytes of payload that a rank gives to others. */
    uint64_t (*sent)(const group_case *c, uint32_t rank, int32_t direction);
} group_kind;
extern const group_kind group_kinds[];
int n_group_kinds(void);        /* those that run on the device under test */
int group_runs(const char *id); /* does this one? */
const group_kind *group_kind_of(const char *id);

/* The case with ids all -1, to be filled. */
void group_open(group_case *c, const char *id, const group_shape *s, int device);
void group_run(group_case *c);   /* again is a new run: it drops the results of the last */
void group_check(group_case *c); /* everything that must come out; wants status MOE_OK of every rank */
void group_close(group_case *c);
/* open, fill by fn, run, check, close */
typedef void group_fill(group_case *c, uint32_t rank, int64_t token, int32_t *ids);
void group_fill_with(group_case *c, group_fill *fn);
void group_try(const char *id, const group_shape *s, int device, group_fill *fn);

/* ---- values and oracle ---- */
float group_hidden(const group_case *c, uint32_t rank, int64_t t, int64_t j);
float group_second(const group_case *c, uint32_t rank, int64_t t);
float group_slot(const group_case *c, uint32_t rank, int64_t slot);
/* What expert e's part at an etp member multiplies its rows by. */
float group_factor(uint32_t e, uint32_t etp);
float group_round(const group_case *c, float x); /* as hidden rows are stored */

/* The rows of one ep rank of the group that `rank` is in. */
typedef struct oracle_row {
    int64_t rank, slot, expert; /* slot -1: padding */
} oracle_row;
typedef struct oracle {
    int64_t *offsets, *counts; /* [groups + 1], [groups] */
    oracle_row *rows;          /* [offsets[groups]] */
    int64_t needed;            /* rows if none were dropped */
} oracle;
oracle oracle_of(const group_case *c, uint32_t rank, uint32_t ep);
void oracle_free(oracle *o);
/* [T * k] of a rank: has the slot a row? */
uint8_t *oracle_kept(const group_case *c, uint32_t rank);

uint32_t group_roll(uint64_t *x, uint32_t n);

Suite *suite_group_moves(void);
Suite *suite_group_limits(void);
Suite *suite_group_faults(void);
#endif
