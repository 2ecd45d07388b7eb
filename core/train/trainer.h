/* Trainer: one rank of a run - its model, programs, memory and staging. The host creates one per rank (a thread or a
 * process each), and all ranks make the same calls in the same order. */
#ifndef CORE_TRAIN_TRAINER_H
#define CORE_TRAIN_TRAINER_H
#include "data/data.h"
#include "mesh/mesh.h"
#include "model/config.h"
#include "train/lr.h"
#include "train/step.h"

enum { /* programs to build */
       TRAINER_TRAIN = 1,
       TRAINER_EVAL = 2,
       TRAINER_LOGITS = 4,
       TRAINER_DUMP = 8,       /* trainer_dump */
       TRAINER_DUMP_GRADS = 16 /* with TRAINER_DUMP and without TRAINER_TRAIN: gradients too */
};

typedef struct trainer_cfg {
    model_cfg model;
    optimizer_cfg optimizer;
    lr_config lr;
    mesh_cfg mesh;
    uint32_t programs;     /* TRAINER_* */
    int64_t global;        /* sequences a step over all ranks: a multiple of micro * dp */
    int ignore_aux;        /* 1: trainer_dump gives gradients of the loss alone, without the routers' losses */
    int no_update;         /* 1: the training program ends with the reduced gradients; for measuring */
    int plan_only;         /* 1: graph, order and memory plan, but no memory and no executor: nothing can run */
    uint64_t memory_limit; /* bytes of one rank, 0 = none */
    uint32_t node_size;    /* ranks that share a node, neighbours by number; 0 = all */
    double timeout;        /* seconds that a communication call may take, 0 = for ever: exec/watchdog.h, as the rest */
    double grace;          /* seconds from the end of the run to on_stuck, 0 = 5 */
    void (*on_stuck)(void *arg, const char *msg); /* any thread; NULL = such a rank stays */
    void *on_stuck_arg;
    const data_reader *data; /* borrowed, shared by the ranks; NULL for TRAINER_LOGITS alone */
} trainer_cfg;

/* Numbers of one step, global over all ranks. Means are over valid tokens. */
typedef struct step_result {
    double loss, aux_loss, z_loss, router_entropy; /* router values: mean over MoE layers; NaN where not reported */
    double lr, grad_norm;
    int64_t tokens;         /* valid tokens of the step */
    int64_t sent, sent_far; /* bytes of rows that dispatchers gave to other ranks; of these, to other nodes */
    double dropped;         /* fraction of all choices that the capacity dropped */
    double imbalance;       /* max / mean choices of an expert, worst layer; NaN without experts */
    int64_t dead;           /* experts that no token chose, worst layer */
    int stop;               /* ranks that were asked to stop */
} step_result;

typedef struct trainer_memory {
    uint64_t params, arena, device_own, staging, total; /* bytes of this rank */
    uint64_t windows;                                   /* memory that dispatchers hold by themselves */
    uint64_t rows; /* recv = exact: the most that rows in expert order can take; device_own has what has come of it */
    uint64_t weights; /* of params: the weights as products, norms and routers read them; no masters beside copies */
} trainer_memory;

typedef struct trainer trainer;

/* [main, collective] cfg and parts_cfg are copied; what they point to outlives the trainer. */
moe_status trainer_create(trainer **out, const trainer_cfg *cfg, const parts_cfg *parts_cfg, moe_err *err);
void trainer_destroy(trainer *t); /* NULL is nothing */
/* [collective] optimiser step number `step` (from 1); stop = this rank was asked to stop. No allocation. A loss or
 * gradient norm that is not finite: MOE_E_DATA, weights unchanged. */
moe_status trainer_step(trainer *t, int64_t step, int stop, step_result *out, moe_err *err);
/* [collective] mean loss over the first `batches` microbatches of every rank in the validation split; MOE_E_ARG when
 * it has no window. */
moe_status trainer_eval(trainer *t, int64_t batches, double *loss, moe_err *err);
/* [main] Logits [micro * seq, vocab] of tokens [micro * seq], F32, into out; ids outside the vocabulary are MOE_E_DATA.
 * Tokens from `live` on are padding, where the model's batches carry document numbers: they are not routed, and take no
 * expert's place. */
