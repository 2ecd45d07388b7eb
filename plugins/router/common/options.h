/* What routers do when they are created: options by the published schema, sizes, and the threads of the device. */
#ifndef ROUTER_COMMON_OPTIONS_H
#define ROUTER_COMMON_OPTIONS_H
#include <moe/plugin.h>

/* The options of a router, and what the recipe gives for them. Borrowed. */
typedef struct router_options {
    const moe_option *schema; /* [n] */
    uint32_t n;
    const moe_router_cfg *cfg;
} router_options;

/* All below: [main]; key is one of the schema. MOE_E_ARG names key and value. */
/* The text given for key, or its default. */
const char *router_value(const router_options *o, const char *key);
/* Refuses keys that are not in the schema. */
moe_status router_refuse_unknown(const router_options *o, moe_err *err);
/* out = place of the value among the words of the option's type ("enum A|B", or bool: false, true); every other word is
 * refused, whatever the host let through. */
moe_status router_read_word(const router_options *o, const char *key, int *out, moe_err *err);
/* A number in the range of the option's type: "float LO..HI" or "int LO..HI". */
moe_status router_read_number(const router_options *o, const char *key, double *out, moe_err *err);

/* Refuses sizes that no router of experts has: no experts, k outside 1..experts, negative tokens (MOE_E_ARG), identity
 * experts (MOE_E_UNSUPPORTED). id: for the message. */
moe_status router_refuse_sizes(const moe_router_cfg *cfg, const char *id, moe_err *err);

/* The device's moe.parallel/0; NULL where it has none, or one thread. */
const moe_parallel *router_find_pool(const moe_host *host);
#endif
