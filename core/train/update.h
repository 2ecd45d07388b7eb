/* End of a step as nodes: gradient reduction over the data-parallel group, norm, clip, optimiser, router state. */
#ifndef CORE_TRAIN_UPDATE_H
#define CORE_TRAIN_UPDATE_H
#include "model/emit.h"
#include "train/step.h"

/* Sum of count elements over the group, in place, on the comm:dp lane; nothing with one rank. The node writes
 * bufs [n]; *where (in graph memory or the caller's, fixed) is the address. */
void emit_all_reduce(emit *e, const step_cfg *cfg, const char *name, tref t, int64_t count, const buf_id *bufs,
                     uint32_t n);
/* All gradients, in n_buckets flat ranges cut at parameters. */
void emit_reduce_grads(emit *e, const step_cfg *cfg, uint32_t n_buckets);
/* Norm, clip, optimiser, end_step of every router. hyper [4] F32. Returns the {norm, coefficient} tensor. */
tref emit_update(emit *e, const step_cfg *cfg, tref hyper);

#endif