moe_status trainer_logits(trainer *t, const int32_t *tokens, int64_t live, float *out, moe_err *err);
/* Inner values of a dump; arrays of this rank, until the next call. */
typedef struct trainer_values {
    double loss;   /* mean over the valid targets of all ranks */
    int64_t valid; /* their number; 0: loss is not a number */
    /* [layers], NULL in dense ones: [T,E] as projected (bias included), [T,k], [T,k] as the router left them */
    float *const *router_logits;
    int32_t *const *expert_ids;
    float *const *expert_weights;
} trainer_values;
/* [collective] tokens [micro * seq] of this rank, mask [micro * seq] (0 = padding: not attended to, no target, not
 * routed; needs model_cfg.documents) or NULL; targets are the next tokens inside each row. Nothing is trained, no
 * jitter drawn. Gradients: trainer_read. */
moe_status trainer_dump(trainer *t, const int32_t *tokens, const uint8_t *mask, trainer_values *out, moe_err *err);
/* Logits [micro * seq, vocab] of the last dump, F32. */
void trainer_dump_logits(const trainer *t, float *out);
trainer_memory trainer_memory_of(trainer *t);      /* [main] now: device_own may grow */
const char *trainer_device_name(const trainer *t); /* for people; lives as long as the trainer */
/* [main] GFLOP/s of the best of several FP32 products of side^3 on the device, now; 0 = the device has no products.
 * Between steps; other measurements, and where operands lie: measure.h. */
moe_status trainer_peak(trainer *t, int64_t side, double *gflops, moe_err *err);
/* A node of the training program and when it last ran; name lives as long as the trainer. */
typedef struct trainer_span {
    const char *name;          /* "L2.mb0.experts.w1.fwd" */
    int32_t lane, phase;       /* MOE_LANE_*, MOE_SCHED_* */
    int32_t layer, microbatch; /* -1 = none */
    int64_t begin, end;        /* ns, monotonic clock; exec.h says what of nodes that only enqueue */
    uint64_t bytes;            /* that it moves at least: read and written, once each (graph.h) */
} trainer_span;
/* [main] Notes when each node of the training program runs, from the next step on, or no longer. */
moe_status trainer_watch(trainer *t, int on, moe_err *err);
/* Node i of the last step, in the order of issue; 0 past the end, or when nobody watches. */
int trainer_span_at(const trainer *t, uint32_t i, trainer_span *out);
uint32_t trainer_nodes(const trainer *t); /* of the training program */
/* Abort on behalf of the host: ends collective calls of all ranks. Any thread. */
void trainer_abort(trainer *t, const char *reason);

/* ---- state, by global names and in whole tensors, whatever the mesh (state.c) ---- */
/* [collective] The rank that writes passes an existing directory, all others NULL: model.safetensors, and
 * optimizer.safetensors (with moments), and add_key for every name. A rank that fails ends the others' calls. */
moe_status trainer_save(trainer *t, const char *dir, moe_status (*add_key)(void *arg, const char *key, moe_err *),
                        void *arg, moe_err *err);
/* [main] On every rank, which reads its own part. Strict: every tensor there, of the right shape, and no other; those
 * that do not fit are named, and a file that does not fit changes nothing. with_optimizer 0: weights and router state
 * only. */
moe_status trainer_load(trainer *t, const char *dir, int with_optimizer, moe_err *err);

/* [collective] Copies of gradients and master weights of one parameter by name, whole, FP32 [count], on all ranks; for
 * tests and eval. -1 count: no such name. */
int64_t trainer_read(const trainer *t, const char *name, int gradient, float *out, moe_err *err);
/* [main] On every rank: overwrites the master weights of one parameter (and the copy that products read) with what this
 * rank has of in [count]. */
moe_status trainer_write(trainer *t, const char *name, const float *in, moe_err *err);
/* Numbers of a name's elements, of the whole model, and the i-th name (NULL past the end). */
const char *trainer_param_name(const trainer *t, uint32_t i, int64_t *count);

#endif
