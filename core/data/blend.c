/* Weights to a periodic sequence of sources; see blend.h. */
#include "data/blend.h"

#include <math.h>
#include <moe/options.h>

/* Shares of the period when every weight is a whole number of its parts, to rounding of doubles; else 0. */
static int divide_exactly(blend *b, const double *weights, double sum, uint64_t period) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < b->n; i++) {
        double parts = weights[i] / sum * (double)period, whole = nearbyint(parts);
        if (whole < 1 || fabs(parts - whole) > 1e-14 * (double)period) return 0;
        b->counts[i] = (uint32_t)whole;
        total += b->counts[i];
    }
    return total == period;
}

/* Rounds the running sums, so that the parts add up. */
static moe_status divide_rounded(blend *b, const double *weights, double sum, moe_err *err) {
    double so_far = 0;
    uint32_t last = 0;
    for (uint64_t i = 0; i < b->n; i++) {
        so_far += weights[i];
        uint32_t edge = i + 1 == b->n ? BLEND_MAX_PERIOD : (uint32_t)nearbyint(so_far / sum * BLEND_MAX_PERIOD);
        if (edge <= last)
            return moe_fail(err, MOE_E_ARG, "weights[%llu] = %g is less than a part in %u of their sum, %g", i + 0ull,
                            weights[i], BLEND_MAX_PERIOD, sum);
        b->counts[i] = edge - last;
        last = edge;
    }
    return MOE_OK;
}

/* The shortest period that serves. */
static moe_status divide(blend *b, const double *weights, moe_err *err) {
    double sum = 0;
    for (uint64_t i = 0; i < b->n; i++) {
        if (!(weights[i] > 0 && isfinite(weights[i])))
            return moe_fail(err, MOE_E_ARG, "weights[%llu] = %g is not a positive number", i + 0ull, weights[i]);
        sum += weights[i];
    }
    if (!isfinite(sum)) return moe_fail(err, MOE_E_ARG, "the sum of the weights is not a finite number");
    b->exact = 1;
    for (b->period = b->n; b->period <= BLEND_MAX_PERIOD; b->period++)
        if (divide_exactly(b, weights, sum, b->period)) return MOE_OK;
    b->exact = 0;
    b->period = BLEND_MAX_PERIOD;
    return divide_rounded(b, weights, sum, err);
}

typedef struct turn {
    uint64_t count, from, until; /* samples so far; the next may come from index `from` on, must come before `until` */
} turn;

static turn turn_after(uint64_t count, uint64_t period, uint64_t share) {
    return (turn){count, count * period / share, ((count + 1) * period + share - 1) / share};
}

static moe_status arrange(blend *b, moe_err *err) {
    turn *turns = calloc((size_t)b->n, sizeof *turns);
    b->sources = calloc((size_t)b->period, sizeof *b->sources);
    b->before = calloc((size_t)b->period, sizeof *b->before);
    if (!turns || !b->sources || !b->before) {
        free(turns);
        return moe_fail(err, MOE_E_NOMEM, "no memory for the order of %llu samples", b->period + 0ull);
    }
    for (uint64_t k = 0; k < b->n; k++) turns[k] = turn_after(0, b->period, b->counts[k]);
    for (uint64_t i = 0; i < b->period; i++) {
        uint64_t best = b->n;
        for (uint64_t k = 0; k < b->n; k++)
            if (turns[k].from <= i && (best == b->n || turns[k].until < turns[best].until)) best = k;
        b->sources[i] = (uint16_t)best; /* there is always one: shares add up to 1 */
        b->before[i] = (uint32_t)turns[best].count;
        turns[best] = turn_after(turns[best].count + 1, b->period, b->counts[best]);
    }
    free(turns);
    return MOE_OK;
}

moe_status blend_make(blend *out, const double *weights, uint64_t n, moe_err *err) {
    if (n < 1 || n > BLEND_MAX_SOURCES)
        return moe_fail(err, MOE_E_ARG, "%llu weights are not in 1..%u", n + 0ull, BLEND_MAX_SOURCES);
    out->n = n;
    out->counts = calloc((size_t)n, sizeof *out->counts);
    if (!out->counts) return moe_fail(err, MOE_E_NOMEM, "no memory for %llu weights", n + 0ull);
    moe_status s = divide(out, weights, err);
    return s == MOE_OK ? arrange(out, err) : s;
}

void blend_free(blend *b) {
    free(b->counts);
    free(b->sources);
    free(b->before);
    *b = (blend){0};
}

blend_place blend_at(const blend *b, uint64_t sample) {
    uint64_t period = sample / b->period, i = sample % b->period;
    uint16_t source = b->sources[i];
    return (blend_place){source, period * b->counts[source] + b->before[i]};
}
