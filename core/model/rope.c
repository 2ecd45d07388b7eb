/* Rotary tables; formulas in rope.h. */
#include "model/rope.h"

#include <math.h>

static double magnitude(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The pair, as a real number, that turns `turns` times within the original length. */
static double pair_of_turns(const rope_cfg *c, double turns) {
    const double pi = 3.14159265358979323846;
    return (double)c->dim * log((double)c->original / (turns * 2 * pi)) / (2 * log((double)c->theta));
}

void rope_frequencies(const rope_cfg *c, float *out) {
    double low = 0, high = 0;
    if (c->scaling == ROPE_YARN) {
        low = pair_of_turns(c, (double)c->beta_fast);
        high = pair_of_turns(c, (double)c->beta_slow);
        if (c->truncate) low = floor(low), high = ceil(high);
        low = fmax(low, 0);
        high = fmin(high, (double)c->dim - 1);
        if (high - low < 0.001) high = low + 0.001;
    }
    for (uint32_t i = 0; i < c->dim / 2; i++) {
        double plain = pow((double)c->theta, -2.0 * (double)i / (double)c->dim);
        double stretched = plain / (double)c->factor;
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        if (c->scaling == ROPE_PLAIN) out[i] = (float)plain;
        if (c->scaling == ROPE_LINEAR) out[i] = (float)stretched;
        if (c->scaling == ROPE_YARN) out[i] = (float)(stretched * ramp + plain * (1 - ramp));
    }
}

float rope_amplitude(const rope_cfg *c) {
    if (c->scaling != ROPE_YARN) return 1;
    if (c->attention_factor > 0) return c->attention_factor;
    double factor = (double)c->factor;
    if (c->mscale > 0 && c->mscale_all_dim > 0)
        return (float)(magnitude(factor, (double)c->mscale) / magnitude(factor, (double)c->mscale_all_dim));
    return (float)magnitude(factor, 1);
}

float attention_scale(const model_cfg *c) {
    double scale = 1 / sqrt((double)c->head_dim);
    if (c->attention == ATTENTION_MLA && c->rope.scaling == ROPE_YARN && c->rope.mscale_all_dim > 0) {
        double m = magnitude((double)c->rope.factor, (double)c->rope.mscale_all_dim);
        scale *= m * m;
    }
    return (float)scale;
}
