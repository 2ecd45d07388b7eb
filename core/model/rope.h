/* Frequencies, amplitude and softmax scale of rotary attention. */
#ifndef CORE_MODEL_ROPE_H
#define CORE_MODEL_ROPE_H
#include "model/config.h"

/* out [c->dim / 2]: angle of pair i at position 1. theta^(-2i/dim) (Su et al., arXiv 2104.09864), divided by factor
 * with linear scaling; with YaRN a blend of both by how often the pair turns within the original length (Peng et al.,
 * arXiv 2309.00071, section 3.2; the ramp's bounds as transformers computes them). */
void rope_frequencies(const rope_cfg *c, float *out);
/* Factor of cosine and sine: 1, or with YaRN attention_factor, or g(mscale) / g(mscale_all_dim) where both are given,
 * or g(1); g(m) = 0.1 m ln(factor) + 1. */
float rope_amplitude(const rope_cfg *c);
/* Of q k^T: 1 / sqrt(head_dim), times g(mscale_all_dim)^2 where a latent model gives it (DeepSeek-V3). */
float attention_scale(const model_cfg *c);

#endif
