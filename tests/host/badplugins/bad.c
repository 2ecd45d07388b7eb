/* A router plugin with one fault, chosen when it is compiled: CMakeLists.txt builds it once for each fault, and once
 * without any (good.so), which shows that the host refuses the fault and not the rest. The host trains with none of
 * them, so the step calls do nothing. */
#include <moe/plugin.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what a fault may replace ---- */
#ifndef MAGIC
#define MAGIC MOE_MAGIC
#endif
#ifndef ENTRY_SIZE
#define ENTRY_SIZE sizeof(moe_entry)
#endif
#ifndef MIN_HOST_MINOR
#define MIN_HOST_MINOR 0
#endif
#ifndef POINTER_BITS
#define POINTER_BITS 64
#endif
#ifndef ABI_TAG
#define ABI_TAG MOE_ABI_TAG
#endif
#ifndef DESCS
#define DESCS descs
#endif
#ifndef N_DESCS
#define N_DESCS 1
#endif
#ifndef FIRST_DESC
#define FIRST_DESC &desc
#endif
#ifndef DESC_SIZE
#define DESC_SIZE sizeof(moe_desc)
#endif
#ifndef KIND
#define KIND "router"
#endif
#ifndef KIND_MAJOR
#define KIND_MAJOR 0
#endif
#ifndef ID
#define ID "bad"
#endif
#ifndef DEVICE
#define DEVICE "cpu"
#endif
#ifndef VERSION
#define VERSION "1.0"
#endif
#ifndef OPTIONS
#define OPTIONS options
#endif
#ifndef N_OPTIONS
#define N_OPTIONS 1
#endif
#ifndef OPTION_KEY
#define OPTION_KEY "strength"
#endif
#ifndef OPTION_TYPE
#define OPTION_TYPE "float 0..1"
#endif
#ifndef OPTION_DEFAULT
#define OPTION_DEFAULT "0.5"
#endif
#ifndef VTABLE
#define VTABLE &table
#endif
#ifndef TABLE_SIZE
#define TABLE_SIZE sizeof(moe_router_v0)
#endif
#ifndef ROUTE_BWD
#define ROUTE_BWD step
#endif
#ifndef CREATE
#define CREATE MOE_OK
#endif
#ifndef NEEDS
#define NEEDS MOE_OK
#endif
#ifndef INPUTS
#define INPUTS MOE_ROUTER_LOGITS
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef LOSS_NAMES
#define LOSS_NAMES loss_names
#endif
#ifndef LOSS_NAME
#define LOSS_NAME "first"
#endif
#ifndef PARAMS
#define PARAMS specs
#endif
#ifndef N_PARAMS
#define N_PARAMS 0
#endif
#ifndef STATE
#define STATE specs
#endif
#ifndef N_STATE
#define N_STATE 0
#endif
#ifndef SPEC_NAME
#define SPEC_NAME "gain"
#endif
#ifndef SPEC_INIT
#define SPEC_INIT "ones"
#endif
#ifndef SPEC_NDIM
#define SPEC_NDIM 1
#endif
#ifndef SPEC_DTYPE
#define SPEC_DTYPE MOE_F32
#endif
#ifndef SPEC_SHAPE
#define SPEC_SHAPE \
    { 4, 1, 1, 1 }
#endif
#ifndef ENTRY
#define ENTRY &entry
#endif

/* ---- faults of behaviour ---- */
#define SPARE __attribute__((unused)) /* a fault may leave it without a use */

/* Values of CREATE and NEEDS: with a reason, and without. */
#define REFUSE moe_fail(err, MOE_E_ARG, "the stars are not right: %d of them", 7)
#define SAY_NOTHING MOE_E_UNSUPPORTED
/* Two lines, a colour, and no end. */
#define LITTER (memset(err->msg, 'x', sizeof err->msg), memcpy(err->msg, "two\nlines\033[31m", 14), MOE_E_UNSUPPORTED)
/* Values of CONSTRUCTOR and of ENTRY. */
#define CRASH (void)raise(SIGSEGV)
#define WAIT_FOR_EVER \
    for (;;) pause()
#define LEAVE exit(0)
/* Values of CREATE and NEEDS again: a recursion that has no end. */
#define GO_DEEPER (moe_status) go_deeper(1)

SPARE static int go_deeper(int depth) {
    volatile char frame[512] = {1};
    return depth ? go_deeper(depth + frame[0]) + frame[1] : 0;
}

#ifdef CONSTRUCTOR
__attribute__((constructor)) static void construct(void) {
    CONSTRUCTOR;
}
#endif

#ifdef UNDEFINED
void acme_missing_function(void);
__attribute__((constructor)) static void construct(void) {
    acme_missing_function();
}
#endif

/* ---- the plugin ---- */
static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg, (void)host, (void)err;
    static char nothing;
    *self = &nothing;
    return CREATE;
}

static void destroy(void *self) {
    (void)self;
}

SPARE static const char *const loss_names[] = {LOSS_NAME, "second"};
SPARE static const moe_param_spec specs[] = {{SPEC_NAME, SPEC_INIT, SPEC_NDIM, SPEC_DTYPE, SPEC_SHAPE},
                                             {"gain", "ones", 1, MOE_F32, {4, 1, 1, 1}}};

static moe_status needs(void *self, moe_router_needs *n, moe_err *err) {
    (void)self, (void)err;
    n->inputs = INPUTS;
    n->scope = MOE_SCOPE_TOKEN;
    n->params = PARAMS;
    n->n_params = N_PARAMS;
    n->state = STATE;
    n->n_state = N_STATE;
    n->losses = LOSS_NAMES;
    n->n_losses = LOSSES;
    return NEEDS;
}

static moe_status step(const void *self, const moe_route_args *args, moe_err *err) {
    (void)self, (void)args;
    return moe_fail(err, MOE_E_INTERNAL, "nobody trains with this router");
}

SPARE static const moe_option options[] = {
    {OPTION_KEY, OPTION_TYPE, OPTION_DEFAULT, "of no effect"},
    {"strength", "float 0..1", "0.5", "for n_options = 2: the first one's twin"},
};
SPARE static const moe_router_v0 table = {
    (uint32_t)(TABLE_SIZE), 0, create, destroy, needs, step, ROUTE_BWD, NULL, NULL};
SPARE static const moe_desc desc = {.size = (uint32_t)(DESC_SIZE),
                                    .kind_major = KIND_MAJOR,
                                    .kind = KIND,
                                    .id = ID,
                                    .device = DEVICE,
                                    .version = VERSION,
                                    .vendor = "nobody",
                                    .license = "none",
                                    .summary = "a router with one fault",
                                    .options = OPTIONS,
                                    .n_options = N_OPTIONS,
                                    .vtable = VTABLE};
SPARE static const moe_desc *const descs[] = {FIRST_DESC, &desc}; /* n_descs = 2: two of one key */
SPARE static const moe_entry entry = {
    MAGIC, (uint32_t)(ENTRY_SIZE), MOE_MINOR, MIN_HOST_MINOR, POINTER_BITS, N_DESCS, ABI_TAG, DESCS};

#ifdef NO_ENTRY
#define moe_plugin_entry_v0 moe_plugin_entry_v9
MOE_EXPORT const moe_entry *moe_plugin_entry_v9(void);
#endif
const moe_entry *moe_plugin_entry_v0(void) {
#ifdef ENTRY_DOES
    ENTRY_DOES;
#endif
    return ENTRY;
}
