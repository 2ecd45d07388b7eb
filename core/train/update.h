/* End of a step as nodes: gradient reduction over the data-parallel group, norm, clip, optimiser, router state. */
#ifndef CORE_TRAIN_UPDATE_H
#define CORE_TRAIN_UPDATE_H
#include "model/emit.h"
#include "train/step.h"

/* All gradients, in n_buckets flat ranges cut at parameters. */
void emit_reduce_grads(emit *e, uint32_t n_buckets);
/* Norm, clip, optimiser, end_step of every router. hyper [4] F32. Returns the {norm, coefficient} tensor. */
tref emit_update(emit *e, const step_cfg *cfg, tref hyper);

#endif
