/* Identity: what a checkpoint and the run that reads it must have in common - sizes of the model, routing, data and
 * seed - kept as named strings in the checkpoint, so that a difference is refused by name. */
#ifndef HOST_IDENTITY_H
#define HOST_IDENTITY_H
#include <io/checkpoint.h>

#include "session.h"

enum { IDENTITY_MODEL, IDENTITY_RUN }; /* to read the weights; to go on as the same run */

/* Writes all of it. */
moe_status identity_write(ckpt *c, const session *s, moe_err *err);
/* MOE_E_ARG naming the first key that differs, with both values. */
moe_status identity_check(const ckpt_view *view, const session *s, int level, moe_err *err);

#endif
