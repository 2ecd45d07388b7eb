/* `[dispatcher] plugin = auto`: measured on this machine's ranks, the same on all, and written into the resolved
 * recipe, so that a resumed run keeps it. */
#ifndef HOST_CHOOSE_H
#define HOST_CHOOSE_H
#include "recipe.h"
#include "session.h"

/* [main] The id of the dispatcher for a session whose mesh, model, device, comm and precision are wired. resumed: the
 * resolved recipe of the run that goes on, or NULL; its choice stays. */
moe_status choose_dispatcher(const session *s, const char *resumed, const char **id, moe_err *err);

#endif
