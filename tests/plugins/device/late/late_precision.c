/* precision/fp32 and bf16 for device "late": the CPU's, which call the device's products and are as asynchronous as it
 * is. */
#include "bridge.h"

BRIDGE_PLUGIN("precision/" LATE_ID, MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE, NULL)
