/* Loading of the plugin under trial, its instance, device memory, and calls as the executor would make them. */
#include "tryout.h"

#include <io/fs.h>
#include <moe/options.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "handshake.h"
#include "suggest.h"

#define NAME "moehost probe"

/* ---- errors ---- */
static _Thread_local const char *current_call;

const char *tryout_current(void) {
    return current_call;
}

/* "router/topk route: " before the text that is there. */
static moe_status named(const tryout *t, const char *what, moe_status status, moe_err *err) {
    char msg[sizeof err->msg];
    if (!status) return MOE_OK;
    memcpy(msg, err->msg, sizeof msg);
    msg[sizeof msg - 1] = 0;
    return moe_fail(err, status, "%.24s/%.24s%s%s: %s", t->plugin.desc->kind, t->plugin.desc->id, *what ? " " : "",
                    what, msg[0] ? msg : "failed without a reason");
}

moe_status tryout_broken(const tryout *t, moe_err *err, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(err->msg, sizeof err->msg, format, ap);
    va_end(ap);
    return named(t, "", MOE_E_INTERNAL, err);
}

/* ---- the command line ---- */
enum { ROUTER = 1, PRECISION = 2, DISPATCHER = 4, SCHEDULER = 8 };
static const struct {
    const char *kind;
    int bit;
} kinds[] = {{"router", ROUTER}, {"precision", PRECISION}, {"dispatcher", DISPATCHER}, {"scheduler", SCHEDULER}};

/* What each option is for; those that are not here are for all. */
static const struct {
    const char *option;
    int kinds;
} uses[] = {
    {"in", ROUTER | PRECISION | DISPATCHER},
    {"ranks", DISPATCHER | SCHEDULER},
    {"backward", ROUTER | PRECISION},
    {"top-k", ROUTER},
    {"seq-len", ROUTER},
    {"seed", ROUTER},
    {"layer", ROUTER | DISPATCHER},
    {"experts", ROUTER | DISPATCHER},
    {"ep", DISPATCHER},
    {"etp", DISPATCHER},
    {"row-align", DISPATCHER},
    {"min-rows", DISPATCHER},
    {"recv-rows", DISPATCHER},
    {"overflow", DISPATCHER},
    {"node-size", DISPATCHER},
    {"layers", SCHEDULER},
    {"microbatches", SCHEDULER},
};

static int usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int usage(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    fputs(NAME ": ", stderr);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    return EXIT_CODE_USAGE;
}

static int bit_of(const char *kind) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].kind, kind) == 0) return kinds[i].bit;
    return 0;
}

static int refuse_kind(const char *kind) {
    char hint[96];
    suggest near = suggest_begin(kind);
    for (size_t i = 0; handshake_kind(i); i++) {
        if (strcmp(handshake_kind(i), kind) == 0)
            return usage("kind %s takes no tensors: probe runs a router, precision, dispatcher or scheduler", kind);
        suggest_offer(&near, handshake_kind(i));
    }
    return usage("unknown kind '%.60s'%s", kind, suggest_text(&near, hint, sizeof hint));
}

/* An option that the kind would not look at. */
static int refuse_useless(const command_args *args, const char *kind) {
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        const char *option = uses[i].option;
        if ((uses[i].kinds & bit_of(kind)) || !command_value(args, option)) continue;
        if (strcmp(option, "ranks") == 0 && command_int(args, option, 1) == 1) continue; /* says what is so */
        return usage("--%s has no effect on a %s", option, kind);
    }
    return EXIT_CODE_OK;
}

