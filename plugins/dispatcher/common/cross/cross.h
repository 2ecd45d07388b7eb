/* Crossing: rows of token order go once to each member that needs them, straight into its window, and are spread there
 * to the rows of expert order that want them; backwards, the rows of a token are summed at the experts' member and come
 * back as one. Slots in the windows are prefix sums of numbers that all members know since layout, so that a movement
 * is: write, one barrier, read.
 *
 * Entries: what a token wants, a row of expert order at a place each (an ep rank: the members that hold its experts).
 * cross_plan.c makes the plan of a routing, in layout; cross_move.c moves rows by it. dispatcher/deepep has one
 * crossing among all members; dispatcher/hier one among nodes, by messages (hier/move.c), and one inside each node.
 *
 * Windows. Each has two halves, used in turn. A member writes into the others' half h in movement i, they read it after
 * the barrier of i, and the next to write there is movement i + 2: whoever has passed the barrier of i + 1 knows that
 * all have finished reading. So all of a movement is done inside of exchange. A half: the rows of plane 0, of plane 1,
 * .., then the scalars of entries. */
#ifndef DISPATCHER_CROSS_H
#define DISPATCHER_CROSS_H
#include "../base.h"
#include "rows.h"

enum { CROSS_LIST = 1024 }; /* rows of one sum at most */

/* The window of a crossing, with what belongs to it. Instances of a rank share one where the host gives them a place
 * for it: their movements follow each other on one lane, and on all members alike. */
typedef struct cross_memory {
    uint32_t users, reserved;
    moe_window window;
    uint64_t half;   /* bytes */
    uint64_t turn;   /* movements so far; touched in exchange alone */
    void *groups[4]; /* of hier: made with the window, for all its users */
} cross_memory;

/* Constant after create, but for memory->turn. Members are of this crossing's group. */
typedef struct cross {
    const disp *d;
    void *group, *layout_group;      /* NULL with one member */
    uint32_t n, me, places, expands; /* members; this one; of entries; 0: rows stay in token order (no window) */
    const uint32_t *low, *high;      /* [places] members [low, high) want the entries of a place */
    int64_t tokens, crossings, out_entries, rows_in, entries_in; /* at most: of this member; what comes to it */
    int64_t window_rows, window_entries; /* of one half, at most: what the others' are of rows_in and crossings, .. */
    const rows_kernel *kernel;
    cross_memory *memory;      /* NULL: no window */
    uint64_t half;             /* bytes that this crossing needs of a half; 0 = no window */
    int made;                  /* this instance has made the memory */
    uint64_t lasting, passing; /* bytes of handle, and of workspace in layout */
} cross;

/* Views into the handle: what is known of one routing. "For member m": positions [out_first[m], out_first[m + 1]) of
 * token order's rows by member, then token; entries alike. "From member m": alike. */
typedef struct cross_plan {
    int64_t *head;                    /* [2] tokens, entries (rectangular ones: with those that want nothing) */
    int64_t *out_first, *out_entry;   /* [n + 1] for member m */
    int64_t *in_first, *in_entry;     /* [n + 1] from member m */
    int64_t *there_row, *there_entry; /* [n] where this member's part begins in what m gets */
    int64_t *back_row, *back_entry;   /* [n] where the part for this member begins in what m gave */
    int64_t *token;                   /* [crossings] of a position */
    int64_t *scalar;                  /* [out_entries] which entry of the input it is */
    int64_t *hop_first, *hop_at;      /* [tokens + 1]; [crossings] positions of a token, members ascending */
    uint32_t *hop_member;             /* [crossings] */
    int64_t *in_end, *in_row;         /* [rows_in + 1] entries of a row begin; [entries_in] row of expert order */
    uint32_t *in_place;               /* [entries_in] */
} cross_plan;

/* What tokens want. rows < 0: an entry that wants nothing. Borrowed for the call. */
typedef struct cross_input {
    int64_t tokens, k;      /* entries of a token; not read with first */
    const int64_t *first;   /* [tokens + 1], or NULL */
    const int64_t *rows;    /* [entries] */
    const uint32_t *places; /* [entries] */
} cross_input;

