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

/* [main] Makes dir where it is not there. Files are written under another name and renamed; config.json, without which
 * the folder is no model, goes first where there is one and comes last, so that a folder that loads is a whole one;
 * then weight files of an older export are removed. Other files (a tokenizer) are not touched. MOE_E_DATA: the
 * checkpoint is not of this model. Memory: a slab, as hf_load. */
moe_status hf_save(const trainer *t, const char *dir, const hf_save_options *o, moe_err *err);

/* Is there a model in dir: config.json, or weights under the names that hf_save uses? */
int hf_folder_in_use(const char *dir);
#endif
