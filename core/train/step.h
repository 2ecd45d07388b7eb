/* The programs of a run: one training step, one evaluation microbatch, the logits of one microbatch, the inner values
 * of one microbatch. Batches come from, and results go to, staging in host memory, so that a step has the same nodes
 * every time.
 *
 * Divisor (the only place that owns it, step.c): the loss is the mean over the valid tokens of the global batch.
 * Every gradient is divided by that count inside the cross-entropy and is then a plain sum over microbatches and ranks.
 * The routers' own losses are means over all tokens that are not padding (a token can be routed without being asked for
 * a prediction): the second count, used in the same way inside the router's backward. */
#ifndef CORE_TRAIN_STEP_H
#define CORE_TRAIN_STEP_H
#include "model/emit.h"
#include "train/program.h"

enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD };

typedef struct optimizer_cfg {
    int32_t kind; /* OPTIMIZER_* */
    float beta1, beta2, eps, weight_decay;
    float clip;      /* largest global gradient norm, 0 = none */
    int distributed; /* 1: every rank of those that hold the same weights steps a slice of them, and has its moments */
} optimizer_cfg;

/* Host staging. tokens, targets, docs, mask [n_micro, micro * seq]; hyper: moe.adamw/0. */
typedef struct staging {
    int32_t *tokens, *targets;
    int32_t *docs;   /* document numbers, -1 = padding; NULL without model_cfg.documents */
    uint8_t *mask;   /* 0 = padding; NULL without documents */
    float *hyper;    /* [4] */
    double *stop;    /* [1] in: 1 = this rank was asked to stop; summed over the ranks into stats */
    double *stats;   /* [model_n_stats + 1] out: loss sum, router losses, last: ranks that were asked to stop */
    int64_t *counts; /* [layers, experts] out */
    int64_t *drops;  /* [2] out: choices, dropped ones; 0 without a capacity */
    int64_t *valid;  /* [1] out: the divisor of the loss */
    int64_t *sent;   /* [8] bytes of dispatched rows: {all, far} of the two lanes, of this rank, then of all ranks */
    int64_t *routed; /* [2] in: tokens of the global batch, for a batch without documents; out: the routers' divisor */
    int64_t *fault;  /* [8] out, of an asynchronous device: {code, token, value, site} of this rank's first fault, then
                      * {code, ..} of any rank's (model/faults.h) */
    float *norm;     /* [2] out: gradient norm, clip coefficient */
    uint64_t *step;  /* [1] in: optimiser step, from 1; routers read it in place */
    void *logits;    /* [micro * seq, vocab] act dtype, of the logits and dump programs; NULL = none */
    taps taps;       /* of the dump program */
} staging;

typedef struct step_cfg {
    model *model;
    optimizer_cfg optimizer;
    uint32_t n_micro; /* microbatches a step on this rank */
    int no_update;    /* 1: no norm, no optimiser, no balance state (train only) */
    int ignore_aux;   /* 1: gradients of the loss alone (dump only) */
    staging *staging; /* lives as long as the programs */
} step_cfg;

moe_status step_build_train(program *p, const step_cfg *cfg, moe_err *err);
/* Runs microbatch 0 of the staging; afterwards stats[0] = loss sum, valid = tokens, over all ranks. */
moe_status step_build_eval(program *p, const step_cfg *cfg, moe_err *err);
moe_status step_build_logits(program *p, const step_cfg *cfg, moe_err *err);
/* Forward of one microbatch a rank into the taps of the staging; with_grads: then backward, and the sums of gradients
 * over the ranks stay in the gradient arenas. No update. */
moe_status step_build_dump(program *p, const step_cfg *cfg, int with_grads, moe_err *err);

#endif
