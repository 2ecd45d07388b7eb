/* Emission: from "this operation on these tensors" to nodes with patched arguments. One emitter a graph; the sticky
 * error of the graph makes all calls after a failure harmless. */
#ifndef CORE_MODEL_EMIT_H
#define CORE_MODEL_EMIT_H
#include "graph/graph.h"
#include "model/faults.h"
#include "model/model.h"

/* A tensor whose address the plan decides: buffer and byte offset, and the view without data. ndim 0 = absent. */
typedef struct tref {
    buf_id buf;
    uint64_t offset;
    moe_tensor t;
    /* For the count of bytes (emit_bind): */
    uint64_t touched; /* bytes of it that the call reads or writes; 0 = all of t */
    int updated;      /* 1: as an output it is read too (+=, a moment), unless the same call binds it as an input */
} tref;

/* Rows in expert order of one (layer, microbatch). */
typedef struct rows_ref {
    moe_rows *rows; /* graph memory */
    buf_id offsets, counts;
    buf_id host_handle; /* BUF_NONE where the dispatcher asks for none */
} rows_ref;

/* What backward needs of a forward call. */
typedef struct op_call {
    const moe_op *op;
    const void *attr;
    buf_id saved;
    uint64_t workspace;
} op_call;

/* Where intermediate values of a single microbatch go, in host memory: for comparing models. */
typedef struct taps {
    void *logits;           /* [T,V] act dtype */
    float **router_logits;  /* [layers] each [T,E]; NULL in dense layers */
    int32_t **expert_ids;   /* [layers] each [T,k], as the router chose, before any capacity */
    float **expert_weights; /* [layers] each [T,k] */
} taps;

/* One microbatch in device memory: T = micro * seq tokens. */
typedef struct batch_refs {
    tref ids, targets; /* [T] I32; targets absent where only logits are wanted */
    tref docs, mask;   /* [T] I32 document numbers, -1 = padding; [T] U8, 0 = padding. Absent without documents */
} batch_refs;

/* Bytes of rows that this rank has given to other ranks; of these, to ranks on other nodes. */
typedef struct sent_bytes {
    uint64_t all, far;
} sent_bytes;

typedef struct emit {
    graph *g;
    const model *m;
    int train;             /* 1: backward follows; 0: forward only */
    buf_id *weight, *grad; /* [params.n] fixed buffers; grad BUF_NONE without training */
    uint8_t *grad_live;    /* [params.n] 1: the gradient already holds something, so products must accumulate */
    buf_id *filled;        /* [params.n] which experts' gradients hold values (params.h); BUF_NONE: has no flags */
    int64_t *most_filled;  /* [params.n] experts of which the step's products write the gradient at most */
    buf_id *counts;        /* [layers] the layer's row of model.counts */
    buf_id stats_all;      /* model.stats as a whole, for fills and copies: emit_touch_stats after */
    buf_id *stats;         /* [1 + layers] its parts: the loss sum, then each layer's router losses */
    buf_id **state;        /* [layers][n_state] */
    buf_id drops;          /* model.drops */
    /* [2] host memory, or NULL. Movements of rows add to it: [0] phases on the compute lane, [1] those on comm:ep, as
     * both may run at once. The sum is what counts. */
    sent_bytes *sent;
    buf_id sent_buf;      /* of sent: movements "read" it, so that whoever takes the sums comes after all of them */
    faults *faults;       /* NULL = calls return their data errors */
    tref fault;           /* [4] I64, what clip_coef looks at; absent without faults */
    tref divisor, routed; /* [1] I64: valid targets, and tokens that are not padding, of the global batch */
    tref positions, inv_freq;
    tref docs, mask;      /* of the current microbatch; absent without documents */
    const taps *taps;     /* NULL = none */
    const uint64_t *step; /* in staging, for routers */
    int32_t layer, mb;    /* where the emitter is: -1 = none */
    int32_t phase;        /* MOE_SCHED_* */
} emit;

/* step: MOE_SPACE_HOST memory, lives as long as the graph. */
moe_status emit_init(emit *e, graph *g, const model *m, int train, const uint64_t *step);

