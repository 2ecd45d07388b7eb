/* Learning rate of a step; formulas in lr.h. */
#include "train/lr.h"

#include <inttypes.h>
#include <math.h>
#include <moe/options.h>

moe_status lr_check(const lr_config *cfg, moe_err *err) {
    int64_t decay = cfg->schedule == LR_WSD ? cfg->decay : 0;
    if (cfg->schedule < LR_CONSTANT || cfg->schedule > LR_WSD)
        return moe_fail(err, MOE_E_ARG, "no learning-rate schedule %d", cfg->schedule);
    if (!isfinite(cfg->lr) || cfg->lr < 0)
        return moe_fail(err, MOE_E_ARG, "learning rate %g is negative or not finite", cfg->lr);
    if (!(cfg->min_fraction >= 0 && cfg->min_fraction <= 1))
        return moe_fail(err, MOE_E_ARG, "least learning rate, as a fraction of the peak: %g is not in [0, 1]",
                        cfg->min_fraction);
    if (cfg->warmup < 0) return moe_fail(err, MOE_E_ARG, "warm-up of %" PRId64 " steps is negative", cfg->warmup);
    if (decay < 0) return moe_fail(err, MOE_E_ARG, "decay of %" PRId64 " steps is negative", decay);
    if (cfg->schedule == LR_CONSTANT) return MOE_OK;
    if (cfg->total < 1) return moe_fail(err, MOE_E_ARG, "a run of %" PRId64 " steps has no schedule", cfg->total);
    if (cfg->warmup > cfg->total || decay > cfg->total - cfg->warmup)
        return moe_fail(err, MOE_E_ARG,
                        "warm-up of %" PRId64 " and decay of %" PRId64 " steps do not fit in a run of %" PRId64,
                        cfg->warmup, decay, cfg->total);
    return MOE_OK;
}

double lr_at(const lr_config *cfg, int64_t step) {
    double peak = cfg->lr, least = cfg->lr * cfg->min_fraction;
    int64_t start = cfg->schedule == LR_WSD ? cfg->total - cfg->decay : cfg->warmup; /* of the decay */
    if (step < cfg->warmup) return peak * ((double)step / (double)cfg->warmup);
    if (cfg->schedule == LR_CONSTANT || step <= start) return peak;
    if (step >= cfg->total) return least;
    double t = (double)(step - start) / (double)(cfg->total - start); /* in (0, 1) */
    double share = cfg->schedule == LR_COSINE ? 0.5 * (1 + cos(M_PI * t)) : 1 - t;
    return peak * share + least * (1 - share);
}
