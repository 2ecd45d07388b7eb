/* Everything that a plugin author needs, in one include. */
#ifndef MOE_PLUGIN_H
#define MOE_PLUGIN_H
#include "base.h"
#include "comm.h"
#include "device.h"
#include "dispatcher.h"
#include "ops.h"
#include "options.h"
#include "precision.h"
#include "random.h"
#include "router.h"
#include "scheduler.h"
#endif
