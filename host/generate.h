/* Continues a prompt with a trained model: the last seq_len tokens are the context of the next one. */
#ifndef HOST_GENERATE_H
#define HOST_GENERATE_H
#include <stdio.h>

#include "session.h"
#include "weights.h"

typedef struct generate_options {
    const weights *weights;
    const char *prompt; /* bytes are tokens; at least one; NULL: ids */
    const int32_t *ids; /* [n_ids] at least one, within the vocabulary */
    int64_t n_ids;
    int64_t tokens;     /* to add */
    double temperature; /* 0 = always the likeliest */
    uint64_t seed;      /* of the draws */
} generate_options;

/* s: made for TRAINER_LOGITS with micro = 1. Writes the prompt and every new token to `to` as it comes: as
 * bytes, or with ids as numbers between blanks. [main] */
moe_status generate(session *s, const generate_options *o, FILE *to, moe_err *err);

#endif
