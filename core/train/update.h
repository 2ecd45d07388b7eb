/* End of a step as nodes: gradient reduction, norm, clip, optimiser, router state. Everything goes bucket by bucket
 * (params.h). All sums are plain: gradients are divided by the global count already (step.h). */
#ifndef CORE_TRAIN_UPDATE_H
#define CORE_TRAIN_UPDATE_H
#include "model/emit.h"
#include "train/step.h"

/* The sums of all gradients over the ranks that hold the same elements: whole, or, where params.sliced, each rank's own
 * slices. Last layer first, so that they overlap with the backward of the layers before. */
void emit_reduce_grads(emit *e);
/* Norm of the whole model's gradient, clip, optimiser, end_step of every router. Where sliced, each rank steps its own
 * slices and the weights are gathered, while the next bucket steps. hyper [4] F32. Returns the {norm, coefficient}
 * tensor, equal on all ranks. */
tref emit_update(emit *e, const step_cfg *cfg, tref hyper);

#endif