/* ---- cross.c: [main] ---- */
/* Sizes from the caps that the caller has set (tokens .. entries_in), and the kernel. low, high: kept.
 * MOE_E_UNSUPPORTED where a token has more rows than a sum can take. */
moe_status cross_size(cross *c, moe_err *err);
/* After cross_size: memory of an earlier instance that is large enough, or NULL. The same on every member. */
cross_memory *cross_borrow(const cross *c);
/* [collective over c->group] The window, borrowed or made, where c->expands and there are several members.
 * MOE_E_UNSUPPORTED where a peer cannot be addressed: names `instead`, the dispatchers that need no windows. */
moe_status cross_open(cross *c, const char *instead, moe_err *err);
void cross_close(cross *c); /* [collective over the group] the last user ends window and groups */

/* ---- cross_plan.c: [step] ---- */
/* passing NULL: after layout; then in_end, in_row and in_place are there with c->expands only. */
cross_plan cross_plan_at(const cross *c, void *lasting, void *passing);
/* sizes [n][2]: rows and entries for each member. */
void cross_count(const cross *c, const cross_input *in, int64_t *sizes);
/* The plan. sizes: those of member m are at sizes + m * stride, from an exchange that the caller has made; NULL: made
 * here. [collective on layout_group] in order: all_gather (without sizes), all_to_all_v. */
moe_status cross_make(const cross *c, void *stream, const cross_input *in, const int64_t *sizes, int64_t stride,
                      const cross_plan *p, void *passing, moe_err *err);

/* ---- cross_move.c: [step] ---- */
/* Rows of token order: of all tokens at rows; but tokens [own_first, own_end) where own is there: token own_first + i
 * is row own_index[i] of it. */
typedef struct cross_side {
    char *rows, *own;
    const int64_t *own_index;
    int64_t own_first, own_end;
} cross_side;
typedef struct cross_plane {
    cross_side tokens;
    char *experts; /* expert order */
    int64_t width; /* bytes of a row */
    int narrow;    /* BF16; else F32 */
} cross_plane;
typedef struct cross_call {
    void *stream;
    const moe_rows *rows;
    uint32_t n_planes;
    cross_plane planes[DISP_PLANES];
    float *scalars, *row_scalar; /* of entries as the input numbers them; of rows. Both NULL: none */
} cross_call;

/* [collective] MOE_DISPATCH, then padding rows are zero; or MOE_COMBINE, which writes all tokens and scalars of the
 * input, zero where nothing was wanted. */
moe_status cross_dispatch(const cross *c, const cross_plan *p, const cross_call *call, moe_err *err);
moe_status cross_combine(const cross *c, const cross_plan *p, const cross_call *call, moe_err *err);
/* Bytes that such a movement (rows of `width` bytes of all planes, 4 more an entry with scalars) gives to member m. */
uint64_t cross_sent(const cross *c, const cross_plan *p, int32_t direction, int64_t width, int scalars, uint32_t m);

/* Sums of the positions of each token, without entries (c->expands 0): position q is at rows + q * width, those for
 * this member at own + i * width, i from 0. to: rows of the tokens. */
typedef struct cross_sums {
    const cross *c;
    const cross_plan *p;
    const char *rows, *own;
    char *to;
    int64_t width;
    int narrow, past;
} cross_sums;
void cross_sum_positions(const cross_sums *s);
/* to[i] = from[index[i]], rows of `width` bytes; index NULL: i. */
typedef struct cross_rows {
    const cross *c;
    const char *from;
    char *to;
    const int64_t *index; /* [n] */
    int64_t n, width;
    int past;
} cross_rows;
void cross_copy_rows(const cross_rows *r);
/* Do that many rows leave the caches? */
int cross_is_large(const cross *c, int64_t rows, int64_t width);
/* fn(arg, i) for i in [0, n), by the device's threads where they are free. */
void cross_run(const cross *c, int64_t n, void (*fn)(void *arg, int64_t i, uint32_t worker), void *arg);

#endif
