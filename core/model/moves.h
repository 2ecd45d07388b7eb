/* Movements: the dispatcher's layout and its pack / exchange / unpack as nodes. */
#ifndef CORE_MODEL_MOVES_H
#define CORE_MODEL_MOVES_H
#include "model/emit.h"

/* Routing ids [T,k] -> handle and rows of this layer and microbatch. */
void move_layout(emit *e, tref ids, tref *handle, rows_ref *rows);
/* MOE_DISPATCH reads token [T,h] (and slot [T,k]), writes row [N,h] (and row_scalar [N]); MOE_COMBINE the reverse.
 * Only the phases in which the dispatcher works become nodes; exchange is on the comm:ep lane. */
void move_rows(emit *e, int32_t direction, tref handle, const rows_ref *rows, tref token, tref row, tref slot,
               tref row_scalar);

#endif
