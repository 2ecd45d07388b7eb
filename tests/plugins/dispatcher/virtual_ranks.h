/* Virtual ranks of dispatcher/deepep on one GPU, or on its double: members of one process whose kernels run as one
 * cooperative launch. One routing from layout to combine, and what must come out, by plain loops. */
#ifndef TESTS_VIRTUAL_RANKS_H
#define TESTS_VIRTUAL_RANKS_H
#include <check.h>
#include <cuda_runtime_api.h>
#include <peers.h>
#include <stdlib.h>

#include "plain_device.h"

enum { MOST_RANKS = 8 };

typedef struct virtual_shape {
    uint32_t ranks, etp, k, experts, blocks, threads;
    int64_t hidden, align, tokens[MOST_RANKS];
    int32_t dtype;
} virtual_shape;

/* Chooses: ids [k] of a token, each expert once, -1 = none. */
typedef void virtual_fill(const virtual_shape *s, uint32_t rank, int64_t token, int32_t *ids);

/* One rank's memory, all of which device and host see. */
typedef struct virtual_rank {
    int64_t n, max_rows; /* tokens; rows in expert order */
    int32_t *ids;        /* [n, k] */
    int64_t *numbers, *kept, *first, *offsets, *counts, *slot_row;
    int32_t *partial;
    void *handle;
    deepep_sync *sync;
    deepep_watch *watch;
    char *memory;          /* what the others write */
    moe_tensor x[2], y[2]; /* planes: token order, expert order */
    moe_tensor back[2];    /* .. combined */
    float *slots, *rows, *slots_back;
} virtual_rank;

typedef struct virtual_world {
    virtual_shape s;
    deepep_shape shape;
    uint32_t groups;
    virtual_rank rank[MOST_RANKS];
    cudaStream_t stream;
    deepep_tell_call *tells; /* [ranks] */
    deepep_route_call *routes;
    deepep_move_call *dispatches, *combines;
    moe_err err;
} virtual_world;

void virtual_open(virtual_world *w, const virtual_shape *s, virtual_fill *fill);
void virtual_close(virtual_world *w);
void virtual_layout(virtual_world *w);
void virtual_dispatch(virtual_world *w);
/* Each expert multiplies its rows; then they are summed. */
void virtual_combine(virtual_world *w);
void virtual_wait(virtual_world *w);
deepep_grid virtual_grid(const virtual_world *w, uint32_t ranks);
void virtual_check_dispatch(const virtual_world *w);
void virtual_check_combine(const virtual_world *w);

#endif
