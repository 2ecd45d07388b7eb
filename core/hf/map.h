/* The names and orders of a model's tensors in Hugging Face files. Each tensor of such a file is a run of one
 * of our whole parameters (whatever part of it this rank has: values.h), in the same order or, for gpt-oss, transposed
 * and with gate and up interleaved; the map says which, so that weights come in (load.h), go out (save.h) and gradients
 * get their names with one table. Every parameter of every model has exactly one place in the map: what no family has
 * is named after the nearest. */
#ifndef CORE_HF_MAP_H
#define CORE_HF_MAP_H
#include "model/model.h"

/* Families, as model_type names them. */
enum { HF_MIXTRAL, HF_QWEN2_MOE, HF_QWEN3_MOE, HF_OLMOE, HF_DEEPSEEK_V3, HF_GPT_OSS, HF_STYLES };

/* How a matrix [R,C] of ours lies in the file. Interleaved: row r of our halves gate | up is row 2 (r mod R/2) + r /
 * (R/2). */
enum { HF_PLAIN, HF_TRANSPOSED, HF_INTERLEAVED, HF_INTERLEAVED_TRANSPOSED };

typedef struct hf_part {
    int64_t param, first, count; /* number in the table; elements of the whole parameter */
} hf_part;

typedef struct hf_tensor {
    char name[144];
    int32_t ndim, order;     /* HF_PLAIN, ... */
    int64_t shape[4], count; /* as in the file; elements */
    hf_part part[2];         /* [n_parts] one after another in the file; not of router state */
    uint32_t n_parts, state; /* state: number of the router state, where state_layer >= 0 */
    int64_t rows, cols;      /* of one matrix of ours, where order is not HF_PLAIN; the tensor is a stack of them */
    int64_t state_layer;     /* router state F32 of this layer; -1 = a parameter */
} hf_tensor;

typedef struct hf_map {
    int32_t style; /* HF_MIXTRAL, ... */
    uint32_t n;
    hf_tensor *at; /* [n] embedding, layers in order, final norm, head */
} hf_map;

/* The family whose names a model of these sizes takes. */
int32_t hf_style_of(const model_cfg *c);
const char *hf_style_name(int32_t style);     /* "qwen3_moe" */
const char *hf_style_class(int32_t style);    /* "Qwen3MoeForCausalLM" */
int32_t hf_style_from_name(const char *name); /* -1: none of ours */

/* The table; a model without memory will do. *out is set on success only; hf_map_free frees it. */
moe_status hf_map_create(const model *m, hf_map **out, moe_err *err);
void hf_map_free(hf_map *map); /* NULL is nothing */

/* A run of a tensor that is one piece in the file and in the parameter: a matrix where the order differs, at most
 * `limit`
 * (> 0) elements where it is plain. */
typedef struct hf_slab {
    int64_t begin, count; /* elements, in the tensor */
    int64_t param, first; /* number in the table, and its first element there; of router state: -1, and in the state */
} hf_slab;
/* The next one; *s zeroed before the first. 0 = no more. */
int hf_slab_next(const hf_tensor *t, int64_t limit, hf_slab *s);
/* Elements of the largest slab of the map. */
int64_t hf_slab_most(const hf_map *map, int64_t limit);
/* One slab, count elements: from our order to the file's, and back. The two do not overlap. */
void hf_gather(const hf_tensor *t, const float *ours, float *theirs, int64_t count);
void hf_scatter(const hf_tensor *t, const float *theirs, float *ours, int64_t count);

#endif
