/* Values that are no numbers: neither read into a model nor written out of one. For load.c and save.c. */
#ifndef CORE_HF_FINITE_H
#define CORE_HF_FINITE_H
#include <moe/base.h>

#include "hf/map.h"

/* Index of the first of n values that is NaN or infinite; -1: none is. */
int64_t hf_find_odd(const float *values, int64_t n);
/* MOE_E_DATA: "path: name[3,17] is nan"; at: element of the tensor in the file's order. why: further words, or "". */
moe_status hf_refuse_odd(const char *path, const hf_tensor *x, int64_t at, float value, const char *why, moe_err *err);
#endif
