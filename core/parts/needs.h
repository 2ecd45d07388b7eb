/* What a router declares, held against the contract (abi/moe/router.h) before anything is made of it. */
#ifndef CORE_PARTS_NEEDS_H
#define CORE_PARTS_NEEDS_H
#include <moe/router.h>

enum {
    NEEDS_MAX_SPECS = 64, /* parameters, and states, of one router */
    NEEDS_MAX_LOSSES = 8,
    NEEDS_MAX_NAME = 63 /* bytes */
};

/* [any] Counts, arrays, names, shapes (at most 2^56 numbers a tensor), dtypes, initial values, scopes. Arrays are read
 * up to their declared counts, none of which is believed beyond the limits above. MOE_E_UNSUPPORTED says what is wrong;
 * the caller names the plugin. */
moe_status needs_check_router(const moe_router_needs *n, moe_err *err);
/* [any] "zeros", "ones", "normal SIGMA" with a finite SIGMA >= 0: 1, and the normal's sigma (0 = constant) and the
 * constant; otherwise 0 and nothing. */
int needs_parse_init(const char *init, float *std, float *fill);

#endif
