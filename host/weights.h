/* Which weights a command that does not train works with, and their way into a trainer. */
#ifndef HOST_WEIGHTS_H
#define HOST_WEIGHTS_H
#include "command.h"
#include "session.h"

typedef struct weights {
    char *checkpoint;   /* owned; verified, of this model */
    const char *folder; /* Hugging Face folder, where checkpoint is NULL; both NULL: the initial values */
} weights;

/* --ckpt; else the last checkpoint of the run; else, unless --out names the run, [model] weights; else, where
 * allow_initial, the initial values of the seed. Says on stderr which, where --ckpt does not. MOE_E_ARG: there are
 * none, or they are another model's; MOE_E_DATA: damaged. weights_free in either case. [main] */
moe_status weights_choose(const session *s, const command_args *args, int allow_initial, weights *out, moe_err *err);
/* On every rank. */
moe_status weights_load(const weights *w, trainer *t, moe_err *err);
void weights_free(weights *w);

#endif