/* ---- tensors ---- */
uint64_t dtype_bytes(int32_t dtype);
tref tref_none(void);
/* A new planned buffer of this shape; trailing sizes of 0 mean fewer dimensions: tref_new(e, "qkv", act, T, w, 0). */
tref tref_new(emit *e, const char *name, int32_t dtype, int64_t d0, int64_t d1, int64_t d2);
/* The same of rows in expert order [n] or [n,w], whose number only the device knows: with recv = exact and experts on
 * other ranks there is room for the worst routing, of which most is never touched, and the buffer is lazy (graph.h). */
tref tref_new_rows(emit *e, const char *name, int32_t dtype, int64_t n, int64_t w);
tref tref_of(buf_id buf, int32_t dtype, int64_t d0, int64_t d1, int64_t d2);
tref tref_rows(tref t, int64_t first, int64_t n); /* rows [first, first + n) of the leading dimension */
tref tref_weight(const emit *e, int64_t id);      /* as products read it */
tref tref_grad(const emit *e, int64_t id);        /* FP32, updated: operations add to it */
tref tref_filled(const emit *e, int64_t id);      /* flags of that, absent where it has none */
tref tref_touched(tref t, int64_t elements);      /* of which the call reads or writes so many elements */
tref tref_updated(tref t);                        /* as an output that is read too */

/* Number in the global batch of the first token of the current microbatch: the microbatches of the dp ranks lie side by
 * side. This rank's own tokens begin model.local.first_token after it. */
int64_t emit_first_token(const emit *e);

/* ---- nodes ---- */
moe_sched_node emit_info(const emit *e, const char *name, int32_t lane);
/* "L2.mb0.NAME.fwd", as nodes of the current layer, microbatch and phase are named. */
void emit_name(const emit *e, const char *name, char *full, size_t size);
/* Appends a node named after layer, microbatch and phase: "L2.mb0.NAME.fwd". Arguments as graph_node_add. */
uint32_t emit_node(emit *e, const char *name, int32_t lane, graph_fn fn, void *ctx, void **stream, int async);
/* An address that is patched and counted as read or written by the node. Its bytes are added to the node's: those of
 * the shape (or `touched` of them), twice for an output that is updated; workspace, which has no shape, adds none. */
void emit_bind(emit *e, uint32_t node, void **where, tref t, int write);

/* Forward of an operation; allocates saved and workspace. out are written (+=, in place included). */
op_call emit_op(emit *e, const char *name, int op, const void *attr, const tref *in, uint32_t n_in, const tref *out,
                uint32_t n_out, const rows_ref *rows);
/* Its backward, with the backward lists. */
void emit_op_bwd(emit *e, const char *name, const op_call *call, const tref *in, uint32_t n_in, const tref *out,
                 uint32_t n_out, const rows_ref *rows);

/* One product of the precision plugin: y = x w^T and its gradients. accumulate adds to the output. */
void emit_linear(emit *e, const char *name, int32_t role, int accumulate, tref a, tref b, tref out,
                 const rows_ref *rows);
/* y += bias [id] and, with rows and probabilities, y += p * bias of the row's expert; in place (moe.bias/0). */
op_call emit_bias(emit *e, const char *name, int64_t id, tref y, tref p, const rows_ref *rows);
/* Its gradients from dy: the bias, and p's in dp (added). */
void emit_bias_bwd(emit *e, const char *name, int64_t id, const op_call *call, tref dy, tref p, tref dp,
                   const rows_ref *rows);
/* The weight gradient of a parameter: overwrites what the step has not touched yet, else adds. Where it has flags, what
 * no row has reached is not written, and whoever reads it asks the flags. */
void emit_wgrad(emit *e, const char *name, int64_t id, tref dy, tref x, const rows_ref *rows);

/* The last node reads or writes all of stats. */
void emit_touch_stats(emit *e, int write);

/* ---- stream-ordered copies and fills of the device, on the compute lane ---- */
void emit_copy(emit *e, const char *name, tref dst, tref src, uint64_t bytes);
void emit_zero(emit *e, const char *name, buf_id buf, uint64_t bytes);
/* t [rows, ...] to host memory; nothing where host is NULL. */
void emit_tap(emit *e, const char *name, void *host, tref t);

#define N_OF(a) ((uint32_t)(sizeof(a) / sizeof((a)[0])))

#endif
