/* The template router, which says on stderr when its instances come and go, when its atexit handler runs, and when its
 * ELF destructor does; and which can fail, or call exit, in the middle of a step. */
#include <moe/plugin.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#undef MOE_PLUGIN
#define MOE_PLUGIN(descs_) /* the export is ours, below */
#include "template/router.c"

static atomic_int alive, calls, registered, exit_at, fail_at;

static void say(const char *what) {
    char line[64];
    int n = snprintf(line, sizeof line, "leaving: %s, %d alive\n", what, alive);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n);
    (void)ignored;
}

static void at_exit(void) {
    say("atexit");
}

__attribute__((destructor)) static void destruct(void) {
    if (registered) say("destructor"); /* the probe makes no instance */
}

static moe_status noted_create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    moe_status status = create(cfg, host, self, err);
    if (status) return status;
    if (!atomic_exchange(&registered, 1)) atexit(at_exit);
    exit_at = (int)moe_kv_int(cfg->kv, cfg->n_kv, "exit_at", 0);
    fail_at = (int)moe_kv_int(cfg->kv, cfg->n_kv, "fail_at", 0);
    alive++;
    say("create");
    return MOE_OK;
}

static void noted_destroy(void *self) {
    destroy(self);
    alive--;
    say("destroy");
}

static moe_status noted_route(const void *self, const moe_route_args *a, moe_err *err) {
    const int call = ++calls;
    if (call == exit_at) exit(0);
    if (call == fail_at) return moe_fail(err, MOE_E_INTERNAL, "call %d is one too many", call);
    return route(self, a, err);
}

static const moe_option own_options[] = {{"exit_at", "int 0..1000000", "0", "number of the call that exits; 0 = none"},
                                         {"fail_at", "int 0..1000000", "0", "number of the call that fails"}};
static const moe_router_v0 own_table = {sizeof(moe_router_v0), 0,         noted_create, noted_destroy, needs,
                                        noted_route,           route_bwd, NULL,         NULL};
static const moe_desc own_desc = {.size = sizeof(moe_desc),
                                  .kind = "router",
                                  .id = "leaving",
                                  .device = "cpu",
                                  .version = "1.0",
                                  .vendor = "nobody",
                                  .license = "none",
                                  .summary = "the template, with handlers at its end",
                                  .options = own_options,
                                  .n_options = 2,
                                  .vtable = &own_table};
static const moe_desc *const own_descs[] = {&own_desc};

const moe_entry *moe_plugin_entry_v0(void) {
    static const moe_entry entry = {MOE_MAGIC, sizeof(moe_entry), MOE_MINOR, 0, 8 * sizeof(void *),
                                    1,         MOE_ABI_TAG,       own_descs};
    (void)descs; /* the template's */
    return &entry;
}
