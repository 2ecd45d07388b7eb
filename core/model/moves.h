/* Movements: the dispatcher's layout and its pack / exchange / unpack as nodes. */
#ifndef CORE_MODEL_MOVES_H
#define CORE_MODEL_MOVES_H
#include "model/emit.h"

/* Routing ids [t,k] -> handle and rows of this layer and microbatch. */
void move_layout(emit *e, tref ids, tref *handle, rows_ref *rows);
/* A movement: MOE_DISPATCH reads token [t,h] (and slot [t,k]), writes row [N,h] (and row_scalar [N]); MOE_COMBINE the
 * reverse. */
typedef struct movement {
    int32_t direction;
    tref handle, token, row, slot, row_scalar;
    const rows_ref *rows;
    tref workspace;
    struct move_call *call; /* what its phases share; graph memory */
} movement;
/* Only the phases in which the dispatcher works become nodes: pack and exchange (on the comm:ep lane) by move_begin,
 * unpack by move_end. What is emitted in between runs while the rows travel. */
void move_begin(emit *e, movement *m);
void move_end(emit *e, const movement *m);
/* Do rows go to other ranks in the current layer, so that there is time to fill? */
int move_travels(const emit *e);

#endif
