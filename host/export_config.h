/* What config.json of an export takes from the model that the run started from, beside what the recipe gives. */
#ifndef HOST_EXPORT_CONFIG_H
#define HOST_EXPORT_CONFIG_H
#include <moe/base.h>

/* *config: text of a config.json in memory of malloc, replaced. From config.json in folder, where there is one (a NULL
 * folder, or none there: nothing changes), come bos_token_id, eos_token_id and pad_token_id as they stand, and
 * max_position_embeddings where it is larger. MOE_E_DATA names the file and what is wrong with it; MOE_E_IO,
 * MOE_E_NOMEM. [any thread] */
moe_status export_config_complete(char **config, const char *folder, moe_err *err);
#endif
