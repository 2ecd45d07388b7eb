/* What dispatchers share: the configuration as read and checked, the services that they call, and the checks of their
 * calls' arguments. plan.h: who gets which row. An instance holds one `disp`, constant after disp_open; all functions
 * but that one are [step].
 *
 * What the host knows. A dispatcher for device "any" makes plans and maps by operations of the device. Where counts are
 * told to the host (a device without MOE_ASYNC, whose memory it reads where it lies; else by one copy and one wait,
 * with cfg.host_counts) exactly the rows there are travel. Where they are not, rows travel in slots of fixed size,
 * `fixed`, and no call waits. Both give the same bits. Dispatchers for device "cpu" read device memory as they like. */
#ifndef DISPATCHER_COMMON_BASE_H
#define DISPATCHER_COMMON_BASE_H
#include <moe/plugin.h>

typedef struct disp {
    const char *name; /* "dispatcher/alltoall", static */
    const moe_device_v0 *device;
    void *dev;
    const moe_parallel *pool; /* the device's threads; NULL: the caller's only */
    const moe_comm_v0 *comm;  /* this and the groups: NULL with one member */
    void *comm_self, *group, *layout_group;
    uint32_t members, me; /* ep * etp; ep_rank * etp + etp_rank */
    uint32_t ep_rank, ep_size, etp_rank, etp_size;
    uint32_t n_experts, groups, first, top_k; /* groups: experts of one ep rank; first: the first of this one */
    uint32_t layer, node_size, first_rank;
    int32_t overflow;
    int64_t hidden, max_tokens, align, min_rows, recv_rows;
    int64_t max_rows;   /* in expert order at most: the worst routing, or recv_rows where that is less */
    int64_t max_landed; /* of them rows that hold a slot's, without padding */
    uint64_t alignment; /* of the device's memory, bytes */
    void **shared;      /* of the rank's instances (moe_dispatcher_cfg), or NULL */
    int async;          /* the device has MOE_ASYNC: its memory is never read here */
    int tells;          /* and layout waits and tells the host the counts (cfg.host_counts) */
    int fixed;          /* slots of fixed size: the host does not know counts, or DISP_OPTION_SLOTS says so */
    struct {            /* of plan.h */
        const moe_op *counts, *plan, *slots;
        uint64_t workspace; /* bytes that any call of them takes */
    } plan;
} disp;

/* An option of dispatchers that can do both: fixed slots although the host knows the counts. To test them anywhere. */
#define DISP_OPTION_SLOTS                                                                                              \
    {                                                                                                                  \
        "slots", "enum exact|fixed", "exact",                                                                          \
            "fixed: rows travel in slots of fixed size even where the host knows the counts: the same bits, for tests" \
    }

/* [main] Reads cfg (fields past cfg->size are 0; etp_size 0 is 1) and the services moe.device/0, moe.comm/0. name is
 * kept. MOE_E_ARG: sizes that contradict each other, with values; MOE_E_UNSUPPORTED: a service that is missing. */
moe_status disp_open(disp *d, const char *name, const moe_dispatcher_cfg *cfg, const moe_host *host, moe_err *err);
/* The most rows in expert order, where `tokens` tokens choose min(choices, groups) of `groups` experts each: an expert
 * with rows pads by less than one alignment, has min_rows at least, and gets a token once. True where they do not fit
 * in 64 bits. */
int disp_worst_rows(int64_t tokens, int64_t choices, int64_t groups, int64_t align, int64_t min_rows, int64_t *out);
/* rows up to the next multiple of align; only for numbers that were found to fit at create. */
static inline int64_t disp_align(int64_t rows, int64_t align) {
    return (rows + align - 1) / align * align;
}
static inline int64_t disp_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t disp_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- what the host knows ---- */
/* Where the host keeps what it knows of a layout: the beginning of the handle where it reads that, else the host's
 * handle. */
static inline void *disp_host(const disp *d, void *handle, void *host_handle) {
    return d->async ? host_handle : handle;
}
/* The last of what layout needs before host numbers are used: tells rows->host_total and the host's arrays of args, and
 * brings `bytes` bytes at `at` of the handle to the same place of the host's handle; waits for the stream once where
 * d->tells. MOE_E_OVERFLOW when there are more rows than args->rows->max; MOE_E_COMM when the counts have not come. */
moe_status disp_tell(const disp *d, const moe_layout_args *args, uint64_t at, uint64_t bytes, moe_err *err);
/* In stream order; both sides are the device's. */
moe_status disp_copy(const disp *d, void *stream, void *to, const void *from, int64_t bytes, moe_err *err);
/* Where layout's operations report errors in the data, or NULL. */
static inline void *disp_fault(const moe_layout_args *args) {
    return MOE_REACH(args, moe_layout_args, fault) ? args->fault : NULL;
}

/* A part of `bytes` bytes of a block of memory that is laid out piece by piece: returns where it begins, a multiple of
 * the device's alignment, and moves *end past it. */
uint64_t disp_place(const disp *d, uint64_t *end, uint64_t bytes);

/* MOE_E_ARG with the names, values and shapes that do not fit. */
moe_status disp_check_layout(const disp *d, const moe_layout_args *args, moe_err *err);
/* Of a plan whose rows no call of this device or host compares with rows->max: that is all that there may be. */
moe_status disp_check_room(const disp *d, const moe_layout_args *args, moe_err *err);
/* Planes are F32 or BF16, both sides alike, of `tokens` tokens (what layout saw; -1: not known, at most max_tokens).
 * Scalars travel with planes only. */
moe_status disp_check_move(const disp *d, const moe_move_args *args, int64_t tokens, moe_err *err);
/* Rows that are staged in the workspace: at most DISP_PLANES planes, of at most disp_row_elements a row together. */
moe_status disp_check_staged(const disp *d, const moe_move_args *args, moe_err *err);

/* `needs` knows no planes, so workspace is made for these: elements of one row of all planes at most. */
enum { DISP_PLANES = 8, DISP_EXTRA_ELEMENTS = 16 };
static inline int64_t disp_row_elements(const disp *d) {
    return d->hidden + DISP_EXTRA_ELEMENTS;
}
static inline int64_t disp_width_bytes(const moe_tensor *t) { /* of a row of a plane */
    return t->shape[1] * (t->dtype == MOE_F32 ? 4 : 2);
}
static inline int disp_present(const moe_tensor *t) {
    return t && t->data;
}

/* A fault that only this member has found: ends the calls of the others, now and later. Returns status. */
moe_status disp_end_all(const disp *d, moe_status status, const moe_err *err);
/* Bytes to member m, added to args->sent and sent_far, by the host: on device "cpu". */
void disp_sent(const disp *d, const moe_move_args *args, uint32_t m, uint64_t bytes);
#endif
