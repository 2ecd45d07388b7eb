/* One routing through dispatcher/local on one device: opens, lays out, dispatches, combines, and knows what must come
 * out. Hidden rows are small integers, so every sum is exact and compared bit for bit. */
#ifndef TESTS_LOCAL_CASE_H
#define TESTS_LOCAL_CASE_H
#include "any_device.h"

typedef struct shape_case {
    int64_t tokens, hidden, align, max_tokens, max_rows; /* max_*: 0 = tokens; what needs says */
    uint32_t k, experts, n_planes;                       /* n_planes: 0 = 2 */
    int32_t dtype;                                       /* of the hidden rows */
    int64_t min_rows;                                    /* of every expert */
} shape_case;

typedef struct local_case {
    shape_case s;
    any_device dev;
    const moe_dispatcher_v0 *table;
    void *self;
    moe_dispatcher_needs needs;
    moe_rows rows;
    int32_t *ids; /* [T,k] */
    void *handle, *workspace;
    int64_t *offsets, *counts;
    moe_tensor ids_t, offsets_t, counts_t, slot_t, row_t; /* slot scalars [T,k], row scalars [N] */
    moe_plane planes[2];                                  /* hidden [T,h], and one F32 value a row */
    moe_err err;
} local_case;

/* The instance and all memory, filled with bytes 0xa5; device `which`. */
void local_open(local_case *c, const shape_case *s, int which);
void local_close(local_case *c);

/* Step calls as core issues them. */
moe_status local_layout_run(local_case *c);
/* direction MOE_DISPATCH or MOE_COMBINE: pack, exchange, unpack; the first that fails ends it. */
moe_status local_move_run(local_case *c, int32_t direction);

/* Fills the token side, runs layout, dispatch, combine, and checks all of it. */
void local_round_trip(local_case *c);

uint32_t local_roll(uint64_t *x, uint32_t n);

Suite *suite_moves(void);
Suite *suite_refusals(void);
#endif
