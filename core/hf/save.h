/* A model into a Hugging Face folder: model.safetensors or shards with an index, and config.json. */
#ifndef CORE_HF_SAVE_H
#define CORE_HF_SAVE_H
#include "train/trainer.h"

#define HF_SHARD_BYTES ((uint64_t)5000000000) /* the custom of the hub */

typedef struct hf_save_options {
    int32_t dtype;          /* MOE_F32, or MOE_BF16: rounded to nearest even; the expert bias stays F32 */
    uint64_t shard_bytes;   /* most bytes of tensors in a file; a larger tensor has a file of its own */
    const char *checkpoint; /* folder to take the values from, verified by the caller; NULL: the trainer's memory. With
                             * a checkpoint the trainer may be one that only plans */
    const char *config;     /* text of config.json */
} hf_save_options;

/* [main] Makes dir where it is not there. All files are written into a hidden folder in it first, .moehost-export-*,
 * which takes the room of the whole model beside the one that is there: an error until then (a full disk, a limit, a
 * checkpoint that cannot be read) removes that folder and leaves dir as it was. Then config.json, without which the
 * folder is no model, the index and all weight files of an older export are removed, the new ones renamed into place,
 * config.json last. A kill or an error between leaves dir without config.json and never with weights of both; a kill
 * may leave the hidden folder, which the next hf_save into dir removes, so two must not write into one dir at the same
 * time. Other files (a tokenizer) are not touched. MOE_E_DATA: the checkpoint is not of this model, or a value (named
 * with its tensor and index) is NaN, infinite, or infinite once rounded to BF16. Memory: a slab, as hf_load. */
moe_status hf_save(const trainer *t, const char *dir, const hf_save_options *o, moe_err *err);

/* Is there a model in dir: config.json, or weights under the names that hf_save uses? */
int hf_folder_in_use(const char *dir);
#endif
