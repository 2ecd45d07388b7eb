/* Weights from a Hugging Face folder into a trainer. */
#ifndef CORE_HF_LOAD_H
#define CORE_HF_LOAD_H
#include "train/trainer.h"

/* [main, collective over all ranks] Fills every parameter (and the expert bias of routers that have one) from dir: F32,
 * BF16 or F16, all to FP32, and the copies that products read. On every rank, each its own part; optimiser state is
 * left as it is. Strict: every tensor of the model is there in its shape, and no other but rotary inv_freq buffers, the
 * head of a tied model (which must equal the embedding) and the layers past the model's that config.json announces as
 * num_nextn_predict_layers. MOE_E_DATA names up to eight missing and unknown tensors and how many there are, or a
 * tensor of another shape or type; nothing has been changed then. MOE_E_DATA too for a value that is NaN or infinite,
 * with its file, tensor and index. It is found while values are loaded: the weights are then some of the file's and
 * some of the trainer's own, not to be used, and the caller destroys the trainer. Afterwards the values are read back
 * and compared. MOE_E_IO: no such folder, or no weights in it. Memory: a slab, at most one expert's matrix or 2^20
 * numbers, a few times. */
moe_status hf_load(trainer *t, const char *dir, moe_err *err);

/* [main] The same checks of names, shapes and types, from the files' headers; the trainer may be one that only plans.
 */
moe_status hf_check(const trainer *t, const char *dir, moe_err *err);

/* n values of a file's dtype to FP32: MOE_F32, MOE_BF16, ST_F16 (exact, infinities and NaN included). in may be at any
 * alignment. 0: another dtype. */
int hf_to_f32(int32_t dtype, const void *in, float *out, int64_t n);
#endif
