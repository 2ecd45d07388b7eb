/* The mean cross-entropy in FP64, plainly: what the tests of moe.cross_entropy/0 and of its parts hold against. */
#ifndef TESTS_LOSS_REFERENCE_H
#define TESTS_LOSS_REFERENCE_H
#include "ot.h"

typedef struct batch {
    int64_t tokens, width;
    const moe_tensor *targets;
    double divisor, *logits; /* [T,V] */
} batch;

/* Loss over the divisor: what dlogits is the gradient of. */
static double loss_forward(void *ctx) {
    const batch *l = ctx;
    double all = 0.0;
    for (int64_t t = 0; t < l->tokens; t++) {
        const double *row = l->logits + t * l->width;
        double most = -INFINITY, sum = 0.0, target = ot_get(l->targets, t);
        if (target < 0) continue;
        for (int64_t i = 0; i < l->width; i++) most = fmax(most, row[i]);
        for (int64_t i = 0; i < l->width; i++) sum += exp(row[i] - most);
        all += most + log(sum) - row[(int64_t)target];
    }
    return all / l->divisor;
}

#endif