/* "router/topk", "router//path/of/a.so" -> kind and name. */
static int read_words(tryout *t, const char **name) {
    const char *text = t->args->positional[0], *slash = strchr(text, '/');
    if (!slash || slash == text || !slash[1])
        return usage("'%.200s' is not KIND/ID, as in router/topk or router/./mine.so", text);
    t->kind = arena_printf(&t->memory, "%.*s", (int)(slash - text), text);
    *name = slash + 1;
    if (!t->kind) return usage("out of memory");
    if (!bit_of(t->kind)) return refuse_kind(t->kind);
    int code = refuse_useless(t->args, t->kind);
    if (code) return code;
    t->in = command_value(t->args, "in");
    t->out = command_value(t->args, "out");
    t->ranks = (uint32_t)command_int(t->args, "ranks", 1);
    t->layer = (uint32_t)command_int(t->args, "layer", 0);
    bool files = bit_of(t->kind) != SCHEDULER;
    if (files && (!t->in || !t->out)) return usage("--in FILE and --out FILE are needed to probe a %s", t->kind);
    if (files && (strcmp(t->in, t->out) == 0 || fs_same_file(t->in, t->out)))
        return usage("--in and --out are one file, %.300s", t->in);
    return EXIT_CODE_OK;
}

/* ---- plugins ---- */
static int load_one(tryout *t, const char *kind, const char *name, const char *device, part_ref *out, err_list *errs) {
    char *dir = getcwd(NULL, 0), *where = arena_printf(&t->memory, NAME ": %s", kind);
    const loader_request request = {kind, name, device, dir, where ? where : NAME};
    loader_found found;
    bool ok = loader_find(t->loader, &request, &found, errs);
    free(dir);
    if (!ok) return EXIT_CODE_PLUGIN;
    out->desc = found.desc;
    out->table = found.vtable;
    return EXIT_CODE_OK;
}

static int resolve(tryout *t, part_ref *ref, const recipe_option *given, size_t n, options *o, err_list *errs) {
    char *owner = arena_printf(&t->memory, NAME ": %s/%s", ref->desc->kind, ref->desc->id);
    if (!options_resolve(ref->desc, given, n, owner ? owner : NAME, o, errs)) return EXIT_CODE_USAGE;
    ref->kv = o->kv;
    ref->n_kv = o->n;
    return EXIT_CODE_OK;
}

