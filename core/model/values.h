/* Values of whole parameters out of the flat arenas of all ranks, and into this rank's: for checkpoints, files of other
 * programs, and tests. A range is of elements of the whole tensor as the model has it, experts stacked. */
#ifndef CORE_MODEL_VALUES_H
#define CORE_MODEL_VALUES_H
#include "model/model.h"

enum { VALUES_ROOM = 1 << 18 /* a good number of elements for a call */ };

typedef struct value_mover {
    const model *m;
    void *stream;
    int64_t room;
    float *own;     /* [room] host: this rank's elements of a range, side by side */
    uint16_t *half; /* [room] host: rounded */
    float *shared;  /* [room] device: what is summed over the ranks; NULL with one rank */
} value_mover;

/* [main] room: elements that a call may ask for, at least 1; values_close in either case. */
moe_status values_open(value_mover *v, const model *m, int64_t room, moe_err *err);
void values_close(value_mover *v); /* one of zeros is nothing */
/* [main, collective over all ranks] out [count] = elements [first, first + count) of p in this arena: of the weights,
 * the FP32 masters. Every element is its owner's, bit for bit. Waits. */
moe_status values_get(const value_mover *v, const param *p, param_arena arena, int64_t first, int64_t count, float *out,
                      moe_err *err);
/* [main] The other way: what this rank holds of these elements; of weights, the copies that products read too. in holds
 * all of them. Waits. */
moe_status values_put(const value_mover *v, const param *p, param_arena arena, int64_t first, int64_t count,
                      const float *in, moe_err *err);
/* [main] The same for elements that this rank has side by side at [offset, offset + count) of the flat arenas. */
moe_status values_put_own(const value_mover *v, const param *p, param_arena arena, int64_t offset, int64_t count,
                          const float *in, moe_err *err);

#endif
