/* Wiring: the only place that sees both the recipe and the plugins. Loads what the recipe names, checks options
 * against the published schemas, and makes a session of it. */
#ifndef HOST_WIRE_H
#define HOST_WIRE_H
#include "command.h"
#include "session.h"

/* Among the programs: one rank with all experts, whatever the recipe's [parallel], [comm] and [dispatcher] say. */
enum { SESSION_ALONE = 1 << 16 };
/* Among the programs: the ranks may be processes of a launcher. Without it several are refused. */
enum { SESSION_PROCESSES = 1 << 17 };
/* Recipe, plugins and data of a command's arguments. programs: TRAINER_*; data are read when training or evaluation is
 * among them. Returns EXIT_CODE_OK, or the exit code with the reasons on stderr; session_free in either case. [main] */
int session_open(session *s, const command_args *args, uint32_t programs);
/* Exit code of a failure of core or a plugin. */
int wire_exit_code(moe_status status);

#endif
