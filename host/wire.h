/* Wiring: the only place that sees both the recipe and the plugins. Loads what the recipe names, checks options
 * against the published schemas, and makes a session of it. */
#ifndef HOST_WIRE_H
#define HOST_WIRE_H
#include "errors.h"
#include "loader.h"
#include "recipe.h"
#include "session.h"

/* Fills s (session_free). programs: TRAINER_*; data are read when training or evaluation is among them. Returns 0, or
 * the exit code with the reasons in errs: 1 failure, 2 recipe, 3 plugin missing or refused. note: warnings about data,
 * NULL = none. The recipe gets the options that were resolved, and must outlive s. [main] */
int wire_session(session *s, recipe *r, loader *l, uint32_t programs, err_list *errs);
/* Exit code of a failure of core or a plugin. */
int wire_exit_code(moe_status status);

#endif
