/* The safetensors files of a Hugging Face folder: model.safetensors, or the shards of model.safetensors.index.json. */
#ifndef CORE_HF_FOLDER_H
#define CORE_HF_FOLDER_H
#include "io/safetensors.h"

typedef struct hf_folder {
    uint32_t n;
    st_file **files; /* [n] open */
    char **names;    /* [n] in the folder */
} hf_folder;

#define HF_ONE_FILE "model.safetensors"
#define HF_INDEX HF_ONE_FILE ".index.json"

/* Opens all files and checks the index against them: every tensor in the file that it names, no tensor that it does not
 * name. A folder with both an index and model.safetensors is refused (MOE_E_DATA): two models lie in it. *out is set on
 * success only; hf_folder_close frees it. */
moe_status hf_folder_open(const char *path, hf_folder **out, moe_err *err);
void hf_folder_close(hf_folder *f); /* NULL is nothing */
/* By name, with the number of its file; NULL: not there. */
const st_tensor *hf_folder_find(const hf_folder *f, const char *name, uint32_t *file);
/* num_nextn_predict_layers of config.json, 0 where it does not say: layers after the model's own, for prediction of
 * further tokens. A config.json that is no JSON object is MOE_E_DATA; none at all is nothing. */
moe_status hf_folder_extra_layers(const char *path, int64_t *out, moe_err *err);
#endif
