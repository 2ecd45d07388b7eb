/* The one export. */
#include "odd.h"

static const moe_desc *const descs[] = {&odd_router, &odd_dispatcher, &odd_scheduler};
MOE_PLUGIN(descs)
