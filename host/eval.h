/* eval: a given batch through the model of a recipe, its loss, logits, routing and gradients into a file under the
 * names of Hugging Face checkpoints. */
#ifndef HOST_EVAL_H
#define HOST_EVAL_H
#include "session.h"
#include "weights.h"

/* The batch of a file: tokens [B,S] I32 or I64, mask [B,S] (optional; bool or a whole number, 0 = padding). */
typedef struct eval_batch {
    int64_t rows, seq;
    int32_t *tokens; /* [rows * seq] owned */
    uint8_t *mask;   /* [rows * seq] owned, NULL = everything is live */
} eval_batch;

/* MOE_E_DATA names file, tensor and index: no tokens, another shape or type, a mask that is not 0 or 1, an unknown
 * tensor, an id outside of [0, vocab). */
moe_status eval_batch_read(const char *path, int64_t vocab, eval_batch *out, moe_err *err);
void eval_batch_free(eval_batch *b);

typedef struct eval_options {
    const weights *weights;
    const char *dump; /* file to write */
    int grads;
} eval_options;

typedef struct eval_result {
    double loss;   /* mean over the valid targets */
    int64_t valid; /* their number; 0: loss is not a number */
} eval_result;

/* The session is set to the batch: s->trainer.model.seq, micro (rows of a rank), documents. */
moe_status eval_run(session *s, const eval_batch *batch, const eval_options *o, eval_result *out, moe_err *err);

#endif
