/* Learning rate of a step: a pure function of (configuration, step), so that resume needs no state. Steps count from 1,
 * as in metrics.jsonl; p = lr, m = lr * min_fraction, W = warmup, N = total:
 *   s <= W                warm-up   p * s / W               (s = W: exactly p)
 *   constant, s > W                 p
 *   linear,   W < s       t = (s - W) / (N - W)         p (1 - t) + m t
 *   cosine,   W < s       c = (1 + cos(pi t)) / 2       p c + m (1 - c)     (Loshchilov and Hutter 2017, eq. 5)
 *   wsd,      s <= N - D  p;  then t = (s - N + D) / D  p (1 - t) + m t     (Hu et al. 2024, MiniCPM, sec. 4.2;
 *                                                                            linear decay over the last D = decay)
 *   s >= N                exactly m (not constant; a warm-up that lasts to N ends in p and m follows) */
#ifndef CORE_TRAIN_LR_H
#define CORE_TRAIN_LR_H
#include <moe/base.h>
#include <stdint.h>

enum { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_WSD };

typedef struct lr_config {
    int32_t schedule;
    double lr;                    /* peak, finite, >= 0 */
    double min_fraction;          /* of the peak, in [0, 1] */
    int64_t warmup, decay, total; /* steps; decay: wsd only */
} lr_config;

/* MOE_E_ARG with the value that does not fit: negative or not finite, warm-up (plus decay) longer than the run.
 * Constant does not look at total, so a short trial of a long recipe is fine. */
moe_status lr_check(const lr_config *cfg, moe_err *err);

/* step >= 1 of a configuration that passes lr_check. Any thread. */
double lr_at(const lr_config *cfg, int64_t step);
#endif
