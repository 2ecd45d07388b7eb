/* Kind "dispatcher": rows to the ranks of their experts and back.
 * layout turns the routing of a microbatch into a handle and moe_rows; then a movement in one of two directions is
 * pack (compute lane), exchange (comm lane), unpack (compute lane). MOE_DISPATCH copies token rows to expert order;
 * MOE_COMBINE sums expert rows back to tokens (FP32, slots in order). Each is the other's backward, so there is no
 * separate backward. The probability of a slot goes out with its row and is applied inside the expert; its gradient
 * comes back to the slot, not summed over slots, summed over the members that share an expert, 0 where the slot was
 * dropped. Rows of an expert are in the order of members, then tokens, then slots. */
#ifndef MOE_DISPATCHER_H
#define MOE_DISPATCHER_H
#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOE_DISPATCH, MOE_COMBINE };
enum { MOE_PHASE_PACK = 1, MOE_PHASE_EXCHANGE = 2, MOE_PHASE_UNPACK = 4 };

/* What happens when more rows come than recv_rows: layout fails with MOE_E_OVERFLOW on every rank of the group, or the
 * last rows of the order are dropped (their slots give and get nothing, as if their id were -1). */
enum { MOE_OVERFLOW_STOP, MOE_OVERFLOW_DROP };

/* Ranks: the group has ep_size * etp_size members, member ep * etp_size + etp. Expert e lives on all etp_size members
 * of ep = e / (n_experts / ep_size), each with a part of its ffn width: a row goes to all of them, and what they give
 * back is summed (expert tensor parallelism). Every member has tokens of its own. */
typedef struct moe_dispatcher_cfg {
    uint32_t size, layer, top_k, n_experts; /* global experts, a multiple of ep_size */
    uint32_t ep_rank, ep_size, etp_rank, etp_size;
    int64_t hidden, max_tokens; /* tokens of one rank and call */
    int64_t row_align;          /* from the precision: rows of an expert begin at multiples */
    int64_t min_rows;   /* every local expert has this many rows at least, padding rows after its own; 0 = none */
    int64_t recv_rows;  /* rows in expert order at most, aligned ends included; 0 = what the worst routing gives */
    int32_t overflow;   /* MOE_OVERFLOW_*, with recv_rows */
    uint32_t node_size; /* ranks of the world that share a node, neighbours by number; 0 = all */
    /* Comm groups of the members, for movements and for layout (its calls come from another lane); NULL when there is
     * one member. first_rank: the world's number of member 0; the others follow it. */
    void *group, *layout_group;
    uint32_t first_rank;
    /* 1: layout may wait for the stream, and tells the host the counts (recv = exact); 0: no call waits, and rows come
     * in slots of fixed size. Without MOE_ASYNC of the device both are the same. */
    uint32_t host_counts;
    const moe_kv *kv; /* [n_kv] */
    uint64_t n_kv;
    /* [1] a place of the plugin's that all its instances of this rank are given, in the same order on every member;
     * NULL in it until one of them puts something there (windows: their movements follow each other on one lane).
     * [main] */
    void **shared;
} moe_dispatcher_cfg;

typedef struct moe_dispatcher_needs {
    uint32_t size, dispatch_phases, combine_phases, groups; /* MOE_PHASE_* that do work; groups: local experts */
    uint64_t handle;      /* bytes a (layer, microbatch), from layout until backward is done */
    uint64_t workspace;   /* bytes, live from pack to unpack of one movement, and during layout */
    int64_t max_rows;     /* rows in expert order at most */
    uint64_t own_memory;  /* bytes that the instance holds by itself (windows); what is shared, by one of them */
    uint64_t host_handle; /* bytes of host memory a (layer, microbatch), which live as long as its handle */
} moe_dispatcher_needs;

typedef struct moe_layout_args {
    uint32_t size, reserved;
    void *stream;
    const moe_tensor *expert_ids; /* [T,k] I32; -1 = none */
    void *handle, *workspace;     /* device memory at the device's info.alignment; NULL where 0 bytes */
    /* in: size, groups, max. out: host_total; the two arrays below are device memory. max is needs.max_rows; it may be
     * less where layout sees whether that is enough (MOE_E_OVERFLOW): without MOE_ASYNC, or with cfg.host_counts. */
    moe_rows *rows;
    const moe_tensor *offsets; /* [groups + 1] I64, out; rows->dev_offsets points here */
    const moe_tensor *counts;  /* [groups] I64, out; rows->dev_counts points here */
    /* device memory, the moe_fault (device.h) of this call, for it and the operations that it calls: MOE_E_DATA with
     * token and id, MOE_E_OVERFLOW with the rows that are needed; NULL = by status */
    void *fault;
    void *host_handle; /* of needs.host_handle bytes, MOE_SPACE_HOST; NULL where 0 */
    /* [groups + 1] and [groups], MOE_SPACE_HOST, or NULL. With cfg.host_counts on a device with MOE_ASYNC they are
     * there, and layout has written them when it returns; rows->host_offsets and host_counts point here. */
    int64_t *host_offsets, *host_counts;
} moe_layout_args;

/* Rows travel as bytes: hidden rows, quantised codes, row scales. */
typedef struct moe_plane {
    moe_tensor token_order;  /* [T, w] */
    moe_tensor expert_order; /* [N, w] */
} moe_plane;

typedef struct moe_move_args {
    uint32_t size, n_planes;
    int32_t direction; /* MOE_DISPATCH, MOE_COMBINE */
    uint32_t reserved;
    void *stream;
    void *handle, *workspace;
    const moe_plane *planes; /* [n_planes] */
    const moe_rows *rows;
    /* F32, absent = none. MOE_DISPATCH reads slot_scalar, writes row_scalar (0 in padding rows); MOE_COMBINE reads
     * row_scalar, writes slot_scalar */
    const moe_tensor *slot_scalar; /* [T,k] */
    const moe_tensor *row_scalar;  /* [N] */
    /* [1] host memory of the device, or NULL: the bytes of payload (planes and scalars) that this rank gives to other
     * ranks in this movement are added. Written in stream order. */
    uint64_t *sent;
    uint64_t *sent_far; /* [1] alike, or NULL: of these, the bytes to ranks on other nodes (cfg.node_size) */
    void *host_handle;  /* what layout got */
} moe_move_args;

typedef struct moe_dispatcher_v0 {
    uint32_t size, reserved;
    moe_status (*create)(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err); /* [main] */
    void (*destroy)(void *self);                                                /* [main] idle */
    moe_status (*needs)(void *self, moe_dispatcher_needs *needs, moe_err *err); /* [main] pure; caller sets size */
    moe_status (*layout)(const void *self, const moe_layout_args *args, moe_err *err); /* [step, collective] */
    moe_status (*pack)(const void *self, const moe_move_args *args, moe_err *err);     /* [step] */
    moe_status (*exchange)(const void *self, const moe_move_args *args, moe_err *err); /* [step, collective] */
    moe_status (*unpack)(const void *self, const moe_move_args *args, moe_err *err);   /* [step] */
    const void *(*extension)(const void *self, const char *id);                        /* [any] (optional: NULL) */
} moe_dispatcher_v0;

#ifdef __cplusplus
}
#endif
#endif