/* The --set of the command line as options of the plugin; a later one of the same key counts. */
static int take_sets(tryout *t, recipe_option **given, size_t *n, err_list *errs) {
    *given = arena_alloc(&t->memory, COMMAND_VALUES * sizeof **given);
    for (int i = 0; *given && i < t->args->n_given; i++) {
        const char *text = t->args->given[i].text, *equals = strchr(text, '=');
        if (strcmp(t->args->given[i].option->name, "set") != 0) continue;
        if (!equals || equals == text) {
            err_list_add(errs, NAME ": --set: '%.100s' is not key=value", text);
            return EXIT_CODE_USAGE;
        }
        char *key = arena_printf(&t->memory, "%.*s", (int)(equals - text), text);
        char *where = arena_printf(&t->memory, NAME ": --set %s", text);
        if (!key || !where) return EXIT_CODE_FAILED;
        (*given)[(*n)++] = (recipe_option){.key = key, .value = equals + 1, .where = where, .where_key = where};
    }
    return *given ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

static int load_all(tryout *t, const char *name, err_list *errs) {
    const char *device = command_value(t->args, "device");
    recipe_option *given = NULL;
    size_t n = 0;
    int code = load_one(t, "device", device ? device : "cpu", NULL, &t->device, errs);
    if (!code) code = load_one(t, t->kind, name, t->device.desc->device, &t->plugin, errs);
    if (!code && t->ranks > 1 && strcmp(t->kind, "dispatcher") == 0)
        code = load_one(t, "comm", "threads", t->device.desc->device, &t->comm, errs);
    if (!code) code = take_sets(t, &given, &n, errs);
    if (!code) code = resolve(t, &t->plugin, given, n, &t->options[0], errs);
    if (!code) code = resolve(t, &t->device, NULL, 0, &t->options[1], errs);
    if (!code && t->comm.desc) code = resolve(t, &t->comm, NULL, 0, &t->options[2], errs);
    if (code && err_list_count(errs) == 0) err_list_add(errs, NAME ": out of memory");
    return code;
}

static int open_file(tryout *t) {
    moe_err err = {.size = sizeof err};
    if (!t->in) return EXIT_CODE_OK;
    moe_status status = st_open(t->in, &t->file, &err);
    if (!status) t->seen = arena_alloc(&t->memory, st_count(t->file) + 1);
    if (!status && t->seen) return EXIT_CODE_OK;
    fprintf(stderr, "moehost: %s\n", status ? err.msg : "out of memory");
    return EXIT_CODE_FAILED;
}

int tryout_open(tryout *t, const command_args *args) {
    const char *name = NULL;
    err_list errs = {.n = 0};
    *t = (tryout){.args = args};
    t->last = &t->results;
    int code = read_words(t, &name);
    if (code) return code;
    t->loader = command_loader();
    if (!t->loader) return EXIT_CODE_USAGE;
    code = load_all(t, name, &errs);
    err_list_print(&errs, stderr);
    err_list_clear(&errs);
    return code ? code : open_file(t);
}

void tryout_close(tryout *t) {
    st_close(t->file);
    for (size_t i = 0; i < sizeof t->options / sizeof t->options[0]; i++) options_free(&t->options[i]);
    loader_destroy(t->loader);
    arena_free(&t->memory);
    *t = (tryout){0};
}

/* ---- a rank ---- */
typedef struct tryout_block {
    struct tryout_block *next;
    void *ptr;
    uint64_t bytes;
} tryout_block;

static moe_status make_parts(tryout_rank *r, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    const tryout *t = r->t;
    parts_cfg cfg = {.device = t->device,
                     .comm = t->comm,
                     .n_layers = t->layer + 1,
                     .rank = rank,
                     .world = t->ranks,
                     .bootstrap = bootstrap,
                     .log = plugin_log};
    if (strcmp(t->kind, "precision") == 0) cfg.precision = t->plugin;
    if (strcmp(t->kind, "dispatcher") == 0) cfg.dispatcher = t->plugin;
    if (strcmp(t->kind, "scheduler") == 0) cfg.scheduler = t->plugin;
    r->routers = arena_alloc(&r->memory, cfg.n_layers * sizeof *r->routers);
    if (!r->routers) return moe_fail(err, MOE_E_NOMEM, "out of memory for %u layers", cfg.n_layers);
    r->routers[t->layer] = t->plugin;
    cfg.routers = r->routers;
    return parts_create(&r->parts, &cfg, err);
}

moe_status tryout_rank_open(tryout_rank *r, tryout *t, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    *r = (tryout_rank){.t = t};
    moe_status status = make_parts(r, rank, bootstrap, err);
    if (!status) status = r->parts->device->stream_create(r->parts->device_self, "probe", &r->stream, err);
    if (!status && parts_async(r->parts, &t->plugin))
        status = tryout_alloc(r, sizeof *r->fault, (void **)&r->fault, err);
    return status;
}

void tryout_rank_close(tryout_rank *r) {
    parts *p = r->parts;
    if (!p) return;
    if (r->stream) p->device->stream_destroy(p->device_self, r->stream);
    for (tryout_block *b = r->blocks; b; b = b->next)
        p->device->free(p->device_self, MOE_SPACE_DEVICE, b->ptr, b->bytes);
    parts_destroy(p);
    r->parts = NULL;
    r->stream = NULL;
    r->blocks = NULL;
}

void tryout_rank_free(tryout_rank *r) {
    tryout_rank_close(r);
    arena_free(&r->memory);
}

moe_status tryout_alloc(tryout_rank *r, uint64_t bytes, void **out, moe_err *err) {
    const moe_device_v0 *d = r->parts->device;
    tryout_block *b = arena_alloc(&r->memory, sizeof *b);
    if (!b) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    if (bytes < 1) bytes = 1;
    moe_status status = d->alloc(r->parts->device_self, MOE_SPACE_DEVICE, bytes, &b->ptr, err);
    if (status) return status;
    b->bytes = bytes;
    b->next = r->blocks;
    r->blocks = b;
    *out = b->ptr;
    return MOE_OK;
}

moe_status tryout_make(tryout_rank *r, moe_tensor *out, int32_t dtype, int32_t ndim, int64_t a, int64_t b, int poison,
                       moe_err *err) {
    const moe_device_v0 *d = r->parts->device;
    *out = (moe_tensor){.dtype = dtype, .ndim = ndim, .shape = {a, ndim > 1 ? b : 1, 1, 1}};
    uint64_t bytes = tryout_bytes(dtype, a * out->shape[1]);
    moe_status status = tryout_alloc(r, bytes, &out->data, err);
    if (status || !poison || !bytes) return status;
    uint8_t byte = dtype == MOE_I32 || dtype == MOE_I64 ? 0x7f : 0xff; /* a huge number; not a number */
    status = d->fill(r->parts->device_self, r->stream, out->data, byte, bytes, err);
    return status ? status : d->stream_sync(r->parts->device_self, r->stream, err);
}

moe_status tryout_copy(tryout_rank *r, void *to, const void *from, uint64_t bytes, moe_err *err) {
    const moe_device_v0 *d = r->parts->device;
    if (!bytes) return MOE_OK;
    moe_status status = d->copy(r->parts->device_self, r->stream, to, from, bytes, err);
    return status ? status : d->stream_sync(r->parts->device_self, r->stream, err);
}

moe_status tryout_upload(tryout_rank *r, const tryout_tensor *from, moe_tensor *to, moe_err *err) {
    *to = (moe_tensor){.shape = {1, 1, 1, 1}};
    if (!from->name) return MOE_OK;
    *to = (moe_tensor){.dtype = from->dtype, .ndim = from->ndim};
    memcpy(to->shape, from->shape, sizeof to->shape);
    uint64_t bytes = tryout_bytes(from->dtype, from->elements);
    moe_status status = tryout_alloc(r, bytes, &to->data, err);
    return status ? status : tryout_copy(r, to->data, from->data, bytes, err);
}

moe_status tryout_download(tryout_rank *r, const moe_tensor *from, tryout_tensor *to, moe_err *err) {
    *to = (tryout_tensor){.name = "", .dtype = from->dtype, .ndim = from->ndim, .elements = 1};
    memcpy(to->shape, from->shape, sizeof to->shape);
    for (int i = 0; i < from->ndim; i++) to->elements *= from->shape[i];
    uint64_t bytes = tryout_bytes(to->dtype, to->elements);
    to->data = arena_alloc(&r->memory, bytes + 1);
    if (!to->data) return moe_fail(err, MOE_E_NOMEM, "out of memory for results");
    return tryout_copy(r, to->data, from->data, bytes, err);
}

/* ---- calls ---- */
typedef struct step_call {
    tryout_fn fn;
    void *ctx;
    const char *name;
    moe_status status;
    moe_err *err;
} step_call;

static void run_call(void *arg) {
    step_call *c = arg;
    current_call = c->name;
    c->status = c->fn(c->ctx, c->err);
    current_call = NULL;
}

/* What an asynchronous call has found in its data. */
static moe_status read_fault(tryout_rank *r, moe_err *err) {
    moe_fault f = {0};
    if (!r->fault) return MOE_OK;
    moe_status status = tryout_copy(r, &f, r->fault, sizeof f, err);
    if (!status && f.code)
        status = moe_fail(err, (moe_status)f.code, "layer %lld: token %lld: %lld", (long long)f.layer,
                          (long long)f.token, (long long)f.value);
    return status;
}

moe_status tryout_call(tryout_rank *r, const char *what, tryout_fn fn, void *ctx, moe_err *err) {
    const parts *p = r->parts;
    const moe_desc *desc = r->t->plugin.desc;
    moe_err late = {.size = sizeof late};
    char name[96];
    snprintf(name, sizeof name, "%.24s/%.24s %s", desc->kind, desc->id, what);
    step_call c = {.fn = fn, .ctx = ctx, .name = name, .status = MOE_OK, .err = err};
    err->msg[0] = 0;
    moe_status status = MOE_OK;
    if (parts_async(p, &r->t->plugin))
        run_call(&c);
    else
        status = p->device->call_host(p->device_self, r->stream, run_call, &c, err);
    moe_status end = p->device->stream_sync(p->device_self, r->stream, &late);
    if (!status) status = c.status;
    if (!status && end) *err = late, status = end;
    if (!status) status = read_fault(r, err);
    return named(r->t, what, status, err);
}
