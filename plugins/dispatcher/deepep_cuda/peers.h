/* What the kernels of dispatcher/deepep for CUDA are told, and their launches. C and C++.
 *
 * They know nothing of a comm: `peer` has each member's memory as this GPU addresses it. Members are either ranks with
 * a GPU each, which all launch the same kernels (one), or virtual ranks: several members of one GPU, whose arguments
 * lie in device memory (all) and who run as gridDim.y of one cooperative launch.
 *
 * A member's memory, which the others write, zero at the start; region(s) is the part for what comes from member s:
 *   flags   [DEEPEP_CHANNELS, DEEPEP_MEMBERS] of the barriers (barrier.cuh)
 *   numbers [members, stride] I64 of layout's first kernel
 *   came    [members] I64 rows that come from each
 *   lists   [members - 1, tokens, k] I32 rows of expert order of what comes, by slot of the token, -1 = not for here
 *   two halves, used in turn: rows of plane 0 [members - 1, tokens], of plane 1, .., scalars [members - 1, tokens, k]
 * A member writes into half h of others in movement i, they read it after the barrier of i, and who writes there next
 * does so in movement i + 2, after the barrier of i + 1, which each has reached only when it had read. Layout needs no
 * second half: each of its areas is written after one barrier of a layout and read before the other one.
 *
 * A token that goes to member m has a position there: the number of this member's tokens before it that go there too.
 * What belongs to the token lies at this position of the region, in movements of either direction. */
#ifndef DEEPEP_CUDA_PEERS_H
#define DEEPEP_CUDA_PEERS_H
#include <moe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DEEPEP_MEMBERS = 64, DEEPEP_PLANES = 8, DEEPEP_THREADS = 256, DEEPEP_WARPS = DEEPEP_THREADS / 32 };
enum { DEEPEP_ROWS = 128 };                           /* of one sum at most: members and slots of a token */
enum { DEEPEP_LAYOUT, DEEPEP_MOVE, DEEPEP_CHANNELS }; /* they may be under way at once, each on a stream */

/* The same on all members. */
typedef struct deepep_shape {
    uint32_t members, etp, k, groups;                   /* member ep * etp + f; experts of an ep rank */
    int64_t tokens, stride;                             /* of a member at most; I64 numbers of a member in layout */
    uint64_t numbers, came, lists, halves, half, bytes; /* where parts begin; bytes of a half; of all */
} deepep_shape;

/* Barriers of one channel, device memory, zero at the start. */
typedef struct deepep_sync {
    uint32_t arrived, round; /* of this member's blocks */
    uint32_t epoch;          /* barriers of all members so far */
    uint32_t ended;          /* 1: a kernel has ended before its work was done: what it should have made is not there */
} deepep_sync;

/* Host memory that the device sees, zero at the start. */
typedef struct deepep_watch {
    uint32_t end;                    /* by the host: 1 ends all waiting, now and later */
    uint32_t waits[DEEPEP_CHANNELS]; /* by the device: 1 + a member whose barrier it has waited for long, or 0 */
    uint32_t epoch[DEEPEP_CHANNELS]; /* .. and the number of the barrier */
} deepep_watch;

typedef struct deepep_rank {
    char *peer[DEEPEP_MEMBERS]; /* [members]; peer[me] is its own */
    deepep_shape shape;
    uint32_t me, reserved;
    deepep_sync *sync; /* [DEEPEP_CHANNELS] */
    deepep_watch *watch;
} deepep_rank;

/* What is known of one routing: device memory, from layout until backward is done. */
typedef struct deepep_routing {
    int64_t *tokens;               /* [1] */
    int64_t *out_rows, *out_slots; /* [members] of this member's tokens: rows, slots for member m */
    int64_t *in_rows, *in_slots;   /* [members] from member m */
    int32_t *position;             /* [tokens, members] -1 = the token does not go there */
    int32_t *ep;                   /* [tokens, k] ep rank of a slot, -1 = it has no row */
    int32_t *list;                 /* [members, tokens, k] as in `lists`, of all that comes, own ones too */
} deepep_routing;

/* Layout. First each member's row of `numbers` goes to all (deepep_tell); then, when it is known which slot has which
 * row, the lists (deepep_route). */
typedef struct deepep_tell_call {
    deepep_rank rank;
    int64_t *numbers; /* [members, stride]: in: row me; out: all */
} deepep_tell_call;
typedef struct deepep_route_call {
    deepep_rank rank;
    deepep_routing to;
    const int32_t *ids;      /* [n, k] */
    const int64_t *slot_row; /* [n, k] row at the ep rank of ids / groups; -1 = none */
    const int64_t *kept;     /* [members, experts] slots that have a row */
    int32_t *partial;        /* [warps of a member's grid, ep size] */
    int64_t n;               /* tokens */
} deepep_route_call;

typedef struct deepep_plane {
    char *tokens, *experts; /* [n, width], [rows.max, width] */
    int64_t width;          /* bytes of a row */
    uint64_t at;            /* in a half: [members - 1, tokens] rows of `pitch` bytes */
    int64_t pitch;
    uint32_t narrow,
        unit; /* BF16, else F32; bytes that tokens, experts and width are multiples of: 16, or an element */
} deepep_plane;

typedef struct deepep_move_call {
    deepep_rank rank;
    deepep_routing by;
    deepep_plane planes[DEEPEP_PLANES];
    uint32_t n_planes, groups;
    float *slots, *rows;             /* scalars [n, k], [rows.max]; both or none */
    uint64_t slots_at;               /* in a half: [members - 1, tokens, k] F32 */
    const int64_t *offsets, *counts; /* of moe_rows */
    int64_t n;                       /* tokens */
} deepep_move_call;

/* Sizes of a member's memory from members .. stride; elements: of one row of all planes at most. */
void deepep_shape_fill(deepep_shape *s, int64_t elements);
/* Where planes and scalars of a call lie in a half. Bytes of it that they take. */
uint64_t deepep_place(deepep_move_call *call);
/* Bytes of deepep_routing, and its parts in that memory. */
uint64_t deepep_routing_bytes(const deepep_shape *s);
deepep_routing deepep_routing_at(const deepep_shape *s, void *memory);

/* Where a grid has `ranks` virtual ones: [ranks] calls in device memory, and `one` is not read; else all is NULL. Each
 * member has `blocks` blocks of `threads` threads, a multiple of 32, at most DEEPEP_THREADS; all are resident. */
typedef struct deepep_grid {
    uint32_t ranks, blocks, threads, reserved;
    void *stream; /* cudaStream_t */
} deepep_grid;
moe_status deepep_tell(const deepep_grid *grid, const deepep_tell_call *one, const deepep_tell_call *all, moe_err *err);
moe_status deepep_route(const deepep_grid *grid, const deepep_route_call *one, const deepep_route_call *all,
                        moe_err *err);
moe_status deepep_dispatch(const deepep_grid *grid, const deepep_move_call *one, const deepep_move_call *all,
                           moe_err *err);
moe_status deepep_combine(const deepep_grid *grid, const deepep_move_call *one, const deepep_move_call *all,
                          moe_err *err);

#ifdef __cplusplus
}
#endif
#endif
