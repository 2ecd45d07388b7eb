/* Tensors of the map in a trainer's memory, slab by slab: what load.c and save.c share, and what eval names gradients
 * with. */
#ifndef CORE_HF_DEVICE_H
#define CORE_HF_DEVICE_H
#include "hf/map.h"
#include "model/values.h"
#include "train/trainer.h"

/* The map of a trainer's model. */
moe_status hf_map_of(const trainer *t, hf_map **out, moe_err *err);
/* [main, collective over all ranks] Copies a whole tensor - weights, or with gradient 1 what the last step left in the
 * gradients - into out [x->count] in the file's order. Waits. MOE_E_ARG: the trainer has no memory, or no gradients;
 * router state has none.
 */
moe_status hf_read(const trainer *t, const hf_tensor *x, int gradient, float *out, moe_err *err);

/* ---- for load.c, save.c and eval ---- */
typedef struct hf_device {
    const trainer *t;
    value_mover values;
    float *slab; /* [most] scratch in our order */
} hf_device;

/* most: elements of the largest slab. hf_device_close in either case. */
moe_status hf_device_open(hf_device *d, const trainer *t, int64_t most, moe_err *err);
void hf_device_close(hf_device *d);
/* As hf_read, through a device that is open with room for hf_slab_most(.., HF_SLAB) of the tensor: for many tensors. */
enum { HF_SLAB = 1 << 20 }; /* elements */
moe_status hf_device_whole(const hf_device *d, const hf_tensor *x, int gradient, float *out, moe_err *err);
/* One slab out of the devices of all ranks (collective) in the file's order, or from the file's order into this one's.
 * Wait. */
moe_status hf_device_read(const hf_device *d, const hf_tensor *x, const hf_slab *s, int gradient, float *theirs,
                          moe_err *err);
moe_status hf_device_write(const hf_device *d, const hf_tensor *x, const hf_slab *s, const float *theirs, moe_err *err);
#endif
